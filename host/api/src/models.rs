//! `GET /v1/models`.

use serde::{Deserialize, Serialize};

/// The served model, under each of its names, and its adapters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModelList {
    /// `list`.
    pub object: String,
    /// One entry per name.
    pub data: Vec<ModelCard>,
}

/// One model of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModelCard {
    /// A name for the `model` field of requests.
    pub id: String,
    /// `model`.
    pub object: String,
    /// Unix time of the host's start, in seconds.
    pub created: u64,
    /// `infer`.
    pub owned_by: String,
    /// Name of the checkpoint or adapter, whatever names it is served under: `demo`, `ORG/NAME` of the Hugging Face hub, or
    /// the name of its directory or file, without path and extension.
    pub root: String,
    /// The model that an adapter belongs to, by the first name that the tenant may use; null for the model itself, and if
    /// there is no such name.
    pub parent: Option<String>,
    /// Longest context in tokens, prompt and output together.
    pub max_model_len: u32,
    /// Dimensions of its vectors at `/v1/embeddings`; absent if it makes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_dimensions: Option<u32>,
}
