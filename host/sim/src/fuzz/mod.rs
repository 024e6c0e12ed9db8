//! The fault machine: a seed makes a host, its traffic and everything that goes wrong with both, and after
//! each step all invariants are checked (after TigerBeetle's VOPR).
//!
//! A case is data: a setup and a list of operations, each of which is meaningful whatever comes before it. So
//! a seed replays exactly, a failing case shrinks by leaving operations out, and the rest is a file. The
//! judge (`clients`, `inspector`, `ledger`, `patience`, `overtaking`) keeps books of its own: it sees what the
//! driver and the device see, reads the engine's tables only to recount them, and asks only which requests
//! admission holds.
//!
//! Deliberately absent: clocks (`hunt` has one to report a seed that hangs, but decides nothing by it), files,
//! components (callers may pass some as `Outsider`s), and any other part of this crate: it needs only
//! `infer_core`.

mod case;
mod clients;
mod generate;
mod hunt;
mod inspector;
mod ledger;
mod machine;
mod minimize;
mod overtaking;
mod patience;
mod policies;
mod report;
mod watch;

pub use case::{Ask, Case, CaseError, Mode, Op, Script, Setup, Slot, Style, Trouble};
pub use generate::{OPS, generate};
pub use hunt::{Hunt, Summary};
pub use machine::{Checks, Outcome, Outsider, Violation, play};
pub use minimize::minimize;
pub use report::Reached;
