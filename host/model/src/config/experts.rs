//! Feed-forward layers of experts, from the keys of each family that has them. Versions of transformers name the number of
//! experts `num_experts` or `num_local_experts`.

use super::LayerConfig;
use super::family::FamilyExperts;
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
    /// How checkpoints in safetensors name and hold a layer's experts.
    pub layout: ExpertLayout,
}

/// Tensors of a layer's experts and their router in safetensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertLayout {
    /// `mlp.gate`, and for each expert the projections of a layer without experts.
    Plain,
    /// Mixtral's: `block_sparse_moe.gate`, and for each expert `w1` (gate), `w3` (up) and `w2` (down).
    Mixtral,
    /// gpt-oss's: `mlp.router`, and tensors of all experts, in which gate and up take turns.
    Interleaved,
}

/// Makes layers consist of experts: all of them, or in some families those that the keys say.
pub(super) fn distribute(
    keys: &Keys,
    family: FamilyExperts,
    layers: &mut [LayerConfig],
) -> Result<(), ModelError> {
    refuse(keys)?;
    let experts = experts(keys, family)?;
    let (mut every, mut dense) = (1, Vec::new());
    if family.in_some_layers {
        every = keys.optional_size("decoder_sparse_step")?.unwrap_or(every);
        dense = keys.counts("mlp_only_layers")?;
    }
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

fn experts(keys: &Keys, family: FamilyExperts) -> Result<ExpertsConfig, ModelError> {
    let FamilyExperts { width, normalized, bias, layout, .. } = family;
    let intermediate = keys.size(width)?;
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
    let normalized = match normalized {
        Some(always) => always,
        None => keys.flag("norm_topk_prob")?.unwrap_or(false),
    };
    Ok(ExpertsConfig { count, per_token, intermediate, normalized, bias, layout })
}
