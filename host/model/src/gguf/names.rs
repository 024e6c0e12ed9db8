//! Tensor names: Hugging Face's, without the prefix `model.`, to GGUF's.

use crate::weights::ExpertMatrix;

/// The name in a GGUF file, or `None` for tensors that these files don't have. post_attention, the norm after attention or
/// that before the feed-forward layer, is `after_attention` in files of some families. Experts of a layer are one tensor.
pub(super) fn gguf_name(name: &str, after_attention: bool) -> Option<String> {
    let bias = ExpertMatrix::parse_bias(name).map(|expert| (expert, "bias"));
    let expert = ExpertMatrix::parse(name).map(|expert| (expert, "weight")).or(bias);
    if let Some((ExpertMatrix { all, part, .. }, suffix)) = expert {
        let layer = all.strip_prefix("layers.")?.strip_suffix(".mlp.experts")?;
        return Some(format!(
            "blk.{layer}.{}_exps.{suffix}",
            part_name(&format!("mlp.{part}"), after_attention)?
        ));
    }
    let whole = match name {
        "embed_tokens.weight" => "token_embd.weight",
        "norm.weight" => "output_norm.weight",
        "lm_head.weight" => "output.weight",
        _ => {
            let (layer, part) = name.strip_prefix("layers.")?.split_once('.')?;
            if part == "self_attn.sinks" {
                return Some(format!("blk.{layer}.attn_sinks.weight"));
            }
            let (part, suffix) = part.rsplit_once('.')?;
            return Some(format!("blk.{layer}.{}.{suffix}", part_name(part, after_attention)?));
        }
    };
    Some(whole.to_owned())
}

fn part_name(part: &str, after_attention: bool) -> Option<&'static str> {
    Some(match part {
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.qkv_proj" => "attn_qkv",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "post_attention_layernorm" if after_attention => "post_attention_norm",
        "post_attention_layernorm" | "pre_feedforward_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        "mlp.gate" => "ffn_gate_inp",
        "mlp.gate_proj" => "ffn_gate",
        // Where gate and up are one, it has the name of up.
        "mlp.up_proj" | "mlp.gate_up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        _ => return None,
    })
}

/// Whether files of an architecture store the rows of queries and keys in the order of llama's.
pub(super) fn interleaves(architecture: &str) -> bool {
    matches!(architecture, "llama" | "smollm3" | "granite")
}

/// Whether the rows are queries or keys.
pub(super) fn is_rotated(gguf_name: &str) -> bool {
    gguf_name.contains(".attn_q.") || gguf_name.contains(".attn_k.")
}
