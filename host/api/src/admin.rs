//! The admin plane: state, blocks, policies, swaps, events.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `GET /admin/state`, and every `snapshot` event of `GET /admin/events`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Name and version of the host.
    pub host: HostInfo,
    /// Milliseconds since the host started.
    pub uptime_ms: u64,
    /// Whether new requests are refused because the host is shutting down.
    pub draining: bool,
    /// Engine steps begun.
    pub step: u64,
    /// The paged KV pool.
    pub memory: Memory,
    /// Sequences by state.
    pub queue: Queue,
    /// Rates over the last seconds.
    pub rates: Rates,
    /// Latencies of the last minute's requests.
    pub latencies: Latencies,
    /// What the admission policy measures.
    pub pressure: Pressure,
    /// Counters since start.
    pub counters: Counters,
    /// Prefix cache events by name, `CONVERSATIONAL_HIT` and so on, since start.
    pub cache_events: BTreeMap<String, u64>,
    /// The three slots: scheduler, admission, prefix-cache.
    pub policies: Vec<PolicySlot>,
    /// Live requests: running ones in the order in which they started, then the queue. At most 1,000;
    /// `requests_total` says how many there are.
    pub requests: Vec<RequestRow>,
    /// How many live requests there are.
    pub requests_total: u32,
}

/// Who answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostInfo {
    /// Version of the host.
    pub version: String,
    /// Name under which the model is served.
    pub model: String,
    /// `cpu`, or the GPU's name.
    pub device: String,
    /// `paged` or `contiguous`.
    pub kv_cache: String,
    /// Address of the data plane, `http://HOST:PORT`.
    pub data_plane: String,
}

/// The pool in blocks; `free + cached + used = total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named by what they count")]
pub struct Memory {
    pub block_size: u32,
    pub total: u32,
    pub free: u32,
    pub cached: u32,
    pub used: u32,
    /// Bytes that one block takes on the device.
    pub block_bytes: u64,
}

/// Sequences by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named by what they count")]
pub struct Queue {
    pub waiting: u32,
    pub held: u32,
    pub running: u32,
    pub preempted: u32,
}

/// Per second, over the last few seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named by what they measure")]
pub struct Rates {
    pub prompt_tokens: f64,
    pub generated_tokens: f64,
    pub requests: f64,
    pub steps: f64,
}

/// Milliseconds over the last minute; zero where nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named by what they measure")]
pub struct Latencies {
    pub ttft_p50_ms: f64,
    pub ttft_p99_ms: f64,
    pub itl_p50_ms: f64,
    pub itl_p99_ms: f64,
    pub e2e_p50_ms: f64,
    pub e2e_p99_ms: f64,
    pub queue_p50_ms: f64,
    pub queue_p99_ms: f64,
    /// Device time of a step.
    pub step_p50_ms: f64,
    pub step_p99_ms: f64,
}

/// The admission policy's `measure`, with the pool's and queue's figures beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named by what they measure")]
pub struct Pressure {
    /// 0 (idle) to 1 (nothing more fits).
    pub level: f64,
    pub backpressure: bool,
    pub reserved_blocks: u32,
    pub available_blocks: u32,
    pub allocated_blocks: u32,
    pub max_sequence_tokens: u32,
    pub active_sequences: u32,
    pub max_sequences: u32,
}

/// Since start; never go down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named by what they count")]
pub struct Counters {
    pub submitted: u64,
    /// By reason: `queue_full`, `memory`, `rate`, `too_long`, `backpressure`, `other`, `draining`.
    pub refused: BTreeMap<String, u64>,
    /// By reason: `eos`, `stop`, `length`, `cancelled`.
    pub finished: BTreeMap<String, u64>,
    pub failed: u64,
    pub preemptions: u64,
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    pub computed_tokens: u64,
    pub prefix_queries: u64,
    pub prefix_hits: u64,
    pub evicted_blocks: u64,
    pub cut_rows: u64,
    pub device_faults: u64,
}

/// One policy slot, also an element of `GET /admin/policies`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicySlot {
    /// `scheduler`, `admission` or `prefix-cache`.
    pub kind: String,
    /// Name of the policy in force.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What it says of itself.
    pub description: String,
    /// SHA-256 of the component; empty for a native policy.
    pub sha256: String,
    /// `live`, `canary` while it is on trial, or `fallback` where the built-in stands in for a policy that
    /// was taken out.
    pub state: String,
    /// Decisions asked of it.
    pub calls: u64,
    /// Median duration of a call.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Faults of this slot since start.
    pub faults: u64,
    /// Decisions that the built-in made in its stead.
    pub fallbacks: u64,
    /// Milliseconds since it came into force.
    pub since_ms: u64,
    /// Who a rollback would bring back.
    pub previous: Option<String>,
    /// The last fault of this slot.
    pub last_fault: Option<FaultInfo>,
    /// JSON Schema of its configuration.
    pub config_schema: serde_json::Value,
    /// Its configuration; for a list of policies, theirs.
    pub config: serde_json::Value,
    /// The policy that runs in shadow, or the last one that did.
    #[serde(default)]
    pub shadow: Option<ShadowInfo>,
    /// The trial of the policy in force, or the slot's last trial.
    #[serde(default)]
    pub canary: Option<CanaryInfo>,
}

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

/// A component that was taken out, and that is not taken in again unless that is forced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantineEntry {
    /// SHA-256 of the component.
    pub sha256: String,
    /// Name of the policy.
    pub name: String,
    /// Which slot.
    pub kind: String,
    /// Why it was taken out.
    pub reason: String,
    /// Milliseconds since the host started.
    pub at_ms: u64,
}

