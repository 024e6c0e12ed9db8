//! Small checkpoints of every family with random shapes, options and weights.

use std::path::Path;

use infer_kernels::Random;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Map, Value, json};

use crate::tensors::Tensors;

/// A checkpoint before it is written.
#[derive(Clone, Debug)]
pub struct Shape {
    pub family: &'static str,
    pub hidden: usize,
    pub intermediate: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    pub tied: bool,
    /// Biases of queries, keys and values; of the output projection; of the feed-forward layer.
    pub biases: [bool; 3],
    /// The window of sliding layers, and which layers slide.
    pub window: u32,
    pub slides: Vec<bool>,
    /// Which layers have a position embedding, and whether a list says so, or every so many have none.
    pub rotated: Vec<bool>,
    pub listed: bool,
    pub theta: f64,
    /// The base of sliding layers, in Gemma.
    pub local_theta: f64,
    pub scaling: Scaling,
    /// The first dimensions of a head, which are rotated.
    pub turned: usize,
    pub query_scalar: f64,
    /// Factors of embeddings and of residual branches, and the divisor of logits.
    pub multipliers: [f64; 3],
    pub attention_cap: Option<f64>,
    pub logit_cap: Option<f64>,
    /// Keys as transformers 5 writes them.
    pub new_keys: bool,
    /// In families that have them.
    pub experts: Option<Experts>,
}

/// The experts of some layers.
#[derive(Clone, Debug)]
pub struct Experts {
    pub count: usize,
    pub per_token: usize,
    pub intermediate: usize,
    pub normalized: bool,
    /// Layers have experts at most at every so many.
    pub step: usize,
    /// These have none.
    pub dense: Vec<usize>,
}

/// How the (global) position embedding is scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    None,
    Linear {
        factor: f64,
    },
    /// Changes nothing within the positions of the training.
    Dynamic {
        factor: f64,
    },
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
    },
    Yarn {
        factor: f64,
        original: f64,
        attention: Option<f64>,
    },
    /// Each pair's factor is larger than the one before by `short` or, where sequences may be longer than `original`, `long`.
    Long {
        short: f64,
        long: f64,
        original: usize,
        attention: Option<f64>,
    },
}

/// Positions of all shapes.
pub const POSITIONS: usize = 400;

pub const FAMILIES: [&str; 13] = [
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma3_text",
    "smollm3",
    "phi3",
    "granite",
    "olmo2",
    "olmo3",
    "olmoe",
];

