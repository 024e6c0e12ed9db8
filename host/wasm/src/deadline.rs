//! The time limit of a running call. `ticker` advances the engine's epoch; each store decides what a tick
//! means, so one policy's overrun never ends another's call.
//!
//! Measures the calling thread's processor time, not the wall clock: a guest can't block, so on a busy
//! machine the wall clock would blame the policy for what others use.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use wasmtime::UpdateDeadline;

/// Between two ticks.
pub(crate) const TICK: Duration = Duration::from_millis(1);

/// What a store knows about its current call.
pub(crate) struct Deadline {
    limit: Duration,
    began: Instant,
    /// When the call was first checked, usually at a tick. Reading the processor time costs a system call, so
    /// a call that ends before its first tick, as nearly all do, never reads it.
    first_look: Option<Look>,
    /// Processor time from then to the last look.
    since: Duration,
}

struct Look {
    /// The thread's processor time.
    processor: Duration,
    /// Wall-clock time since the call began.
    elapsed: Duration,
}

impl Deadline {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, began: Instant::now(), first_look: None, since: Duration::ZERO }
    }

    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// A call begins.
    pub(crate) fn arm(&mut self) {
        (self.began, self.first_look, self.since) = (Instant::now(), None, Duration::ZERO);
    }

    /// The epoch callback. So a call may run up to one tick longer than its limit.
    pub(crate) fn on_tick(&mut self) -> UpdateDeadline {
        if self.look() { UpdateDeadline::Interrupt } else { UpdateDeadline::Continue(1) }
    }

    /// Whether the limit has passed.
    pub(crate) fn look(&mut self) -> bool {
        let now = thread_cpu_time();
        let began = self.began;
        let first = self.first_look.get_or_insert_with(|| Look { processor: now, elapsed: began.elapsed() });
        self.since = now.saturating_sub(first.processor);
        self.since >= self.limit
    }

    /// The call has ended: returns whether it was too late. The guest is interrupted only in loops and at
    /// calls of its own functions, so the last check may have been long before.
    pub(crate) fn end(&mut self) -> bool {
        self.first_look.is_some() && self.look()
    }

    /// Processor time from the first check to the last.
    pub(crate) fn since_first_look(&self) -> Duration {
        self.since
    }

    /// Processor time of the call that ended, which took this much by the clock. Time before the first check
    /// may have been spent in other threads, so it counts for at most a tick.
    pub(crate) fn spent(&self, elapsed: Duration) -> Duration {
        let unseen = self.first_look.as_ref().map_or(elapsed, |first| first.elapsed);
        unseen.min(TICK) + self.since
    }
}

fn thread_cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_late_if_it_was_checked_and_its_limit_has_passed() {
        let mut none_left = Deadline::new(Duration::ZERO);
        none_left.arm();
        assert!(!none_left.end(), "no check came in time");
        assert!(matches!(none_left.on_tick(), UpdateDeadline::Interrupt));
        assert!(none_left.end());
        none_left.arm();
        assert!(!none_left.end(), "the next call starts with a fresh limit");

        let mut plenty = Deadline::new(Duration::from_secs(3_600));
        plenty.arm();
        assert!(!plenty.look() && !plenty.end());
        assert!(matches!(plenty.on_tick(), UpdateDeadline::Continue(1)));
    }

    #[test]
    fn what_passed_before_the_first_look_counts_as_a_tick_at_most() {
        let micros = Duration::from_micros;
        let looked_at = |after| Some(Look { processor: Duration::ZERO, elapsed: micros(after) });
        for (first_look, since, elapsed, spent) in [
            (None, 0, 3, 3),
            (None, 0, 5_000, 1_000),
            // Called at each tick, and for the first line that a call logs.
            (looked_at(700), 4_000, 4_700, 4_700),
            (looked_at(1), 900, 901, 901),
            (looked_at(9_000), 4_000, 13_000, 5_000),
        ] {
            let deadline = Deadline { first_look, since: micros(since), ..Deadline::new(Duration::ZERO) };
            assert_eq!(deadline.spent(micros(elapsed)), micros(spent), "{since} {elapsed}");
        }
    }
}
