//! The fault machine: one seed makes a host, its traffic and everything that goes wrong with both, and after
//! each step all that must hold is checked (after TigerBeetle's VOPR).
//!
//! A case is data: a setup and a list of operations, each of which means something whatever stands before it.
//! So a seed replays exactly, a failing case shrinks by leaving operations out, and what is left is a file.
//! The judge (`clients`, `inspector`, `ledger`, `patience`) keeps books of its own: it is told what the driver
//! and the device are told, and reads the engine's tables only to count them again.
//!
//! Deliberately absent: clocks, files, components (whoever calls it may hand some in as `Outsider`s), and
//! anything of this crate but this folder: it needs `infer_core` alone.

mod case;
mod clients;
mod generate;
mod hunt;
mod inspector;
mod ledger;
mod machine;
mod minimize;
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