impl Shape {
    /// Any checkpoint of a family.
    pub fn random(family: &'static str, random: &mut Random) -> Self {
        let gemma = family == "gemma3_text";
        let kv_heads = random.size(1, 3);
        let heads = kv_heads * random.size(1, 5);
        let head_dim = 2 * random.size(1, 17);
        // Without a separate head_dim, the hidden size is a multiple of the heads.
        let apart = gemma || random.flag();
        let hidden = if apart { random.size(5, 70) } else { heads * head_dim };
        let layers = random.size(1, 4);
        let biased = has_bias_keys(family) && random.flag();
        let (rotated, listed): (Vec<bool>, bool) = match family {
            "smollm3" if random.flag() => ((0..layers).map(|_| random.flag()).collect(), true),
            "smollm3" => ((0..layers).map(|layer| layer != 3).collect(), false),
            _ => (vec![true; layers], false),
        };
        let slides = match family {
            "smollm3" => {
                let slide = random.flag();
                rotated.iter().map(|rotated| slide && !rotated).collect()
            }
            "llama" | "granite" | "olmo2" | "olmoe" => vec![false; layers],
            "mistral" | "mixtral" | "qwen3_moe" | "phi3" => vec![random.flag(); layers],
            "gemma3_text" if random.flag() => (0..layers).map(|layer| (layer + 1) % 2 != 0).collect(),
            _ => (0..layers).map(|_| random.flag()).collect(),
        };
        let pattern =
            gemma && slides.iter().enumerate().all(|(layer, slides)| *slides == ((layer + 1) % 2 != 0));
        let original = random.size(8, 24) as f64;
        let factor = random.size(3, 12) as f64 / 2.0;
        let mut shape = Self {
            family,
            hidden,
            intermediate: random.size(1, 90),
            heads,
            kv_heads,
            head_dim,
            vocab: random.size(2, 99),
            tied: random.flag(),
            biases: [
                biased || family == "qwen2",
                biased,
                !matches!(family, "qwen2" | "qwen3_moe" | "olmo2" | "olmo3" | "olmoe")
                    && biased
                    && random.flag(),
            ],
            window: random.size(1, 30) as u32,
            slides,
            rotated,
            listed,
            theta: [1e4, 5e5, 1e6][random.size(0, 2)],
            local_theta: [1e4, 3e3][random.size(0, 1)],
            scaling: match random.size(0, 5) {
                0 => Scaling::Linear { factor },
                1 => Scaling::Dynamic { factor },
                2 => Scaling::Llama3 { factor, low: 1.0, high: 4.0, original },
                3 => Scaling::Yarn { factor, original, attention: None },
                4 => Scaling::Yarn { factor, original, attention: Some(1.25) },
                _ => Scaling::None,
            },
            turned: head_dim,
            query_scalar: if gemma { random.size(1, 40) as f64 } else { head_dim as f64 },
            multipliers: [1.0; 3],
            attention_cap: (gemma && random.flag()).then_some(2.0),
            logit_cap: (gemma && random.flag()).then_some(3.0),
            new_keys: if gemma && !pattern { true } else { random.flag() },
            experts: matches!(family, "mixtral" | "qwen3_moe" | "olmoe")
                .then(|| Experts::random(layers, random)),
        };
        if let (true, Some(experts)) = (family != "qwen3_moe", &mut shape.experts) {
            // All layers have them, in the width of layers without.
            (experts.step, experts.dense, experts.intermediate) = (1, Vec::new(), shape.intermediate);
            experts.normalized |= family == "mixtral";
        }
        if family == "phi3" {
            shape.turned = 2 * random.size(1, head_dim / 2);
            let original = [original as usize, POSITIONS][random.size(0, 1)];
            let attention = random.flag().then_some(1.25);
            let long = Scaling::Long { short: 0.1, long: factor, original, attention };
            shape.scaling = if random.size(0, 3) > 0 { long } else { Scaling::None };
        }
        if family == "granite" {
            shape.multipliers = [3.3, 0.3, 1.7].map(|most| most * f64::from(random.number().abs() + 0.1));
            shape.query_scalar = random.size(1, 40) as f64;
        }
        if family == "olmo3" && !shape.new_keys {
            (shape.theta, shape.local_theta) = (5e5, 5e5);
        }
        shape
    }

