//! What an answer cost: tokens, and where its time went.

use serde::{Deserialize, Serialize};

/// Tokens in and out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Usage {
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// `token` events, the end token included.
    pub completion_tokens: u32,
    /// Their sum.
    pub total_tokens: u32,
    /// What of the prompt was cached.
    #[serde(default)]
    pub prompt_tokens_details: PromptTokensDetails,
}

/// What of the prompt was cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PromptTokensDetails {
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u32,
}

/// Where a request's time went; `None` for a phase that it never reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Timings {
    /// Arrival to first start.
    pub queue_ms: Option<f64>,
    /// First start to first token.
    pub prefill_ms: Option<f64>,
    /// Arrival to first token.
    pub ttft_ms: Option<f64>,
    /// First token to end.
    pub decode_ms: Option<f64>,
    /// Tokens computed to fill the cache, after preemptions too.
    pub prefilled_tokens: u32,
    /// Most KV memory it held at once.
    pub kv_bytes: u64,
}
