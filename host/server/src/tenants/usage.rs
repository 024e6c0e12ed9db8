//! What a tenant used and how long it waited: counters and histograms that only grow, and the last minute.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use infer_core::{Durations, Micros};

use crate::metrics::{Rates, Window};

/// One tenant's usage.
#[derive(Debug, Default)]
pub struct Usage {
    requests: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    latencies: Mutex<Latencies>,
    /// Times of the last minute, for percentiles.
    pub recent: Recent,
}

/// Durations since the host started, of sequences that were not refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// From submission to the first token.
    pub ttft: Durations,
    /// Between two tokens of a stream.
    pub itl: Durations,
    /// From submission to the first start.
    pub queue: Durations,
}

/// The last minute, in milliseconds. Small, because there may be thousands of tenants.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "named by what they measure")]
pub struct Recent {
    pub ttft: Window<128>,
    pub queue: Window<128>,
    /// Of the tokens generated.
    pub rate: Rates<1>,
}

/// The values at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageSnapshot {
    /// Requests that were not refused and have ended, for any reason.
    pub requests: u64,
    /// Requests refused.
    pub refused: u64,
    /// Admitted requests that ended with an error.
    pub failed: u64,
    /// Prompt tokens of requests that the engine took.
    pub prompt_tokens: u64,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// How long sequences took.
    pub latencies: Latencies,
}

impl Usage {
    /// Counts a refused request.
    pub fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that was not refused and has ended. `cached_tokens` of its prompt were in the prefix cache.
    pub fn ended(&self, prompt_tokens: u32, cached_tokens: u32, generated_tokens: u32, failed: bool) {
        let add = |counter: &AtomicU64, n: u64| counter.fetch_add(n, Ordering::Relaxed);
        add(&self.requests, 1);
        add(&self.failed, u64::from(failed));
        add(&self.prompt_tokens, prompt_tokens.into());
        add(&self.cached_tokens, cached_tokens.into());
        add(&self.generated_tokens, generated_tokens.into());
    }

    /// Records the time from a sequence's submission to its first token.
    pub fn first_token(&self, after: Micros) {
        self.change(|all| all.ttft.add(after.0.saturating_mul(1_000)));
        self.recent.ttft.add(after.0 as f64 / 1e3);
    }

    /// Records gaps between a stream's tokens, in microseconds.
    pub fn gaps(&self, gaps_us: &[u32]) {
        self.change(|all| gaps_us.iter().for_each(|&us| all.itl.add(u64::from(us) * 1_000)));
    }

    /// Records the time from a sequence's submission to its first start.
    pub fn started(&self, after: Micros) {
        self.change(|all| all.queue.add(after.0.saturating_mul(1_000)));
        self.recent.queue.add(after.0 as f64 / 1e3);
    }

    /// Whether any request has ended or was refused.
    pub fn any(&self) -> bool {
        [&self.requests, &self.refused].iter().any(|counter| counter.load(Ordering::Relaxed) > 0)
    }

    /// The current values.
    pub fn snapshot(&self) -> UsageSnapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        UsageSnapshot {
            requests: read(&self.requests),
            refused: read(&self.refused),
            failed: read(&self.failed),
            prompt_tokens: read(&self.prompt_tokens),
            cached_tokens: read(&self.cached_tokens),
            generated_tokens: read(&self.generated_tokens),
            latencies: *self.latencies.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Latencies)) {
        change(&mut self.latencies.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl std::ops::AddAssign for UsageSnapshot {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.refused += other.refused;
        self.failed += other.failed;
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.generated_tokens += other.generated_tokens;
        self.latencies.ttft.merge(&other.latencies.ttft);
        self.latencies.itl.merge(&other.latencies.itl);
        self.latencies.queue.merge(&other.latencies.queue);
    }
}
