//! Writes a golden checkpoint as a GGUF file, as llama.cpp's converter does: other names, llama's rows in another order,
//! Gemma's norms with their offset, the scaling of Llama 3 as factors, the vocabulary as arrays.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{Value, write};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use serde_json::Value as Json;

/// Writes golden checkpoint `name`, its matrices as `kind`.
pub fn convert(name: &str, kind: GgmlDType, directory: &Path) -> PathBuf {
    convert_in(&super::common::golden(name), name, kind, 1, directory)
}

/// Whether GGUF can express this config.json: it can't express windows of Qwen's models, nor which layers have no position
/// embedding.
pub fn can_write(config: &Json) -> bool {
    let slides = |types: &Vec<Json>| types.iter().any(|kind| kind == "sliding_attention");
    let all_slide = config["use_sliding_window"] == true;
    config["model_type"] == "gemma3_text"
        || config["model_type"] == "olmo3"
        || config["no_rope_layers"].is_null()
            && !all_slide
            && !config["layer_types"].as_array().is_some_and(slides)
}

/// Writes the checkpoint in a directory as `parts` files, with its matrices as `kind`; returns the first file.
pub fn convert_in(from: &Path, name: &str, kind: GgmlDType, parts: usize, directory: &Path) -> PathBuf {
    let read = |file: &str| -> Json {
        let bytes = std::fs::read(from.join(file)).expect("the checkpoint is there");
        serde_json::from_slice(&bytes).expect("JSON")
    };
    let (config, generation) = (read("config.json"), read("generation_config.json"));
    let architecture = match config["model_type"].as_str().expect("a name") {
        "gemma3_text" => "gemma3",
        "mistral" | "mixtral" => "llama",
        "qwen3_moe" => "qwen3moe",
        "olmo3" => "olmo2",
        other => other,
    };
    let mut metadata = shape(architecture, &config);
    if from.join("modules.json").is_file() {
        metadata.push((
            format!("{architecture}.pooling_type"),
            Value::U32(pooling(&read("1_Pooling/config.json"))),
        ));
    }
    if from.join("tokenizer.json").is_file() {
        metadata.extend(vocabulary(&config, &generation, &read("tokenizer.json")));
        metadata.push((
            "tokenizer.chat_template".to_owned(),
            text(&read("tokenizer_config.json")["chat_template"]),
        ));
    } else {
        metadata.push(("tokenizer.ggml.model".to_owned(), Value::String("gpt2".to_owned())));
        let tokens = vec![Value::String("x".to_owned())];
        metadata.push(("tokenizer.ggml.tokens".to_owned(), Value::Array(tokens)));
    }
    let tensors = tensors(from, architecture, &config, kind);
    let mut paths = Vec::new();
    for (part, some) in tensors.chunks(tensors.len().div_ceil(parts)).enumerate() {
        let mut metadata = if part == 0 { std::mem::take(&mut metadata) } else { Vec::new() };
        let suffix = if parts > 1 { format!("-{:05}-of-{parts:05}", part + 1) } else { String::new() };
        if parts > 1 {
            metadata.push(("split.no".to_owned(), Value::U16(part as u16)));
            metadata.push(("split.count".to_owned(), Value::U16(parts as u16)));
            metadata.push(("split.tensors.count".to_owned(), Value::I32(tensors.len() as i32)));
        }
        let path = directory.join(format!("{name}-{kind:?}{suffix}.gguf"));
        let mut file = std::fs::File::create(&path).expect("a file");
        let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let tensors: Vec<_> = some.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        write(&mut file, &metadata, &tensors).expect("candle writes GGUF");
        paths.push(path);
    }
    paths.remove(0)
}

/// llama.cpp's number of a pooling.
fn pooling(config: &Json) -> u32 {
    let modes = ["pooling_mode_mean_tokens", "pooling_mode_cls_token", "pooling_mode_lasttoken"];
    let mode = modes.iter().position(|mode| config[*mode] == true).expect("a kind that it knows");
    1 + mode as u32
}

