//! Writes a trained network as a Hugging Face checkpoint, which is all that serving knows about it.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;
use candle_core::{DType, Tensor};
use serde_json::json;

use super::Network;
use super::network::{NORM_EPSILON, ROPE_THETA};
use super::tokenizer::{BEGIN, END, SPECIAL, Vocabulary};

const CHAT_TEMPLATE: &str = "{{- bos_token -}}
{%- for message in messages -%}
    {%- if message.role not in ['system', 'user', 'assistant'] -%}
        {{- raise_exception('a message has the role system, user or assistant, not ' ~ message.role) -}}
    {%- endif -%}
    {{- '<|' ~ message.role ~ '|>' ~ message.content | trim ~ '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|assistant|>' -}}
{%- endif -%}
";

/// Writes the five files of the checkpoint into `folder`; weights are rounded to bf16.
///
/// # Errors
/// A file that can't be written, or what candle reports.
pub fn write_checkpoint(folder: &Path, network: &Network, vocabulary: &Vocabulary) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let shape = network.shape();
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": ROPE_THETA,
        "rope_scaling": null,
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": true,
        "vocab_size": shape.vocabulary,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "torch_dtype": "bfloat16"
    });
    let generation = json!({
        "bos_token_id": BEGIN,
        "eos_token_id": END
    });
    let tokenizer = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[BEGIN as usize],
        "eos_token": SPECIAL[END as usize],
        "clean_up_tokenization_spaces": false,
        "model_max_length": shape.context,
        "chat_template": CHAT_TEMPLATE
    });
    for (file, content) in [
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", tokenizer),
    ] {
        std::fs::write(folder.join(file), format!("{content:#}\n"))?;
    }
    std::fs::write(folder.join("tokenizer.json"), vocabulary.to_json()?)?;
    let weights: HashMap<&str, Tensor> = network
        .weights()
        .iter()
        .map(|(name, weight)| Ok((name.as_str(), weight.to_dtype(DType::BF16)?)))
        .collect::<Result<_>>()?;
    // The format sorts by type and name, so the file depends on the weights alone.
    candle_core::safetensors::save(&weights, folder.join("model.safetensors"))?;
    Ok(())
}
