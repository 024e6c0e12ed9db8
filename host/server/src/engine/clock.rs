//! The real clock in the engine's unit: microseconds since the host started.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use infer_core::Micros;

/// Monotonic time since the start. Copies share the origin.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    started_unix_s: u64,
}

impl Clock {
    /// Returns a clock whose origin is now.
    pub fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { origin: Instant::now(), started_unix_s: unix.as_secs() }
    }

    /// Returns the time since the start.
    pub fn now(&self) -> Micros {
        Micros(u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX - 1))
    }

    /// Returns the milliseconds since the start.
    pub fn now_ms(&self) -> u64 {
        self.now().0 / 1_000
    }

    /// Returns the seconds since 1970, going by the wall clock at the start.
    pub fn unix_s(&self) -> u64 {
        self.started_unix_s + self.origin.elapsed().as_secs()
    }

    /// Returns when the host started, in seconds since 1970.
    pub fn started_unix_s(&self) -> u64 {
        self.started_unix_s
    }
}
