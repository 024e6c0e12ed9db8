//! A snapshot of the host's numbers, from which every screen of the console starts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{MAX_ROW_BYTES, MAX_ROWS, PolicySlot, RequestRow, TenantRow};

/// Largest size of a snapshot, or of a change to one, as JSON: all rows that it may list, plus room for the
/// numbers, the slots with their configuration schemas, and a new order of all rows.
pub const MAX_STATE_BYTES: usize = MAX_ROWS * MAX_ROW_BYTES + (4 << 20);

/// Response of `GET /admin/state`, and data of each `snapshot` event of `GET /admin/events`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Version, model and device.
    pub host: HostInfo,
    /// Who asked. `None` from hosts that don't send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<OperatorInfo>,
    /// Milliseconds since the host started.
    pub uptime_ms: u64,
    /// Whether the host drains: it finishes its requests and refuses new ones.
    pub draining: bool,
    /// Engine steps started; with `--policy-state` those before the host's start, too.
    pub step: u64,
    /// The KV pool.
    pub memory: Memory,
    /// The second level of the prefix cache, if there is one (`--kv-offloading-size`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<Offload>,
    /// Sequences by state.
    pub queue: Queue,
    /// Rates over the last few seconds.
    pub rates: Rates,
    /// Latencies over the last minute.
    pub latencies: Latencies,
    /// The load as reported by the admission policy.
    pub pressure: Pressure,
    /// Counters since start.
    pub counters: Counters,
    /// Prefix-cache events since start, by name: `CONVERSATIONAL_HIT` and so on.
    pub cache_events: BTreeMap<String, u64>,
    /// Prompt tokens of the requests of each event, since start.
    #[serde(default)]
    pub cache_lengths: BTreeMap<String, CacheLengths>,
    /// The three slots: scheduler, admission, prefix-cache.
    pub policies: Vec<PolicySlot>,
    /// Whether swaps, the quarantine and what policies know would outlive the host, if that is to save them
    /// (`--policy-state`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_state: Option<PolicyState>,
    /// Tenants with requests since the host started, those with most live requests first; at most 64 are listed.
    /// Empty from hosts that don't send it.
    #[serde(default)]
    pub tenants: Vec<TenantRow>,
    /// Number of tenants with requests since the host started.
    #[serde(default)]
    pub tenants_total: u32,
    /// Live requests: running ones in the order in which they started, then the queue. At most 10,000 are
    /// listed; `requests_total` counts all. Long names chosen by clients are cut and end in `…`
    /// ([`RequestRow::listed`]).
    pub requests: Vec<RequestRow>,
    /// Number of live requests.
    pub requests_total: u32,
}

/// What became of the last attempt to save swaps, the quarantine and what policies know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyState {
    /// Whether it succeeded.
    pub saved: bool,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What of the state of an earlier host is not in effect, and why: a file that was unusable, policies that
    /// couldn't be loaded and that the next start tries again, or policies that didn't take what was exported before.
    /// Older hosts don't say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_restored: Vec<String>,
    /// The policies that went on at the start with what they knew before it. Older hosts don't say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restored: Vec<RestoredState>,
}

/// A policy that went on at the host's start with what it, or one of its name, had exported before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredState {
    /// The slot.
    pub kind: String,
    /// Name of the policy.
    pub policy: String,
    /// Seconds from the export to the start.
    pub age_s: u64,
}

/// The operator whose token came with a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorInfo {
    /// Name in the host's file of operators; `admin` with the host's own token.
    pub name: String,
    /// `viewer`, who can change nothing, or `operator`.
    pub role: String,
}

impl OperatorInfo {
    /// Whether the host lets this operator change anything.
    #[must_use]
    pub fn may_change(&self) -> bool {
        self.role == "operator"
    }
}

/// Sums over the requests of one prefix-cache event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheLengths {
    /// Requests whose prompt fills at least one block; shorter prompts can't share a prefix.
    pub eligible_requests: u64,
    /// Prompt tokens found in the cache.
    pub cached_tokens: u64,
    /// Prompt tokens that had to be computed.
    pub prefilled_tokens: u64,
    /// Hits: eligible requests with tokens found in the cache. 0 from hosts that don't send it, as is `hit_tokens`.
    #[serde(default)]
    pub hit_requests: u64,
    /// These requests' prompt tokens found in the cache.
    #[serde(default)]
    pub hit_tokens: u64,
}

/// The host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostInfo {
    /// Version of the host.
    pub version: String,
    /// Id of this run of the host, different after each start. Counters start over with it, and so do request ids and
    /// steps unless the host goes on with what policies know (`--policy-state`).
    /// Empty from hosts that don't send it.
    #[serde(default)]
    pub run: String,
    /// When it was started, in seconds since 1970, as `created` of its models says on the data plane. 0 from hosts that
    /// don't send it.
    #[serde(default)]
    pub started_unix_s: u64,
    /// Name of the served model.
    pub model: String,
    /// Type of the weights: `f32`, `bf16`, `f16`, `q8` or `q4`.
    #[serde(default)]
    pub dtype: String,
    /// `cpu`, or the GPU's name.
    pub device: String,
    /// `paged` or `contiguous`.
    pub kv_cache: String,
    /// URL of the data plane: `http://HOST:PORT`.
    pub data_plane: String,
    /// The policy interface, with its version: components of another one are refused. Empty from hosts that don't
    /// send it.
    #[serde(default)]
    pub policy_interface: String,
}

/// The KV pool in blocks; `free + cached + used = total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named by what they count")]
pub struct Memory {
    pub block_size: u32,
    pub total: u32,
    pub free: u32,
    pub cached: u32,
    pub used: u32,
    /// Bytes of one block on the device.
    pub block_bytes: u64,
}

/// The second level of the prefix cache in blocks, and what was copied since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named by what they count")]
pub struct Offload {
    pub total: u32,
    pub used: u32,
    /// Evicted from the pool to the second level.
    pub blocks_out: u64,
    /// Back to the pool.
    pub blocks_in: u64,
    /// Whether it failed; nothing is used any more then, and `total` is 0.
    pub failed: bool,
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

/// Milliseconds over the last minute; zero if nothing was measured.
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

/// Result of the admission policy's `measure`, with figures of the pool and the queue.
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

/// Counters since start; they never decrease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named by what they count")]
pub struct Counters {
    /// Engine steps started.
    #[serde(default)]
    pub steps: u64,
    pub submitted: u64,
    /// By reason: `queue_full`, `memory`, `rate`, `too_long`, `backpressure`, `other`, `draining`, `busy`.
    pub refused: BTreeMap<String, u64>,
    /// By reason: `eos`, `stop`, `length`, `cancelled`.
    pub finished: BTreeMap<String, u64>,
    pub failed: u64,
    pub preemptions: u64,
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    pub computed_tokens: u64,
    /// Draft tokens of speculative decoding.
    #[serde(default)]
    pub drafted_tokens: u64,
    /// Draft tokens that were accepted.
    #[serde(default)]
    pub accepted_tokens: u64,
    pub prefix_queries: u64,
    pub prefix_hits: u64,
    pub evicted_blocks: u64,
    pub cut_rows: u64,
    pub device_faults: u64,
}
