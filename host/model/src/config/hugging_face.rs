//! Reads Hugging Face's config.json, as transformers 4 and 5 write it, into a `ModelConfig`.
//!
//! A family is a few settings on top of common keys. Every key that changes the arithmetic is either supported or refused:
//! ignoring one would give a model that outputs nonsense.

use infer_kernels::{Activation, MAX_HEAD_DIM};
use serde_json::{Value, json};

use super::experts;
use super::family::{Family, Windows};
use super::keys::{Keys, MAX_SIZE};
use super::positions::positions;
use super::quantization::quantization;
use super::{ModelConfig, QkNorm, RopeConfig, RopeScaling};
use crate::DType;
use crate::error::ModelError;

/// transformers' defaults for keys absent from the text part of a multimodal Gemma 3.
fn gemma_defaults() -> [(&'static str, Value); 6] {
    [
        ("model_type", "gemma3_text".into()),
        ("num_attention_heads", 8.into()),
        ("num_key_value_heads", 4.into()),
        ("vocab_size", 262_208.into()),
        ("max_position_embeddings", 131_072.into()),
        ("sliding_window", 4_096.into()),
    ]
}

/// transformers' defaults for keys that a config.json of gpt-oss may lack.
fn gpt_oss_defaults() -> [(&'static str, Value); 4] {
    let rope = json!({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
        "original_max_position_embeddings": 4096});
    [
        ("attention_bias", true.into()),
        ("sliding_window", 128.into()),
        ("sliding_window_pattern", 2.into()),
        ("rope_parameters", rope),
    ]
}

pub(super) fn parse(keys: &Keys, stop_tokens: Vec<u32>) -> Result<ModelConfig, ModelError> {
    if keys.text("model_type")? == Some("gemma3") {
        return parse_text(&keys.nested("text_config", &gemma_defaults()), stop_tokens);
    }
    if keys.text("model_type")? == Some("gpt_oss") {
        // For other keys null has a meaning: no window, for one.
        return parse_text(&keys.or(gpt_oss_defaults(), &["rope_parameters"]), stop_tokens);
    }
    parse_text(keys, stop_tokens)
}

/// Parses a text-only model.
fn parse_text(keys: &Keys, stop_tokens: Vec<u32>) -> Result<ModelConfig, ModelError> {
    let model_type = keys.text("model_type")?.ok_or_else(|| keys.missing("model_type"))?.to_owned();
    let family = Family::of(&model_type)?;
    refuse_unknown_arithmetic(keys, family)?;

    let hidden = keys.size("hidden_size")?;
    let heads = keys.size("num_attention_heads")?;
    let kv_heads = keys.optional_size("num_key_value_heads")?.unwrap_or(heads);
    let head_dim = match keys.optional_size("head_dim")? {
        Some(head_dim) => head_dim,
        None if family.gemma => 256,
        None if !hidden.is_multiple_of(heads) => {
            return Err(
                keys.wrong("hidden_size", "a multiple of num_attention_heads, as there is no head_dim")
            );
        }
        None => hidden / heads,
    };
    if !heads.is_multiple_of(kv_heads) {
        return Err(keys.wrong("num_key_value_heads", "a divisor of num_attention_heads"));
    }
    if !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM || head_dim == 0 {
        return Err(keys.wrong("head_dim", &format!("even and at most {MAX_HEAD_DIM}")));
    }
    let bias = family.bias_keys && keys.flag("attention_bias")?.unwrap_or(false);
    let query_scalar = match (family.gemma, keys.number("query_pre_attn_scalar")?) {
        (true, Some(scalar)) if scalar > 0.0 => scalar,
        (true, Some(_)) => return Err(keys.wrong("query_pre_attn_scalar", "positive")),
        // Whatever the width of a head is.
        (true, None) => 256.0,
        (false, _) => head_dim as f64,
    };
    let factor = |key: &str| if family.multipliers { factor(keys, key, 1.0) } else { Ok(1.0) };
    let (ropes, mut layers) = positions(keys, family)?;
    ropes.iter().try_for_each(|rope| check_rotation(keys, rope, head_dim, &ropes[0]))?;
    if let Some(experts) = family.experts {
        experts::distribute(keys, experts, &mut layers)?;
    }
    let trained = keys.bounded("max_position_embeddings", usize::try_from(u32::MAX).unwrap_or(MAX_SIZE))?;
    let reach = match &ropes[0].scaling {
        // Gemma 3 declares its positions after scaling, other families usually before it.
        RopeScaling::Linear { .. } if family.gemma => None,
        scaling => scaling.reach(trained),
    };
    Ok(ModelConfig {
        hidden,
        intermediate: keys.size("intermediate_size")?,
        heads,
        kv_heads,
        head_dim,
        vocab: keys.size("vocab_size")?,
        max_positions: reach.map_or(trained, |reach| reach.max(trained)),
        norm_epsilon: norm_epsilon(keys, family)?,
        norm_offset: family.gemma,
        qk_norm: family.qk_norm,
        sinks: family.gpt_oss,
        input_norms: !family.norms_behind,
        output_norms: family.gemma || family.norms_behind,
        qkv_bias: family.qkv_bias || bias,
        output_bias: bias,
        mlp_bias: family.bias_keys && !family.norms_behind && keys.flag("mlp_bias")?.unwrap_or(false),
        fused: family.phi,
        tied_head: keys.flag("tie_word_embeddings")?.unwrap_or(family.gemma || family.tied),
        embedding_scale: if family.gemma { (hidden as f32).sqrt() } else { factor("embedding_multiplier")? },
        query_scale: match family.multipliers {
            true => factor("attention_multiplier")?,
            false => (1.0 / query_scalar.sqrt()) as f32,
        },
        branch_scale: Some(factor("residual_multiplier")?).filter(|scale| *scale != 1.0),
        logit_divisor: Some(factor("logits_scaling")?).filter(|divisor| *divisor != 1.0),
        attention_soft_cap: soft_cap(keys, "attn_logit_softcapping")?,
        logit_soft_cap: soft_cap(keys, "final_logit_softcapping")?,
        activation: activation(keys, family)?,
        ropes,
        layers,
        stop_tokens,
        stored_dtype: stored_dtype(keys)?,
        quantization: quantization(keys, family)?,
        // In files of their own.
        pooling: None,
        model_type,
    })
}

/// Refuses keys that change the arithmetic and that are not supported.
fn refuse_unknown_arithmetic(keys: &Keys, family: Family) -> Result<(), ModelError> {
    for key in ["num_local_experts", "num_experts"] {
        if family.experts.is_none() && !keys.get(key).is_null() {
            return Err(keys.unsupported(key, "is not supported for this model_type"));
        }
    }
    if keys.flag("use_bidirectional_attention")? == Some(true) {
        return Err(keys.unsupported("use_bidirectional_attention", "must be false"));
    }
    // Some embedding models say so, gte-Qwen2 for one, and vLLM computes them accordingly.
    if keys.flag("is_causal")? == Some(false) {
        return Err(keys.unsupported("is_causal", "must be true"));
    }
    if !family.phi && keys.number("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
        return Err(keys.unsupported("partial_rotary_factor", "must be 1"));
    }
    if family.windows == Windows::Never && !keys.get("sliding_window").is_null() {
        return Err(keys.unsupported("sliding_window", "is not supported for this model_type"));
    }
    if family.qk_norm == QkNorm::Whole && !keys.get("clip_qkv").is_null() {
        return Err(keys.unsupported("clip_qkv", "is not supported"));
    }
    if !family.bias_keys && keys.flag("attention_bias")? == Some(true) {
        return Err(keys.unsupported("attention_bias", "is not supported for this model_type"));
    }
    Ok(())
}

/// Checks what depends on the width of a head: that the part that is rotated consists of pairs, as does the rest, and is that
/// of the first position embedding, and that there are factors for all of them.
fn check_rotation(
    keys: &Keys,
    rope: &RopeConfig,
    head_dim: usize,
    first: &RopeConfig,
) -> Result<(), ModelError> {
    let rotated = rope.rotated(head_dim);
    if rotated != first.rotated(head_dim) {
        return Err(keys.wrong_value("partial_rotary_factor", "that of all layers", &rope.share.into()));
    }
    if rotated == 0 || !rotated.is_multiple_of(2) {
        let must = format!("so large that an even number of the {head_dim} dimensions of a head is rotated");
        return Err(keys.wrong_value("partial_rotary_factor", &must, &rope.share.into()));
    }
    if let RopeScaling::Long(long) = &rope.scaling {
        for (key, factors) in [("short_factor", &long.short), ("long_factor", &long.long)] {
            if factors.len() != rotated / 2 {
                let must = format!("a list of {} numbers", rotated / 2);
                return Err(keys.wrong_value(key, &must, &format!("{} of them", factors.len()).into()));
            }
        }
    }
    Ok(())
}

/// The epsilon of norms. A negative one could make the root undefined.
fn norm_epsilon(keys: &Keys, family: Family) -> Result<f32, ModelError> {
    match keys.number("rms_norm_eps")?.unwrap_or(family.epsilon.unwrap_or(1e-6)) {
        epsilon if epsilon >= 0.0 => Ok(epsilon as f32),
        _ => Err(keys.wrong("rms_norm_eps", "0 or more")),
    }
}

/// Reads a positive number, or what it is if it is absent.
fn factor(keys: &Keys, key: &str, default: f32) -> Result<f32, ModelError> {
    match keys.number(key)?.map_or(default, |factor| factor as f32) {
        factor if factor.is_normal() && factor > 0.0 => Ok(factor),
        _ => Err(keys.wrong(key, "positive")),
    }
}

/// Reads a soft cap, which must be positive.
fn soft_cap(keys: &Keys, key: &str) -> Result<Option<f32>, ModelError> {
    match keys.number(key)?.map(|cap| cap as f32) {
        Some(cap) if cap <= 0.0 || cap.is_infinite() => Err(keys.wrong(key, "positive")),
        cap => Ok(cap),
    }
}

fn activation(keys: &Keys, family: Family) -> Result<Activation, ModelError> {
    let name = match keys.text("hidden_activation")? {
        Some(name) => Some(name),
        None => keys.text("hidden_act")?,
    };
    match name {
        None | Some("silu" | "swish") if family.gpt_oss => {
            let (alpha, limit) = (factor(keys, "swiglu_alpha", 1.702)?, factor(keys, "swiglu_limit", 7.0)?);
            Ok(Activation::ClampedSwish { alpha, limit })
        }
        Some(_) if family.gpt_oss => Err(keys.unsupported("hidden_act", "must be silu")),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        None if family.gemma => Ok(Activation::GeluTanh),
        None => Ok(Activation::Silu),
        Some(_) => Err(keys.unsupported("hidden_act", "must be silu or gelu_pytorch_tanh")),
    }
}

/// End tokens from generation_config.json or, if it has none, from config.json.
pub(super) fn stop_tokens(keys: &Keys, generation: Option<&[u8]>) -> Result<Vec<u32>, ModelError> {
    if let Some(bytes) = generation {
        let generation = Keys::parse("generation_config.json", bytes)?;
        if !generation.get("eos_token_id").is_null() {
            return generation.token_ids("eos_token_id");
        }
    }
    keys.token_ids("eos_token_id")
}

fn stored_dtype(keys: &Keys) -> Result<Option<DType>, ModelError> {
    let name = match keys.text("dtype")? {
        Some(name) => Some(name),
        None => keys.text("torch_dtype")?,
    };
    match name {
        None => Ok(None),
        Some("bfloat16") => Ok(Some(DType::Bf16)),
        Some("float16") => Ok(Some(DType::F16)),
        Some("float32") => Ok(Some(DType::F32)),
        Some(_) => Err(keys.unsupported("dtype", "must be float32, float16 or bfloat16")),
    }
}
