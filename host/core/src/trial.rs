//! What operators read about a policy that is being tried: beside the live one (shadow), or in force
//! and watched (canary). Plain data; who fills it in is the guard.

use std::sync::Arc;

use crate::ids::Micros;
use crate::policy::{CallStats, Fault, PolicyInfo, PolicyKind};

/// Divergences that a shadow's report shows.
pub const SHADOW_EXAMPLES: usize = 16;

/// A policy that is asked what the live one is asked, and whose answers count for nothing.
#[derive(Clone, Debug)]
pub struct ShadowReport {
    /// Who.
    pub policy: Arc<PolicyInfo>,
    /// Whether it still runs, or how it ended.
    pub state: ShadowState,
    /// Why it ended; empty while it runs.
    pub reason: String,
    /// When it came.
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
    /// What ended it, where that was a fault.
    pub fault: Option<Arc<Fault>>,
    /// What its calls cost.
    pub stats: CallStats,
    /// What the live policy's calls cost.
    pub live_stats: CallStats,
}

/// Whether a shadow runs, or how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowState {
    /// It is asked.
    Watching,
    /// It became the live policy.
    Promoted,
    /// An operator stopped it.
    Stopped,
    /// Another policy came into the slot, or another shadow.
    Replaced,
    /// It failed.
    Failed,
}

/// One answer of a shadow that was not the live policy's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// In what they differ.
    pub kind: DivergenceKind,
    /// The engine's step number.
    pub step: u64,
    /// When.
    pub at: Micros,
    /// What the live policy said, in short.
    pub live: String,
    /// What the shadow said, in short.
    pub shadow: String,
}

/// In what two answers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DivergenceKind {
    /// Schedulers run different sequences.
    Run,
    /// They run the same ones with different token counts.
    Tokens,
    /// They preempt different ones.
    Preempt,
    /// Admission policies decide differently about a request.
    Verdict,
    /// Prefix caches reuse different numbers of tokens.
    Reuse,
    /// They keep different parts of a sequence, or for different times.
    Retain,
    /// They drop different blocks when they are told what happened.
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

/// A policy that is in force and watched, the previous one kept hot.
#[derive(Clone, Debug)]
pub struct CanaryReport {
    /// Which slot.
    pub kind: PolicyKind,
    /// Who.
    pub policy: Arc<PolicyInfo>,
    /// Who comes back should it fail.
    pub previous: Arc<PolicyInfo>,
    /// Where the trial stands.
    pub state: CanaryState,
    /// Why, in a sentence.
    pub reason: String,
    /// When it came into force.
    pub since: Micros,
    /// When the trial ended; `NEVER` while it lasts.
    pub ended: Micros,
    /// How much time with work in it the trial lasts, unless it is extended.
    pub window: Micros,
    /// How much of that has passed.
    pub watched: Micros,
    /// Whose policy changed in another slot meanwhile: what is measured since then can't be compared with the time
    /// before, and only a fault of its own can still speak against it.
    pub disturbed: Option<PolicyKind>,
    /// The time before it came.
    pub before: WindowStats,
    /// The time since.
    pub after: WindowStats,
}

/// Where a canary's trial stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CanaryState {
    /// It is watched.
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

/// What clients got, and what they asked for, over some time. Percentiles are the median slice's.
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
    /// Time between a sequence's tokens, median; 0 where there were none.
    pub itl_p50: Micros,
    /// The same, 95th percentile.
    pub itl_p95: Micros,
    /// Time from a request's arrival to its first token, median; 0 where there were none.
    pub ttft_p50: Micros,
    /// Share of the requests that the admission policy refused.
    pub refused: f64,
}
