//! Policy faults on disk: the call that failed, with the component beside it, so that `infer policy replay` can repeat
//! it.
//!
//! One file for the first fault of each component, configuration, function and kind of fault, a few dozen in all, in a
//! directory that only this user can read: views hold tenants' numbers and lengths, never text. A separate thread
//! writes them. Deliberately absent: the requests themselves, and whatever else the host knows.

mod as_test;
mod format;
mod plan;
mod recorder;
mod replay;
mod storage;

pub use as_test::as_test;
pub use format::{
    cache_events_json, cache_events_of_json, question_json, question_of_json, step_view_json,
    step_view_of_json,
};
pub use recorder::FaultRecorder;
pub use replay::{ReplayError, ReplayOptions, Replayed, replay};

use std::path::PathBuf;

/// Returns the default directory of fault files.
pub fn default_dir() -> Option<PathBuf> {
    crate::policies::cache_base().map(|base| base.join("faults"))
}