fn text(json: &Json) -> Value {
    Value::String(json.as_str().expect("a text").to_owned())
}

fn shape(architecture: &str, config: &Json) -> Vec<(String, Value)> {
    let number = |key: &str| u32::try_from(config[key].as_u64().expect("a number")).expect("small");
    let key = |part: &str| format!("{architecture}.{part}");
    let head_dim = match config["head_dim"].as_u64() {
        Some(head_dim) => head_dim as u32,
        None => number("hidden_size") / number("num_attention_heads"),
    };
    let rope = &config["rope_parameters"];
    let share = config["partial_rotary_factor"].as_f64().or(rope["partial_rotary_factor"].as_f64());
    let rotated = share.map_or(head_dim, |share| (share * f64::from(head_dim)) as u32);
    let global = rope.get("full_attention").unwrap_or(rope);
    let theta = config["rope_theta"].as_f64().or(global["rope_theta"].as_f64()).expect("a base");
    let mut metadata = vec![
        ("general.architecture".to_owned(), Value::String(architecture.to_owned())),
        (key("block_count"), Value::U32(number("num_hidden_layers"))),
        (key("context_length"), Value::U32(number("max_position_embeddings"))),
        (key("embedding_length"), Value::U32(number("hidden_size"))),
        (key("feed_forward_length"), Value::U32(number("intermediate_size"))),
        (key("attention.head_count"), Value::U32(number("num_attention_heads"))),
        (key("attention.head_count_kv"), Value::U32(number("num_key_value_heads"))),
        (key("attention.key_length"), Value::U32(head_dim)),
        (key("attention.value_length"), Value::U32(head_dim)),
        (key("rope.dimension_count"), Value::U32(rotated)),
        (key("rope.freq_base"), Value::F32(theta as f32)),
        (
            key("attention.layer_norm_rms_epsilon"),
            Value::F32(config["rms_norm_eps"].as_f64().expect("a number") as f32),
        ),
    ];
    let experts = config["num_experts"].as_u64().or(config["num_local_experts"].as_u64());
    if let Some(experts) = experts {
        metadata.push((key("expert_count"), Value::U32(experts as u32)));
        metadata.push((key("expert_used_count"), Value::U32(number("num_experts_per_tok"))));
        if config["moe_intermediate_size"].is_u64() {
            let width = Value::U32(number("moe_intermediate_size"));
            metadata.push((key("expert_feed_forward_length"), width));
        }
        // In files that don't say it is true, but not in those of OLMoE.
        if let Some(normalized) = config["norm_topk_prob"].as_bool()
            && normalized == (architecture == "olmoe")
        {
            metadata.push((key("expert_weights_norm"), Value::Bool(normalized)));
        }
    }
    if let Some(window) = config["sliding_window"].as_u64() {
        metadata.push((key("attention.sliding_window"), Value::U32(window as u32)));
    } else if architecture == "phi3" {
        metadata.push((key("attention.sliding_window"), Value::U32(0)));
    }
    if let Some(types) =
        config["layer_types"].as_array().filter(|_| matches!(architecture, "gemma3" | "olmo2"))
    {
        let slides = types.iter().map(|kind| Value::Bool(kind == "sliding_attention")).collect();
        metadata.push((key("attention.sliding_window_pattern"), Value::Array(slides)));
    }
    if let Some(scalar) = config["query_pre_attn_scalar"].as_f64() {
        metadata.push((key("attention.scale"), Value::F32((1.0 / scalar.sqrt()) as f32)));
    }
    let scaling = if config["rope_scaling"].is_object() { &config["rope_scaling"] } else { global };
    if let Some(kind @ ("linear" | "yarn")) = scaling["rope_type"].as_str() {
        metadata.push((key("rope.scaling.type"), Value::String(kind.to_owned())));
        let factor = scaling["factor"].as_f64().expect("a factor") as f32;
        metadata.push((key("rope.scaling.factor"), Value::F32(factor)));
        if let Some(original) = scaling["original_max_position_embeddings"].as_f64() {
            metadata.push((key("rope.scaling.original_context_length"), Value::U32(original as u32)));
        }
        if let Some(attention) = scaling["attention_factor"].as_f64() {
            let own = if architecture == "olmo2" { 1.0 } else { 0.1 * factor.ln() + 1.0 };
            let on_top = attention as f32 / own;
            metadata.push((key("rope.scaling.attn_factor"), Value::F32(on_top)));
        }
    }
    if scaling["rope_type"] == "longrope" {
        let original = number("original_max_position_embeddings");
        metadata.push((key("rope.scaling.original_context_length"), Value::U32(original)));
        let grown = f64::from(number("max_position_embeddings")) / f64::from(original);
        let usual = if grown > 1.0 { (1.0 + grown.ln() / f64::from(original).ln()).sqrt() } else { 1.0 };
        let attention = scaling["attention_factor"].as_f64().unwrap_or(usual);
        metadata.push((key("rope.scaling.attn_factor"), Value::F32(attention as f32)));
    }
    let local = &rope["sliding_attention"]["rope_theta"];
    if let Some(theta) = config["rope_local_base_freq"].as_f64().or(local.as_f64()) {
        metadata.push((key("rope.freq_base_swa"), Value::F32(theta as f32)));
    }
    if let Some(every) = config["sliding_window_pattern"].as_u64() {
        metadata.push((key("attention.sliding_window_pattern"), Value::U32(every as u32)));
    }
    for (multiplier, part) in [
        ("embedding_multiplier", "embedding_scale"),
        ("attention_multiplier", "attention.scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
    ] {
        if let Some(number) = config[multiplier].as_f64() {
            metadata.push((key(part), Value::F32(number as f32)));
        }
    }
    for cap in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if let Some(number) = config[cap].as_f64() {
            metadata.push((key(cap), Value::F32(number as f32)));
        }
    }
    metadata
}

