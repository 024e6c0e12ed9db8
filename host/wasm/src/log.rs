//! What a policy writes to the host's log. Lines are cut, limited and counted; the last error of a call is kept,
//! because a Rust guest's panic message arrives here just before its trap.
//!
//! A live host limits lines by time. Under fuel, a second of real time may be hours of virtual time, so that
//! lines are limited by call there, and by policy: a check makes many instances, and its report should be seen.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::bindings::scheduler::infer::policy::host::Level;
use crate::text::clip;

const MAX_LINE_BYTES: usize = 1_024;
/// Lines that may come at once, or in one call under fuel.
const BURST: u32 = 20;
/// Lines of all instances of a policy under fuel, if whoever runs them asked for more than warnings.
const RUN_LINES: u64 = 100_000;
/// Likewise if not: a policy may warn in each of a run's steps, and one that panics does so in each, but the report comes
/// after these lines and should be seen.
const RUN_WARNINGS: u64 = 10;
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

    /// Limits lines by call, and to what `run` leaves, instead of by time. A muted log has none to limit.
    pub(crate) fn by_call(self, run: &RunLog) -> Self {
        if self.muted {
            return self;
        }
        let all = run.of(&self.policy);
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
    }
}

/// What the policies of one loader may log under fuel, each in all its instances. Its end says how much was left out.
#[derive(Default)]
pub(crate) struct RunLog {
    policies: Mutex<BTreeMap<Arc<str>, Arc<Allowance>>>,
}

impl RunLog {
    fn of(&self, policy: &Arc<str>) -> Arc<Allowance> {
        let mut policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Allowance::new(if is_shown(Level::Info) { RUN_LINES } else { RUN_WARNINGS }));
        Arc::clone(policies.entry(Arc::clone(policy)).or_insert_with(new))
    }
}

impl Drop for RunLog {
    fn drop(&mut self) {
        let policies = self.policies.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (policy, allowance) in &*policies {
            let left_out = allowance.left_out.load(Ordering::Relaxed);
            if left_out > 0 {
                let policy = &**policy;
                tracing::warn!(target: "policy", policy, "{left_out} lines of its log were left out");
            }
        }
    }
}

/// The lines that a policy may still log.
struct Allowance {
    lines: u64,
    asked_for: AtomicU64,
    left_out: AtomicU64,
}

impl Allowance {
    fn new(lines: u64) -> Self {
        Self { lines, asked_for: AtomicU64::new(0), left_out: AtomicU64::new(0) }
    }

    /// Whether there was a line left.
    fn take(&self) -> bool {
        self.asked_for.fetch_add(1, Ordering::Relaxed) < self.lines
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
    all: Arc<Allowance>,
    suppressed: u64,
}

impl Budget {
    /// Like [`Bucket::take`].
    fn take(&mut self) -> Option<u64> {
        if self.call == 0 || !self.all.take() {
            self.suppressed += 1;
            self.all.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.call -= 1;
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
        let all = Arc::new(Allowance::new(3));
        let mut budget = Budget { call: 2, all: Arc::clone(&all), suppressed: 0 };
        assert_eq!([budget.take(), budget.take(), budget.take()], [Some(0), Some(0), None]);
        budget.call = 2;
        assert_eq!([budget.take(), budget.take()], [Some(1), None]);
        budget.call = 2;
        assert_eq!(budget.take(), None, "for good");
        let mut another = Budget { call: 2, all: Arc::clone(&all), suppressed: 0 };
        assert_eq!(another.take(), None, "in every instance");
        assert_eq!(all.left_out.load(Ordering::Relaxed), 4);
    }
}
