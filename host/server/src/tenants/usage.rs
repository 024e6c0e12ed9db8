//! A tenant's usage, as counters that only grow.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one tenant.
#[derive(Debug, Default)]
pub struct Usage {
    requests: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generated_tokens: AtomicU64,
}

/// The counters' values at one instant.
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
        }
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
    }
}
