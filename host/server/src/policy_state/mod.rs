//! Swaps, histories, the quarantine and what policies know across restarts (`--policy-state`): the first three are
//! saved after each change, the last as often as the engine leaves it, and all of it is restored at the start.
//!
//! What flags and files say is saved with swaps. Where it is something else at the next start, it wins: somebody
//! changed it on purpose. A canary whose trial was not over is not saved, nor is the built-in in place of a removed
//! policy: what is configured gets its slot back, unless it is in quarantine itself.
//!
//! What policies know (`export-state`) is told in a clock, in ids and in numbers of tenants. So these are saved with
//! it, and go on with the next host. It goes to a live policy of the same name, as at a swap.

mod exported;
mod format;
mod keeper;
mod restore;
mod store;

pub use keeper::Keeper;
pub use restore::{Found, Restored, check_place, open};

/// Reads the bytes of a file, of swaps or of what policies exported, for `edges`. What is read could be written again,
/// and then be read.
///
/// # Errors
/// What is wrong with them.
pub fn examine(bytes: &[u8]) -> Result<(), String> {
    format::examine(bytes).or_else(|_| exported::examine(bytes))
}
