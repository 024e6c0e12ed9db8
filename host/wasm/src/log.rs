//! What a policy writes to the host's log. Lines are cut, limited and counted; the last error of a call is kept,
//! because a Rust guest's panic message arrives here just before its trap.
//!
//! A live host limits lines by time. Under fuel, a second of real time may be hours of virtual time, so that
//! lines are limited by call there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bindings::scheduler::infer::policy::host::Level;
use crate::text::clip;

const MAX_LINE_BYTES: usize = 1_024;
/// Lines that may come at once, or in one call under fuel.
const BURST: u32 = 20;
/// Lines of an instance in all its calls under fuel, if whoever runs it asked for more than warnings.
const RUN_LINES: u32 = 100_000;
/// Likewise if not: a policy may warn in each of a run's steps.
const RUN_WARNINGS: u32 = 1_000;
/// Each time this has passed, one more line may come.
const REFILL: Duration = Duration::from_millis(100);

pub(crate) struct GuestLog {
    policy: Arc<str>,
    muted: bool,
    limit: Limit,
    last_error: Option<String>,
}

impl GuestLog {
    /// A muted log keeps the last error and writes nothing: a self-test provokes complaints.
    pub(crate) fn new(policy: Arc<str>, muted: bool) -> Self {
        Self { policy, muted, limit: Limit::Time(Bucket::full(Instant::now())), last_error: None }
    }

    /// Limits lines by call instead of by time.
    pub(crate) fn by_call(self) -> Self {
        let all = if is_shown(Level::Info) { RUN_LINES } else { RUN_WARNINGS };
        Self { limit: Limit::Calls(Budget { call: BURST, all, suppressed: 0 }), ..self }
    }

    pub(crate) fn begin_call(&mut self) {
        self.last_error = None;
        if let Limit::Calls(budget) = &mut self.limit {
            budget.call = BURST;
        }
    }

    pub(crate) fn take_last_error(&mut self) -> Option<String> {
        self.last_error.take()
    }

    pub(crate) fn write(&mut self, level: Level, message: &str) {
        if level == Level::Error {
            self.last_error = Some(clip(message, MAX_LINE_BYTES));
        }
        if self.muted || !is_shown(level) {
            return;
        }
        let passed = match &mut self.limit {
            Limit::Time(bucket) => bucket.take(Instant::now()),
            Limit::Calls(budget) => budget.take(),
        };
        let Some(suppressed) = passed else { return };
        let (policy, message) = (&*self.policy, clip(message, MAX_LINE_BYTES));
        match level {
            Level::Debug => tracing::debug!(target: "policy", policy, suppressed, "{message}"),
            Level::Info => tracing::info!(target: "policy", policy, suppressed, "{message}"),
            Level::Warn => tracing::warn!(target: "policy", policy, suppressed, "{message}"),
            Level::Error => tracing::error!(target: "policy", policy, suppressed, "{message}"),
        }
        if matches!(self.limit, Limit::Calls(Budget { all: 0, .. })) {
            tracing::warn!(target: "policy", policy, "the rest of its log is dropped");
        }
    }
}

/// Whether the host's log has this level; other lines don't count.
fn is_shown(level: Level) -> bool {
    match level {
        Level::Debug => tracing::enabled!(target: "policy", tracing::Level::DEBUG),
        Level::Info => tracing::enabled!(target: "policy", tracing::Level::INFO),
        Level::Warn => tracing::enabled!(target: "policy", tracing::Level::WARN),
        Level::Error => tracing::enabled!(target: "policy", tracing::Level::ERROR),
    }
}

/// What limits the lines.
enum Limit {
    Time(Bucket),
    Calls(Budget),
}

/// The lines that may still come in this call and in all; counts what it refuses.
struct Budget {
    call: u32,
    all: u32,
    suppressed: u64,
}

impl Budget {
    /// Like [`Bucket::take`].
    fn take(&mut self) -> Option<u64> {
        if self.call == 0 || self.all == 0 {
            self.suppressed += 1;
            return None;
        }
        self.call -= 1;
        self.all -= 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// A token bucket that counts what it refuses.
struct Bucket {
    tokens: u32,
    refilled: Instant,
    suppressed: u64,
}

impl Bucket {
    fn full(now: Instant) -> Self {
        Self { tokens: BURST, refilled: now, suppressed: 0 }
    }

    /// How many lines were suppressed since the last that passed, or `None` if this one is suppressed too.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let earned = now.saturating_duration_since(self.refilled).as_nanos() / REFILL.as_nanos();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.tokens = self.tokens.saturating_add(earned).min(BURST);
            self.refilled += REFILL * earned;
        }
        if self.tokens == 0 {
            self.suppressed += 1;
            return None;
        }
        self.tokens -= 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_logs_its_burst_then_one_line_per_refill_with_the_number_dropped() {
        let start = Instant::now();
        let mut bucket = Bucket::full(start);
        let passed = (0..100).filter(|_| bucket.take(start).is_some()).count();
        assert_eq!(passed, BURST as usize);
        assert_eq!(bucket.take(start + REFILL), Some(80));
        assert_eq!(bucket.take(start + REFILL), None);
        assert_eq!(bucket.take(start + REFILL * 1_000), Some(1));
        assert_eq!(bucket.tokens, BURST - 1);
    }

    #[test]
    fn each_call_under_fuel_has_its_burst_until_all_lines_are_used_up() {
        let mut budget = Budget { call: 2, all: 3, suppressed: 0 };
        assert_eq!([budget.take(), budget.take(), budget.take()], [Some(0), Some(0), None]);
        budget.call = 2;
        assert_eq!([budget.take(), budget.take()], [Some(1), None]);
        budget.call = 2;
        assert_eq!(budget.take(), None, "for good");
    }
}
