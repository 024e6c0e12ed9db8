//! The model families: what `model_type` implies before any other key is read.

use crate::error::ModelError;

/// Differences between families that are not in their keys.
#[derive(Clone, Copy, Default)]
pub(super) struct Family {
    pub(super) qk_norm: bool,
    pub(super) gemma: bool,
    /// Query, key and value projections have biases regardless of `attention_bias`.
    pub(super) qkv_bias: bool,
    /// The family uses the keys `attention_bias` and `mlp_bias`.
    pub(super) bias_keys: bool,
    /// Feed-forward layers may consist of experts.
    pub(super) experts: bool,
    /// `sliding_window` counts unless `use_sliding_window` says otherwise.
    pub(super) windows: Windows,
}

#[derive(Clone, Copy, Default, PartialEq)]
pub(super) enum Windows {
    #[default]
    Never,
    /// All layers, if `sliding_window` is a number.
    All,
    /// Only with `use_sliding_window`, from layer `max_window_layers` on.
    Opted,
    /// All layers, only with `use_sliding_window`.
    AllOpted,
    /// Every n-th layer is global.
    Pattern,
}

impl Family {
    pub(super) fn of(model_type: &str) -> Result<Self, ModelError> {
        let plain = Self::default();
        Ok(match model_type {
            "llama" => Self { bias_keys: true, ..plain },
            "mistral" => Self { windows: Windows::All, ..plain },
            "qwen2" => Self { qkv_bias: true, windows: Windows::Opted, ..plain },
            "qwen3" => Self { qk_norm: true, bias_keys: true, windows: Windows::Opted, ..plain },
            "qwen3_moe" => {
                Self { qk_norm: true, bias_keys: true, experts: true, windows: Windows::AllOpted, ..plain }
            }
            "gemma3_text" => {
                Self { qk_norm: true, gemma: true, bias_keys: true, windows: Windows::Pattern, ..plain }
            }
            other => {
                return Err(ModelError::unsupported(format!(
                    "config.json: model_type {other:?}; supported are llama, mistral, qwen2, qwen3, qwen3_moe and \
                     gemma3_text"
                )));
            }
        })
    }
}
