//! `GET /v1/models`.

use serde::{Deserialize, Serialize};

/// The model that a host serves, by each of its names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModelList {
    /// `list`.
    pub object: String,
    /// One entry for each name.
    pub data: Vec<ModelCard>,
}

/// One model of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModelCard {
    /// The name that requests give.
    pub id: String,
    /// `model`.
    pub object: String,
    /// Seconds since 1970 at which it was loaded.
    pub created: u64,
    /// `infer`.
    pub owned_by: String,
    /// Longest prompt plus output.
    pub max_model_len: u32,
}
