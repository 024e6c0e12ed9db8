//! `POST /tokenize` and `POST /detokenize`: text to tokens and back, as the model's tokenizer has it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::chat::{Message, Tool};

/// `POST /tokenize`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenizeAnswer {
    /// How many.
    pub count: usize,
    /// Longest prompt plus output.
    pub max_model_len: u32,
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Their texts, where the request asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_strs: Option<Vec<String>>,
}

/// Body of `POST /tokenize`: a prompt or messages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(deny_unknown_fields, transform = crate::schema::prompt_or_messages)
)]
pub struct TokenizeRequest {
    /// The model's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// A conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 4096)))]
    pub messages: Option<Vec<Message>>,
    /// Functions of the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<Tool>>,
    /// Whether a text gets what a bare prompt gets, a token that begins it for instance; on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_special_tokens: Option<bool>,
    /// Whether a conversation ends where an answer begins; on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_generation_prompt: Option<bool>,
    /// Further variables of the chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<BTreeMap<String, serde_json::Value>>,
    /// Whether the answer has each token's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_token_strs: Option<bool>,
}

/// Body of `POST /detokenize`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct DetokenizeRequest {
    /// The model's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Token ids.
    pub tokens: Vec<u32>,
}

/// `POST /detokenize`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DetokenizeAnswer {
    /// The text.
    pub prompt: String,
}
