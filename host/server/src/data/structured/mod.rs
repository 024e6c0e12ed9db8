//! Output that must be something: JSON, a schema's JSON, what a regex or a grammar matches, one of some texts.
//!
//! `shape` reads what a request asks, `compiler` turns it into an automaton off the engine thread and within
//! bounds, `mask` tells the sampler which tokens may follow, `ahead` computes that before the sampler asks. The automata are
//! llguidance's.

mod ahead;
mod compiler;
mod mask;
mod shape;

pub use compiler::Compiler;
pub use mask::{Mask, Prelude};
pub use shape::{Shape, check_schemas, with_options};
