//! Recordings of what the engine does, as JSON lines: written here, and read again for replays.
//!
//! The engine thread sends what happens and never waits; a reader that is too slow loses some of it, and the recording
//! says so. Texts don't leave the host: a recording holds lengths, times, and block names that are hashed with a secret
//! key of the recording. Deliberately absent: files, HTTP.

mod decision;
mod happening;
mod names;
mod recorded;
mod settings;
mod tap;
mod writer;

pub use decision::{Question, answer_json};
pub use happening::Happening;
pub use recorded::{LeftOut, MAX_LINE_BYTES, RecordedLines, RecordedRequests};
pub use settings::{engine_config, settings, terms};
pub use tap::{Recording, Tap};
pub use writer::{Writer, describe};
