//! Recordings: what the engine does, told by its thread, written as JSON lines by whoever reads them.
//!
//! The engine thread hands over what happened and never waits; a reader that is too slow loses the rest
//! of it, and the lines say so. Texts stay here: what leaves is lengths, times, and names of blocks that
//! are keyed by a secret of the recording. Deliberately absent: files, HTTP.

mod decision;
mod names;
mod settings;
mod tap;
mod writer;

pub use decision::{Question, answer_json};
pub use settings::{engine_config, settings};
pub use tap::{Happening, Recording, Tap};
pub use writer::{Writer, describe};
