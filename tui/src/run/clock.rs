//! The time that the state sees: since the console started, or that of the recording being played. Frames and
//! notices don't follow it; they run in the operator's time.

use tokio::time::Instant;

use crate::state::Millis;

/// The console's clock. A recording sets it: a recorded second is a second at any playback speed, and the
/// clock stops where the recording ends.
pub(super) struct Clock {
    since: Instant,
    at: Millis,
    speed: f64,
}

impl Clock {
    pub(super) fn start(speed: f64) -> Self {
        Self { since: Instant::now(), at: 0, speed }
    }

    pub(super) fn now(&self) -> Millis {
        self.at.saturating_add(self.since.elapsed().mul_f64(self.speed).as_millis() as Millis)
    }

    pub(super) fn set(&mut self, at: Millis) {
        (self.at, self.since) = (at, Instant::now());
    }

    pub(super) fn stop(&mut self) {
        self.speed = 0.0;
    }

    /// Lets time pass.
    #[cfg(test)]
    pub(super) fn pass(&mut self, time: std::time::Duration) {
        self.since -= time;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_clock_of_a_recording_runs_at_playback_speed() {
        let mut clock = Clock::start(10.0);
        clock.set(40_000);
        let since = clock.since;
        clock.since = since.checked_sub(Duration::from_millis(300)).expect("the machine is up for that long");
        assert!(clock.now() >= 43_000, "{}", clock.now());
        clock.set(41_000);
        clock.since = Instant::now() + Duration::from_secs(60);
        assert_eq!(clock.now(), 41_000, "the message just played is now");
    }
}
