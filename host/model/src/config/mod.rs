//! A checkpoint's configuration as data: every difference between model families is a field here, so a family is a set of
//! values and not a copy of the code. `hugging_face` and `positions` read the keys of Hugging Face's config.json and refuse
//! by name everything that this host would compute wrongly.

mod compressed;
mod experts;
mod family;
mod generation;
mod hugging_face;
mod keys;
mod lora;
mod pooling;
mod positions;
mod quantization;
mod rope;

use infer_kernels::{Activation, AttentionParams};

pub use experts::{ExpertLayout, ExpertsConfig};
pub use generation::SamplingDefaults;
pub(crate) use keys::Keys;
pub(crate) use lora::LoraConfig;
pub use pooling::Pooling;
pub(crate) use quantization::INSTEAD;
pub use quantization::{Code, Quantization, Scheme, Shared};
pub use rope::{LongRope, RopeConfig, RopeScaling, Yarn};

use crate::DType;
use crate::error::ModelError;

/// A decoder's shape and options.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// `model_type` of the checkpoint.
    pub model_type: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the gated feed-forward layer, in layers without experts.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Dimensions of a head; `heads * head_dim` need not equal `hidden`.
    pub head_dim: usize,
    /// Embedding rows.
    pub vocab: usize,
    /// Positions that the model supports, including by scaling of its position embedding.
    pub max_positions: usize,
    /// Added to the mean square in norms.
    pub norm_epsilon: f32,
    /// Norms multiply by `1 + weight`.
    pub norm_offset: bool,
    /// How queries and keys are normed before rope.
    pub qk_norm: QkNorm,
    /// Each query head has a learned score beside those of the tokens, which takes a share of its attention.
    pub sinks: bool,
    /// Attention and feed-forward inputs are normed.
    pub input_norms: bool,
    /// Attention and feed-forward outputs are normed before they are added.
    pub output_norms: bool,
    /// The query, key and value projections have biases.
    pub qkv_bias: bool,
    /// The attention's output projection has a bias.
    pub output_bias: bool,
    /// The feed-forward projections have biases.
    pub mlp_bias: bool,
    /// The checkpoint has queries, keys and values as one projection, and gate and up as another.
    pub fused: bool,
    /// The output head is the embedding.
    pub tied_head: bool,
    /// Factor of embeddings.
    pub embedding_scale: f32,
    /// Factor of attention scores.
    pub query_scale: f32,
    /// Factor of what attention and feed-forward layers add to the residual stream.
    pub branch_scale: Option<f32>,
    /// Logits are divided by this.
    pub logit_divisor: Option<f32>,
    /// Attention scores go through `cap * tanh(score / cap)`.
    pub attention_soft_cap: Option<f32>,
    /// Logits go through `cap * tanh(logit / cap)`.
    pub logit_soft_cap: Option<f32>,
    /// The activation of the gate.
    pub activation: Activation,
    /// Position embeddings that layers choose from.
    pub ropes: Vec<RopeConfig>,
    /// One entry per layer.
    pub layers: Vec<LayerConfig>,
    /// Tokens that end a sequence.
    pub stop_tokens: Vec<u32>,
    /// The storage type that the checkpoint declares.
    pub stored_dtype: Option<DType>,
    /// The forms of its quantized matrices, if it is in safetensors and has some in other forms than MXFP4.
    pub quantization: Option<Quantization>,
    /// How the checkpoint makes one vector of a text, if it says so.
    pub pooling: Option<Pooling>,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QkNorm {
    /// They have none.
    #[default]
    None,
    /// Each head by itself.
    Heads,
    /// All of a token's query heads together, and all of its key heads.
    Whole,
}

/// Options of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerConfig {
    /// A token sees this many tokens, including itself; `None` means all.
    pub window: Option<u32>,
    /// Index into `ModelConfig::ropes`.
    pub rope: usize,
    /// The feed-forward layer's experts, if it has some.
    pub experts: Option<ExpertsConfig>,
}

impl ModelConfig {
    /// Parses the bytes of `config.json` and, if present, of `generation_config.json`.
    ///
    /// # Errors
    /// Names the key at fault.
    pub fn parse(config: &[u8], generation: Option<&[u8]>) -> Result<Self, ModelError> {
        let keys = Keys::parse("config.json", config)?;
        let stop_tokens = hugging_face::stop_tokens(&keys, generation)?;
        Self::from_keys(&keys, stop_tokens)
    }

    /// Builds a configuration from keys with the meaning of those of a config.json.
    pub(crate) fn from_keys(keys: &Keys, stop_tokens: Vec<u32>) -> Result<Self, ModelError> {
        hugging_face::parse(keys, stop_tokens)
    }

    /// Numbers of all query heads.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Numbers of all key heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Bytes of one token's keys and values in all layers, stored as `dtype`.
    pub fn kv_bytes_per_token(&self, dtype: DType) -> u64 {
        (2 * self.layers.len() * self.kv_width() * dtype.bytes()) as u64
    }

    /// Positions that the model supports.
    pub fn context_length(&self) -> u32 {
        u32::try_from(self.max_positions).unwrap_or(u32::MAX)
    }

    /// Whether any layer consists of experts.
    pub fn has_experts(&self) -> bool {
        self.layers.iter().any(|layer| layer.experts.is_some())
    }

    /// Weights of all layers' projections.
    pub fn layers_weights(&self) -> usize {
        self.weights_of(|experts| experts.count)
    }

    /// Multiply-adds of all layers for one token: their weights, but of experts only those that compute the token.
    pub fn token_weights(&self) -> usize {
        self.weights_of(|experts| experts.per_token)
    }

    /// Weights of all layers with this number of experts.
    fn weights_of(&self, count: impl Fn(&ExpertsConfig) -> usize) -> usize {
        let attention = 2 * self.q_width() + 2 * self.kv_width();
        let of_layer = |layer: &LayerConfig| match &layer.experts {
            None => attention + 3 * self.intermediate,
            Some(experts) => attention + experts.count + 3 * experts.intermediate * count(experts),
        };
        self.hidden * self.layers.iter().map(of_layer).sum::<usize>()
    }

    /// Widths of the norms of queries and of keys, if there are norms.
    pub fn qk_norm_widths(&self) -> Option<[usize; 2]> {
        match self.qk_norm {
            QkNorm::None => None,
            QkNorm::Heads => Some([self.head_dim; 2]),
            QkNorm::Whole => Some([self.q_width(), self.kv_width()]),
        }
    }

    /// How a layer attends, without its sinks, which are weights.
    pub fn attention(&self, layer: usize) -> AttentionParams<'static> {
        AttentionParams {
            heads: self.heads,
            scale: self.query_scale,
            soft_cap: self.attention_soft_cap,
            window: self.layers[layer].window,
            sinks: None,
        }
    }
}
