//! The host's numbers at one instant: what every screen of the console starts from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{MAX_ROW_BYTES, MAX_ROWS, PolicySlot, RequestRow};

/// Most bytes of a snapshot, or of a change of it, as JSON: every row that it may list, and room for the
/// numbers, the slots with the schemas of their configurations, and a new order of all rows.
pub const MAX_STATE_BYTES: usize = MAX_ROWS * MAX_ROW_BYTES + (4 << 20);

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
    /// What requests of each event found, since start.
    #[serde(default)]
    pub cache_lengths: BTreeMap<String, CacheLengths>,
    /// The three slots: scheduler, admission, prefix-cache.
    pub policies: Vec<PolicySlot>,
    /// Live requests: running ones in the order in which they started, then the queue. At most
    /// 10,000; `requests_total` says how many there are. Names that clients chose are cut where they are
    /// long, and end in `…` ([`RequestRow::listed`]).
    pub requests: Vec<RequestRow>,
    /// How many live requests there are.
    pub requests_total: u32,
}

/// Sums over the requests of one prefix cache event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheLengths {
    /// Those whose prompt fills a block: nothing shorter can be found by what it shares.
    pub eligible_requests: u64,
    /// Prompt tokens that were found.
    pub cached_tokens: u64,
    /// Prompt tokens that had to be computed.
    pub prefilled_tokens: u64,
}

/// Who answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostInfo {
    /// Version of the host.
    pub version: String,
    /// Another one at every start: ids of requests and all counters begin anew with it. Empty from hosts
    /// that don't tell.
    #[serde(default)]
    pub run: String,
    /// Name under which the model is served.
    pub model: String,
    /// How weights are held: `f32`, `bf16` or `q8`.
    #[serde(default)]
    pub dtype: String,
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
    /// Tokens that were guessed ahead, and those of them that were right.
    #[serde(default)]
    pub drafted_tokens: u64,
    #[serde(default)]
    pub accepted_tokens: u64,
    pub prefix_queries: u64,
    pub prefix_hits: u64,
    pub evicted_blocks: u64,
    pub cut_rows: u64,
    pub device_faults: u64,
}
