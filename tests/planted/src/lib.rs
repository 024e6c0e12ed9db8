//! The engine and the fault machine built again from the same sources, with bugs planted by `build.rs`. Each
//! is off until a thread switches it on.
//!
//! The production crates hold no trace of them: no feature, no configuration, no hook. A bug is an edit of
//! the current source, and an edit that no longer fits fails the build, so none can lose its meaning
//! unnoticed.
#![forbid(unsafe_code)]
#![allow(clippy::all, reason = "the sources are linted in their own crates; a planted bug is bad code")]

extern crate self as infer_core;

pub mod bugs;

include!(concat!(env!("OUT_DIR"), "/modules.rs"));
