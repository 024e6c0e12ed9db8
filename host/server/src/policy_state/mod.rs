//! Swaps, histories and the quarantine across restarts (`--policy-state`): saved after each change, restored at the
//! start.
//!
//! What flags and files say is saved with them. Where it is something else at the next start, it wins: somebody changed
//! it on purpose. A canary whose trial was not over is not saved, nor is the built-in in place of a removed policy: what
//! is configured gets its slot back, unless it is in quarantine itself. Deliberately absent: what policies know
//! (`export-state`), which is told in a clock and in numbers that the next host doesn't share.

mod format;
mod keeper;
mod restore;
mod store;

pub use format::examine;
pub use keeper::Keeper;
pub use restore::{Found, Restored, check_place, open};
