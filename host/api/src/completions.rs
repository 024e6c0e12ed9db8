//! `POST /v1/completions` and its responses.
//!
//! `CompletionRequest` is for clients. The server has a parser of its own, because it distinguishes wrong
//! types, wrong values and unknown fields, which a derived one can't.

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
    /// A name of the model, as listed by `GET /v1/models`.
    pub model: String,
    /// The prompt or prompts to complete.
    pub prompt: Prompt,
    /// Most tokens to generate, including the end token. Default: 128, or `min_tokens` if that is larger, or
    /// less if the context has no room for it. 0 is only allowed with `echo`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// No end token is sampled and no stop string applies before this many tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_tokens: Option<u32>,
    /// Sampling temperature; 0 is greedy. Default: the checkpoint's (generation_config.json), or 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 100.0)))]
    pub temperature: Option<f32>,
    /// Sample from the most likely tokens whose probabilities add up to this value. Default: the
    /// checkpoint's, or 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0)))]
    pub top_p: Option<f32>,
    /// Sample from this many of the most likely tokens; 0 and -1 mean no limit. Default: the checkpoint's, or
    /// no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = -1)))]
    pub top_k: Option<i32>,
    /// Sample from tokens at least this fraction as likely as the most likely one. Default: the checkpoint's,
    /// or 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 1.0)))]
    pub min_p: Option<f32>,
    /// Above 1 it makes tokens of the prompt and the output less likely. Default: the checkpoint's, or 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0.01, max = 100.0)))]
    pub repetition_penalty: Option<f32>,
    /// Subtracted from the logits of tokens that occur in the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = -2.0, max = 2.0)))]
    pub presence_penalty: Option<f32>,
    /// Subtracted from the logits of tokens in the output, once per occurrence.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = -2.0, max = 2.0)))]
    pub frequency_penalty: Option<f32>,
    /// Added to the logits of these tokens, by token id; from -100 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("additionalProperties" = {"type": "number", "minimum": -100, "maximum": 100}, "propertyNames" = {"pattern": "^(0|[1-9][0-9]{0,8})$"}, "maxProperties" = 1024)))]
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Number of choices per prompt. They share the prompt's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 128)))]
    pub n: Option<u32>,
    /// Accepted only with the value of `n`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 128)))]
    pub best_of: Option<u32>,
    /// Report the log-probability of each token and of this many of the most likely ones. The number of
    /// tokens times (`logprobs` + 2) may reach 1,048,576 in a response.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 20)))]
    pub logprobs: Option<u32>,
    /// Begin the text with the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub echo: Option<bool>,
    /// Add the tokenizer's special tokens, such as BOS, to text prompts. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_special_tokens: Option<bool>,
    /// Not supported: must be null or empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 0)))]
    pub suffix: Option<String>,
    /// Stream the response as server-sent events. Default: true, unless `Accept` lists `application/json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Only allowed in a request whose response is streamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// Stop strings. The output ends before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// Tokens that end the output, besides the model's end tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64)))]
    pub stop_token_ids: Option<Vec<u32>>,
    /// Continue past the model's end tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_eos: Option<bool>,
    /// Return the token ids of the prompt and of the output, as `prompt_token_ids` and `token_ids`. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_token_ids: Option<bool>,
    /// Equal seeds sample equal tokens. Default: random, and another one for each prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Required form of the output: `{"type": "json_object"}`, or `json_schema` with a schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::response_format"))]
    pub response_format: Option<serde_json::Value>,
    /// Required form of the output, as exactly one of `json`, `json_object`, `regex`, `choice` and `grammar`
    /// (Lark).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::structured_outputs"))]
    pub structured_outputs: Option<serde_json::Value>,
    /// The conversation that this request continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 512)))]
    pub session_id: Option<String>,
    /// Cached prefixes are shared only between requests with equal salts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 512)))]
    pub cache_salt: Option<String>,
    /// Larger values are more urgent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Milliseconds until the first token is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub ttft_deadline_ms: Option<u32>,
    /// How many tokens each output will probably have, the end token included. It limits nothing. Policies go by it in
    /// place of what earlier outputs were like, up to the limit of the output and until an output gets longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub expected_output_tokens: Option<u32>,
    /// Shown to operators.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 512)))]
    pub user: Option<String>,
    /// Shown to operators, in the log and the console.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("maxProperties" = 16, "additionalProperties" = {"type": "string", "maxLength": 512})))]
    pub metadata: Option<BTreeMap<String, String>>,
}

