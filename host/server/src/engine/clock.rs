//! The real clock, as the engine counts: microseconds since the host started.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use infer_core::Micros;

/// Monotonic time since start. Cheap to copy; all copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    started_unix_s: u64,
}

impl Clock {
    /// A clock whose origin is now.
    pub fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { origin: Instant::now(), started_unix_s: unix.as_secs() }
    }

    /// Now.
    pub fn now(&self) -> Micros {
        Micros(u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX - 1))
    }

    /// Now in milliseconds since start.
    pub fn now_ms(&self) -> u64 {
        self.now().0 / 1_000
    }

    /// Now in seconds since 1970, as far as the start's wall clock was right.
    pub fn unix_s(&self) -> u64 {
        self.started_unix_s + self.origin.elapsed().as_secs()
    }

    /// When the host started, in seconds since 1970.
    pub fn started_unix_s(&self) -> u64 {
        self.started_unix_s
    }
}
