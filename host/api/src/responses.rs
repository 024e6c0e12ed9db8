//! `POST /v1/responses` in OpenAI's form: the request's own fields, the response, and the events of its stream.
//!
//! The events are only written here, so they borrow what they show.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chat::TokenLogprob;
use crate::usage::{CompletionTokensDetails, Timings};

/// Fields of `POST /v1/responses` besides those shared with `CompletionRequest`. There is no `n` and no
/// `response_format`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResponsesFields {
    /// The conversation: a user's text, or a list of messages, function calls, their outputs, and reasoning.
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::response_input"))]
    pub input: Value,
    /// A system message before the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Most tokens to generate, reasoning included. Default: as many as the context has room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub max_output_tokens: Option<u32>,
    /// `message.output_text.logprobs` asks for log-probabilities of a message's tokens. The other values concern
    /// tools and stored items, and have no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::response_include"))]
    pub include: Option<Vec<String>>,
    /// Also report this many of the most likely tokens; only with log-probabilities.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 20)))]
    pub top_logprobs: Option<u32>,
    /// Functions that the model may call, or namespaces of functions. The chat template must support tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::response_tools"))]
    pub tools: Option<Vec<Value>>,
    /// Whether the model may, must or must not call a function, or which ones it may or must call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::response_tool_choice"))]
    pub tool_choice: Option<Value>,
    /// Whether the model may call several functions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// Accepted and ignored: it would limit tools that the host itself runs, and there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub max_tool_calls: Option<u32>,
    /// Form and length of the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<TextConfig>,
    /// How much the model should reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<ReasoningConfig>,
    /// Must be `disabled`: an input that is too long is an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["disabled", null])))]
    pub truncation: Option<String>,
    /// Must be false: nothing outlives its request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = [false, null])))]
    pub background: Option<bool>,
    /// Accepted and ignored: nothing is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<bool>,
    /// Additional variables for the chat template; not part of OpenAI's API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<BTreeMap<String, Value>>,
    /// Accepted and ignored: there is only one tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(extend("enum" = ["auto", "default", "flex", "scale", "priority", "fast", null]))
    )]
    pub service_tier: Option<String>,
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
    /// Accepted and ignored: what a client says of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_metadata: Option<BTreeMap<String, Value>>,
}

/// A function that can be called.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FunctionTool {
    /// `function`.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "schema", schemars(extend("const" = "function")))]
    pub kind: String,
    /// Letters, digits, `_` and `-`.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = "^[a-zA-Z0-9_-]{1,128}$")))]
    pub name: String,
    /// Shown to the model.
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("type" = ["object", "null"])))]
    pub parameters: Option<Value>,
    /// Whether a schema with keywords that can't be enforced is refused. They are ignored otherwise.
    pub strict: Option<bool>,
}

/// Form and length of a response's text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TextConfig {
    /// Required form: `{"type": "json_object"}`, or `json_schema` with a `schema` beside the type.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::text_format"))]
    pub format: Value,
    /// How long the text should be. Passed to the chat template as the variable `verbosity`, which it may ignore.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["low", "medium", "high", null])))]
    pub verbosity: Option<String>,
}

/// How a model should reason before it replies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReasoningConfig {
    /// Passed to the chat template as the variable `reasoning_effort`, which it may ignore; `none` also sets
    /// `enable_thinking` to false. `chat_template_kwargs` wins.
    #[cfg_attr(
        feature = "schema",
        schemars(extend("enum" = ["none", "minimal", "low", "medium", "high", "xhigh", "max", null]))
    )]
    pub effort: Option<String>,
    /// Accepted and ignored: the reasoning itself is returned, and never a summary.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["auto", "concise", "detailed", null])))]
    pub summary: Option<String>,
    /// The older name of `summary`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["auto", "concise", "detailed", null])))]
    pub generate_summary: Option<String>,
}

/// The response: as one body, or so far in the first and last events of a stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Response {
    /// `resp_` and the request id.
    pub id: String,
    /// `response`.
    pub object: String,
    /// Unix time in seconds.
    pub created_at: u64,
    /// Unix time in seconds of its end, if it is complete.
    pub completed_at: Option<u64>,
    /// `in_progress`, `completed`, `incomplete`, `cancelled` or `failed`.
    pub status: String,
    /// Always false.
    pub background: bool,
    /// Why it failed.
    pub error: Option<ResponseError>,
    /// Why it is incomplete.
    pub incomplete_details: Option<IncompleteDetails>,
    /// The request's.
    pub instructions: Option<String>,
    /// The request's.
    pub max_output_tokens: Option<u32>,
    /// The request's.
    pub max_tool_calls: Option<u32>,
    /// The request's.
    pub metadata: BTreeMap<String, String>,
    /// The served model.
    pub model: String,
    /// What the model said, in order.
    pub output: Vec<OutputItem>,
    /// The request's.
    pub parallel_tool_calls: bool,
    /// Always null: nothing is stored.
    pub previous_response_id: Option<String>,
    /// The request's.
    pub prompt_cache_key: Option<String>,
    /// The request's.
    pub reasoning: ReasoningConfig,
    /// The request's.
    pub safety_identifier: Option<String>,
    /// Always `default`.
    pub service_tier: String,
    /// Always false: nothing is stored.
    pub store: bool,
    /// The temperature it was sampled with.
    pub temperature: f32,
    /// The request's.
    pub text: TextConfig,
    /// The request's.
    pub tool_choice: Value,
    /// The functions that the model was shown.
    pub tools: Vec<FunctionTool>,
    /// The request's.
    pub top_logprobs: u32,
    /// The `top_p` it was sampled with.
    pub top_p: f32,
    /// Always `disabled`.
    pub truncation: String,
    /// Token counts, at the end.
    pub usage: Option<ResponseUsage>,
    /// The request's.
    pub user: Option<String>,
    /// Durations of the request's phases, at the end; not part of OpenAI's object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// Why a response failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResponseError {
    /// `server_error` or `rate_limit_exceeded`.
    pub code: String,
    /// For people.
    pub message: String,
}