/// The vocabulary by id, with the type of each token.
fn vocabulary(config: &Json, generation: &Json, tokenizer: &Json) -> Vec<(String, Value)> {
    let rows = config["vocab_size"].as_u64().expect("a number") as usize;
    let mut tokens: Vec<String> = (0..rows).map(|id| format!("[PAD{id}]")).collect();
    let mut kinds = vec![5; rows];
    let model = &tokenizer["model"];
    for (token, id) in model["vocab"].as_object().expect("an object") {
        let id = id.as_u64().expect("an id") as usize;
        let byte = token.len() == 6 && token.starts_with("<0x");
        (tokens[id], kinds[id]) = (token.clone(), if byte { 6 } else { 1 });
    }
    for added in tokenizer["added_tokens"].as_array().expect("a list") {
        let id = added["id"].as_u64().expect("an id") as usize;
        tokens[id] = added["content"].as_str().expect("a text").to_owned();
        kinds[id] = if added["special"] == true { 3 } else { 4 };
    }
    let pairs: Vec<(String, String)> = model["merges"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|merge| match merge {
            Json::String(pair) => {
                pair.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("a pair")
            }
            pair => serde_json::from_value(pair.clone()).expect("a pair"),
        })
        .collect();
    let merges = pairs.iter().map(|(a, b)| Value::String(format!("{a} {b}"))).collect();
    let sentence_piece = model["byte_fallback"] == true;
    let mut metadata = Vec::new();
    let mut put = |key: &str, value: Value| metadata.push((format!("tokenizer.ggml.{key}"), value));
    if sentence_piece {
        let mut scores: HashMap<String, f32> = HashMap::new();
        for (rank, (a, b)) in pairs.iter().enumerate() {
            scores.entry(format!("{a}{b}")).or_insert(-(rank as f32));
        }
        let score = |token: &String| Value::F32(scores.get(token).copied().unwrap_or(-1e6));
        put("model", Value::String("llama".to_owned()));
        put("scores", Value::Array(tokens.iter().map(score).collect()));
        put("add_space_prefix", Value::Bool(false));
    } else {
        let pre = if model["ignore_merges"] == true { "llama-bpe" } else { "qwen2" };
        put("model", Value::String("gpt2".to_owned()));
        put("pre", Value::String(pre.to_owned()));
        put("merges", Value::Array(merges));
    }
    put("add_bos_token", Value::Bool(config["bos_token_id"].is_u64()));
    if let Some(bos) = config["bos_token_id"].as_u64() {
        put("bos_token_id", Value::U32(bos as u32));
    }
    // The first end is the eos, the last the end of a turn; a third is known by its text.
    let ends: Vec<u32> = serde_json::from_value(generation["eos_token_id"].clone()).expect("a list");
    put("eos_token_id", Value::U32(ends[0]));
    put("eot_token_id", Value::U32(*ends.last().expect("one")));
    let around = tokenizer["post_processor"]["processors"][1]["single"].as_array();
    if around.and_then(|around| around.last()).is_some_and(|last| last["SpecialToken"].is_object()) {
        put("add_eos_token", Value::Bool(true));
    }
    put("tokens", Value::Array(tokens.into_iter().map(Value::String).collect()));
    put("token_type", Value::Array(kinds.into_iter().map(Value::I32).collect()));
    metadata
}

