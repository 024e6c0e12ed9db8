//! Shapes of known models by name, for benchmarks with random weights ([`crate::Model::random`]).

use crate::config::ModelConfig;

/// A model's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its name on the command line.
    pub name: &'static str,
    /// The keys of its config.json that matter.
    keys: &'static str,
}

/// All named shapes.
pub const SHAPES: [Shape; 8] = [
    // The model embedded in the server.
    Shape {
        name: "demo",
        keys: r#"{"model_type":"llama","hidden_size":192,"intermediate_size":512,"num_hidden_layers":5,
        "num_attention_heads":6,"num_key_value_heads":2,"vocab_size":1792,"rms_norm_eps":1e-5,"rope_theta":10000.0,
        "max_position_embeddings":4096,"tie_word_embeddings":true}"#,
    },
    Shape {
        name: "smollm-135m",
        keys: r#"{"model_type":"llama","hidden_size":576,"intermediate_size":1536,"num_hidden_layers":30,
        "num_attention_heads":9,"num_key_value_heads":3,"head_dim":64,"vocab_size":49152,"rms_norm_eps":1e-5,
        "rope_theta":10000.0,"max_position_embeddings":8192,"tie_word_embeddings":true}"#,
    },
    // Llama 3.2.
    Shape {
        name: "llama-1b",
        keys: r#"{"model_type":"llama","hidden_size":2048,"intermediate_size":8192,"num_hidden_layers":16,
        "num_attention_heads":32,"num_key_value_heads":8,"head_dim":64,"vocab_size":128256,"rms_norm_eps":1e-5,
        "rope_theta":500000.0,"max_position_embeddings":131072,"tie_word_embeddings":true}"#,
    },
    Shape {
        name: "qwen3-1.7b",
        keys: r#"{"model_type":"qwen3","hidden_size":2048,"intermediate_size":6144,"num_hidden_layers":28,
        "num_attention_heads":16,"num_key_value_heads":8,"head_dim":128,"vocab_size":151936,"rms_norm_eps":1e-6,
        "rope_theta":1000000.0,"max_position_embeddings":40960,"tie_word_embeddings":true}"#,
    },
    Shape {
        name: "gemma3-1b",
        keys: r#"{"model_type":"gemma3_text","hidden_size":1152,"intermediate_size":6912,"num_hidden_layers":26,
        "num_attention_heads":4,"num_key_value_heads":1,"head_dim":256,"vocab_size":262144,"rms_norm_eps":1e-6,
        "rope_theta":1000000.0,"rope_local_base_freq":10000.0,"sliding_window":512,"sliding_window_pattern":6,
        "query_pre_attn_scalar":256,"max_position_embeddings":32768,"tie_word_embeddings":true}"#,
    },
    // A quarter of the layers of Qwen3 30B A3B, which are as large as they are there.
    Shape {
        name: "qwen3-moe-8b",
        keys: r#"{"model_type":"qwen3_moe","hidden_size":2048,"intermediate_size":6144,"num_hidden_layers":12,
        "num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"vocab_size":151936,"rms_norm_eps":1e-6,
        "num_experts":128,"num_experts_per_tok":8,"moe_intermediate_size":768,"norm_topk_prob":true,
        "rope_theta":1000000.0,"max_position_embeddings":40960,"tie_word_embeddings":false}"#,
    },
    // A quarter of the layers of gpt-oss 20B.
    Shape {
        name: "gpt-oss-6b",
        keys: r#"{"model_type":"gpt_oss","hidden_size":2880,"intermediate_size":2880,"num_hidden_layers":6,
        "num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,"vocab_size":201088,"rms_norm_eps":1e-5,
        "num_local_experts":32,"num_experts_per_tok":4,"sliding_window":128,"attention_bias":true,
        "rope_theta":150000.0,"rope_scaling":{"rope_type":"yarn","factor":32.0,"beta_fast":32.0,"beta_slow":1.0,
        "truncate":false,"original_max_position_embeddings":4096},
        "max_position_embeddings":131072,"tie_word_embeddings":false}"#,
    },
    // Llama 3.1.
    Shape {
        name: "llama-8b",
        keys: r#"{"model_type":"llama","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,
        "num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"vocab_size":128256,"rms_norm_eps":1e-5,
        "rope_theta":500000.0,"max_position_embeddings":131072,"tie_word_embeddings":false}"#,
    },
];

impl Shape {
    /// Looks up a shape by name.
    pub fn named(name: &str) -> Option<Self> {
        SHAPES.into_iter().find(|shape| shape.name == name)
    }

    /// The configuration of a checkpoint of this shape.
    pub fn config(&self) -> ModelConfig {
        ModelConfig::parse(self.keys.as_bytes(), None).expect("the shapes above are sound")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_as_many_weights_as_their_names_say() {
        for (name, millions) in [
            ("demo", 2.31),
            ("smollm-135m", 134.5),
            ("llama-1b", 1_236.0),
            ("qwen3-1.7b", 1_720.0),
            ("gemma3-1b", 1_000.0),
            ("qwen3-moe-8b", 8_100.0),
            ("gpt-oss-6b", 6_100.0),
            ("llama-8b", 8_030.0),
        ] {
            let config = Shape::named(name).expect(name).config();
            let heads = if config.tied_head { 1 } else { 2 };
            let weights = config.layers_weights() + heads * config.vocab * config.hidden;
            let share = weights as f64 / 1e6 / millions;
            assert!((0.98..1.02).contains(&share), "{name}: {weights}");
        }
    }

    /// 3.3 billion of the whole model, whose name says 3.
    #[test]
    fn token_of_the_shape_with_experts_uses_a_tenth_of_its_layers() {
        let config = Shape::named("qwen3-moe-8b").expect("it has a name").config();
        let whole = 4 * config.token_weights() + 2 * config.vocab * config.hidden;
        assert!((3.2e9..3.4e9).contains(&(whole as f64)), "{whole}");
        let share = config.token_weights() as f64 / config.layers_weights() as f64;
        assert!((0.08..0.12).contains(&share), "{share}");
    }

    /// 3.6 billion of the whole model, with the head but not the embedding.
    #[test]
    fn token_of_gpt_oss_uses_an_eighth_of_its_experts() {
        let config = Shape::named("gpt-oss-6b").expect("it has a name").config();
        let whole = 4 * config.token_weights() + config.vocab * config.hidden;
        assert!((3.55e9..3.65e9).contains(&(whole as f64)), "{whole}");
    }

    #[test]
    fn demo_shape_is_that_of_the_embedded_model() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../demo/checkpoint/config.json");
        let embedded = ModelConfig::parse(&std::fs::read(path).expect("it is there"), None).expect("sound");
        let shape = Shape::named("demo").expect("it has a name").config();
        let (stop_tokens, stored_dtype) = (embedded.stop_tokens.clone(), embedded.stored_dtype);
        assert_eq!(ModelConfig { stop_tokens, stored_dtype, ..shape }, embedded);
    }
}
