//! Reads Hugging Face's config.json, as transformers 4 and 5 write it, into a `ModelConfig`.
//!
//! A family is a few settings over common keys. Every key that changes the arithmetic is either understood or
//! refused: silence would be a model that answers nonsense.

use infer_kernels::{Activation, MAX_HEAD_DIM};
use serde_json::{Map, Value};

use super::keys::{Keys, MAX_SIZE};
use super::{LayerConfig, ModelConfig, RopeConfig, RopeScaling};
use crate::DType;
use crate::error::ModelError;

/// Beyond this a config.json is not believed.
const MAX_LAYERS: usize = 1_024;

/// What sets a family apart before its keys are read.
#[derive(Clone, Copy, Default)]
struct Family {
    qk_norm: bool,
    gemma: bool,
    /// Query, key and value biases whatever `attention_bias` says.
    qkv_bias: bool,
    /// `attention_bias` and `mlp_bias` are keys of this family.
    bias_keys: bool,
    /// `sliding_window` counts unless `use_sliding_window` says otherwise.
    windows: Windows,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Windows {
    #[default]
    Never,
    /// All layers, where `sliding_window` is a number.
    All,
    /// Only with `use_sliding_window`, from layer `max_window_layers` on.
    Opted,
    /// Every n-th layer is global.
    Pattern,
}

impl Family {
    fn of(model_type: &str) -> Result<Self, ModelError> {
        let plain = Self::default();
        Ok(match model_type {
            "llama" => Self { bias_keys: true, ..plain },
            "mistral" => Self { windows: Windows::All, ..plain },
            "qwen2" => Self { qkv_bias: true, windows: Windows::Opted, ..plain },
            "qwen3" => Self { qk_norm: true, bias_keys: true, windows: Windows::Opted, ..plain },
            "gemma3_text" => {
                Self { qk_norm: true, gemma: true, bias_keys: true, windows: Windows::Pattern, ..plain }
            }
            other => {
                return Err(ModelError::unsupported(format!(
                    "config.json: model_type {other:?}; supported are llama, mistral, qwen2, qwen3 and gemma3_text"
                )));
            }
        })
    }
}

/// What transformers assumes of the text part of a multimodal Gemma 3 where its configuration is silent.
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

pub(super) fn parse(keys: &Keys, stop_tokens: Vec<u32>) -> Result<ModelConfig, ModelError> {
    if keys.text("model_type")? == Some("gemma3") {
        return parse(&keys.nested("text_config", &gemma_defaults()), stop_tokens);
    }
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
        _ => head_dim as f64,
    };
    let (ropes, layers) = positions(keys, family)?;
    Ok(ModelConfig {
        hidden,
        intermediate: keys.size("intermediate_size")?,
        heads,
        kv_heads,
        head_dim,
        vocab: keys.size("vocab_size")?,
        max_positions: keys
            .bounded("max_position_embeddings", usize::try_from(u32::MAX).unwrap_or(MAX_SIZE))?,
        norm_epsilon: keys.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        norm_offset: family.gemma,
        qk_norm: family.qk_norm,
        output_norms: family.gemma,
        qkv_bias: family.qkv_bias || bias,
        output_bias: bias,
        mlp_bias: family.bias_keys && keys.flag("mlp_bias")?.unwrap_or(false),
        tied_head: keys.flag("tie_word_embeddings")?.unwrap_or(family.gemma),
        embedding_scale: if family.gemma { (hidden as f32).sqrt() } else { 1.0 },
        query_scale: (1.0 / query_scalar.sqrt()) as f32,
        attention_soft_cap: keys.number("attn_logit_softcapping")?.map(|cap| cap as f32),
        logit_soft_cap: keys.number("final_logit_softcapping")?.map(|cap| cap as f32),
        activation: activation(keys, family)?,
        ropes,
        layers,
        stop_tokens,
        stored_dtype: stored_dtype(keys)?,
        model_type,
    })
}

/// Keys that change what is computed and that nothing here reads.
fn refuse_unknown_arithmetic(keys: &Keys, family: Family) -> Result<(), ModelError> {
    for key in ["quantization_config", "num_local_experts", "num_experts"] {
        if !keys.get(key).is_null() {
            return Err(keys.unsupported(key, "is not supported; use a dense checkpoint in f32, bf16 or f16"));
        }
    }
    if keys.flag("use_bidirectional_attention")? == Some(true) {
        return Err(keys.unsupported("use_bidirectional_attention", "must be false"));
    }
    if keys.number("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
        return Err(keys.unsupported("partial_rotary_factor", "must be 1"));
    }
    if keys.number("pretraining_tp")?.is_some_and(|ways| ways != 1.0) {
        return Err(keys.unsupported("pretraining_tp", "must be 1"));
    }
    if family.windows == Windows::Never && !keys.get("sliding_window").is_null() {
        return Err(keys.unsupported("sliding_window", "is not known for this model_type"));
    }
    if !family.bias_keys && keys.flag("attention_bias")? == Some(true) {
        return Err(keys.unsupported("attention_bias", "is not known for this model_type"));
    }
    Ok(())
}

fn activation(keys: &Keys, family: Family) -> Result<Activation, ModelError> {
    let name = match keys.text("hidden_activation")? {
        Some(name) => Some(name),
        None => keys.text("hidden_act")?,
    };
    match name {
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        None if family.gemma => Ok(Activation::GeluTanh),
        None => Ok(Activation::Silu),
        Some(_) => Err(keys.unsupported("hidden_act", "must be silu or gelu_pytorch_tanh")),
    }
}

