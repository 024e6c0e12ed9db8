//! What config.json and generation_config.json say, and the key at fault in the message where they are refused.

mod experts;
mod families;
mod generation;
mod keys;
mod quantization;
mod rotation;

use infer_model::{ModelConfig, ModelError};
use serde_json::{Value, json};

use crate::with;

pub fn llama_config() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "eos_token_id": 511
    })
}

/// The configuration with some keys replaced; null removes one.
pub fn parse(base: Value, changes: Value) -> Result<ModelConfig, ModelError> {
    ModelConfig::parse(with(base, changes).to_string().as_bytes(), None)
}

fn phi3(changes: Value) -> Result<ModelConfig, ModelError> {
    let own = json!({"model_type": "phi3", "hidden_size": 64, "num_attention_heads": 2});
    parse(llama_config(), with(own, changes))
}
