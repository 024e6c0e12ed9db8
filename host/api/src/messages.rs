//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's form of a conversation.
//!
//! The types of a request describe it for the OpenAPI document; the server has a parser of its own. Fields of Anthropic's
//! API that have no effect on this host are not here: the server lists them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::usage::Timings;

/// Fields of `POST /v1/messages` besides the sampling parameters and those that only this host has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MessagesFields {
    /// The conversation so far. A last message of the assistant's is continued.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 4096)))]
    pub messages: Vec<Turn>,
    /// Most tokens to generate. The context may have room for fewer. 0 only caches the prompt.
    pub max_tokens: u32,
    /// Instructions that precede the conversation: text, or a list of text blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::text_or_blocks"))]
    pub system: Option<Value>,
    /// Texts that end the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16)))]
    pub stop_sequences: Option<Vec<String>>,
    /// Tools that the model may use. The chat template must support tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 512)))]
    pub tools: Option<Vec<OfferedTool>>,
    /// Whether the model may, must or must not use a tool, or which one it must use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// Whether the model reasons before it replies. Passed to the chat template as the variable `enable_thinking`, which
    /// it may ignore; reasoning that isn't asked for is left out of the reply. Default: it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<Thinking>,
    /// The form of the reply, and the effort.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_config: Option<OutputConfig>,
    /// The older place of `format` in `output_config`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_format: Option<OutputFormat>,
    /// Additional variables for the chat template, which win over those that other fields set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<BTreeMap<String, Value>>,
    /// Labels for operators. `user_id` is shown as the user, and its session, as Claude Code writes it, is the `session_id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("maxProperties" = 16)))]
    pub metadata: Option<BTreeMap<String, Option<String>>>,
}

/// One message of the conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Turn {
    /// Who says it. A `system` message after the first other one becomes a part of the user's.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["user", "assistant", "system"])))]
    pub role: String,
    /// Text, or a list of blocks: `text`; of the user also `tool_result`; of the assistant also `thinking`,
    /// `redacted_thinking` and `tool_use`.
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::text_or_blocks"))]
    pub content: Value,
}

/// A tool that the client runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OfferedTool {
    /// `custom`, which is the default: this host runs no tools.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["custom", null])))]
    pub kind: Option<String>,
    /// Letters, digits, `_` and `-`.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = "^[a-zA-Z0-9_-]{1,128}$")))]
    pub name: String,
    /// Shown to the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of the input.
    pub input_schema: BTreeMap<String, Value>,
    /// Whether a schema with keywords that can't be enforced is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// How the model may use the tools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolChoice {
    /// The model decides (`auto`), must use one (`any`), must use a named one (`tool`), or is shown none (`none`).
    #[serde(rename = "type")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["auto", "any", "tool", "none"])))]
    pub kind: String,
    /// The tool, with the type `tool`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether the model may use at most one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_parallel_tool_use: Option<bool>,
}

/// Whether the model reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Thinking {
    /// All but `disabled` let it reason.
    #[serde(rename = "type")]
    #[cfg_attr(
        feature = "schema",
        schemars(extend("enum" = ["enabled", "adaptive", "between_tools", "disabled"]))
    )]
    pub kind: String,
    /// Accepted and ignored: `max_tokens` limits the reasoning, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub budget_tokens: Option<u32>,
    /// `omitted` leaves the text of thinking blocks empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["summarized", "omitted", null])))]
    pub display: Option<String>,
}

/// The form of the reply, and the effort.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct OutputConfig {
    /// How much the model should reason. Passed to the chat template as the variable `reasoning_effort`, which it may
    /// ignore.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["low", "medium", "high", "xhigh", "max", null])))]
    pub effort: Option<String>,
    /// What the reply must be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<OutputFormat>,
    /// Accepted and ignored: the model is told of no budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_budget: Option<BTreeMap<String, Value>>,
}

/// What the reply must be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutputFormat {
    /// `json_schema`.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "schema", schemars(extend("const" = "json_schema")))]
    pub kind: String,
    /// JSON Schema that the reply must match. Keywords that can't be enforced are refused.
    pub schema: BTreeMap<String, Value>,
}

