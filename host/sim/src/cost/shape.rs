//! The dimensions of a model that determine what a step costs.

use serde::{Deserialize, Serialize};

use super::ProfileError;
use crate::range::{named, within};

/// Dimensions of a decoder that determine its cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelShape {
    /// Short name, such as `8b`.
    pub name: String,
    /// All weights, which the device's memory holds.
    pub weights: f64,
    /// Those of them that only sampled tokens are multiplied with: the output projection.
    #[serde(default)]
    pub output_weights: f64,
    /// Those of them that no token is multiplied with: an embedding that isn't the output projection as well.
    #[serde(default)]
    pub embedding_weights: f64,
    /// Bytes per weight.
    pub weight_bytes: f64,
    /// Decoder layers.
    pub layers: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements per head.
    pub head_dim: u32,
    /// Bytes per cached element.
    pub kv_bytes: f64,
}

impl ModelShape {
    /// Names of the known shapes.
    pub const NAMES: [&'static str; 4] = ["demo", "1b", "8b", "70b"];

    /// A shape by name: the demo model, and those of Llama 3.2 1B, Llama 3.1 8B and 70B in bf16.
    pub fn named(name: &str) -> Option<Self> {
        let ([weights, output_weights, embedding_weights], [layers, heads, kv_heads, head_dim]) = match name {
            "demo" => ([2.31e6, 344e3, 0.0], [5, 6, 2, 32]),
            "1b" => ([1.236e9, 262.7e6, 0.0], [16, 32, 8, 64]),
            "8b" => ([8.03e9, 525.3e6, 525.3e6], [32, 32, 8, 128]),
            "70b" => ([70.6e9, 1.051e9, 1.051e9], [80, 64, 8, 128]),
            _ => return None,
        };
        Some(Self {
            name: name.to_owned(),
            weights,
            output_weights,
            embedding_weights,
            weight_bytes: 2.0,
            layers,
            heads,
            kv_heads,
            head_dim,
            kv_bytes: 2.0,
        })
    }

    /// Reads a shape from JSON.
    ///
    /// # Errors
    /// If it is not a shape, or a number is out of range. The message names the field.
    pub fn from_json(text: &str) -> Result<Self, ProfileError> {
        let shape: Self = serde_json::from_str(text)
            .map_err(|error| ProfileError(format!("not a model shape: {error}")))?;
        shape.check().map_err(ProfileError)?;
        Ok(shape)
    }

    fn check(&self) -> Result<(), String> {
        named(&self.name)?;
        within("`weights`", self.weights, 1e3..=1e15)?;
        within("`output_weights`", self.output_weights, 0.0..=self.weights)?;
        within("`embedding_weights`", self.embedding_weights, 0.0..=self.weights - self.output_weights)?;
        within("`weight_bytes`", self.weight_bytes, 0.1..=8.0)?;
        within("`kv_bytes`", self.kv_bytes, 0.1..=8.0)?;
        let sizes = [
            ("`layers`", self.layers),
            ("`heads`", self.heads),
            ("`kv_heads`", self.kv_heads),
            ("`head_dim`", self.head_dim),
        ];
        sizes.into_iter().try_for_each(|(name, value)| within(name, f64::from(value), 1.0..=65_536.0))
    }

    /// Weights that every token is multiplied with.
    pub fn layer_weights(&self) -> f64 {
        self.weights - self.output_weights - self.embedding_weights
    }

    /// Bytes of a token's keys and values in all layers.
    pub fn kv_token_bytes(&self) -> f64 {
        2.0 * f64::from(self.layers) * f64::from(self.kv_heads) * f64::from(self.head_dim) * self.kv_bytes
    }
}