    /// The experts of a layer.
    pub fn experts(&self, layer: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| experts.are_in(layer))
    }

    pub fn gemma(&self) -> bool {
        self.family == "gemma3_text"
    }

    /// Norms follow layers and don't precede them.
    pub fn norms_behind(&self) -> bool {
        matches!(self.family, "olmo2" | "olmo3")
    }

    /// Norms of queries and keys are of all heads together.
    pub fn qk_norm_whole(&self) -> bool {
        matches!(self.family, "olmo2" | "olmo3" | "olmoe")
    }

    /// Sliding layers have a position embedding of their own.
    pub fn has_local(&self) -> bool {
        matches!(self.family, "gemma3_text" | "olmo3")
    }

    pub fn qk_norm(&self) -> bool {
        matches!(self.family, "qwen3" | "qwen3_moe" | "gemma3_text")
    }

    /// The checkpoint's config.json.
    pub fn config(&self) -> Value {
        let mut config = json!({
            "model_type": self.family, "hidden_size": self.hidden, "intermediate_size": self.intermediate,
            "num_hidden_layers": self.slides.len(), "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "vocab_size": self.vocab, "max_position_embeddings": POSITIONS,
            "rms_norm_eps": 1e-5, "tie_word_embeddings": self.tied, "eos_token_id": 0
        });
        let mut put = |key: &str, value: Value| config[key] = value;
        if self.hidden != self.heads * self.head_dim || self.gemma() {
            put("head_dim", json!(self.head_dim));
        }
        if has_bias_keys(self.family) {
            put("attention_bias", json!(self.biases[1]));
            put("mlp_bias", json!(self.biases[2]));
        }
        if self.gemma() {
            put("query_pre_attn_scalar", json!(self.query_scalar));
            put("attn_logit_softcapping", json!(self.attention_cap));
            put("final_logit_softcapping", json!(self.logit_cap));
            put("hidden_activation", json!("gelu_pytorch_tanh"));
        }
        if self.family == "granite" {
            let [embedding, branch, logits] = self.multipliers;
            put("embedding_multiplier", json!(embedding));
            put("attention_multiplier", json!(1.0 / self.query_scalar.sqrt()));
            put("residual_multiplier", json!(branch));
            put("logits_scaling", json!(logits));
        }
        if let Some(experts) = &self.experts {
            let renamed = self.new_keys && self.family == "qwen3_moe" || self.family == "mixtral";
            put(if renamed { "num_local_experts" } else { "num_experts" }, json!(experts.count));
            put("num_experts_per_tok", json!(experts.per_token));
            if self.family != "mixtral" {
                put("norm_topk_prob", json!(experts.normalized));
            }
            if self.family == "qwen3_moe" {
                put("moe_intermediate_size", json!(experts.intermediate));
                put("decoder_sparse_step", json!(experts.step));
                put("mlp_only_layers", json!(experts.dense));
                put("use_sliding_window", json!(self.slides.contains(&true)));
            }
        }
        if self.family == "smollm3" {
            put("use_sliding_window", json!(self.slides.contains(&true)));
            if self.listed {
                put("no_rope_layers", self.rotated.iter().map(|rotated| json!(u8::from(*rotated))).collect());
            }
        }
        if self.slides.contains(&true) || self.gemma() {
            put("sliding_window", json!(self.window));
        } else if matches!(self.family, "mistral" | "phi3") {
            put("sliding_window", Value::Null);
        }
        let kind = |slides: &bool| if *slides { "sliding_attention" } else { "full_attention" };
        match (self.family, self.new_keys) {
            ("gemma3_text", false) => put("sliding_window_pattern", json!(2)),
            ("gemma3_text" | "qwen2" | "qwen3" | "olmo3", _) => {
                put("layer_types", self.slides.iter().map(kind).collect());
            }
            _ => {}
        }
        if self.turned < self.head_dim {
            // Of a product that isn't whole only the whole part counts.
            put("partial_rotary_factor", json!((self.turned as f64 + 0.5) / self.head_dim as f64));
        }
        if let Scaling::Long { original, .. } = self.scaling {
            put("original_max_position_embeddings", json!(original));
        }
        let mut scaling = self.scaling.settings(self.turned / 2);
        if self.new_keys {
            scaling.insert("rope_theta".to_owned(), json!(self.theta));
            let local = json!({"rope_type": "default", "rope_theta": self.local_theta});
            put("dtype", json!("float32"));
            put(
                "rope_parameters",
                match self.has_local() {
                    true => json!({"full_attention": scaling, "sliding_attention": local}),
                    false => json!(scaling),
                },
            );
        } else {
            put("torch_dtype", json!("float32"));
            put("rope_theta", json!(self.theta));
            if self.scaling != Scaling::None {
                put("rope_scaling", json!(scaling));
            }
            if self.gemma() {
                put("rope_local_base_freq", json!(self.local_theta));
            }
        }
        config
    }

    /// Its tensors.
    pub fn tensors(&self, random: &mut Random) -> Tensors {
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let hidden = self.hidden;
        let mut tensors = Tensors::new();
        let mut put = |name: String, shape: Vec<usize>, middle: f32, spread: f32| {
            let count = shape.iter().product();
            tensors.insert(name, (shape, (0..count).map(|_| middle + random.number() * spread).collect()));
        };
        let spread = |inputs: usize| (3.0 / inputs as f32).sqrt();
        let middle = if self.gemma() { 0.0 } else { 1.0 };
        put("model.embed_tokens.weight".to_owned(), vec![self.vocab, hidden], 0.0, 1.0);
        put("model.norm.weight".to_owned(), vec![hidden], middle, 0.5);
        if !self.tied {
            put("lm_head.weight".to_owned(), vec![self.vocab, hidden], 0.0, spread(hidden));
        }
        let attention = [
            ("self_attn.q_proj", q, hidden, self.biases[0]),
            ("self_attn.k_proj", kv, hidden, self.biases[0]),
            ("self_attn.v_proj", kv, hidden, self.biases[0]),
            ("self_attn.o_proj", hidden, q, self.biases[1]),
        ];
        let gated = |place: &str, width: usize| {
            let parts = [("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)];
            parts.map(|(part, outputs, inputs)| {
                (format!("{place}.{part}_proj"), outputs, inputs, self.biases[2])
            })
        };
        let mut norms = vec![("input_layernorm", hidden), ("post_attention_layernorm", hidden)];
        if self.norms_behind() {
            norms = vec![("post_attention_layernorm", hidden), ("post_feedforward_layernorm", hidden)];
        }
        if self.qk_norm_whole() {
            norms.extend([("self_attn.q_norm", q), ("self_attn.k_norm", kv)]);
        }
        if self.gemma() {
            norms.extend([("pre_feedforward_layernorm", hidden), ("post_feedforward_layernorm", hidden)]);
        }
        if self.qk_norm() {
            norms.extend([("self_attn.q_norm", self.head_dim), ("self_attn.k_norm", self.head_dim)]);
        }
        for layer in 0..self.slides.len() {
            let mut matrices: Vec<_> =
                attention.iter().map(|(part, n, k, bias)| ((*part).to_owned(), *n, *k, *bias)).collect();
            match self.experts(layer) {
                None => matrices.extend(gated("mlp", self.intermediate)),
                Some(experts) => {
                    matrices.push(("mlp.gate".to_owned(), experts.count, hidden, false));
                    let each = (0..experts.count)
                        .flat_map(|expert| gated(&format!("mlp.experts.{expert}"), experts.intermediate));
                    matrices.extend(each);
                }
            }
            for (part, outputs, inputs, bias) in matrices {
                let name = format!("model.layers.{layer}.{part}");
                put(format!("{name}.weight"), vec![outputs, inputs], 0.0, spread(inputs));
                if bias {
                    put(format!("{name}.bias"), vec![outputs], 0.0, 0.5);
                }
            }
            for (part, width) in &norms {
                put(format!("model.layers.{layer}.{part}.weight"), vec![*width], middle, 0.5);
            }
        }
        tensors
    }
}

/// Whether a family has the keys `attention_bias` and `mlp_bias`.
fn has_bias_keys(family: &str) -> bool {
    matches!(
        family,
        "llama" | "qwen3" | "qwen3_moe" | "gemma3_text" | "smollm3" | "granite" | "olmo2" | "olmo3" | "olmoe"
    )
}

impl Experts {
    fn random(layers: usize, random: &mut Random) -> Self {
        let count = random.size(1, 12);
        Self {
            count,
            per_token: random.size(1, count.min(5)),
            intermediate: random.size(1, 50),
            normalized: random.flag(),
            step: random.size(1, 2),
            dense: (0..layers).filter(|_| random.size(0, 3) == 0).collect(),
        }
    }

    fn are_in(&self, layer: usize) -> bool {
        (layer + 1).is_multiple_of(self.step) && !self.dense.contains(&layer)
    }
}

impl Scaling {
    fn settings(self, pairs: usize) -> Map<String, Value> {
        let growing = |by: f64| (0..pairs).map(|pair| 1.0 + by * pair as f64).collect::<Vec<_>>();
        let settings = match self {
            Self::None => json!({"rope_type": "default"}),
            Self::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
            Self::Dynamic { factor } => json!({"rope_type": "dynamic", "factor": factor}),
            Self::Llama3 { factor, low, high, original } => json!({
                "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                "original_max_position_embeddings": original
            }),
            Self::Yarn { factor, original, attention } => json!({
                "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original,
                "attention_factor": attention
            }),
            Self::Long { short, long, attention, .. } => json!({
                "rope_type": "longrope", "short_factor": growing(short), "long_factor": growing(long),
                "attention_factor": attention
            }),
        };
        settings.as_object().expect("an object").clone()
    }
}

/// The projections that Phi-3's checkpoints have as one tensor, and its parts.
pub const FUSED: [(&str, &[&str]); 2] = [
    ("self_attn.qkv", &["self_attn.q", "self_attn.k", "self_attn.v"]),
    ("mlp.gate_up", &["mlp.gate", "mlp.up"]),
];

/// The names of Mixtral's experts and their router in checkpoints.
const OF_MIXTRAL: [(&str, &str); 4] =
    [(".mlp.", ".block_sparse_moe."), ("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")];

/// The tensors as a checkpoint of this configuration has them.
fn stored(config: &Value, tensors: &Tensors) -> Tensors {
    let mut stored = tensors.clone();
    if config["model_type"] == "mixtral" {
        let renamed =
            |name: String| OF_MIXTRAL.iter().fold(name, |name, (part, own)| name.replace(part, own));
        stored = stored.into_iter().map(|(name, tensor)| (renamed(name), tensor)).collect();
    }
    let layers = if config["model_type"] == "phi3" { config["num_hidden_layers"].as_u64() } else { None };
    for layer in 0..layers.unwrap_or(0) {
        for (whole, parts) in FUSED {
            let name = |part: &str| format!("model.layers.{layer}.{part}_proj.weight");
            let (mut rows, mut inputs, mut numbers) = (0, 0, Vec::new());
            for part in parts {
                let (shape, part) = stored.remove(&name(part)).expect("every layer has it");
                (rows, inputs) = (rows + shape[0], shape[1]);
                numbers.extend(part);
            }
            stored.insert(name(whole), (vec![rows, inputs], numbers));
        }
    }
    stored
}

/// Writes a checkpoint into a directory, with its tensors in `files` files.
pub fn write(directory: &Path, config: &Value, tensors: &Tensors, files: usize) {
    let tensors = &stored(config, tensors);
    let put =
        |name: &str, bytes: &[u8]| std::fs::write(directory.join(name), bytes).expect("it can be written");
    put("config.json", config.to_string().as_bytes());
    put("generation_config.json", b"{}");
    let bytes = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let all: Vec<_> =
        tensors.iter().map(|(name, (shape, numbers))| (name, shape.clone(), bytes(numbers))).collect();
    let mut map = Map::new();
    for file in 0..files {
        let name = match files {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{:05}-of-{files:05}.safetensors", file + 1),
        };
        let mine = all.iter().skip(file).step_by(files).map(|(tensor, shape, bytes)| {
            map.insert((*tensor).clone(), json!(name));
            let view = TensorView::new(Dtype::F32, shape.clone(), bytes).expect("sizes agree");
            (tensor.as_str(), view)
        });
        let bytes = safetensors::serialize(mine.collect::<Vec<_>>(), None).expect("names are unique");
        put(&name, &bytes);
    }
    if files > 1 {
        put("model.safetensors.index.json", json!({"weight_map": map}).to_string().as_bytes());
    }
}