fn tensors(from: &Path, architecture: &str, config: &Json, kind: GgmlDType) -> Vec<(String, QTensor)> {
    let files = std::fs::read_dir(from).expect("a directory").map(|file| file.expect("a file").path());
    let weights = files.filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("model") && name.ends_with(".safetensors")
    });
    let mut all: Vec<_> =
        weights.flat_map(|path| candle_core::safetensors::load(path, &Device::Cpu).expect("sound")).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    let all = with_experts_stacked(all);
    let interleaves = matches!(architecture, "llama" | "smollm3" | "granite");
    let heads = |part: &str| config[part].as_u64().expect("a number") as usize;
    let mut tensors: Vec<_> = all
        .into_iter()
        .map(|(name, tensor)| {
            let mut tensor = tensor.to_dtype(DType::F32).expect("numbers");
            if architecture == "gemma3" && name.contains("norm") {
                tensor = (tensor + 1.0).expect("numbers");
            }
            if interleaves && name.contains("q_proj") {
                tensor = interleave(&tensor, heads("num_attention_heads"));
            }
            if interleaves && name.contains("k_proj") {
                tensor = interleave(&tensor, heads("num_key_value_heads"));
            }
            let kind = match tensor.dims() {
                _ if name.ends_with("mlp.gate.weight") || name.ends_with("moe.gate.weight") => GgmlDType::F32,
                [_, .., inputs] if inputs.is_multiple_of(kind.block_size()) => kind,
                // As llama.cpp's own tool does where rows aren't whole blocks of Q4_K.
                [_, .., _] => GgmlDType::Q5_0,
                _ => GgmlDType::F32,
            };
            let stored = QTensor::quantize(&tensor, kind).expect("rows are whole blocks");
            (gguf_name(&name, architecture), stored)
        })
        .collect();
    let rope = &config["rope_parameters"];
    let global = rope.get("full_attention").unwrap_or(rope);
    let scaling = if config["rope_scaling"].is_object() { &config["rope_scaling"] } else { global };
    if scaling["rope_type"] == "llama3" {
        let factors = llama3_factors(config, scaling);
        let factors = Tensor::new(factors, &Device::Cpu).expect("numbers");
        let factors = QTensor::quantize(&factors, GgmlDType::F32).expect("numbers");
        tensors.push(("rope_freqs.weight".to_owned(), factors));
    }
    for (key, name) in
        [("short_factor", "rope_factors_short.weight"), ("long_factor", "rope_factors_long.weight")]
    {
        if scaling["rope_type"] == "longrope" {
            let factors: Vec<f32> = serde_json::from_value(scaling[key].clone()).expect("numbers");
            let factors = Tensor::new(factors, &Device::Cpu).expect("numbers");
            tensors.push((name.to_owned(), QTensor::quantize(&factors, GgmlDType::F32).expect("numbers")));
        }
    }
    tensors
}

