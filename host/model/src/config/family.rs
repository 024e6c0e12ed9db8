//! The model families: what `model_type` implies before any other key is read.

use super::{ExpertLayout, QkNorm};
use crate::error::ModelError;

/// Differences between families that are not in their keys.
#[derive(Clone, Copy, Default)]
pub(super) struct Family {
    pub(super) qk_norm: QkNorm,
    pub(super) gemma: bool,
    pub(super) gpt_oss: bool,
    /// Query, key and value projections have biases regardless of `attention_bias`.
    pub(super) qkv_bias: bool,
    /// The family uses the keys `attention_bias` and `mlp_bias`.
    pub(super) bias_keys: bool,
    /// Feed-forward layers may consist of experts.
    pub(super) experts: Option<FamilyExperts>,
    /// Some layers have no position embedding (`no_rope_layers`, `no_rope_layer_interval`).
    pub(super) unrotated: bool,
    /// Projections of the same input are one matrix, position embeddings may rotate a part of a head
    /// (`partial_rotary_factor`), and their scaling has factors for short and for long sequences.
    pub(super) phi: bool,
    /// Factors of embeddings, scores, residual branches and logits are keys.
    pub(super) multipliers: bool,
    /// Norms follow attention and feed-forward layers and don't precede them.
    pub(super) norms_behind: bool,
    /// Sliding layers have a position embedding of their own, without the scaling of the others.
    pub(super) plain_local: bool,
    /// The head is the embedding unless `tie_word_embeddings` says otherwise.
    pub(super) tied: bool,
    /// The base of position embeddings if no key has it; `None`: 10,000.
    pub(super) theta: Option<f64>,
    /// `rms_norm_eps` if that is absent; `None`: 1e-6.
    pub(super) epsilon: Option<f64>,
    /// `sliding_window` counts unless `use_sliding_window` says otherwise.
    pub(super) windows: Windows,
}

/// What families that have experts differ in.
#[derive(Clone, Copy)]
pub(super) struct FamilyExperts {
    /// The key of an expert's width.
    pub(super) width: &'static str,
    /// Keys say which layers have experts; otherwise all have.
    pub(super) in_some_layers: bool,
    /// Whether the weights of a token's experts are divided by their sum; `None`: only if `norm_topk_prob` says so.
    pub(super) normalized: Option<bool>,
    pub(super) bias: bool,
    pub(super) layout: ExpertLayout,
}

impl FamilyExperts {
    /// Those of Qwen3 MoE.
    const QWEN: Self = Self {
        width: "moe_intermediate_size",
        in_some_layers: true,
        normalized: None,
        bias: false,
        layout: ExpertLayout::Plain,
    };
    const OLMO: Self = Self { width: "intermediate_size", in_some_layers: false, ..Self::QWEN };
    const MIXTRAL: Self = Self { normalized: Some(true), layout: ExpertLayout::Mixtral, ..Self::OLMO };
    /// Their weights are the softmax over those chosen, which is the same as dividing by the sum.
    const GPT_OSS: Self = Self { bias: true, layout: ExpertLayout::Interleaved, ..Self::MIXTRAL };
}

#[derive(Clone, Copy, Default, PartialEq)]
pub(super) enum Windows {
    #[default]
    Never,
    /// All layers, if `sliding_window` is a number.
    All,
    /// The same, but absent is null.
    Given,
    /// Only with `use_sliding_window`, from layer `max_window_layers` on.
    Opted,
    /// All layers, only with `use_sliding_window`.
    AllOpted,
    /// Every n-th layer is global.
    Pattern,
    /// Every fourth layer is global, if no list says otherwise.
    Fourth,
    /// Layers without a position embedding, only with `use_sliding_window`.
    Unrotated,
}

impl Windows {
    /// Whether transformers has a width for checkpoints without the key `sliding_window`.
    pub(super) fn have_default(self) -> bool {
        !matches!(self, Self::Never | Self::Given | Self::Unrotated)
    }
}

impl Family {
    pub(super) fn of(model_type: &str) -> Result<Self, ModelError> {
        let plain = Self::default();
        Ok(match model_type {
            "llama" => Self { bias_keys: true, ..plain },
            "mistral" => Self { windows: Windows::All, ..plain },
            "qwen2" => Self { qkv_bias: true, windows: Windows::Opted, ..plain },
            "mixtral" => Self {
                experts: Some(FamilyExperts::MIXTRAL),
                theta: Some(1_000_000.0),
                epsilon: Some(1e-5),
                windows: Windows::Given,
                ..plain
            },
            "qwen3" => Self { qk_norm: QkNorm::Heads, bias_keys: true, windows: Windows::Opted, ..plain },
            "qwen3_moe" => Self {
                qk_norm: QkNorm::Heads,
                bias_keys: true,
                experts: Some(FamilyExperts::QWEN),
                windows: Windows::AllOpted,
                ..plain
            },
            "gemma3_text" => Self {
                qk_norm: QkNorm::Heads,
                gemma: true,
                bias_keys: true,
                windows: Windows::Pattern,
                ..plain
            },
            "smollm3" => Self {
                bias_keys: true,
                unrotated: true,
                tied: true,
                theta: Some(2_000_000.0),
                windows: Windows::Unrotated,
                ..plain
            },
            "phi3" => Self { phi: true, epsilon: Some(1e-5), windows: Windows::Given, ..plain },
            "granite" => Self { bias_keys: true, multipliers: true, ..plain },
            "olmo2" => Self {
                qk_norm: QkNorm::Whole,
                norms_behind: true,
                bias_keys: true,
                epsilon: Some(1e-5),
                ..plain
            },
            "olmo3" => Self {
                qk_norm: QkNorm::Whole,
                norms_behind: true,
                plain_local: true,
                bias_keys: true,
                theta: Some(500_000.0),
                epsilon: Some(1e-5),
                windows: Windows::Fourth,
                ..plain
            },
            "olmoe" => Self {
                qk_norm: QkNorm::Whole,
                bias_keys: true,
                experts: Some(FamilyExperts::OLMO),
                epsilon: Some(1e-5),
                ..plain
            },
            "gpt_oss" => Self {
                gpt_oss: true,
                bias_keys: true,
                experts: Some(FamilyExperts::GPT_OSS),
                theta: Some(150_000.0),
                epsilon: Some(1e-5),
                windows: Windows::Pattern,
                ..plain
            },
            other => {
                return Err(ModelError::unsupported(format!(
                    "config.json: model_type {other:?}; supported are llama, mistral, mixtral, qwen2, qwen3, \
                     qwen3_moe, gemma3_text, smollm3, phi3, granite, olmo2, olmo3, olmoe and gpt_oss"
                )));
            }
        })
    }
}