/// One or several prompts, as text or token ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Prompt {
    /// Tokenized by the host.
    Text(#[cfg_attr(feature = "schema", schemars(length(min = 1)))] String),
    /// Token ids, used as given.
    Tokens(#[cfg_attr(feature = "schema", schemars(length(min = 1)))] Vec<u32>),
    /// Several texts.
    Texts(#[cfg_attr(feature = "schema", schemars(length(min = 1), inner(length(min = 1))))] Vec<String>),
    /// Several lists of token ids.
    TokenLists(
        #[cfg_attr(feature = "schema", schemars(length(min = 1), inner(length(min = 1))))] Vec<Vec<u32>>,
    ),
}

/// One stop string or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Stop {
    /// One stop string.
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
    /// Send the usage in a final chunk without choices.
    #[serde(default)]
    pub include_usage: bool,
    /// Send the usage so far in every chunk.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continuous_usage_stats: bool,
}

/// Data of a `token` event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenEvent {
    /// Text that became complete with this token; possibly empty.
    pub token: String,
    /// The token's id.
    pub token_id: u32,
    /// Index of the choice; absent if there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// Log-probability of the token, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprob: Option<f32>,
    /// The most likely tokens, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<Vec<NamedLogprob>>,
}

/// One of the most likely tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NamedLogprob {
    /// The token's text by itself.
    pub token: String,
    /// The token's id.
    pub token_id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// Data of a `prompt` event, which precedes the tokens if the request has `echo` or `return_token_ids`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PromptEvent {
    /// The prompt's text; empty without `echo`.
    pub prompt: String,
    /// The prompt's token ids, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Index of the choice; absent if there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// Log-probabilities of the prompt's tokens, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<CompletionLogprobs>,
}

/// Data of the `done` event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DoneEvent {
    /// `eos`, `stop`, `length` or `cancelled`: that of the first choice.
    pub finish_reason: String,
    /// The finish reasons of all choices; absent if there is only one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finish_reasons: Vec<String>,
    /// The end of the first choice's text, if it was held back (as the beginning of a stop string, for example) when
    /// the request was cancelled: no `token` event has it. Absent if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rest: String,
    /// The same of all choices; absent if there is only one, or if none has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rests: Vec<String>,
    /// Token counts.
    pub usage: Usage,
    /// Durations of the request's phases.
    pub timings: Timings,
}

/// Data of the `error` event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorEvent {
    /// What went wrong.
    pub error: String,
    /// Machine-readable code.
    pub code: String,
}

/// OpenAI's completion object: the JSON response, and each chunk of an OpenAI stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Completion {
    /// `cmpl-` and the request id.
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The served model.
    pub model: String,
    /// All choices; in a stream, one per chunk and none in the usage chunk.
    pub choices: Vec<Choice>,
    /// Token counts; in a stream, only on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Durations of the request's phases; not part of OpenAI's object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// One choice of a completion.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Choice {
    /// Position among all choices: those of the first prompt first.
    pub index: u32,
    /// The text, or what a chunk adds to it.
    pub text: String,
    /// The prompt's token ids, if requested; in a stream, only in the choice's first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// The output's token ids, or those that a chunk adds, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// Log-probabilities of its tokens, if requested.
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop`, `length` or `cancelled`; null in all chunks but the choice's last.
    pub finish_reason: Option<String>,
}

/// Log-probabilities of tokens, as lists of equal length. Null for a prompt's first token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompletionLogprobs {
    /// Each token's text by itself. Bytes that aren't valid UTF-8 are spelled as `bytes:\xe2`.
    pub tokens: Vec<String>,
    /// Natural logarithms of the tokens' probabilities; at least -9999.
    pub token_logprobs: Vec<Option<f32>>,
    /// The most likely tokens at each position, and the token itself.
    pub top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    /// Where each token begins in the text, in characters.
    pub text_offset: Vec<u32>,
}