/// The matrices of a layer's experts as one tensor of three dimensions, whose name ends in `_exps`.
fn with_experts_stacked(all: Vec<(String, Tensor)>) -> Vec<(String, Tensor)> {
    let mut experts: BTreeMap<String, BTreeMap<usize, Tensor>> = BTreeMap::new();
    let mut others = Vec::new();
    for (name, tensor) in all {
        let Some((layer, rest)) = name.split_once(".experts.") else {
            others.push((name, tensor));
            continue;
        };
        let (expert, part) = rest.split_once('.').expect("a number and a part");
        let stacked = format!("{layer}.{}_exps.weight", part.strip_suffix(".weight").expect("a matrix"));
        experts.entry(stacked).or_default().insert(expert.parse().expect("a number"), tensor);
    }
    others.extend(experts.into_iter().map(|(name, matrices)| {
        let matrices: Vec<Tensor> = matrices.into_values().collect();
        (name, Tensor::stack(&matrices, 0).expect("they have one shape"))
    }));
    others
}

/// In each head, row `i` of the first half and row `i` of the second become neighbours.
fn interleave(tensor: &Tensor, heads: usize) -> Tensor {
    let (rows, inputs) = (tensor.dims()[0], tensor.dims().get(1).copied().unwrap_or(1));
    let halves = tensor.reshape((heads, 2, rows / heads / 2, inputs)).expect("whole heads");
    let pairs = halves.transpose(1, 2).and_then(|pairs| pairs.contiguous()).expect("four dimensions");
    pairs.reshape(tensor.dims()).expect("as many rows")
}

fn llama3_factors(config: &Json, scaling: &Json) -> Vec<f32> {
    let number = |key: &str| scaling[key].as_f64().expect("a number");
    let theta = config["rope_theta"].as_f64().unwrap_or_else(|| number("rope_theta"));
    let size = |key: &str| config[key].as_f64().expect("a number");
    let head_dim =
        config["head_dim"].as_f64().unwrap_or_else(|| size("hidden_size") / size("num_attention_heads"));
    let (factor, low, high) = (number("factor"), number("low_freq_factor"), number("high_freq_factor"));
    let original = number("original_max_position_embeddings");
    (0..head_dim as usize / 2)
        .map(|i| {
            let wave = std::f64::consts::TAU * theta.powf(2.0 * i as f64 / head_dim);
            if wave < original / high {
                1.0
            } else if wave > original / low {
                factor as f32
            } else {
                let smooth = (original / wave - low) / (high - low);
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            }
        })
        .collect()
}

fn gguf_name(name: &str, architecture: &str) -> String {
    let behind = matches!(architecture, "gemma3" | "olmo2");
    let after_attention = if behind { "post_attention_norm" } else { "ffn_norm" };
    // Bare decoders have no prefix.
    let mut name = name.strip_prefix("model.").unwrap_or(name).replace("layers.", "blk.");
    if name.starts_with("norm.") {
        name.insert_str(0, "output_");
    }
    for (from, to) in [
        ("embed_tokens", "token_embd"),
        ("lm_head", "output"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.qkv_proj", "attn_qkv"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", after_attention),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("mlp.gate.", "ffn_gate_inp."),
        ("block_sparse_moe.gate.", "ffn_gate_inp."),
        ("block_sparse_moe.w1", "ffn_gate"),
        ("block_sparse_moe.w2", "ffn_down"),
        ("block_sparse_moe.w3", "ffn_up"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.gate_up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ] {
        name = name.replace(from, to);
    }
    name
}
