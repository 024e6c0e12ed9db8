//! Forms of quantized matrices in safetensors, from a config.json's `quantization_config`.
//!
//! Which matrices have such a form, and which are floats, their tensors say, so lists of modules are only checked to be lists.
//! A key without a meaning here is refused unless it is known to change nothing about the weights. What a checkpoint says
//! about inputs of products is not used: they aren't rounded as it says.

use serde_json::Value;

use super::family::Family;
use super::keys::{Keys, MAX_SIZE};
use crate::error::ModelError;

/// What to use in place of a checkpoint that is refused.
pub(crate) const INSTEAD: &str =
    "use a checkpoint in f32, bf16 or f16, in another of these forms, or a GGUF file";

/// The forms that a checkpoint's quantized matrices may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quantization {
    /// Codes in `weight`, scales in a tensor beside them.
    Scaled(Vec<Scheme>),
}

/// A form of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// What the codes are.
    pub code: Code,
    /// Which of them share a scale.
    pub shared: Shared,
}

/// A code of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// A float of 8 bits, of which 4 are the exponent's.
    Float8,
}

/// Which weights share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// All of a matrix.
    Matrix,
    /// Those of an output.
    Output,
    /// Blocks of so many outputs and inputs.
    Block([usize; 2]),
}

/// The forms that the keys declare; `None` for matrices of floats and for MXFP4, whose tensors have names of their own.
pub(super) fn quantization(keys: &Keys, family: Family) -> Result<Option<Quantization>, ModelError> {
    // MLX's tools write it.
    if !keys.get("quantization").is_null() {
        return Err(keys.unsupported("quantization", &format!("is not supported; {INSTEAD}")));
    }
    let Some(keys) = keys.section("quantization_config")? else { return Ok(None) };
    match keys.text("quant_method")?.ok_or_else(|| keys.missing("quant_method"))? {
        "mxfp4" if family.gpt_oss => Ok(None),
        _ if family.gpt_oss => Err(keys.unsupported("quant_method", "must be mxfp4 for this model_type")),
        "fp8" => fp8(&keys).map(Some),
        other => {
            let why = format!("is {other:?}; supported are fp8, and mxfp4 of gpt-oss; {INSTEAD}");
            Err(keys.unsupported("quant_method", &why))
        }
    }
}

/// Weights as DeepSeek and Qwen publish them, with a scale per block, or with one per matrix or output.
fn fp8(keys: &Keys) -> Result<Quantization, ModelError> {
    const LISTS: &[&str] = &["modules_to_not_convert", "modules_to_convert", "ignored_layers"];
    const USED: &[&str] =
        &["quant_method", "fmt", "scale_fmt", "expert_dtype", "activation_scheme", "weight_block_size"];
    const UNUSED: &[&str] = &["dequantize", "kv_cache_scheme"];
    known(keys, &[USED, UNUSED, LISTS])?;
    modules(keys, LISTS)?;
    one_of(keys, "fmt", &["e4m3", "float8_e4m3fn"])?;
    // Scales that are powers of two; their tensors say how they are stored.
    one_of(keys, "scale_fmt", &["float", "ue8m0"])?;
    one_of(keys, "expert_dtype", &["fp8"])?;
    one_of(keys, "activation_scheme", &["dynamic", "static"])?;
    let scheme = |shared| Scheme { code: Code::Float8, shared };
    Ok(Quantization::Scaled(match block(keys, "weight_block_size")? {
        Some(block) => vec![scheme(Shared::Block(block))],
        None => vec![scheme(Shared::Matrix), scheme(Shared::Output)],
    }))
}

/// Outputs and inputs of a block.
fn block(keys: &Keys, key: &str) -> Result<Option<[usize; 2]>, ModelError> {
    if keys.get(key).is_null() {
        return Ok(None);
    }
    match keys.counts(key)?[..] {
        [outputs, inputs] if (1..=MAX_SIZE).contains(&outputs) && (1..=MAX_SIZE).contains(&inputs) => {
            Ok(Some([outputs, inputs]))
        }
        _ => Err(keys.wrong(key, &format!("two whole numbers from 1 to {MAX_SIZE}"))),
    }
}

/// Refuses keys with a value that are in none of these lists.
fn known(keys: &Keys, known: &[&[&str]]) -> Result<(), ModelError> {
    let is_known = |key: &str| known.iter().any(|list| list.contains(&key));
    match keys.names().find(|key| !is_known(key) && !keys.get(key).is_null()) {
        None => Ok(()),
        Some(key) => {
            let why = format!("is not known, and may say that the weights mean something else; {INSTEAD}");
            Err(keys.unsupported(key, &why))
        }
    }
}

/// Checks that these keys, where they are there, are lists of names.
fn modules(keys: &Keys, lists: &[&str]) -> Result<(), ModelError> {
    for key in lists {
        if keys.list(key)?.is_some_and(|list| !list.iter().all(Value::is_string)) {
            return Err(keys.wrong(key, "a list of names"));
        }
    }
    Ok(())
}

/// Checks that a key, if it is there, has one of these values.
fn one_of(keys: &Keys, key: &str, values: &[&str]) -> Result<(), ModelError> {
    match keys.text(key)? {
        Some(text) if !values.contains(&text) => {
            Err(keys
                .unsupported(key, &format!("is {text:?}; supported is {}; {INSTEAD}", values.join(" or "))))
        }
        _ => Ok(()),
    }
}
