//! `POST /v1/chat/completions` and its responses, always in OpenAI's form.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::usage::{Timings, Usage};

/// Fields of `POST /v1/chat/completions` besides those shared with `CompletionRequest`. There is no `prompt`,
/// `echo`, `suffix` or `best_of`, and `logprobs` is a boolean.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatFields {
    /// The conversation so far.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 4096)))]
    pub messages: Vec<Message>,
    /// Most tokens to generate. Default: as many as the context has room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub max_completion_tokens: Option<u32>,
    /// The older name of `max_completion_tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub max_tokens: Option<u32>,
    /// Report the log-probability of each generated token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<bool>,
    /// Also report this many of the most likely tokens; only with `logprobs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 20)))]
    pub top_logprobs: Option<u32>,
    /// Functions that the model may call. The chat template must support tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 512)))]
    pub tools: Option<Vec<Tool>>,
    /// Whether the model may, must or must not call a function, or which one it must call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::tool_choice"))]
    pub tool_choice: Option<Value>,
    /// Whether the model may call several functions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// End the prompt where the reply begins. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_generation_prompt: Option<bool>,
    /// End the prompt with the last message's text, which the model continues. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continue_final_message: Option<bool>,
    /// Additional variables for the chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<BTreeMap<String, Value>>,
    /// How much the model should reason. Passed to the chat template as the variable `reasoning_effort`,
    /// which it may ignore; `none` also sets `enable_thinking` to false. `chat_template_kwargs` wins.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(extend("enum" = ["none", "minimal", "low", "medium", "high", "xhigh", "max", null]))
    )]
    pub reasoning_effort: Option<String>,
    /// Return reasoning (`<think>`) as `reasoning_content`, not as part of `content`. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub separate_reasoning: Option<bool>,
    /// How long the reply should be. Passed to the chat template as the variable `verbosity`, which it may
    /// ignore.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["low", "medium", "high", null])))]
    pub verbosity: Option<String>,
    /// Must be `["text"]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("items" = {"const": "text"})))]
    pub modalities: Option<Vec<String>>,
    /// Accepted and ignored: nothing is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<bool>,
    /// Accepted and ignored: there is only one tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(extend("enum" = ["auto", "default", "flex", "scale", "priority", "fast", null]))
    )]
    pub service_tier: Option<String>,
    /// Accepted and ignored: it would only save time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prediction: Option<BTreeMap<String, Value>>,
    /// Accepted and ignored: cached prefixes are found without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 512)))]
    pub prompt_cache_key: Option<String>,
    /// Accepted and ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_cache_options: Option<BTreeMap<String, Value>>,
    /// Accepted and ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 512)))]
    pub prompt_cache_retention: Option<String>,
    /// Accepted and ignored.
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
    /// `system`, `developer`, `user`, `assistant` or `tool`, if the template supports it.
    #[cfg_attr(
        feature = "schema",
        schemars(extend("enum" = ["system", "developer", "user", "assistant", "tool"]))
    )]
    pub role: String,
    /// Text, or a list of text parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::content"))]
    pub content: Option<Value>,
    /// The assistant's reasoning, which the template may ignore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Name of the author.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Calls made by the assistant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// The call whose result a `tool` message reports.
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
    /// The function.
    pub function: Function,
}

/// A function's description.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Function {
    /// Letters, digits, `_` and `-`.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = "^[a-zA-Z0-9_-]{1,128}$")))]
    pub name: String,
    /// Shown to the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("type" = ["object", "null"])))]
    pub parameters: Option<Value>,
    /// Whether a schema with keywords that can't be enforced is refused. They are ignored otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// A call of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolCall {
    /// Position among the calls; only in chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// Identifies the call for the `tool` message; in a stream, only in its first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`; in a stream, only in the call's first chunk.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The function and its arguments.
    pub function: CalledFunction,
}

/// The function of a call, and its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CalledFunction {
    /// The function's name; in a stream, only in the call's first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// JSON text; in a stream, what the chunk adds to it. Messages may contain the object itself.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::arguments"))]
    pub arguments: String,
}

/// The response as one body.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatCompletion {
    /// `chatcmpl-` and the request id.
    pub id: String,
    /// `chat.completion`.
    pub object: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The served model.
    pub model: String,
    /// Token ids of the rendered conversation, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// The `n` choices.
    pub choices: Vec<ChatChoice>,
    /// Token counts.
    pub usage: Usage,
    /// Durations of the request's phases; not part of OpenAI's object.
    pub timings: Timings,
}

/// One choice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatChoice {
    /// From 0.
    pub index: u32,
    /// The model's reply.
    pub message: Reply,
    /// Log-probabilities of its tokens, if requested.
    pub logprobs: Option<ChatLogprobs>,
    /// The output's token ids, reasoning and calls included, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// `stop`, `length`, `tool_calls` or `cancelled`.
    pub finish_reason: Option<String>,
}

/// The model's reply.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reply {
    /// `assistant`.
    pub role: String,
    /// Text; null if there are only calls.
    pub content: Option<String>,
    /// The reasoning before the reply, if the model writes any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Always null.
    pub refusal: Option<String>,
    /// Calls that the model makes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// A choice's part of a chunk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatChunkChoice {
    /// From 0.
    pub index: u32,
    /// What the chunk adds.
    pub delta: Delta,
    /// Log-probabilities of the added tokens, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<ChatLogprobs>,
    /// Ids of the added tokens, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
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
    /// Reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Parts of calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// Log-probabilities of tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatLogprobs {
    /// One entry per token.
    pub content: Vec<TokenLogprob>,
    /// Always null.
    pub refusal: Option<Value>,
}

/// Log-probabilities at one position.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenLogprob {
    /// The generated token.
    #[serde(flatten)]
    pub own: Likelihood,
    /// The most likely tokens at this position.
    pub top_logprobs: Vec<Likelihood>,
}

/// A token and its log-probability.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Likelihood {
    /// The token's text by itself. Bytes that aren't valid UTF-8 become U+FFFD.
    pub token: String,
    /// Natural logarithm of the token's probability; at least -9999.
    pub logprob: f32,
    /// The token's bytes.
    pub bytes: Vec<u8>,
}
