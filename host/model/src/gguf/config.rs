//! A GGUF file's metadata as the keys of a `config.json`, so that one set of checks serves both.

use serde_json::{Map, Value as Json, json};

use super::header::Value;
use super::{Gguf, number};
use crate::DType;
use crate::config::{Keys, ModelConfig, Pooling, RopeScaling};
use crate::error::{ModelError, ModelErrorKind};
use crate::weights::StoredType;

/// Equivalent keys: Hugging Face's, and GGUF's without the architecture prefix.
const KEYS: &[(&str, &str)] = &[
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_hidden_layers", "block_count"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("max_position_embeddings", "context_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("rope_theta", "rope.freq_base"),
    ("rope_local_base_freq", "rope.freq_base_swa"),
    ("sliding_window", "attention.sliding_window"),
    ("sliding_window_pattern", "attention.sliding_window_pattern"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("embedding_multiplier", "embedding_scale"),
    ("attention_multiplier", "attention.scale"),
    ("residual_multiplier", "residual_scale"),
    ("logits_scaling", "logit_scale"),
    ("clip_qkv", "attention.clamp_kqv"),
    ("num_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("n_shared_experts", "expert_shared_count"),
    ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
];

pub(super) fn config(file: &Gguf) -> Result<ModelConfig, ModelError> {
    let (map, names) = keys(file)?;
    let layers = map.get("num_hidden_layers").and_then(Json::as_u64).unwrap_or(0);
    let keys = Keys::of_map(file.path.display().to_string(), map, names);
    let mut config = ModelConfig::from_keys(&keys, super::tokenizer::ends(file)?)?;
    // The converter already added the offset to the weights.
    config.norm_offset = false;
    let has = |name: &str| file.tensors.contains_key(name);
    config.qkv_bias = has("blk.0.attn_q.bias");
    config.output_bias = has("blk.0.attn_output.bias");
    config.mlp_bias = has("blk.0.ffn_gate.bias");
    // Where transformers has 1, llama.cpp has the usual scale.
    if file.architecture == "granite" && !file.values.contains_key("granite.attention.scale") {
        config.query_scale = (1.0 / (config.head_dim as f64).sqrt()) as f32;
    }
    let causal = format!("{}.attention.causal", file.architecture);
    // In spite of its name, for this architecture the key says whether anything is rotated.
    let rotates = "granite.rope.scaling.finetuned";
    for key in [causal.as_str(), rotates] {
        if file.flag(key)? == Some(false) {
            return Err(file.fault(ModelErrorKind::Unsupported, format!("{key} must be true")));
        }
    }
    if file.architecture == "gemma3" {
        config.query_scale = gemma_scale(file, &config, layers)?;
    }
    if has("rope_freqs.weight") {
        if !matches!(config.ropes[0].scaling, RopeScaling::None | RopeScaling::Linear { factor: 1.0 }) {
            let message =
                format!("{}.rope.scaling must be none beside tensor rope_freqs.weight", file.architecture);
            return Err(file.fault(ModelErrorKind::Unsupported, message));
        }
        config.ropes[0].scaling = rope_factors(file, config.head_dim)?;
    }
    config.stored_dtype = Some(stored_dtype(file));
    config.pooling = pooling(file)?;
    Ok(config)
}

/// llama.cpp's kinds of pooling by their number. Its server scales vectors to a length of 1, which files don't say.
fn pooling(file: &Gguf) -> Result<Option<Pooling>, ModelError> {
    let key = format!("{}.pooling_type", file.architecture);
    let other = |kind: &str| Some(Pooling::Unsupported(format!("{key} is {kind}")));
    Ok(match file.integer(&key)? {
        None | Some(0) => None,
        Some(1) => other("1 (mean)"),
        Some(2) => other("2 (cls)"),
        Some(3) => Some(Pooling::Last { normalized: true }),
        Some(4) => other("4 (rank)"),
        Some(kind) => other(&kind.to_string()),
    })
}

/// The keys of a config.json, and their names in this file.
type Translated = (Map<String, Json>, Vec<(&'static str, String)>);

fn keys(file: &Gguf) -> Result<Translated, ModelError> {
    let architecture = file.architecture.as_str();
    let key = |part: &str| format!("{architecture}.{part}");
    let (mut map, mut names) = (Map::new(), Vec::new());
    for (name, part) in KEYS {
        let key = key(part);
        if let Some(value) = scalar(file, &key)? {
            map.insert((*name).to_owned(), value);
        }
        names.push((*name, key));
    }
    // transformers' default for an absent key doesn't apply: without it no layer of such a file has a window.
    map.entry("sliding_window").or_insert(Json::Null);
    if map.get("num_experts").and_then(Json::as_f64) == Some(0.0) {
        map.remove("num_experts");
    }
    if matches!(architecture, "qwen3moe" | "olmoe") {
        map.extend(routing(file)?);
    } else if has_experts(architecture, &map) {
        map.extend(routing(file)?);
        // llama.cpp's default, which is not transformers' for Mixtral.
        map.entry("rope_theta").or_insert(json!(10_000.0));
    }
    if architecture == "phi3" {
        // Files say so that there is no window.
        if map.get("sliding_window").and_then(Json::as_f64) == Some(0.0) {
            map.insert("sliding_window".to_owned(), Json::Null);
        }
        map.extend(partly_rotated(file, &map)?);
        let original = key("rope.scaling.original_context_length");
        if let Some(value) = scalar(file, &original)? {
            map.insert("original_max_position_embeddings".to_owned(), value);
            names.push(("original_max_position_embeddings", original));
        }
    }
    // llama.cpp has one base for all layers of OLMo 3.
    if architecture == "olmo2"
        && let Some(theta) = map.get("rope_theta").cloned()
    {
        map.entry("rope_local_base_freq").or_insert(theta);
    }
    if architecture == "gpt-oss" {
        // Its only layers are those of experts. No scaling is none, whatever transformers' default for an absent key is.
        if let Some(width) = map.get("moe_intermediate_size").cloned() {
            map.insert("intermediate_size".to_owned(), width);
            // Of several names the first is shown.
            names.insert(0, ("intermediate_size", key("expert_feed_forward_length")));
        }
        map.insert("rope_parameters".to_owned(), json!({}));
    }
    let pattern = key("attention.sliding_window_pattern");
    if let Some(Value::Numbers(..)) = file.values.get(&pattern) {
        let slides = file.numbers(&pattern)?.unwrap_or_default();
        let kind = |slides: &f64| if *slides != 0.0 { "sliding_attention" } else { "full_attention" };
        map.insert("layer_types".to_owned(), slides.iter().map(kind).collect());
        map.remove("sliding_window_pattern");
    }
    names.push(("layer_types", pattern));
    map.insert("model_type".to_owned(), json!(model_type(architecture, &map)));
    map.insert("tie_word_embeddings".to_owned(), json!(!file.tensors.contains_key("output.weight")));
    let embedding = file
        .tensors
        .get("token_embd.weight")
        .ok_or_else(|| file.fault(ModelErrorKind::Weights, "tensor token_embd.weight is missing"))?;
    map.insert("vocab_size".to_owned(), json!(embedding.shape[0]));
    names.push(("vocab_size", "the rows of tensor token_embd.weight".to_owned()));

    if let Some(scaling) = scaling(file, &mut names)? {
        map.insert("rope_scaling".to_owned(), scaling);
    }
    same_width(file, &map)?;
    Ok((map, names))
}

/// Whether the file is one of Mixtral's models, which have the architecture llama; experts distinguish them.
fn has_experts(architecture: &str, map: &Map<String, Json>) -> bool {
    architecture == "llama" && map.contains_key("num_experts")
}

/// What isn't among the equivalent keys of a model of experts. The weights of a token's experts are divided by their sum unless
/// the file says otherwise, and in OLMoE only if it does: llama.cpp goes by the architecture alone. Layers of Qwen3 MoE with
/// matrices of their own have no experts.
fn routing(file: &Gguf) -> Result<Map<String, Json>, ModelError> {
    let key = |part: &str| format!("{}.{part}", file.architecture);
    // 1 is no scale, and softmax; 0 is what 1 is.
    for part in ["expert_weights_scale", "expert_gating_func"] {
        let number = scalar(file, &key(part))?.as_ref().and_then(Json::as_f64);
        if number.is_some_and(|number| number != 0.0 && number != 1.0) {
            return Err(file.fault(ModelErrorKind::Unsupported, format!("{} must be 1", key(part))));
        }
    }
    if file.tensors.contains_key("blk.0.ffn_gate.0.weight") {
        let message = "tensor blk.0.ffn_gate.0.weight is of a single expert, as converters wrote Mixtral until \
                       April 2024; convert the model again, to files with a tensor of all experts of a layer";
        return Err(file.fault(ModelErrorKind::Unsupported, message));
    }
    let layer = |name: &String| name.strip_prefix("blk.")?.strip_suffix(".ffn_gate.weight")?.parse().ok();
    let dense: Vec<u64> = file.tensors.keys().filter_map(layer).collect();
    let says = file.flag(&key("expert_weights_norm"))?;
    if file.architecture == "llama" && says == Some(false) {
        let message = format!("{} must be true", key("expert_weights_norm"));
        return Err(file.fault(ModelErrorKind::Unsupported, message));
    }
    let normalized = says.unwrap_or(file.architecture != "olmoe");
    let routing = [("norm_topk_prob", json!(normalized)), ("mlp_only_layers", json!(dense))];
    Ok(routing.map(|(name, value)| (name.to_owned(), value)).into_iter().collect())
}

/// Settings of a scaled position embedding: Hugging Face's names, and GGUF's without the architecture prefix. Converters
/// copy their values, also that of `attention_factor`.
const SCALING: &[(&str, &str)] = &[
    ("rope_type", "rope.scaling.type"),
    ("factor", "rope.scaling.factor"),
    ("original_max_position_embeddings", "rope.scaling.original_context_length"),
    ("beta_fast", "rope.scaling.yarn_beta_fast"),
    ("beta_slow", "rope.scaling.yarn_beta_slow"),
    ("attention_factor", "rope.scaling.yarn_attn_factor"),
];

/// Tensors of LongRoPE's factors.
const SHORT: &str = "rope_factors_short.weight";
const LONG: &str = "rope_factors_long.weight";

/// The factor's name in files from converters of 2023.
const OLD_FACTOR: &str = "rope.scale_linear";

/// The `rope_scaling` of a config.json.
fn scaling(file: &Gguf, names: &mut Vec<(&'static str, String)>) -> Result<Option<Json>, ModelError> {
    let key = |part: &str| format!("{}.{part}", file.architecture);
    let number = |part: &str| -> Result<Option<f64>, ModelError> {
        Ok(scalar(file, &key(part))?.as_ref().and_then(Json::as_f64))
    };
    if file.architecture == "phi3"
        && let Some(long) = long_rope(file, names)?
    {
        return Ok(Some(long));
    }
    let old = number(OLD_FACTOR)?;
    let kind = match file.text(&key("rope.scaling.type"))?.as_deref() {
        Some("none") => return Ok(None),
        Some(kind) => kind.to_owned(),
        None => match number("rope.scaling.factor")?.or(old) {
            None | Some(0.0 | 1.0) => return Ok(None),
            Some(_) => "linear".to_owned(),
        },
    };
    let mut settings = Map::new();
    for (name, part) in SCALING {
        names.push((*name, key(part)));
        if *name != "rope_type"
            && let Some(value) = scalar(file, &key(part))?
        {
            settings.insert((*name).to_owned(), value);
        }
    }
    if let Some(old) = old {
        settings.entry("factor").or_insert(json!(old));
    }
    for (part, without_effect) in
        [("rope.scaling.yarn_log_multiplier", 0.0), ("rope.scaling.yarn_ext_factor", 1.0)]
    {
        if number(part)?.is_some_and(|number| number != without_effect) {
            let message = format!("{} must be {without_effect}", key(part));
            return Err(file.fault(ModelErrorKind::Unsupported, message));
        }
    }
    // This one multiplies YaRN's own factor, or the one in its place.
    let factor = settings.get("factor").and_then(Json::as_f64);
    if let (Some(on_top), Some(factor)) = (number("rope.scaling.attn_factor")?, factor) {
        let own = settings.get("attention_factor").and_then(Json::as_f64);
        let own = match file.architecture.as_str() {
            // The converter of OLMo 3 writes the whole factor here.
            "olmo2" => 1.0,
            _ => own.unwrap_or_else(|| 0.1 * factor.max(1.0).ln() + 1.0),
        };
        settings.insert("attention_factor".to_owned(), json!(on_top * own));
        names.push(("attention_factor", key("rope.scaling.attn_factor")));
    }
    settings.insert("rope_type".to_owned(), json!(kind));
    if file.architecture == "gpt-oss" {
        // Files have no key for it.
        settings.insert("truncate".to_owned(), json!(false));
    }
    Ok(Some(Json::Object(settings)))
}

/// The same for LongRoPE, whose factors are tensors. Files of Phi-3 that have them name no kind.
fn long_rope(file: &Gguf, names: &mut Vec<(&'static str, String)>) -> Result<Option<Json>, ModelError> {
    let key = |part: &str| format!("{}.rope.scaling.{part}", file.architecture);
    let kind = file.text(&key("type"))?;
    let tensors = [("short_factor", SHORT), ("long_factor", LONG)];
    let has_factors = tensors.iter().any(|(_, tensor)| file.tensors.contains_key(*tensor));
    match kind.as_deref() {
        Some("longrope") => {}
        None | Some("none") if has_factors => {}
        Some(_) if has_factors => {
            let message = format!("{} must be longrope beside tensor {LONG}", key("type"));
            return Err(file.fault(ModelErrorKind::Unsupported, message));
        }
        _ => return Ok(None),
    }
    let mut settings = Map::new();
    settings.insert("rope_type".to_owned(), json!("longrope"));
    for (name, tensor) in tensors {
        settings.insert(name.to_owned(), json!(positive_numbers(file, tensor)?));
        names.push((name, format!("tensor {tensor}")));
    }
    let attention = key("attn_factor");
    if let Some(value) = scalar(file, &attention)? {
        settings.insert("attention_factor".to_owned(), value);
        names.push(("attention_factor", attention));
    }
    Ok(Some(Json::Object(settings)))
}

fn model_type(architecture: &str, map: &Map<String, Json>) -> &'static str {
    match architecture {
        "gemma3" => "gemma3_text",
        "qwen2" => "qwen2",
        "qwen3" => "qwen3",
        "qwen3moe" => "qwen3_moe",
        // llama.cpp leaves rope out of every fourth layer, which is the default of the key that these files lack.
        "smollm3" => "smollm3",
        "phi3" => "phi3",
        "granite" => "granite",
        // Files of OLMo 3 have the architecture of OLMo 2; a window distinguishes them.
        "olmo2" if map.get("sliding_window").is_some_and(|window| !window.is_null()) => "olmo3",
        "olmo2" => "olmo2",
        "olmoe" => "olmoe",
        "gpt-oss" => "gpt_oss",
        _ if has_experts(architecture, map) => "mixtral",
        // Files of Mistral's models have the architecture llama; a window distinguishes them.
        _ if map.get("sliding_window").is_some_and(|window| !window.is_null()) => "mistral",
        _ => "llama",
    }
}

/// The width of a head.
fn head_dim(map: &Map<String, Json>) -> Option<u64> {
    let size = |key: &str| map.get(key).and_then(Json::as_u64);
    let plain = size("hidden_size").zip(size("num_attention_heads")).and_then(|(h, n)| h.checked_div(n));
    size("head_dim").or(plain)
}

/// The share of a head that is rotated, from the number of dimensions.
fn partly_rotated(file: &Gguf, map: &Map<String, Json>) -> Result<Map<String, Json>, ModelError> {
    let key = format!("{}.rope.dimension_count", file.architecture);
    let rotated = file.integer(&key)?;
    let Some((rotated, head_dim)) = rotated.zip(head_dim(map)).filter(|(rotated, all)| rotated != all) else {
        return Ok(Map::new());
    };
    if rotated == 0 || rotated > head_dim || !rotated.is_multiple_of(2) {
        let expected = format!("an even number up to {head_dim}, the width of a head, is {rotated}");
        return Err(file.wrong(&key, &expected));
    }
    // Of a product that isn't whole only the whole part counts, so that rounding can't make it one less.
    let share = (rotated as f64 + 0.5) / head_dim as f64;
    Ok([("partial_rotary_factor".to_owned(), json!(share))].into_iter().collect())
}

/// Refuses widths of values and rotation that the decoder doesn't support.
fn same_width(file: &Gguf, map: &Map<String, Json>) -> Result<(), ModelError> {
    let head_dim = head_dim(map);
    for part in ["attention.value_length", "rope.dimension_count"] {
        if part == "rope.dimension_count" && map.contains_key("partial_rotary_factor") {
            continue;
        }
        let key = format!("{}.{part}", file.architecture);
        if file.integer(&key)?.is_some_and(|width| Some(width) != head_dim) {
            return Err(file.fault(ModelErrorKind::Unsupported, format!("{key} must be the width of a head")));
        }
    }
    Ok(())
}

/// A number of the metadata; an array of equal ones counts as one.
fn scalar(file: &Gguf, key: &str) -> Result<Option<Json>, ModelError> {
    Ok(match file.values.get(key) {
        None => None,
        Some(Value::Numbers(..)) if !key.ends_with("pattern") => {
            let numbers = file.numbers(key)?.unwrap_or_default();
            match numbers.first() {
                // Leave anything but a count for the configuration to refuse.
                Some(first) if numbers.iter().all(|number| number == first) => {
                    Some(if first.fract() == 0.0 && *first >= 0.0 {
                        json!(*first as u64)
                    } else {
                        json!(first)
                    })
                }
                _ => {
                    let message = format!("{key} differs from layer to layer");
                    return Err(file.fault(ModelErrorKind::Unsupported, message));
                }
            }
        }
        Some(Value::Integer(number)) => Some(json!(i64::try_from(*number).unwrap_or(-1))),
        Some(Value::Numbers(..)) => None,
        Some(value) => match number(value) {
            Some(number) => Some(json!(number)),
            None => return Err(file.wrong(key, "a number")),
        },
    })
}

/// Files written without the scale are of the published sizes. Of these only the one with 62 layers divides by something
/// other than the width of a head.
fn gemma_scale(file: &Gguf, config: &ModelConfig, layers: u64) -> Result<f32, ModelError> {
    const LAYERS_OF_27B: u64 = 62;
    if let Some(scale) = scalar(file, "gemma3.attention.scale")?.as_ref().and_then(Json::as_f64) {
        return Ok(scale as f32);
    }
    let width = if layers == LAYERS_OF_27B { config.hidden / config.heads } else { config.head_dim };
    Ok((1.0 / (width as f64).sqrt()) as f32)
}

/// Divisors of the frequencies: these files store the scaling of Llama 3 this way.
fn rope_factors(file: &Gguf, head_dim: usize) -> Result<RopeScaling, ModelError> {
    const NAME: &str = "rope_freqs.weight";
    if file.tensors[NAME].shape != [head_dim / 2] {
        return Err(not_factors(file, NAME, "must contain one F32 per pair of a head's dimensions"));
    }
    positive_numbers(file, NAME).map(RopeScaling::Factors)
}

/// The numbers of a tensor, one per pair of dimensions.
fn positive_numbers(file: &Gguf, name: &str) -> Result<Vec<f32>, ModelError> {
    let tensor = file.tensors.get(name).ok_or_else(|| not_factors(file, name, "is missing"))?;
    if tensor.kind != StoredType::F32 || tensor.shape.len() != 1 {
        return Err(not_factors(file, name, "must contain one F32 per pair of a head's dimensions"));
    }
    let numbers = file.bytes_of(tensor).chunks_exact(4);
    let factors: Vec<f32> =
        numbers.map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes"))).collect();
    match factors.iter().all(|factor| factor.is_finite() && *factor > 0.0) {
        true => Ok(factors),
        false => Err(not_factors(file, name, "must contain positive numbers")),
    }
}

fn not_factors(file: &Gguf, name: &str, why: &str) -> ModelError {
    file.fault(ModelErrorKind::Weights, format!("tensor {name} {why}"))
}

/// The type that keeps the precision of most weights.
fn stored_dtype(file: &Gguf) -> DType {
    let matrices = file.tensors.values().filter(|tensor| tensor.shape.len() > 1);
    match matrices.max_by_key(|tensor| tensor.bytes.len()).map(|tensor| tensor.kind) {
        Some(StoredType::F32) => DType::F32,
        Some(StoredType::F16) => DType::F16,
        _ => DType::Bf16,
    }
}
