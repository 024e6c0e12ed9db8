//! The real clock in the engine's unit: microseconds since the host started or, if it goes on where an earlier host's
//! stopped (`--policy-state`), since that one did.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use infer_core::Micros;

use crate::utc::utc;

/// Monotonic time. Copies share the origin.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    /// What it shows at the start.
    begin: Micros,
    /// The start by the wall clock, as time since 1970.
    started: Duration,
}

impl Clock {
    /// Returns a clock that shows 0 now.
    pub fn start() -> Self {
        Self::start_at(Micros::ZERO)
    }

    /// Returns a clock that shows `begin` now.
    pub fn start_at(begin: Micros) -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { origin: Instant::now(), begin, started }
    }

    /// Returns what it shows now.
    pub fn now(&self) -> Micros {
        let passed = u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.begin.plus(Micros(passed)).min(Micros(u64::MAX - 1))
    }

    /// Returns what it showed at the start.
    pub fn begin(&self) -> Micros {
        self.begin
    }

    /// Returns the milliseconds from the start to an instant; 0 if that was before.
    pub fn ms(&self, at: Micros) -> u64 {
        at.since(self.begin).0 / 1_000
    }

    /// Returns the milliseconds since the start.
    pub fn now_ms(&self) -> u64 {
        self.ms(self.now())
    }

    /// Returns the seconds since 1970, going by the wall clock at the start.
    pub fn unix_s(&self) -> u64 {
        (self.started + self.origin.elapsed()).as_secs()
    }

    /// Returns the time of day of an instant, going by the wall clock at the start.
    pub fn utc(&self, at: Micros) -> String {
        utc(self.started.saturating_add(Duration::from_micros(at.since(self.begin).0)))
    }

    /// Returns when the host started, in seconds since 1970.
    pub fn started_unix_s(&self) -> u64 {
        self.started.as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_that_goes_on_tells_times_since_its_own_start() {
        let begin = Micros(86_400_000_000);
        let clock = Clock::start_at(begin);
        assert!(clock.now() >= begin && clock.now() < begin.plus(Micros(3_600_000_000)));
        assert_eq!((clock.begin(), clock.ms(begin.plus(Micros(7_999)))), (begin, 7));
        assert_eq!((clock.ms(Micros::ZERO), clock.utc(Micros::ZERO)), (0, clock.utc(begin)));
        assert!(Clock::start_at(Micros::NEVER).now() < Micros::NEVER, "never is no time");
    }
}
