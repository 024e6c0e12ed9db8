//! Policies on trial: in shadow, or as a canary.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{FaultInfo, GaugeInfo};

/// Response of `GET /admin/policies/{kind}/shadow`: a policy that receives the live policy's calls, without
/// effect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShadowInfo {
    /// Its name.
    pub policy: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of the component; empty for a native policy.
    pub sha256: String,
    /// Stands for it with just this component and configuration: what a promotion names as `?of=`.
    #[serde(default)]
    pub tag: String,
    /// `watching`, `promoted`, `stopped`, `replaced`, `failed`.
    pub state: String,
    /// Why it ended; empty while it runs.
    pub reason: String,
    /// Milliseconds from the host's start to the shadow's.
    pub since_ms: u64,
    /// Milliseconds from the host's start to the shadow's end.
    pub ended_ms: Option<u64>,
    /// Decisions that were compared.
    pub questions: u64,
    /// Those that equalled the live policy's.
    pub agreements: u64,
    /// Those that differed, by what differed: `run`, `tokens`, `preempt`, `verdict`, `reuse`, `retain`,
    /// `drop`, `evict`.
    pub divergences: BTreeMap<String, u64>,
    /// The latest divergences, oldest first.
    pub examples: Vec<DivergenceInfo>,
    /// The fault that ended it, if one did.
    pub fault: Option<FaultInfo>,
    /// Cost of its calls.
    pub cost: CallCost,
    /// Cost of the live policy's calls.
    pub live_cost: CallCost,
    /// What it publishes about itself.
    #[serde(default)]
    pub gauges: Vec<GaugeInfo>,
}

/// A decision of a shadow that differed from the live policy's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DivergenceInfo {
    /// What differed, as in [`ShadowInfo::divergences`].
    pub kind: String,
    /// The engine step.
    pub step: u64,
    /// Milliseconds from the host's start to the decision.
    pub at_ms: u64,
    /// The live policy's decision, in short.
    pub live: String,
    /// The shadow's decision, in short.
    pub shadow: String,
}

/// Cost of a policy's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallCost {
    /// Calls so far; 0 also for a native policy, whose calls are neither counted nor timed.
    pub calls: u64,
    /// Median duration of recent calls, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of it.
    pub p99_us: f64,
}

/// A canary: live and watched, with the previous policy kept ready.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CanaryInfo {
    /// The slot.
    pub kind: String,
    /// Its name.
    pub policy: String,
    /// SHA-256 of the component; empty for a native policy.
    pub sha256: String,
    /// The policy that comes back if it fails.
    pub previous: String,
    /// `watching`, `promoted`, `rolled_back`.
    pub state: String,
    /// Why, in a sentence.
    pub reason: String,
    /// Milliseconds from the host's start to the canary's.
    pub since_ms: u64,
    /// Milliseconds from the host's start to the canary's end.
    pub ended_ms: Option<u64>,
    /// Seconds under load that the trial lasts, unless it is extended because more is asked of the host than before.
    pub window_s: f64,
    /// Seconds under load that it lasts at most; without a baseline it is not extended.
    #[serde(default)]
    pub longest_s: f64,
    /// Seconds under load that have passed.
    pub watched_s: f64,
    /// The time before the swap: the baseline.
    pub before: WindowInfo,
    /// The time since the swap.
    pub after: WindowInfo,
}

/// Load and service over some time. Zero where nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WindowInfo {
    /// Seconds under load.
    pub busy_s: f64,
    /// Requests received per second.
    pub requests_per_second: f64,
    /// Their prompt tokens per second.
    pub prompt_tokens_per_second: f64,
    /// Tokens generated per second under load.
    pub tokens_per_second: f64,
    /// Median time between two tokens of a sequence.
    pub itl_p50_ms: f64,
    /// 95th percentile of it.
    pub itl_p95_ms: f64,
    /// Median time to first token.
    pub ttft_p50_ms: f64,
    /// Share of the requests that the admission policy refused, 0 to 1.
    pub refused: f64,
}