/// The response as one body.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MessagesReply {
    /// `msg_` and the request id.
    pub id: String,
    /// `message`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `assistant`.
    pub role: String,
    /// The served model.
    pub model: String,
    /// The reply.
    pub content: Vec<Block>,
    /// `end_turn`, `max_tokens`, `model_context_window_exceeded`, `stop_sequence`, `tool_use`, or `cancelled` by an
    /// operator.
    pub stop_reason: Option<String>,
    /// The stop sequence that ended the reply.
    pub stop_sequence: Option<String>,
    /// Token counts.
    pub usage: MessagesUsage,
    /// Durations of the request's phases; not part of Anthropic's object, and not in streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// A part of the reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// The reasoning before the reply.
    Thinking {
        /// Its text.
        thinking: String,
        /// Always empty: nothing is signed.
        signature: String,
    },
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// The model uses a tool.
    ToolUse {
        /// Identifies the use for the `tool_result`.
        id: String,
        /// The tool.
        name: String,
        /// Its input. One that is no JSON object is the text `INVALID_JSON` in it.
        input: Map<String, Value>,
    },
}

/// Token counts of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MessagesUsage {
    /// Tokens of the prompt that were not cached. Before the end of a stream: all of them.
    pub input_tokens: u32,
    /// Always 0: what is computed is cached without being asked for, and counts as input.
    pub cache_creation_input_tokens: u32,
    /// Tokens of the prompt that were found in the prefix cache.
    pub cache_read_input_tokens: u32,
    /// Generated tokens, including end tokens.
    pub output_tokens: u32,
    /// Details of `output_tokens`; only with a model that may reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens_details: Option<OutputTokensDetails>,
}

/// Details of the generated tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutputTokensDetails {
    /// Tokens of the reasoning, with its tags.
    pub thinking_tokens: u32,
}

/// An event of a stream, named by its type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum MessagesEvent {
    /// The stream begins.
    MessageStart {
        /// The message without content.
        message: Box<MessagesReply>,
    },
    /// A block begins.
    ContentBlockStart {
        /// Position among the blocks.
        index: u32,
        /// The block without content.
        content_block: Block,
    },
    /// More of the block.
    ContentBlockDelta {
        /// Position among the blocks.
        index: u32,
        /// What is added.
        delta: BlockDelta,
    },
    /// The block is complete.
    ContentBlockStop {
        /// Position among the blocks.
        index: u32,
    },
    /// The message is complete.
    MessageDelta {
        /// Why it ended.
        delta: StopDelta,
        /// All token counts.
        usage: MessagesUsage,
    },
    /// The stream is complete.
    MessageStop,
}

impl MessagesEvent {
    /// The event's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
        }
    }
}

/// What is added to a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BlockDelta {
    /// Reasoning.
    ThinkingDelta {
        /// Its text.
        thinking: String,
    },
    /// Text.
    TextDelta {
        /// The text.
        text: String,
    },
    /// A part of a tool's input.
    InputJsonDelta {
        /// JSON text.
        partial_json: String,
    },
}

/// Why a message ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StopDelta {
    /// As in the whole message.
    pub stop_reason: Option<String>,
    /// As in the whole message.
    pub stop_sequence: Option<String>,
}

/// Response of `POST /v1/messages/count_tokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenCount {
    /// Tokens of the prompt that the conversation would be.
    pub input_tokens: u32,
}

/// Body of an error response of these endpoints, and of the `error` event of their streams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MessagesError {
    /// `error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What went wrong.
    pub error: MessagesErrorInfo,
    /// The request's id; not in streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// What went wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MessagesErrorInfo {
    /// Anthropic's class of errors, for example `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What is wrong and what to do, for people.
    pub message: String,
    /// The field that caused it; not part of Anthropic's object.
    pub param: Option<String>,
    /// Machine-readable code; not part of Anthropic's object.
    pub code: String,
}