/// A policy fault as consoles show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultInfo {
    /// Name of the policy.
    pub policy: String,
    /// Its digest.
    pub sha256: String,
    /// `trap`, `deadline`, `memory`, `invalid-decision`, `starvation`, `setup`.
    pub reason: String,
    /// What happened, for a person.
    pub message: String,
    /// The engine's step.
    pub step: u64,
    /// Milliseconds since the host started.
    pub at_ms: u64,
    /// Whether the policy was taken out for it.
    pub removed: bool,
    /// Whether it ran in shadow: no request was in its hands.
    #[serde(default)]
    pub shadow: bool,
    /// Path of the file on the host that `infer policy replay` asks the question again from.
    #[serde(default)]
    pub artifact: Option<String>,
}

/// One live request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named as in the data plane")]
pub struct RequestRow {
    pub id: u64,
    /// `x-request-id`.
    pub request_id: String,
    pub tenant: u32,
    pub session: String,
    pub user: String,
    pub metadata: BTreeMap<String, String>,
    pub priority: i32,
    /// `held`, `waiting`, `preempted`, `prefill`, `decode`.
    pub state: String,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub computed_tokens: u32,
    pub generated_tokens: u32,
    pub max_tokens: u32,
    pub blocks: u32,
    pub preemptions: u32,
    /// Milliseconds since it arrived.
    pub age_ms: u64,
    /// Milliseconds it waited before it first started; its age while it waits.
    pub queue_ms: u64,
    /// Milliseconds from arrival to its first token.
    pub ttft_ms: Option<u64>,
}

/// `GET /admin/blocks`: one entry per block of the pool, as columns of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// Tokens in a block.
    pub block_size: u32,
    /// `f` free, `c` cached, `u` used by one sequence, `s` shared by several: one character per block.
    pub states: String,
    /// Tables that hold each block.
    pub references: Vec<u32>,
    /// One of the requests that hold it; 0 for none.
    pub owners: Vec<u64>,
    /// Position in its prefix.
    pub depths: Vec<u32>,
    /// Tenant whose prefix it is.
    pub tenants: Vec<u32>,
    /// Milliseconds since it was last touched.
    pub ages_ms: Vec<u64>,
}

/// `GET /admin/policies`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Policies {
    /// The three slots.
    pub slots: Vec<PolicySlot>,
    /// What can be swapped in by name.
    pub available: Vec<AvailablePolicy>,
    /// What was taken out, latest last.
    #[serde(default)]
    pub quarantine: Vec<QuarantineEntry>,
}

/// A policy that the host carries.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AvailablePolicy {
    /// `scheduler`, `admission` or `prefix-cache`.
    pub kind: String,
    /// Name to swap it in by.
    pub name: String,
    /// Version.
    pub version: String,
    /// What it says of itself.
    pub description: String,
    /// SHA-256 of the component; empty for a native policy.
    pub sha256: String,
    /// JSON Schema of its configuration.
    pub config_schema: serde_json::Value,
}

/// JSON body of `PUT /admin/policies/{kind}`; any other content type is a component. For admission also a
/// list of these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwapRequest {
    /// A bundled policy's name.
    pub name: String,
    /// Its configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<serde_json::Value>,
}

/// Answer to a swap, once it is in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SwapAnswer {
    /// Which slot.
    pub kind: String,
    /// Who left.
    pub from: String,
    /// Who is in force.
    pub to: String,
    /// The step before which it took effect.
    pub at_step: u64,
    /// Microseconds that the engine thread spent on it.
    pub pause_us: f64,
    /// `restored` or `cold`.
    pub state: String,
    /// `now`, `shadow`, `canary`, `promote` or `rollback`. In shadow, `to` runs beside `from`.
    #[serde(default)]
    pub mode: String,
}

/// One entry of `GET /admin/policies/{kind}/history`, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// Milliseconds since the host started.
    pub at_ms: u64,
    /// The first engine step that it governed; 0 for the start.
    pub step: u64,
    /// Who left; empty for the first.
    pub from: String,
    /// Who came.
    pub to: String,
    /// Digest of who came.
    pub sha256: String,
    /// `start`, `swap`, `canary`, `promote`, `rollback`, or why the predecessor was taken out.
    pub reason: String,
    /// `start`, `swap`, `canary`, `promote`, `rollback`, `fault`, `verdict`; `shadow` where `to` came or
    /// ended beside `from`; `stays` where a trial ended well.
    #[serde(default)]
    pub mode: String,
}

/// One event of `GET /admin/events`; the SSE event name is the variant's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", content = "data", rename_all = "snake_case")]
pub enum AdminEvent {
    /// The whole state, at `?hz=`.
    Snapshot(Box<State>),
    /// A policy came into force.
    Swap(SwapAnswer),
    /// A policy misbehaved.
    Fault(FaultInfo),
    /// A policy's trial began or ended.
    Canary(Box<CanaryInfo>),
    /// A request was refused.
    Refusal {
        /// Its `x-request-id`.
        request_id: String,
        /// Machine-readable reason.
        reason: String,
        /// What the client was told.
        message: String,
    },
    /// A running request gave its blocks back.
    Preemption {
        /// Which.
        id: u64,
    },
    /// The subscriber was too slow and lost this many events.
    Lagged {
        /// How many.
        missed: u64,
    },
}

/// An error answer of both planes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorInfo,
}

/// What went wrong.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorInfo {
    /// For a person.
    pub message: String,
    /// Class, `invalid_request_error` say.
    #[serde(rename = "type")]
    pub kind: String,
    /// The field at fault.
    pub param: Option<String>,
    /// Machine-readable code.
    pub code: Option<String>,
}
