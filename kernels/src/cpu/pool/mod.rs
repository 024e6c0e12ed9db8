//! Threads for the operations of a step. A step has hundreds of operations of a few microseconds, so waking a thread for each
//! would cost as much as it saves: helpers spin for a while before they sleep.
//!
//! Threads claim work in pieces. A helper that is descheduled delays only the piece it claimed; the caller does the rest,
//! then spins for a bounded time and sleeps, which frees its core for the helper. All spinning is bounded, and between
//! requests all threads sleep.

mod protocol;

#[cfg(test)]
mod tests;

pub(super) use protocol::Pool;

/// The primitives that the protocol uses. `tests/interleave` substitutes others.
mod world {
    pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
    pub use std::sync::{Arc, Mutex};
    pub use std::thread::{Builder, JoinHandle, Thread, current, park};
    use std::time::{Duration, Instant};

    /// Spins until `found` returns true, but not much longer than `limit`. Returns whether it did.
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
