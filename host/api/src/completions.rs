//! The data plane: `POST /v1/completions` and its answers, models, tokenizing.
//!
//! `CompletionRequest` is what a client writes. The server doesn't read requests through it: it tells
//! wrong types from wrong values from unknown fields, which a derived reader can't.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Body of `POST /v1/completions`. Fields that are `None` are not sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named as in the OpenAI and vLLM interfaces")]
pub struct CompletionRequest {
    pub model: String,
    pub prompt: Prompt,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_eos: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_salt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_deadline_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
}

/// Text, or token ids that are used as given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// Tokenized by the host.
    Text(String),
    /// Used as given.
    Tokens(Vec<u32>),
}

impl Default for Prompt {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

/// OpenAI's `stream_options`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamOptions {
    /// Whether a last chunk without choices carries the usage.
    #[serde(default)]
    pub include_usage: bool,
}

/// Data of a `token` event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenEvent {
    /// Text that became complete with this token; may be empty.
    pub token: String,
    /// The token.
    pub token_id: u32,
}

/// Data of the `done` event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DoneEvent {
    /// `eos`, `stop`, `length` or `cancelled`.
    pub finish_reason: String,
    /// Tokens in and out.
    pub usage: Usage,
    /// Where the time went.
    pub timings: Timings,
}

/// Data of the `error` event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorEvent {
    /// What went wrong.
    pub error: String,
    /// Machine-readable.
    pub code: String,
}

/// Tokens in and out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
pub struct PromptTokensDetails {
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u32,
}

/// Where a request's time went; `None` for a phase that it never reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
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

/// OpenAI completion object: the JSON answer, and each chunk of the OpenAI stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// `cmpl-` and the request id.
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Served model.
    pub model: String,
    /// One choice; none in the usage chunk of a stream.
    pub choices: Vec<Choice>,
    /// Tokens in and out; only in the last chunk of a stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Where the time went; not part of OpenAI's object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// One choice of a completion.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Always 0.
    pub index: u32,
    /// The text, or what a chunk adds to it.
    pub text: String,
    /// Always null.
    pub logprobs: Option<serde_json::Value>,
    /// `stop`, `length` or `cancelled`; null in all chunks but the last.
    pub finish_reason: Option<String>,
}

/// `GET /v1/models`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelList {
    /// `list`.
    pub object: String,
    /// The served model.
    pub data: Vec<ModelCard>,
}

/// One model of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCard {
    /// The name that requests give.
    pub id: String,
    /// `model`.
    pub object: String,
    /// Seconds since 1970 at which it was loaded.
    pub created: u64,
    /// `infer`.
    pub owned_by: String,
    /// Longest prompt plus output.
    pub max_model_len: u32,
}

/// `POST /tokenize`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizeAnswer {
    /// How many.
    pub count: usize,
    /// Longest prompt plus output.
    pub max_model_len: u32,
    /// The tokens.
    pub tokens: Vec<u32>,
}

/// `POST /detokenize`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetokenizeAnswer {
    /// The text.
    pub prompt: String,
}
