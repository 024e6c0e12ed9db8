//! Reports about a policy that is being tried: beside the live one (shadow), or live and watched (canary).
//! Plain data; the guard fills it in.

use std::sync::Arc;

use crate::ids::Micros;
use crate::policy::{CallStats, Fault, Gauge, PolicyInfo, PolicyKind};

/// Divergences that a shadow's report shows.
pub const SHADOW_EXAMPLES: usize = 16;

/// A policy that gets the live one's calls and whose answers are not applied.
#[derive(Clone, Debug)]
pub struct ShadowReport {
    /// Which policy.
    pub policy: Arc<PolicyInfo>,
    /// Whether it still runs, or how it ended.
    pub state: ShadowState,
    /// Why it ended; empty while it runs.
    pub reason: String,
    /// When it started.
    pub since: Micros,
    /// When it ended; `NEVER` while it runs.
    pub ended: Micros,
    /// Answers that could be compared.
    pub questions: u64,
    /// Those that were the same.
    pub agreements: u64,
    /// Those that were not, in `DivergenceKind::ALL` order.
    pub divergences: [u64; DivergenceKind::ALL.len()],
    /// The last of them, oldest first.
    pub examples: Vec<Divergence>,
    /// The fault that ended it, if it was one.
    pub fault: Option<Arc<Fault>>,
    /// What its calls cost.
    pub stats: CallStats,
    /// What the live policy's calls cost.
    pub live_stats: CallStats,
    /// What it publishes about itself.
    pub gauges: Vec<Gauge>,
}

/// Whether a shadow runs, or how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowState {
    /// It is running.
    Watching,
    /// It became the live policy.
    Promoted,
    /// An operator stopped it.
    Stopped,
    /// Another policy or another shadow replaced it.
    Replaced,
    /// It failed.
    Failed,
}

/// An answer of a shadow that differs from the live policy's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// In what they differ.
    pub kind: DivergenceKind,
    /// The engine's step number.
    pub step: u64,
    /// When.
    pub at: Micros,
    /// The live policy's answer, abbreviated.
    pub live: String,
    /// The shadow's answer, abbreviated.
    pub shadow: String,
}

/// How two answers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DivergenceKind {
    /// Schedulers run different sequences.
    Run,
    /// They run the same sequences with different token counts.
    Tokens,
    /// They preempt different sequences.
    Preempt,
    /// Admission policies decide differently about a request.
    Verdict,
    /// Prefix caches reuse different numbers of tokens.
    Reuse,
    /// They keep different parts of a sequence, or for different times.
    Retain,
    /// They drop different blocks after the same events.
    Drop,
    /// They name different blocks to evict.
    Evict,
}

impl DivergenceKind {
    /// All kinds, in declaration order.
    pub const ALL: [Self; 8] = [
        Self::Run,
        Self::Tokens,
        Self::Preempt,
        Self::Verdict,
        Self::Reuse,
        Self::Retain,
        Self::Drop,
        Self::Evict,
    ];

    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Tokens => "tokens",
            Self::Preempt => "preempt",
            Self::Verdict => "verdict",
            Self::Reuse => "reuse",
            Self::Retain => "retain",
            Self::Drop => "drop",
            Self::Evict => "evict",
        }
    }
}

impl ShadowState {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Watching => "watching",
            Self::Promoted => "promoted",
            Self::Stopped => "stopped",
            Self::Replaced => "replaced",
            Self::Failed => "failed",
        }
    }
}

/// A live policy that is watched, with the previous one kept up to date.
#[derive(Clone, Debug)]
pub struct CanaryReport {
    /// Which slot.
    pub kind: PolicyKind,
    /// Which policy.
    pub policy: Arc<PolicyInfo>,
    /// The policy that comes back if it fails.
    pub previous: Arc<PolicyInfo>,
    /// State of the trial.
    pub state: CanaryState,
    /// Why, in a sentence.
    pub reason: String,
    /// When it became live.
    pub since: Micros,
    /// When the trial ended; `NEVER` while it lasts.
    pub ended: Micros,
    /// How much time with work in it the trial lasts, unless it is extended because more is asked of the host than
    /// before.
    pub window: Micros,
    /// How much it lasts at most.
    pub longest: Micros,
    /// How much of that has passed.
    pub watched: Micros,
    /// The other slot whose policy changed meanwhile: what is measured since can't be compared with the
    /// baseline, and only a fault of the canary itself can still fail it.
    pub disturbed: Option<PolicyKind>,
    /// The baseline.
    pub before: WindowStats,
    /// The time since.
    pub after: WindowStats,
}

/// State of a canary's trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CanaryState {
    /// It is being watched.
    Watching,
    /// It stays.
    Promoted,
    /// The previous policy is back.
    RolledBack,
}

impl CanaryState {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Watching => "watching",
            Self::Promoted => "promoted",
            Self::RolledBack => "rolled_back",
        }
    }
}

/// What clients got and asked for over some time. Percentiles are the median slice's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WindowStats {
    /// Time with work in it.
    pub busy: Micros,
    /// Requests per second of all the time, idle spells included.
    pub requests_per_second: f64,
    /// Their prompt tokens.
    pub prompt_tokens_per_second: f64,
    /// Tokens generated per second of the time with work in it.
    pub tokens_per_second: f64,
    /// Median time between a sequence's tokens; 0 if there were none.
    pub itl_p50: Micros,
    /// The same, 95th percentile.
    pub itl_p95: Micros,
    /// Median time from a request's arrival to its first token; 0 if there were none.
    pub ttft_p50: Micros,
    /// Share of the requests that the admission policy refused.
    pub refused: f64,
}
