//! Policies that are tried: in shadow, or as canaries.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::FaultInfo;

/// `GET /admin/policies/{kind}/shadow`: a policy that is asked what the live one is asked, without effect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShadowInfo {
    /// Its name.
    pub policy: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of the component; empty for a native policy.
    pub sha256: String,
    /// `watching`, `promoted`, `stopped`, `replaced`, `failed`.
    pub state: String,
    /// Why it ended; empty while it runs.
    pub reason: String,
    /// Milliseconds from the host's start to its own.
    pub since_ms: u64,
    /// Milliseconds from the host's start to its end.
    pub ended_ms: Option<u64>,
    /// Answers that could be compared.
    pub questions: u64,
    /// Those that were the live policy's.
    pub agreements: u64,
    /// Those that were not, by what they differ in: `run`, `tokens`, `preempt`, `verdict`, `reuse`,
    /// `retain`, `drop`, `evict`.
    pub divergences: BTreeMap<String, u64>,
    /// The last of them, oldest first.
    pub examples: Vec<DivergenceInfo>,
    /// What ended it, where that was a fault.
    pub fault: Option<FaultInfo>,
    /// What its calls cost.
    pub cost: CallCost,
    /// What the live policy's calls cost.
    pub live_cost: CallCost,
}

/// One answer of a shadow that was not the live policy's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DivergenceInfo {
    /// What they differ in.
    pub kind: String,
    /// The engine's step.
    pub step: u64,
    /// Milliseconds since the host started.
    pub at_ms: u64,
    /// What the live policy said, in short.
    pub live: String,
    /// What the shadow said, in short.
    pub shadow: String,
}

/// What a policy's calls cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallCost {
    /// Calls so far.
    pub calls: u64,
    /// Median duration of the recent ones.
    pub p50_us: f64,
    /// 99th percentile of the recent ones.
    pub p99_us: f64,
}

/// A policy on trial: in force and watched, the previous one kept hot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CanaryInfo {
    /// Which slot.
    pub kind: String,
    /// Its name.
    pub policy: String,
    /// SHA-256 of the component; empty for a native policy.
    pub sha256: String,
    /// Who comes back should it fail.
    pub previous: String,
    /// `watching`, `promoted`, `rolled_back`.
    pub state: String,
    /// Why, in a sentence.
    pub reason: String,
    /// Milliseconds from the host's start to the trial's.
    pub since_ms: u64,
    /// Milliseconds from the host's start to the trial's end.
    pub ended_ms: Option<u64>,
    /// Seconds with work in them that the trial lasts, unless it is extended.
    pub window_s: f64,
    /// How many of them have passed.
    pub watched_s: f64,
    /// The time before it came.
    pub before: WindowInfo,
    /// The time since.
    pub after: WindowInfo,
}

/// What clients got, and what they asked for, over some time. Zero where nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WindowInfo {
    /// Seconds with work in them.
    pub busy_s: f64,
    /// Requests that came, per second.
    pub requests_per_second: f64,
    /// Their prompt tokens.
    pub prompt_tokens_per_second: f64,
    /// Tokens generated per busy second.
    pub tokens_per_second: f64,
    /// Time between a sequence's tokens, median.
    pub itl_p50_ms: f64,
    /// The same, 95th percentile.
    pub itl_p95_ms: f64,
    /// Time to the first token, median.
    pub ttft_p50_ms: f64,
    /// Share of the requests that the admission policy refused.
    pub refused: f64,
}
