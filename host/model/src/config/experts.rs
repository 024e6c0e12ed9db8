//! Feed-forward layers of experts, from the keys of Qwen3 MoE as transformers 4 (`num_experts`) and 5 (`num_local_experts`)
//! write them, and from those of gpt-oss.

use super::LayerConfig;
use super::keys::Keys;
use crate::error::ModelError;

/// Maximum accepted number of experts of a layer.
const MAX_EXPERTS: usize = 1_024;

/// A feed-forward layer of which every token uses some parts, the experts, that a router chooses for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// Experts to choose from.
    pub count: usize,
    /// Experts that compute a token.
    pub per_token: usize,
    /// Width of an expert, a gated feed-forward layer itself.
    pub intermediate: usize,
    /// Whether the weights of a token's experts are divided by their sum.
    pub normalized: bool,
    /// Whether the router and the experts' projections have biases.
    pub bias: bool,
    /// Whether checkpoints hold a layer's experts in tensors in which gate and up take turns.
    pub interleaved: bool,
}

/// Makes all layers consist of experts as gpt-oss has them: with biases, and weights that are the softmax over those chosen.
pub(super) fn distribute_all(keys: &Keys, layers: &mut [LayerConfig]) -> Result<(), ModelError> {
    refuse(keys)?;
    let intermediate = keys.size("intermediate_size")?;
    let experts =
        ExpertsConfig { normalized: true, bias: true, interleaved: true, ..experts(keys, intermediate)? };
    layers.iter_mut().for_each(|layer| layer.experts = Some(experts));
    Ok(())
}

/// Makes those layers consist of experts that the keys say.
pub(super) fn distribute(keys: &Keys, layers: &mut [LayerConfig]) -> Result<(), ModelError> {
    refuse(keys)?;
    let plain = experts(keys, keys.size("moe_intermediate_size")?)?;
    let normalized = keys.flag("norm_topk_prob")?.unwrap_or(false);
    let experts = ExpertsConfig { normalized, ..plain };
    let every = keys.optional_size("decoder_sparse_step")?.unwrap_or(1);
    let dense = keys.counts("mlp_only_layers")?;
    for (index, layer) in layers.iter_mut().enumerate() {
        let has_experts = (index + 1).is_multiple_of(every) && !dense.contains(&index);
        layer.experts = has_experts.then_some(experts);
    }
    Ok(())
}

fn refuse(keys: &Keys) -> Result<(), ModelError> {
    for key in ["shared_expert_intermediate_size", "n_shared_experts"] {
        if keys.number(key)?.is_some_and(|size| size != 0.0) {
            return Err(
                keys.unsupported(key, "is not supported: there are no experts that compute all tokens")
            );
        }
    }
    if keys.flag("mlp_bias")? == Some(true) {
        return Err(keys.unsupported("mlp_bias", "is not supported for this model_type"));
    }
    Ok(())
}

/// Experts of this width without what only some families have.
fn experts(keys: &Keys, intermediate: usize) -> Result<ExpertsConfig, ModelError> {
    let (name, other) = ("num_experts", "num_local_experts");
    let name = if keys.get(name).is_null() && !keys.get(other).is_null() { other } else { name };
    let count = keys.bounded(name, MAX_EXPERTS)?;
    if !keys.get(other).is_null() && keys.get(other) != keys.get(name) {
        return Err(keys.wrong(other, &format!("{count}, as {name} is")));
    }
    let per_token = keys.size("num_experts_per_tok")?;
    if per_token > count {
        return Err(keys.wrong("num_experts_per_tok", &format!("at most {count}, the number of experts")));
    }
    let (normalized, bias, interleaved) = Default::default();
    Ok(ExpertsConfig { count, per_token, intermediate, normalized, bias, interleaved })
}
