//! The real clock in the engine's unit: microseconds since the host started.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use infer_core::Micros;

use crate::utc::utc;

/// Monotonic time since the start. Copies share the origin.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    /// The start by the wall clock, as time since 1970.
    started: Duration,
}

impl Clock {
    /// Returns a clock whose origin is now.
    pub fn start() -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { origin: Instant::now(), started }
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
        (self.started + self.origin.elapsed()).as_secs()
    }

    /// Returns the time of day of an instant, going by the wall clock at the start.
    pub fn utc(&self, at: Micros) -> String {
        utc(self.started.saturating_add(Duration::from_micros(at.0)))
    }

    /// Returns when the host started, in seconds since 1970.
    pub fn started_unix_s(&self) -> u64 {
        self.started.as_secs()
    }
}
