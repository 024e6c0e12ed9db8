//! The names of an adapter's tensors, as PEFT gives them: the module's name in the model, before it what wraps the model, and
//! after it which of the two matrices.

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::weights::PREFIXES;

/// What PEFT wraps models in.
const WRAPPED: &str = "base_model.model.";

/// A projection that adapters change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    Query,
    Key,
    Value,
    Output,
    Gate,
    Up,
    Down,
    /// Query, key and value in one.
    QueryKeyValue,
    /// Gate and up in one.
    GateUp,
}

impl Target {
    /// All of a checkpoint of this configuration.
    fn all(config: &ModelConfig) -> &'static [Self] {
        match config.fused {
            true => &[Self::QueryKeyValue, Self::Output, Self::GateUp, Self::Down],
            false => &[Self::Query, Self::Key, Self::Value, Self::Output, Self::Gate, Self::Up, Self::Down],
        }
    }

    /// Its name within a layer.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Query => "self_attn.q_proj",
            Self::Key => "self_attn.k_proj",
            Self::Value => "self_attn.v_proj",
            Self::Output => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
            Self::QueryKeyValue => "self_attn.qkv_proj",
            Self::GateUp => "mlp.gate_up_proj",
        }
    }

    /// Outputs and inputs.
    pub(super) fn shape(self, config: &ModelConfig) -> [usize; 2] {
        let (q, kv, hidden) = (config.q_width(), config.kv_width(), config.hidden);
        match self {
            Self::Query => [q, hidden],
            Self::Key | Self::Value => [kv, hidden],
            Self::Output => [hidden, q],
            Self::Gate | Self::Up => [config.intermediate, hidden],
            Self::Down => [hidden, config.intermediate],
            Self::QueryKeyValue => [q + 2 * kv, hidden],
            Self::GateUp => [2 * config.intermediate, hidden],
        }
    }

    /// How many of its outputs are queries and keys, which come first.
    pub(super) fn rotated(self, config: &ModelConfig) -> usize {
        match self {
            Self::Query => config.q_width(),
            Self::Key => config.kv_width(),
            Self::QueryKeyValue => config.q_width() + config.kv_width(),
            Self::Value | Self::Output | Self::Gate | Self::Up | Self::Down | Self::GateUp => 0,
        }
    }

    fn is_feed_forward(self) -> bool {
        matches!(self, Self::Gate | Self::Up | Self::Down | Self::GateUp)
    }
}

/// One of the two matrices of a projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    A,
    B,
}

/// A tensor's name, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name<'n> {
    pub layer: usize,
    pub target: Target,
    pub half: Half,
    /// The module's name in the model.
    pub module: &'n str,
}

