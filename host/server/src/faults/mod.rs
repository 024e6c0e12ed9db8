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

use std::io;
use std::path::{Path, PathBuf};

use crate::config::{Config, ConfigError};

/// Returns the default directory of fault files.
pub fn default_dir() -> Option<PathBuf> {
    crate::policies::cache_base().map(|base| base.join("faults"))
}

/// Refuses a configured directory that can't be used, without changing anything.
pub fn check_place(config: &Config) -> Result<(), ConfigError> {
    match config.fault_dir.as_deref().map(|dir| (dir, storage::check(dir))) {
        Some((dir, Err(error))) if error.kind() != io::ErrorKind::NotFound => Err(wrong_place(dir, &error)),
        _ => Ok(()),
    }
}

/// What to say of a configured directory.
pub fn wrong_place(dir: &Path, why: &io::Error) -> ConfigError {
    ConfigError(format!("--fault-dir: {}: {why}", dir.display()))
}
