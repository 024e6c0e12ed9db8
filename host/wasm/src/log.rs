//! The only thing a policy can do besides answering: write to the host's log. Lines are cut, rate-limited and
//! counted; the last error of a call is kept, because a Rust guest's panic message arrives here just before
//! its trap.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bindings::scheduler::infer::policy::host::Level;
use crate::text::clip;

const MAX_LINE_BYTES: usize = 1_024;
/// Text that one call may pass, cut or suppressed or not: the host copies and reads it all.
const MAX_CALL_BYTES: usize = 1 << 20;
/// What a line counts besides its text, so that empty ones have a bound too.
const LINE_COST_BYTES: usize = 64;
/// Lines that may come at once.
const BURST: u32 = 20;
/// Each time this has passed, one more line may come.
const REFILL: Duration = Duration::from_millis(100);

pub(crate) struct GuestLog {
    policy: Arc<str>,
    muted: bool,
    bucket: Bucket,
    last_error: Option<String>,
    /// What this call may still hand over.
    room_bytes: usize,
}

/// A call logged more than it may.
#[derive(Debug, thiserror::Error)]
#[error("wrote more than {MAX_CALL_BYTES} bytes to the log in one call")]
pub(crate) struct LogFull;

impl GuestLog {
    /// A muted log keeps the last error and writes nothing: a self-test provokes complaints.
    pub(crate) fn new(policy: Arc<str>, muted: bool) -> Self {
        Self {
            policy,
            muted,
            bucket: Bucket::full(Instant::now()),
            last_error: None,
            room_bytes: MAX_CALL_BYTES,
        }
    }

    pub(crate) fn begin_call(&mut self) {
        self.last_error = None;
        self.room_bytes = MAX_CALL_BYTES;
    }

    pub(crate) fn take_last_error(&mut self) -> Option<String> {
        self.last_error.take()
    }

    pub(crate) fn write(&mut self, level: Level, message: &str) -> Result<(), LogFull> {
        self.room_bytes = self.room_bytes.checked_sub(message.len() + LINE_COST_BYTES).ok_or(LogFull)?;
        if level == Level::Error {
            self.last_error = Some(clip(message, MAX_LINE_BYTES));
        }
        if self.muted {
            return Ok(());
        }
        let Some(suppressed) = self.bucket.take(Instant::now()) else { return Ok(()) };
        let (policy, message) = (&*self.policy, clip(message, MAX_LINE_BYTES));
        match level {
            Level::Debug => tracing::debug!(target: "policy", policy, suppressed, "{message}"),
            Level::Info => tracing::info!(target: "policy", policy, suppressed, "{message}"),
            Level::Warn => tracing::warn!(target: "policy", policy, suppressed, "{message}"),
            Level::Error => tracing::error!(target: "policy", policy, suppressed, "{message}"),
        }
        Ok(())
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
}
