//! Live requests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One live request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named as in the data plane")]
pub struct RequestRow {
    pub id: u64,
    /// `x-request-id`.
    pub request_id: String,
    pub tenant: u32,
    /// The tenant's name; `default` where no keys are configured.
    #[serde(default)]
    pub tenant_name: String,
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
