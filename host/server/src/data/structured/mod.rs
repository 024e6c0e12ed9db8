//! Output that must be something: JSON, a schema's JSON, what a regex or a grammar matches, one of some texts.
//!
//! `shape` reads what a request asks, `keywords` and `pattern` know what of a schema can be enforced, `compiler` turns
//! it into an automaton off the engine thread and within bounds, `mask` tells the sampler which tokens may follow,
//! `ahead` computes that before the sampler asks, `room` bounds the memory of all automata, `turns` says who compiles
//! next, `prelude` knows where the form begins. The automata are llguidance's.

mod ahead;
mod compiler;
mod keywords;
mod mask;
mod pattern;
mod prelude;
mod room;
mod shape;
mod turns;

pub use compiler::Compiler;
pub use keywords::ready;
pub use mask::Mask;
pub use prelude::{Calling, Messages, Prelude};
pub use shape::{Blanks, NOT_STRICT, Shape, check_schemas, is_strict, with_options};
