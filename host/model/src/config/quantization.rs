//! Forms of quantized matrices in safetensors, from a config.json's `quantization_config`.
//!
//! Which matrices have such a form, and which are floats, their tensors say, so lists of modules are only checked to be lists.
//! A key without a meaning here is refused unless it is known to change nothing about the weights. What a checkpoint says
//! about inputs of products is not used: they aren't rounded as it says.

use serde_json::Value;

use super::compressed::compressed;
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
    /// Integers in words as GPTQ's tools write them: `qweight`, `qzeros`, `scales` and `g_idx`.
    Gptq {
        /// Of an integer: 4 or 8.
        bits: usize,
        /// Inputs of an output that share a scale; `None`: all.
        group: Option<usize>,
        /// Groups are of inputs that `g_idx` names, and not of neighbours.
        ordered: bool,
    },
    /// Integers of 4 bits in words as AWQ's tools write them: `qweight`, `qzeros` and `scales`.
    Awq {
        /// Inputs of an output that share a scale; `None`: all.
        group: Option<usize>,
    },
}

/// A form of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// What the codes are.
    pub code: Code,
    /// Which of them share a scale.
    pub shared: Shared,
    /// A code that is 0 stands for 0; otherwise there are zeros beside the scales.
    pub symmetric: bool,
    /// Groups are of inputs that a tensor names, and not of neighbours.
    pub ordered: bool,
}

/// A code of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// A float of 8 bits, of which 4 are the exponent's.
    Float8,
    /// A signed integer in a byte.
    Byte,
    /// An integer of 4 or 8 bits in words of 32.
    Packed {
        /// Of an integer.
        bits: usize,
    },
}

/// Which weights share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// All of a matrix.
    Matrix,
    /// Those of an output.
    Output,
    /// So many inputs of an output.
    Group(usize),
    /// Blocks of so many outputs and inputs.
    Block([usize; 2]),
}