impl<'n> Name<'n> {
    /// Takes the name of a tensor for this model apart.
    pub(super) fn parse(tensor: &'n str, config: &ModelConfig) -> Result<Self, ModelError> {
        let refuse = |why: String| Err(ModelError::unsupported(format!("tensor {tensor} {why}")));
        let Some(in_model) = tensor.strip_prefix(WRAPPED) else {
            return refuse(format!("has no name that begins with {WRAPPED}, as PEFT's adapters have"));
        };
        if in_model.contains("embed_tokens") || in_model.contains("lm_head") {
            return refuse(
                "changes the embedding or the head; an adapter can change projections only".to_owned(),
            );
        }
        if in_model.contains("lora_magnitude_vector") {
            return refuse("belongs to DoRA, which is not supported".to_owned());
        }
        let halves = [(".lora_A.weight", Half::A), (".lora_B.weight", Half::B)];
        let found = halves.iter().find_map(|(end, half)| Some((in_model.strip_suffix(*end)?, *half)));
        let Some((module, half)) = found else {
            return refuse("is neither lora_A.weight nor lora_B.weight of a module".to_owned());
        };
        let in_layers =
            |prefix: &&str| module.strip_prefix(*prefix)?.strip_prefix("layers.")?.split_once('.');
        let place = PREFIXES.iter().find_map(in_layers);
        let place = place.and_then(|(layer, part)| Some((layer.parse::<usize>().ok()?, part)));
        let Some((layer, part)) = place else {
            return refuse("is of no layer of the decoder".to_owned());
        };
        if layer >= config.layers.len() {
            return refuse(format!("is of layer {layer}, and the model has {} layers", config.layers.len()));
        }
        let has_experts = config.layers[layer].experts.is_some();
        let all = Target::all(config);
        let target = all.iter().copied().find(|target| target.name() == part);
        match target {
            Some(target) if has_experts && target.is_feed_forward() => {
                refuse(format!("changes {part}, and layer {layer} consists of experts"))
            }
            Some(target) => Ok(Self { layer, target, half, module }),
            None if part.starts_with("mlp.experts")
                || part.starts_with("block_sparse_moe.")
                || (has_experts && part.starts_with("mlp.")) =>
            {
                refuse("changes experts or their router, which adapters can't".to_owned())
            }
            None => {
                let short = |target: &Target| target.name().rsplit('.').next().unwrap_or_default();
                let all: Vec<_> = all.iter().map(short).collect();
                refuse(format!("changes {part}; supported are {}", all.join(", ")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"model_type":"llama","hidden_size":64,"intermediate_size":96,"num_hidden_layers":2,
        "num_attention_heads":4,"num_key_value_heads":2,"vocab_size":48,"rms_norm_eps":1e-5,"rope_theta":10000.0,
        "max_position_embeddings":64,"tie_word_embeddings":true}"#;

    #[test]
    fn names_are_found_whatever_wraps_the_decoder() {
        let config = ModelConfig::parse(CONFIG.as_bytes(), None).unwrap();
        for prefix in ["model.", "", "language_model.model.", "model.language_model."] {
            for (target, half, end) in [(Target::Value, Half::A, "lora_A"), (Target::Down, Half::B, "lora_B")]
            {
                let module = format!("{prefix}layers.1.{}", target.name());
                let tensor = format!("base_model.model.{module}.{end}.weight");
                let want = Name { layer: 1, target, half, module: &module };
                assert_eq!(Name::parse(&tensor, &config), Ok(want), "{tensor}");
            }
        }
    }

    #[test]
    fn projections_in_one_have_the_names_of_the_checkpoint() {
        let config = CONFIG.replace("llama", "phi3");
        let config = ModelConfig::parse(config.as_bytes(), None).unwrap();
        let tensor = |part: &str| format!("base_model.model.model.layers.0.{part}.lora_B.weight");
        for (part, target, outputs) in [
            ("self_attn.qkv_proj", Target::QueryKeyValue, 128),
            ("self_attn.o_proj", Target::Output, 64),
            ("mlp.gate_up_proj", Target::GateUp, 192),
            ("mlp.down_proj", Target::Down, 64),
        ] {
            assert_eq!(Name::parse(&tensor(part), &config).unwrap().target, target);
            assert_eq!(target.shape(&config)[0], outputs);
        }
        let error =
            Name::parse(&tensor("self_attn.q_proj"), &config).expect_err("it has no such").to_string();
        let known = "changes self_attn.q_proj; supported are qkv_proj, o_proj, gate_up_proj, down_proj";
        assert!(error.contains(known), "{error}");
    }

    #[test]
    fn other_tensors_are_refused_with_their_names() {
        let config = ModelConfig::parse(CONFIG.as_bytes(), None).unwrap();
        for (tensor, why) in [
            ("model.layers.0.self_attn.q_proj.lora_A.weight", "begins with base_model.model."),
            ("base_model.model.lm_head.lora_A.weight", "the embedding or the head"),
            ("base_model.model.model.embed_tokens.lora_embedding_A", "the embedding or the head"),
            ("base_model.model.model.embed_tokens.weight", "the embedding or the head"),
            ("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", "DoRA"),
            ("base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias", "neither lora_A.weight nor"),
            ("base_model.model.model.norm.lora_A.weight", "no layer"),
            ("base_model.model.model.layers.x.self_attn.q_proj.lora_A.weight", "no layer"),
            ("base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight", "the model has 2 layers"),
            (
                "base_model.model.model.layers.0.self_attn.qkv_proj.lora_A.weight",
                "self_attn.qkv_proj; supported",
            ),
            ("base_model.model.model.layers.0.mlp.experts.3.up_proj.lora_A.weight", "changes experts"),
            ("base_model.model.model.layers.0.block_sparse_moe.gate.lora_A.weight", "changes experts"),
        ] {
            let error = Name::parse(tensor, &config).expect_err("it is refused").to_string();
            assert!(error.contains(tensor) && error.contains(why), "{tensor}: {error}");
        }
    }
}
