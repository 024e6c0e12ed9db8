//! What a run came to, as reports say it.

use serde::Serialize;

use super::Durations;

/// What counts as served well: goodput counts requests that kept both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Slo {
    /// Milliseconds from arrival to the first token.
    pub ttft_ms: f64,
    /// Milliseconds between tokens, on average over an answer.
    pub itl_ms: f64,
}

impl Default for Slo {
    fn default() -> Self {
        Self { ttft_ms: 2_000.0, itl_ms: 50.0 }
    }
}

/// What the prefix cache did, as REQUIREMENTS name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CacheOutcome {
    /// Hits of any kind, of the requests whose prompt has a full block.
    pub hit_rate: f64,
    /// Of these requests, those that found what an earlier turn of their conversation left.
    pub conversational_rate: f64,
    /// Of these requests, those that found what others left.
    pub cross_request_rate: f64,
    /// Mean prompt tokens that a hit found; nothing where there was no hit.
    pub mean_cached: Option<f64>,
    /// Mean prompt tokens computed for a request; nothing where none started.
    pub mean_prefilled: Option<f64>,
    /// Prompt tokens computed, of all.
    pub prefilled_ratio: f64,
    /// Mean time to the first token of hits and of misses, in milliseconds; nothing where there were none.
    pub hit_ttft_ms: Option<f64>,
    /// See `hit_ttft_ms`.
    pub miss_ttft_ms: Option<f64>,
    /// Requests by what they found, in `PrefixEvent::ALL` order.
    pub events: [u64; 5],
}

/// One tenant's share.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantOutcome {
    /// Which.
    pub tenant: u32,
    /// Requests that it finished.
    pub finished: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Prompt tokens of those that started, cached ones included, and output tokens.
    pub tokens: u64,
    /// Time to the first token.
    pub ttft_ms: Durations,
    /// Prompts' tokens found cached, of all.
    pub cached_ratio: f64,
}

/// The pool and the queue at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "named by what they count")]
pub struct Sample {
    pub at_s: f64,
    pub used: u32,
    pub cached: u32,
    pub free: u32,
    pub running: u32,
    pub waiting: u32,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Requests that arrived.
    pub requests: u64,
    /// Those that ended well.
    pub finished: u64,
    /// Those that were turned away.
    pub refused: u64,
    /// Those that failed.
    pub failed: u64,
    /// Virtual seconds from the first arrival to the last end.
    pub seconds: f64,
    /// Engine steps.
    pub steps: u64,
    /// Output tokens a second.
    pub output_per_second: f64,
    /// Prompt and output tokens a second, cached ones included.
    pub tokens_per_second: f64,
    /// Requests a second that were served well, see `Slo`.
    pub goodput_per_second: f64,
    /// Part of the requests with a promise whose first token came in time; refused ones count as late.
    pub in_time: f64,
    /// From arrival to the first token.
    pub ttft_ms: Durations,
    /// The same at 0, 1, .. 100 percent of the requests.
    pub ttft_quantiles_ms: Vec<f64>,
    /// Between the tokens of one answer.
    pub itl_ms: Durations,
    /// The same at 0, 1, .. 100 percent of the gaps.
    pub itl_quantiles_ms: Vec<f64>,
    /// From arrival to the last token.
    pub latency_ms: Durations,
    /// The same at 0, 1, .. 100 percent of the requests.
    pub latency_quantiles_ms: Vec<f64>,
    /// From arrival to the start.
    pub queue_ms: Durations,
    /// What the prefix cache did.
    pub cache: CacheOutcome,
    /// By tenant.
    pub tenants: Vec<TenantOutcome>,
    /// Largest difference of weighted service (prompt token 1, output token 2) between two tenants while
    /// both had requests waiting; of the first 256 that wait at a time.
    pub service_gap: f64,
    /// Sequences that gave their blocks back before their end.
    pub preemptions: u64,
    /// Cached blocks that were dropped.
    pub evicted_blocks: u64,
    /// Faults of policies.
    pub policy_faults: u64,
    /// The pool over time.
    pub samples: Vec<Sample>,
    /// Names everything that was decided: equal runs have equal ones.
    pub fingerprint: String,
}
