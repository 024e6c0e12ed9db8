//! The live time limit of a call. `ticker` advances the engine's epoch; what a tick means is decided
//! per store, so one policy's overrun never ends another's call.
//!
//! What is measured is the calling thread's processor time, not the wall: a guest can't block, so on
//! a crowded machine the wall would blame the policy for what others use.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use wasmtime::UpdateDeadline;

/// What one store knows about the call it is in.
pub(crate) struct Deadline {
    limit: Duration,
    /// The thread's processor time at the call's first tick. Reading it costs a system call, so a
    /// call that ends before its first tick, as nearly all do, never reads it.
    first_tick: Option<Duration>,
}

impl Deadline {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, first_tick: None }
    }

    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// A call begins.
    pub(crate) fn arm(&mut self) {
        self.first_tick = None;
    }

    /// The epoch callback. A call may so run up to one tick longer than its limit.
    pub(crate) fn on_tick(&mut self) -> UpdateDeadline {
        let now = thread_cpu_time();
        let first = *self.first_tick.get_or_insert(now);
        if now.saturating_sub(first) >= self.limit {
            UpdateDeadline::Interrupt
        } else {
            UpdateDeadline::Continue(1)
        }
    }
}

fn thread_cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}