/// Position embeddings and, per layer, which one it uses and how far it sees.
fn positions(keys: &Keys, family: Family) -> Result<(Vec<RopeConfig>, Vec<LayerConfig>), ModelError> {
    let count = keys.bounded("num_hidden_layers", MAX_LAYERS)?;
    let sliding = sliding_layers(keys, family, count)?;
    let window = if sliding.contains(&true) {
        Some(window_of(keys, family)?.ok_or_else(|| keys.missing("sliding_window"))?)
    } else {
        None
    };
    let ropes = ropes(keys, family)?;
    let local = ropes.len() - 1;
    let layers = sliding
        .into_iter()
        .map(|sliding| LayerConfig {
            window: if sliding { window } else { None },
            rope: if sliding { local } else { 0 },
        })
        .collect();
    Ok((ropes, layers))
}

/// The window's width. transformers gives Mistral's and Qwen2's a default where the key is absent, not null.
fn window_of(keys: &Keys, family: Family) -> Result<Option<u32>, ModelError> {
    const DEFAULT: u32 = 4_096;
    if keys.get("sliding_window").is_null() {
        let defaults = matches!(family.windows, Windows::All | Windows::Opted) && !keys.has("sliding_window");
        return Ok(defaults.then_some(DEFAULT));
    }
    let window = keys.bounded("sliding_window", MAX_SIZE * 16)?;
    u32::try_from(window).map(Some).map_err(|_| keys.wrong("sliding_window", "smaller"))
}

fn sliding_layers(keys: &Keys, family: Family, count: usize) -> Result<Vec<bool>, ModelError> {
    if let Some(types) = keys.get("layer_types").as_array() {
        if types.len() != count {
            return Err(keys.wrong("layer_types", "as long as num_hidden_layers"));
        }
        return types
            .iter()
            .map(|kind| match kind.as_str() {
                Some("full_attention") => Ok(false),
                Some("sliding_attention") if family.windows != Windows::Never => Ok(true),
                _ => Err(keys.unsupported("layer_types", "may hold full_attention and sliding_attention")),
            })
            .collect();
    }
    let windowed = window_of(keys, family)?.is_some();
    Ok(match family.windows {
        Windows::Never => vec![false; count],
        Windows::All => vec![windowed; count],
        Windows::Opted => {
            let opted = windowed && keys.flag("use_sliding_window")?.unwrap_or(false);
            let first = keys.count("max_window_layers")?.unwrap_or(28);
            (0..count).map(|layer| opted && layer >= first).collect()
        }
        Windows::Pattern => {
            let every = match keys.optional_size("sliding_window_pattern")? {
                Some(every) => every,
                None => keys.optional_size("_sliding_window_pattern")?.unwrap_or(6),
            };
            (0..count).map(|layer| windowed && !(layer + 1).is_multiple_of(every.max(1))).collect()
        }
    })
}

/// The global position embedding, then the one of sliding layers where that differs.
fn ropes(keys: &Keys, family: Family) -> Result<Vec<RopeConfig>, ModelError> {
    let default_theta = if family.gemma { 1_000_000.0 } else { 10_000.0 };
    let parameters = keys.get("rope_parameters");
    if let Some(by_type) = parameters.as_object().filter(|map| map.values().any(Value::is_object)) {
        let entry = |name: &str| match by_type.get(name).and_then(Value::as_object) {
            Some(entry) => rope(keys, entry, None, default_theta),
            None => Err(keys.wrong("rope_parameters", "complete: an entry per layer type")),
        };
        let global = entry("full_attention")?;
        return match by_type.contains_key("sliding_attention") {
            true => Ok(vec![global, entry("sliding_attention")?]),
            false => Ok(vec![global]),
        };
    }
    let theta = keys.number("rope_theta")?;
    let empty = Map::new();
    let entry = match (parameters.as_object(), keys.get("rope_scaling").as_object()) {
        (Some(entry), _) | (None, Some(entry)) => entry,
        (None, None) => &empty,
    };
    let global = rope(keys, entry, theta, default_theta)?;
    if family.gemma {
        let theta = keys.number("rope_local_base_freq")?.unwrap_or(10_000.0);
        return Ok(vec![global, RopeConfig { theta, scaling: RopeScaling::None }]);
    }
    Ok(vec![global])
}

fn rope(
    keys: &Keys,
    entry: &Map<String, Value>,
    theta: Option<f64>,
    default_theta: f64,
) -> Result<RopeConfig, ModelError> {
    let number = |name: &str| {
        let value = entry.get(name).and_then(Value::as_f64).filter(|value| *value > 0.0);
        value.ok_or_else(|| keys.wrong(name, "a positive number in the rope settings"))
    };
    let kind = entry.get("rope_type").or_else(|| entry.get("type")).and_then(Value::as_str);
    let scaling = match kind {
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: number("factor")? },
        Some("llama3") => RopeScaling::Llama3 {
            factor: number("factor")?,
            low: number("low_freq_factor")?,
            high: number("high_freq_factor")?,
            original: number("original_max_position_embeddings")?,
        },
        Some(_) => return Err(keys.unsupported("rope_type", "must be default, linear or llama3")),
    };
    let theta = entry.get("rope_theta").and_then(Value::as_f64).or(theta).unwrap_or(default_theta);
    if theta > 1.0 { Ok(RopeConfig { theta, scaling }) } else { Err(keys.wrong("rope_theta", "above 1")) }
}

/// The list of generation_config.json decides; where it has none, config.json's.
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
        // bf16 has fewer digits than f16, so only f32 keeps what is stored.
        Some("float32" | "float16") => Ok(Some(DType::F32)),
        Some(_) => Err(keys.unsupported("dtype", "must be float32, float16 or bfloat16")),
    }
}
