//! Tenants with requests since the host started, as consoles list them.

use serde::{Deserialize, Serialize};

/// Tenants that a snapshot lists at most.
pub const MAX_TENANT_ROWS: usize = 64;

/// One tenant. Latencies are in milliseconds over the last minute, and zero if nothing was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TenantRow {
    /// Its number in this run of the host.
    pub id: u32,
    /// Its name in the tenants file; `default` if no keys are configured.
    pub name: String,
    /// Share beside other tenants; 1 is the usual one.
    pub weight: f64,
    /// Sequences that hold blocks.
    pub running: u32,
    /// Sequences that wait, held and preempted ones included.
    pub waiting: u32,
    /// Of those, requests that admission holds.
    pub held: u32,
    /// Requests since the host started that were not refused and have ended.
    pub requests: u64,
    /// Requests refused.
    pub refused: u64,
    /// Requests that ended with an error, of those not refused.
    pub failed: u64,
    /// Tokens of its prompts computed so far, without those found in the cache; what a preemption lost counts again.
    pub prompt_tokens: u64,
    /// Tokens generated so far.
    pub generated_tokens: u64,
    /// Tokens generated per second, over the last few seconds.
    pub generated_per_second: f64,
    /// Median time from submission to the first token.
    pub ttft_p50_ms: f64,
    /// Its 99th percentile.
    pub ttft_p99_ms: f64,
    /// Median time from submission to the first start, of requests that have ended.
    pub queue_p50_ms: f64,
    /// Its 99th percentile.
    pub queue_p99_ms: f64,
}