/// The forms that the keys declare; `None` for matrices of floats and for MXFP4, whose tensors have names of their own.
pub(super) fn quantization(keys: &Keys, family: Family) -> Result<Option<Quantization>, ModelError> {
    // MLX's tools write it.
    if !keys.get("quantization").is_null() {
        return Err(keys.unsupported("quantization", &format!("is not supported; {INSTEAD}")));
    }
    // The second is what early versions of llm-compressor write.
    let section = match keys.section("quantization_config")? {
        None => keys.section("compression_config")?,
        section => section,
    };
    let Some(keys) = section else { return Ok(None) };
    match keys.text("quant_method")?.ok_or_else(|| keys.missing("quant_method"))? {
        "mxfp4" if family.gpt_oss => Ok(None),
        _ if family.gpt_oss => Err(keys.unsupported("quant_method", "must be mxfp4 for this model_type")),
        "fp8" => fp8(&keys).map(Some),
        "gptq" => gptq(&keys).map(Some),
        "awq" => awq(&keys).map(Some),
        "compressed-tensors" => compressed(&keys).map(Some),
        other => {
            let why = format!(
                "is {other:?}; supported are fp8, gptq, awq, compressed-tensors, and mxfp4 of gpt-oss; {INSTEAD}"
            );
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
    let scheme = |shared| Scheme { code: Code::Float8, shared, symmetric: true, ordered: false };
    Ok(Quantization::Scaled(match block(keys, "weight_block_size")? {
        Some(block) => vec![scheme(Shared::Block(block))],
        None => vec![scheme(Shared::Matrix), scheme(Shared::Output)],
    }))
}

/// Integers as AutoGPTQ and GPTQModel write them.
fn gptq(keys: &Keys) -> Result<Quantization, ModelError> {
    const USED: &[&str] = &[
        "quant_method",
        "method",
        "bits",
        "group_size",
        "desc_act",
        "sym",
        "checkpoint_format",
        "format",
        "pack_dtype",
        "is_marlin_format",
        "dynamic",
        "data_type",
    ];
    const LISTS: &[&str] = &["modules_to_not_convert", "modules_in_block_to_quantize"];
    known(keys, &[USED, MADE, LISTS])?;
    for key in ["quant_method", "method", "checkpoint_format", "format"] {
        one_of(keys, key, &["gptq"])?;
    }
    one_of(keys, "pack_dtype", &["int32"])?;
    one_of(keys, "data_type", &["int"])?;
    // Either way the zeros are in the file.
    keys.flag("sym")?;
    if keys.flag("is_marlin_format")? == Some(true) {
        return Err(keys.unsupported("is_marlin_format", &format!("must be false; {INSTEAD}")));
    }
    // What leaves modules as floats is of no further interest, but others may have other bits.
    if let Some(dynamic) = keys.object("dynamic")?
        && let Some(rule) = dynamic.keys().find(|rule| !rule.starts_with("-:"))
    {
        let why = format!("has a rule for {rule:?}, but all quantized modules must be alike; {INSTEAD}");
        return Err(keys.unsupported("dynamic", &why));
    }
    let bits = bits(keys, &[4, 8])?;
    Ok(Quantization::Gptq { bits, group: group(keys)?, ordered: keys.flag("desc_act")? == Some(true) })
}

/// Integers as AutoAWQ writes them.
fn awq(keys: &Keys) -> Result<Quantization, ModelError> {
    const USED: &[&str] = &[
        "quant_method",
        "method",
        "bits",
        "group_size",
        "zero_point",
        "version",
        "format",
        "pack_dtype",
        "sym",
    ];
    const LISTS: &[&str] = &["modules_to_not_convert"];
    known(keys, &[USED, MADE, LISTS])?;
    modules(keys, LISTS)?;
    one_of(keys, "method", &["awq"])?;
    // Others hold the same numbers in another order.
    for key in ["version", "format"] {
        one_of(keys, key, &["gemm", "GEMM"])?;
    }
    if keys.get("backend") == "llm-awq" {
        return Err(keys
            .unsupported("backend", &format!("is \"llm-awq\", which orders weights otherwise; {INSTEAD}")));
    }
    one_of(keys, "pack_dtype", &["int32"])?;
    if keys.flag("zero_point")? == Some(false) {
        return Err(keys.unsupported("zero_point", &format!("must be true; {INSTEAD}")));
    }
    keys.flag("sym")?;
    bits(keys, &[4])?;
    Ok(Quantization::Awq { group: group(keys)? })
}

/// Bits of a weight.
fn bits(keys: &Keys, supported: &[usize]) -> Result<usize, ModelError> {
    let bits = keys.size("bits")?;
    if supported.contains(&bits) {
        return Ok(bits);
    }
    let supported: Vec<String> = supported.iter().map(usize::to_string).collect();
    let why = format!("is {bits}; supported is {}; {INSTEAD}", supported.join(" or "));
    Err(keys.unsupported("bits", &why))
}

/// Inputs of an output that share a scale; `None` for all.
fn group(keys: &Keys) -> Result<Option<usize>, ModelError> {
    match keys.get("group_size").as_i64() {
        Some(-1) => Ok(None),
        _ => keys.size("group_size").map(Some),
    }
}

/// Outputs and inputs of a block.
pub(super) fn block(keys: &Keys, key: &str) -> Result<Option<[usize; 2]>, ModelError> {
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

/// Keys of GPTQ's and AWQ's tools that say how weights were chosen, or how they could be computed with.
const MADE: &[&str] = &[
    "act_group_aware",
    "amp",
    "autoround_version",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "damp_auto_increment",
    "damp_percent",
    "dataset",
    "disable_exllama",
    "do_fuse",
    "enable_minmax_tuning",
    "enable_quanted_input",
    "exllama_config",
    "fuse_max_seq_len",
    "gradient_accumulate_steps",
    "iters",
    "lm_head",
    "low_gpu_mem_usage",
    "lr",
    "max_input_length",
    "meta",
    "minmax_lr",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "modules_to_fuse",
    "mse",
    "nsamples",
    "offload_to_disk",
    "offload_to_disk_path",
    "pack_impl",
    "pad_token_id",
    "quantizer",
    "scale_dtype",
    "seqlen",
    "static_groups",
    "tokenizer",
    "train_bs",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
];

/// Refuses keys with a value, other than false and an empty object, that are in none of these lists.
pub(super) fn known(keys: &Keys, known: &[&[&str]]) -> Result<(), ModelError> {
    let is_known = |key: &str| known.iter().any(|list| list.contains(&key));
    let is_set = |key: &str| match keys.get(key) {
        Value::Null | Value::Bool(false) => false,
        Value::Object(map) => !map.is_empty(),
        _ => true,
    };
    match keys.names().find(|key| !is_known(key) && is_set(key)) {
        None => Ok(()),
        Some(key) => {
            let why = format!("is not known, and may say that the weights mean something else; {INSTEAD}");
            Err(keys.unsupported(key, &why))
        }
    }
}

/// Checks that these keys, where they are there, are lists of names.
pub(super) fn modules(keys: &Keys, lists: &[&str]) -> Result<(), ModelError> {
    for key in lists {
        if keys.list(key)?.is_some_and(|list| !list.iter().all(Value::is_string)) {
            return Err(keys.wrong(key, "a list of names"));
        }
    }
    Ok(())
}

/// Checks that a key, if it is there, has one of these values.
pub(super) fn one_of(keys: &Keys, key: &str, values: &[&str]) -> Result<(), ModelError> {
    match keys.text(key)? {
        Some(text) if !values.contains(&text) => {
            Err(keys
                .unsupported(key, &format!("is {text:?}; supported is {}; {INSTEAD}", values.join(" or "))))
        }
        _ => Ok(()),
    }
}
