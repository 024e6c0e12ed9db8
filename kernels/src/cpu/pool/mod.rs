//! Threads for the operations of a step. A step has hundreds of operations of a few microseconds, so waking a
//! thread for each would eat what it brings: helpers look for the next job for a while before they sleep.
//!
//! Work is claimed in pieces, by whoever is there. A helper that another process keeps from running holds up
//! only the piece that it claimed; the caller does the rest, then waits a bounded time and sleeps, which gives
//! the helper this core. Nothing spins without a bound, between requests everybody sleeps.

mod protocol;

#[cfg(test)]
mod tests;

pub(super) use protocol::Pool;

/// What the protocol is made of. `tests/interleave` gives it another one.
mod world {
    pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
    pub use std::sync::{Arc, Mutex};
    pub use std::thread::{Builder, JoinHandle, Thread, current, park};
    use std::time::{Duration, Instant};

    /// Looks until `found`, but not much longer than `limit`. Returns whether it was found.
    pub fn spin(limit: Duration, found: impl Fn() -> bool) -> bool {
        let mut end = None;
        loop {
            for _ in 0..32 {
                if found() {
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now > *end.get_or_insert(now + limit) {
                return found();
            }
        }
    }
}
