//! The engine and the fault machine once more, from the same sources, with bugs planted by `build.rs`. Each is
//! off until a thread switches it on.
//!
//! The production crates hold no trace of them: no feature, no configuration, no hook. A bug is an edit of the
//! source as it is now, and an edit that no longer fits fails the build, so none can lose its meaning quietly.
#![forbid(unsafe_code)]
#![allow(clippy::all, reason = "the sources are judged where they stand; a planted bug is no good code")]

extern crate self as infer_core;

pub mod bugs;

include!(concat!(env!("OUT_DIR"), "/modules.rs"));
