//! `POST /tokenize` and `POST /detokenize`: text to tokens and back, by the model's tokenizer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::chat::{Message, Tool};

/// Response of `POST /tokenize`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenizeAnswer {
    /// Number of tokens.
    pub count: usize,
    /// Longest context in tokens, prompt and output together.
    pub max_model_len: u32,
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The tokens' texts, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_strs: Option<Vec<String>>,
}

/// Body of `POST /tokenize`: either a prompt or messages.
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
    /// Text to tokenize.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// A conversation, rendered by the chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 4096)))]
    pub messages: Option<Vec<Message>>,
    /// Functions offered in the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<Tool>>,
    /// Add the tokenizer's special tokens, such as BOS, to the text. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_special_tokens: Option<bool>,
    /// End the conversation's prompt where the reply begins. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_generation_prompt: Option<bool>,
    /// End the conversation's prompt with the last message's text. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continue_final_message: Option<bool>,
    /// Additional variables for the chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<BTreeMap<String, serde_json::Value>>,
    /// Also return each token's text.
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

/// Response of `POST /detokenize`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DetokenizeAnswer {
    /// The text.
    pub prompt: String,
}