/// Why a response is incomplete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IncompleteDetails {
    /// `max_output_tokens`, whether the request or the context sets the limit.
    pub reason: String,
}

/// A part of a response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputItem {
    /// The reasoning before a reply.
    Reasoning {
        /// Begins with `rs_`.
        id: String,
        /// Always empty.
        summary: Vec<Value>,
        /// The reasoning, as one part.
        content: Vec<OutputPart>,
        /// `in_progress`, `completed` or `incomplete`.
        status: String,
    },
    /// Text for the user.
    Message {
        /// Begins with `msg_`.
        id: String,
        /// `in_progress`, `completed` or `incomplete`.
        status: String,
        /// `assistant`.
        role: String,
        /// The text, as one part.
        content: Vec<OutputPart>,
    },
    /// A call of a function.
    FunctionCall {
        /// Begins with `fc_`.
        id: String,
        /// `in_progress`, `completed`, or `incomplete` if it can't be made: its arguments are cut off or no object.
        status: String,
        /// JSON text.
        arguments: String,
        /// Identifies the call for its `function_call_output`.
        call_id: String,
        /// The function.
        name: String,
        /// The function's namespace, if it has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
    },
}

/// A part of an item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputPart {
    /// Text of a message.
    OutputText {
        /// The text.
        text: String,
        /// Always empty.
        annotations: Vec<Value>,
        /// Log-probabilities of its tokens, if requested. In a stream only the deltas have them.
        logprobs: Vec<TokenLogprob>,
    },
    /// Text of the reasoning.
    ReasoningText {
        /// The text.
        text: String,
    },
}

/// Token counts of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResponseUsage {
    /// Tokens of the rendered conversation.
    pub input_tokens: u32,
    /// Details of `input_tokens`.
    pub input_tokens_details: InputTokensDetails,
    /// Generated tokens, including end tokens.
    pub output_tokens: u32,
    /// Details of `output_tokens`.
    pub output_tokens_details: CompletionTokensDetails,
    /// Sum of both.
    pub total_tokens: u32,
}

/// Details of a conversation's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InputTokensDetails {
    /// Tokens found in the prefix cache.
    pub cached_tokens: u32,
    /// Always 0: what OpenAI charges for, and clients require.
    pub cache_write_tokens: u32,
}

/// The beginning or the end of a response: `response.created`, `response.in_progress`, `response.completed`,
/// `response.incomplete` or `response.failed`.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResponseEvent<'a> {
    /// The event's name.
    #[serde(rename = "type")]
    pub kind: &'a str,
    /// From 0, one more with each event.
    pub sequence_number: u32,
    /// The response so far.
    pub response: &'a Response,
}

/// The beginning or the end of an item: `response.output_item.added` or `response.output_item.done`.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ItemEvent<'a> {
    /// The event's name.
    #[serde(rename = "type")]
    pub kind: &'a str,
    /// From 0, one more with each event.
    pub sequence_number: u32,
    /// Position in the response's output.
    pub output_index: usize,
    /// The item so far.
    pub item: &'a OutputItem,
}

/// The beginning or the end of an item's part: `response.content_part.added` or `response.content_part.done`.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PartEvent<'a> {
    /// The event's name.
    #[serde(rename = "type")]
    pub kind: &'a str,
    /// From 0, one more with each event.
    pub sequence_number: u32,
    /// The part's item.
    pub item_id: &'a str,
    /// Position of the item in the response's output.
    pub output_index: usize,
    /// Position in the item's content.
    pub content_index: usize,
    /// The part so far.
    pub part: &'a OutputPart,
}

/// What is added to a text: `response.output_text.delta`, `response.reasoning_text.delta` or
/// `response.function_call_arguments.delta`.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeltaEvent<'a> {
    /// The event's name.
    #[serde(rename = "type")]
    pub kind: &'a str,
    /// From 0, one more with each event.
    pub sequence_number: u32,
    /// The text's item.
    pub item_id: &'a str,
    /// Position of the item in the response's output.
    pub output_index: usize,
    /// Position in the item's content; calls have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_index: Option<usize>,
    /// More of the text.
    pub delta: &'a str,
    /// Log-probabilities of its tokens, if requested; only messages have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<&'a [TokenLogprob]>,
}

/// A whole text: `response.output_text.done`, `response.reasoning_text.done` or
/// `response.function_call_arguments.done`.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DoneTextEvent<'a> {
    /// The event's name.
    #[serde(rename = "type")]
    pub kind: &'a str,
    /// From 0, one more with each event.
    pub sequence_number: u32,
    /// The text's item.
    pub item_id: &'a str,
    /// Position of the item in the response's output.
    pub output_index: usize,
    /// Position in the item's content; calls have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_index: Option<usize>,
    /// The text of a message or of reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<&'a str>,
    /// Always empty: the deltas have them. Only messages have this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<&'a [TokenLogprob]>,
    /// The function of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// The arguments of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<&'a str>,
}

/// `error`, before `response.failed`.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FailureEvent<'a> {
    /// The event's name.
    #[serde(rename = "type")]
    pub kind: &'a str,
    /// From 0, one more with each event.
    pub sequence_number: u32,
    /// Machine-readable.
    pub code: &'a str,
    /// For people.
    pub message: &'a str,
    /// Always null.
    pub param: Option<&'a str>,
}
