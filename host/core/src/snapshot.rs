//! What consoles and metrics read: plain numbers, taken between steps. Counters never decrease, and the
//! numbers of a snapshot add up (free + cached + used = total).

use std::sync::Arc;

use crate::event::PrefixEvent;
use crate::ids::{BlockId, Micros, SequenceId, SessionId, TenantId};
use crate::policy::{CallStats, Fault, Gauge, PolicyInfo, PolicyKind, Pressure};
use crate::request::{FinishReason, RefusalReason, SequenceState};
use crate::trial::{CanaryReport, ShadowReport};

/// The engine at one instant.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When.
    pub now: Micros,
    /// The number of the step that was begun last: an engine may count on from where another one was.
    pub step: u64,
    /// The pool.
    pub memory: MemoryCounts,
    /// The second level of the prefix cache.
    pub offload: OffloadCounts,
    /// Sequences by state.
    pub queue: QueueCounts,
    /// The admission policy's measure.
    pub pressure: Pressure,
    /// Since start.
    pub counters: Counters,
    /// The three slots, in `PolicyKind::ALL` order.
    pub policies: [SlotSnapshot; 3],
    /// Tenants with a row in the policies' views, in its order.
    pub tenants: Vec<TenantSnapshot>,
    /// Every live sequence: running ones in the order in which they started, then the queue.
    pub requests: Vec<RequestSnapshot>,
}

/// The pool in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named by what they count")]
pub struct MemoryCounts {
    pub block_size: u32,
    pub total: u32,
    pub free: u32,
    pub cached: u32,
    pub used: u32,
}

/// The second level of the prefix cache in blocks; all 0 without one, and after it failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named by what they count")]
pub struct OffloadCounts {
    pub total: u32,
    pub used: u32,
}

/// Sequences by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named by what they count")]
pub struct QueueCounts {
    pub waiting: u32,
    pub held: u32,
    pub running: u32,
    pub preempted: u32,
}

/// Counters since start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named by what they count")]
pub struct Counters {
    /// Begun by this engine, whatever step it counts on from.
    pub steps: u64,
    pub submitted: u64,
    /// In `RefusalReason::ALL` order.
    pub refused: [u64; RefusalReason::ALL.len()],
    /// In `FinishReason::ALL` order.
    pub finished: [u64; FinishReason::ALL.len()],
    pub failed: u64,
    pub preemptions: u64,
    /// Of requests that started.
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    /// Tokens that the executor computed.
    pub computed_tokens: u64,
    /// Draft tokens, and the accepted ones among them.
    pub drafted_tokens: u64,
    pub accepted_tokens: u64,
    /// Prompt tokens looked up in the prefix cache, and those found.
    pub prefix_queries: u64,
    pub prefix_hits: u64,
    /// In `PrefixEvent::ALL` order: requests, those whose prompt fills a block, and their prompts' tokens
    /// that were found and that had to be computed.
    pub prefix_events: [u64; 5],
    pub prefix_eligible: [u64; 5],
    pub prefix_cached_tokens: [u64; 5],
    pub prefix_prefilled_tokens: [u64; 5],
    pub evicted_blocks: u64,
    /// Blocks copied to the second level, and back: what was found there.
    pub offloaded_blocks: u64,
    pub onloaded_blocks: u64,
    /// Whether the second level failed, as a number.
    pub offload_failures: u64,
    /// Rows cut from a plan's tail because they did not fit in memory.
    pub cut_rows: u64,
    pub device_faults: u64,
}

impl Counters {
    /// Index of a finish reason in `finished`.
    pub fn finish_index(reason: FinishReason) -> usize {
        FinishReason::ALL.iter().position(|&r| r == reason).expect("ALL holds every reason")
    }

    /// Index of a refusal reason in `refused`.
    pub fn refusal_index(reason: RefusalReason) -> usize {
        RefusalReason::ALL.iter().position(|&r| r == reason).expect("ALL holds every reason")
    }

    /// Index of a prefix event in `prefix_events`.
    pub fn prefix_index(event: PrefixEvent) -> usize {
        PrefixEvent::ALL.iter().position(|&e| e == event).expect("ALL holds every event")
    }
}

/// One policy slot.
#[derive(Clone, Debug)]
pub struct SlotSnapshot {
    /// Which.
    pub kind: PolicyKind,
    /// The live policy.
    pub policy: Arc<PolicyInfo>,
    /// Whether that is the built-in, which replaced a removed policy.
    pub fallback: bool,
    /// The policy that a rollback would bring back.
    pub previous: Option<Arc<PolicyInfo>>,
    /// What its calls cost.
    pub stats: CallStats,
    /// What it publishes about itself.
    pub gauges: Vec<Gauge>,
    /// Faults of the live policy since it was swapped in; it keeps them when it comes back. The built-in has none.
    pub faults: u64,
    /// Decisions that the built-in made in this slot since start, whichever policy was live.
    pub fallbacks: u64,
    /// When the live policy became live.
    pub since: Micros,
    /// The last fault, if any.
    pub last_fault: Option<Arc<Fault>>,
    /// Whether the live policy is on trial.
    pub trial: bool,
    /// The running trial, or the last one.
    pub canary: Option<CanaryReport>,
    /// The running shadow, or the last one.
    pub shadow: Option<ShadowReport>,
}

/// One tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantSnapshot {
    /// Which.
    pub tenant: TenantId,
    /// Its share beside other tenants, in thousandths.
    pub weight_permille: u32,
    /// Sequences that hold blocks.
    pub running: u32,
    /// Sequences that wait, held and preempted ones included.
    pub waiting: u32,
    /// Of those, requests held by admission.
    pub held: u32,
    /// Prompt tokens computed since start, without those found in the cache; what a preemption lost counts again.
    pub prompt_tokens: u64,
    /// Tokens generated since start.
    pub generated_tokens: u64,
}

/// One live sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in `Request` and `Usage`")]
pub struct RequestSnapshot {
    pub id: SequenceId,
    pub tenant: TenantId,
    pub session: SessionId,
    pub priority: i32,
    pub state: SequenceState,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub computed_tokens: u32,
    pub generated_tokens: u32,
    pub max_new_tokens: u32,
    pub blocks: u32,
    pub preemptions: u32,
    pub arrived: Micros,
    pub started: Micros,
    pub first_token: Micros,
}

/// One block of the pool, for the block map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSnapshot {
    /// Which.
    pub id: BlockId,
    /// Tables that hold it; 0 for free and cached ones.
    pub references: u32,
    /// Whether its prefix is in the index.
    pub indexed: bool,
    /// Position in its prefix.
    pub depth: u32,
    /// The tenant whose prefix it is.
    pub tenant: TenantId,
    /// One of the sequences that hold it.
    pub owner: Option<SequenceId>,
    /// When it was last touched.
    pub last_used: Micros,
}
