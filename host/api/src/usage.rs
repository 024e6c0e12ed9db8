//! What a response cost: tokens, and time by phase.

use serde::{Deserialize, Serialize};

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Usage {
    /// Tokens of the prompts, each prompt counted once.
    pub prompt_tokens: u32,
    /// Generated tokens, including end tokens.
    pub completion_tokens: u32,
    /// Sum of both.
    pub total_tokens: u32,
    /// Details of `prompt_tokens`.
    #[serde(default)]
    pub prompt_tokens_details: PromptTokensDetails,
    /// Details of `completion_tokens`; only of chats with a model that may reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

/// Details of a request's prompt tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PromptTokensDetails {
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u32,
}

/// Details of a request's generated tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompletionTokensDetails {
    /// Tokens of the reasoning, with its tags.
    pub reasoning_tokens: u32,
}

/// Durations of a request's phases; null for a phase that it never reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Timings {
    /// From submission to the first start.
    pub queue_ms: Option<f64>,
    /// From the first start to the first token.
    pub prefill_ms: Option<f64>,
    /// From submission to the first token.
    pub ttft_ms: Option<f64>,
    /// From the first token to the end.
    pub decode_ms: Option<f64>,
    /// Tokens computed in prefill, including those recomputed after preemptions.
    pub prefilled_tokens: u32,
    /// Peak KV memory, in bytes.
    pub kv_bytes: u64,
}
