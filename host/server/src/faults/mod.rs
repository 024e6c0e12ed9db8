//! Policy faults on disk: what a policy was asked when it failed, with the component beside it, so that
//! `infer policy replay` can ask again.
//!
//! One file for the first fault of each component, question and kind of fault, a few dozen in all, in a
//! directory that only this user can read: views name tenants and lengths, never text. Written by a
//! thread of its own. Deliberately absent: the requests themselves, and whatever else the host knew.

mod format;
mod library;
mod plan;
mod recorder;
mod replay;
mod storage;

pub use format::{
    cache_events_json, cache_events_of_json, question_json, question_of_json, step_view_json,
    step_view_of_json,
};
pub use library::{Component, Library, Loaded, Member};
pub use recorder::FaultRecorder;
pub use replay::{ReplayError, ReplayOptions, Replayed, replay};

use std::path::PathBuf;

/// Where fault files stand unless somebody says otherwise.
pub fn default_dir() -> Option<PathBuf> {
    crate::policies::cache_base().map(|base| base.join("faults"))
}
