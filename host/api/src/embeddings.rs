//! `POST /v1/embeddings` and its response.
//!
//! `EmbeddingsRequest` is for clients, as `CompletionRequest` is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::completions::Prompt;

/// Body of `POST /v1/embeddings`. Fields that are `None` are not sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct EmbeddingsRequest {
    /// A name of the model, as listed by `GET /v1/models`.
    pub model: String,
    /// The input or inputs to embed, at most 1,024.
    pub input: Prompt,
    /// How vectors are written. Default: `float`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoding_format: Option<EncodingFormat>,
    /// Keep only so many leading dimensions, and scale the rest to a length of 1 again, if the model's vectors have
    /// that length. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub dimensions: Option<u32>,
    /// Add the tokenizer's special tokens, such as the end token that many models embed, to texts. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_special_tokens: Option<bool>,
    /// Cached prefixes are shared only between requests with equal salts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 512)))]
    pub cache_salt: Option<String>,
    /// Larger values are more urgent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Milliseconds until the vectors are due.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub ttft_deadline_ms: Option<u32>,
    /// Shown to operators.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 512)))]
    pub user: Option<String>,
    /// Shown to operators, in the log and the console.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("maxProperties" = 16, "additionalProperties" = {"type": "string", "maxLength": 512})))]
    pub metadata: Option<BTreeMap<String, String>>,
}

/// How vectors are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum EncodingFormat {
    /// A list of numbers.
    #[default]
    Float,
    /// The numbers as 32-bit floats, little end first, in base64.
    Base64,
}

/// Response of `POST /v1/embeddings`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EmbeddingList {
    /// `list`.
    pub object: String,
    /// One for each input, in their order.
    pub data: Vec<Embedding>,
    /// The served model.
    pub model: String,
    /// Token counts.
    pub usage: EmbeddingUsage,
}

/// An input's vector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Embedding {
    /// `embedding`.
    pub object: String,
    /// Position of the input.
    pub index: u32,
    /// The vector.
    pub embedding: EmbeddingVector,
}

/// A vector, as the request's `encoding_format` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum EmbeddingVector {
    /// `float`.
    Numbers(Vec<f32>),
    /// `base64`.
    Base64(String),
}

impl Default for EmbeddingVector {
    fn default() -> Self {
        Self::Numbers(Vec::new())
    }
}

/// Token counts of a request that embeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EmbeddingUsage {
    /// Tokens of all inputs.
    pub prompt_tokens: u32,
    /// The same.
    pub total_tokens: u32,
}
