//! The data plane: `POST /v1/chat/completions` and its answers, always as OpenAI writes them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::usage::{Timings, Usage};

/// What a body of `POST /v1/chat/completions` has besides the fields that it shares with
/// `CompletionRequest`. There is no `prompt`, `echo`, `suffix` or `best_of`, and `logprobs` is a switch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatFields {
    /// The conversation so far.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 4096)))]
    pub messages: Vec<Message>,
    /// Most tokens to generate; what the context has room for where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub max_completion_tokens: Option<u32>,
    /// The older name of the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub max_tokens: Option<u32>,
    /// Report how likely the drawn tokens were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<bool>,
    /// And so many of the likeliest beside them; only with `logprobs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 20)))]
    pub top_logprobs: Option<u32>,
    /// Functions that the model may call, where its chat template has tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 128)))]
    pub tools: Option<Vec<Tool>>,
    /// Whether it may, must, or which one it must.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::tool_choice"))]
    pub tool_choice: Option<Value>,
    /// Whether it may call several at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// Whether the prompt ends where an answer begins; on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_generation_prompt: Option<bool>,
    /// Further variables of the chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<BTreeMap<String, Value>>,
    /// Only `[\"text\"]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("items" = {"const": "text"})))]
    pub modalities: Option<Vec<String>>,
    /// Only false: nothing is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = [false, null])))]
    pub store: Option<bool>,
    /// There is one tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["auto", "default", null])))]
    pub service_tier: Option<String>,
    /// Accepted; prefixes are found by themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 512)))]
    pub prompt_cache_key: Option<String>,
    /// Accepted, for the operator's eyes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 512)))]
    pub safety_identifier: Option<String>,
}

/// One message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(transform = crate::schema::content_or_assistant)
)]
pub struct Message {
    /// `system`, `developer`, `user`, `assistant` or `tool`, as far as the template knows it.
    #[cfg_attr(
        feature = "schema",
        schemars(extend("enum" = ["system", "developer", "user", "assistant", "tool"]))
    )]
    pub role: String,
    /// Text, or parts that are text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::content"))]
    pub content: Option<Value>,
    /// Who said it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Calls that an assistant made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// The call that a `tool` message answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// A function that can be called.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tool {
    /// `function`.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "schema", schemars(extend("const" = "function")))]
    pub kind: String,
    /// Which.
    pub function: Function,
}

/// A function's description.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Function {
    /// Letters, digits, `_` and `-`.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = "^[a-zA-Z0-9_-]{1,64}$")))]
    pub name: String,
    /// For the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("type" = ["object", "null"])))]
    pub parameters: Option<Value>,
    /// Accepted. A call that is asked for by `tool_choice` always fulfils its schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// A call of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolCall {
    /// Its place among the calls; only in chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// Names it for the answer; only in its first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`; only in its first chunk.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What is called.
    pub function: CalledFunction,
}

/// What is called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CalledFunction {
    /// Which; only in a call's first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// JSON text, or what a chunk adds to it. A message may have the object itself.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::arguments"))]
    pub arguments: String,
}

/// The answer as one body.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatCompletion {
    /// `chatcmpl-` and the request id.
    pub id: String,
    /// `chat.completion`.
    pub object: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Served model.
    pub model: String,
    /// `n` of them.
    pub choices: Vec<ChatChoice>,
    /// Tokens in and out.
    pub usage: Usage,
    /// Where the time went; not part of OpenAI's object.
    pub timings: Timings,
}

/// One choice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatChoice {
    /// From 0.
    pub index: u32,
    /// What the model said.
    pub message: Reply,
    /// How likely its tokens were, where the request asked.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length`, `tool_calls` or `cancelled`.
    pub finish_reason: Option<String>,
}

/// What the model said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reply {
    /// `assistant`.
    pub role: String,
    /// Text; null where there are only calls.
    pub content: Option<String>,
    /// Always null.
    pub refusal: Option<String>,
    /// Functions that it calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// A choice's part of a chunk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatChunkChoice {
    /// From 0.
    pub index: u32,
    /// What is new.
    pub delta: Delta,
    /// How likely the new tokens were, where the request asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<ChatLogprobs>,
    /// Null in all chunks but the choice's last.
    pub finish_reason: Option<String>,
}

/// What a chunk adds to a message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Delta {
    /// `assistant`; only in the first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Parts of calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// How likely tokens were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatLogprobs {
    /// One for each token.
    pub content: Vec<TokenLogprob>,
    /// Always null.
    pub refusal: Option<Value>,
}

/// How likely one token was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenLogprob {
    /// The token.
    #[serde(flatten)]
    pub own: Likelihood,
    /// The likeliest tokens in its place.
    pub top_logprobs: Vec<Likelihood>,
}

/// A token and how likely it was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Likelihood {
    /// Its text by itself; bytes that are no characters as U+FFFD.
    pub token: String,
    /// Natural logarithm of its probability; never below -9999.
    pub logprob: f32,
    /// Its text's bytes.
    pub bytes: Vec<u8>,
}
