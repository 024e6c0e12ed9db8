//! The live time limit of a call. `ticker` advances the engine's epoch; what a tick means is decided
//! per store, so one policy's overrun never ends another's call.
//!
//! What is measured is the calling thread's processor time, not the wall: a guest can't block, so on
//! a crowded machine the wall would blame the policy for what others use.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use wasmtime::UpdateDeadline;

/// Between two ticks.
pub(crate) const TICK: Duration = Duration::from_millis(1);

/// What one store knows about the call it is in.
pub(crate) struct Deadline {
    limit: Duration,
    began: Instant,
    /// When the call was first looked at, at a tick mostly. Reading the processor time costs a system call, so a call
    /// that ends before its first tick, as nearly all do, never reads it.
    first_look: Option<Look>,
    /// Processor time from then to the last look.
    since: Duration,
}

struct Look {
    /// The thread's processor time.
    processor: Duration,
    /// What had passed by the clock since the call began.
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

    /// The epoch callback. A call may so run up to one tick longer than its limit.
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

    /// The call has ended: whether that was too late. The guest is interrupted in loops and where it calls functions
    /// of its own alone, so the last look may have been long before.
    pub(crate) fn end(&mut self) -> bool {
        self.first_look.is_some() && self.look()
    }

    /// Processor time from the first look to the last.
    pub(crate) fn since_first_look(&self) -> Duration {
        self.since
    }

    /// Processor time of the call that ended, of which this much passed by the clock. What passed before the first look
    /// may have been somebody else's time, so it counts for at most a tick.
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
    fn a_call_is_late_where_it_was_looked_at_and_its_limit_has_passed() {
        let mut none_left = Deadline::new(Duration::ZERO);
        none_left.arm();
        assert!(!none_left.end(), "nobody looked");
        assert!(matches!(none_left.on_tick(), UpdateDeadline::Interrupt));
        assert!(none_left.end());
        none_left.arm();
        assert!(!none_left.end(), "the next call begins anew");

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
            // At a tick, and by a call that logs in its first line.
            (looked_at(700), 4_000, 4_700, 4_700),
            (looked_at(1), 900, 901, 901),
            (looked_at(9_000), 4_000, 13_000, 5_000),
        ] {
            let deadline = Deadline { first_look, since: micros(since), ..Deadline::new(Duration::ZERO) };
            assert_eq!(deadline.spent(micros(elapsed)), micros(spent), "{since} {elapsed}");
        }
    }
}
