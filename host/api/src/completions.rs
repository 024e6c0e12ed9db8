//! `POST /v1/completions` and its answers.
//!
//! `CompletionRequest` is what a client writes. The server doesn't read requests through it: it tells
//! wrong types from wrong values from unknown fields, which a derived reader can't.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::usage::{Timings, Usage};

/// Body of `POST /v1/completions`. Fields that are `None` are not sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(deny_unknown_fields, transform = crate::schema::tokens_or_echo)
)]
pub struct CompletionRequest {
    /// The model's name, as `GET /v1/models` tells it.
    pub model: String,
    /// What to continue.
    pub prompt: Prompt,
    /// Most tokens to generate, the end token included; where absent 128 (or `min_tokens`), or what there is room for.
    /// 0 only with `echo`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Before this many tokens no end token is drawn and no stop string ends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_tokens: Option<u32>,
    /// 0 is greedy. Absent: as the checkpoint's generation_config.json says, else 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 100.0)))]
    pub temperature: Option<f32>,
    /// Only the likeliest tokens that reach this probability together. Absent: the checkpoint's, else 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0)))]
    pub top_p: Option<f32>,
    /// Only so many of the likeliest tokens; 0 and -1 are no limit. Absent: the checkpoint's, else no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = -1)))]
    pub top_k: Option<i32>,
    /// Only tokens at least this fraction as likely as the likeliest. Absent: the checkpoint's, else 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 1.0)))]
    pub min_p: Option<f32>,
    /// Makes tokens of prompt and output less likely where it is above 1. Absent: the checkpoint's, else 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0.01, max = 100.0)))]
    pub repetition_penalty: Option<f32>,
    /// Taken off the logits of tokens that are in the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = -2.0, max = 2.0)))]
    pub presence_penalty: Option<f32>,
    /// Taken off the logits of tokens in the output, as often as they occur.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = -2.0, max = 2.0)))]
    pub frequency_penalty: Option<f32>,
    /// Added to the logits of these tokens, by id; from -100 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("additionalProperties" = {"type": "number", "minimum": -100, "maximum": 100}, "propertyNames" = {"pattern": "^(0|[1-9][0-9]{0,8})$"}, "maxProperties" = 1024)))]
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Choices for each prompt. They share its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 128)))]
    pub n: Option<u32>,
    /// Only as many as `n`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 128)))]
    pub best_of: Option<u32>,
    /// Report how likely the drawn tokens were, beside so many likeliest. An answer may have 4,194,304 of these numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 20)))]
    pub logprobs: Option<u32>,
    /// The text begins with the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub echo: Option<bool>,
    /// Whether a text gets what a bare prompt gets, a token that begins it for instance; on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_special_tokens: Option<bool>,
    /// Not supported; only null or empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 0)))]
    pub suffix: Option<String>,
    /// Answer as events. On unless the client accepts JSON alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Only where `stream` isn't false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// Texts that end the output in front of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// Tokens that end the output, besides the model's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64)))]
    pub stop_token_ids: Option<Vec<u32>>,
    /// The model's own end tokens don't end the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_eos: Option<bool>,
    /// The same seed draws the same tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// What the output must be: `{"type": "json_object"}`, or `json_schema` with a schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::response_format"))]
    pub response_format: Option<serde_json::Value>,
    /// The same by `json`, `json_object`, `regex`, `choice` or `grammar` (Lark); one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::structured_outputs"))]
    pub structured_outputs: Option<serde_json::Value>,
    /// The conversation that this request goes on with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 512)))]
    pub session_id: Option<String>,
    /// Prefixes are shared only between requests with the same salt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 512)))]
    pub cache_salt: Option<String>,
    /// Larger is more urgent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// When the first token is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub ttft_deadline_ms: Option<u32>,
    /// For the operator's eyes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 512)))]
    pub user: Option<String>,
    /// For the operator's eyes; goes to log and console.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("maxProperties" = 16, "additionalProperties" = {"type": "string", "maxLength": 512})))]
    pub metadata: Option<BTreeMap<String, String>>,
}

/// Text, or token ids that are used as given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Prompt {
    /// Tokenized by the host.
    Text(#[cfg_attr(feature = "schema", schemars(length(min = 1)))] String),
    /// Used as given.
    Tokens(#[cfg_attr(feature = "schema", schemars(length(min = 1)))] Vec<u32>),
    /// Several prompts.
    Texts(#[cfg_attr(feature = "schema", schemars(length(min = 1), inner(length(min = 1))))] Vec<String>),
    /// Several prompts that are used as given.
    TokenLists(
        #[cfg_attr(feature = "schema", schemars(length(min = 1), inner(length(min = 1))))] Vec<Vec<u32>>,
    ),
}

/// One text or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Stop {
    /// One.
    One(#[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))] String),
    /// At most 16.
    Many(
        #[cfg_attr(feature = "schema", schemars(length(max = 16), inner(length(min = 1, max = 1024))))]
        Vec<String>,
    ),
}

impl Default for Prompt {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

/// OpenAI's `stream_options`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StreamOptions {
    /// Whether a last chunk without choices carries the usage.
    #[serde(default)]
    pub include_usage: bool,
    /// Whether every chunk carries the usage so far.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continuous_usage_stats: bool,
}

/// Data of a `token` event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenEvent {
    /// Text that became complete with this token; may be empty.
    pub token: String,
    /// The token.
    pub token_id: u32,
    /// Which choice, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// How likely it was, where the request asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprob: Option<f32>,
    /// The likeliest tokens, where the request asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<Vec<NamedLogprob>>,
}

/// One of the likeliest tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NamedLogprob {
    /// Its text by itself.
    pub token: String,
    /// The token.
    pub token_id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// Data of a `prompt` event: comes first, where the request asked for an echo.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PromptEvent {
    /// The prompt's text.
    pub prompt: String,
    /// Of which choice, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// How likely its tokens were, where the request asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<CompletionLogprobs>,
}

/// Data of the `done` event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DoneEvent {
    /// `eos`, `stop`, `length` or `cancelled`; of the first choice, where there are several.
    pub finish_reason: String,
    /// Of every choice, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finish_reasons: Vec<String>,
    /// Tokens in and out.
    pub usage: Usage,
    /// Where the time went.
    pub timings: Timings,
}

/// Data of the `error` event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorEvent {
    /// What went wrong.
    pub error: String,
    /// Machine-readable.
    pub code: String,
}

/// OpenAI completion object: the JSON answer, and each chunk of the OpenAI stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Choice {
    /// Prompt by prompt, `n` for each.
    pub index: u32,
    /// The text, or what a chunk adds to it.
    pub text: String,
    /// How likely its tokens were, where the request asked.
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop`, `length` or `cancelled`; null in all chunks but the last.
    pub finish_reason: Option<String>,
}

/// How likely tokens were. Lists of the same length; null for a prompt's first token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompletionLogprobs {
    /// Each token's text by itself; bytes that are no characters as `bytes:\xe2`.
    pub tokens: Vec<String>,
    /// Natural logarithms of their probabilities; never below -9999.
    pub token_logprobs: Vec<Option<f32>>,
    /// The likeliest tokens in each place, the drawn one among them.
    pub top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    /// Where each token begins in the text, in characters.
    pub text_offset: Vec<u32>,
}
