//! Forms of quantized matrices that llm-compressor declares, in the layout of compressed-tensors: groups of modules, each with
//! what its weights are.

use serde_json::Value;

use super::keys::{Keys, MAX_SIZE};
use super::quantization::{Code, INSTEAD, Quantization, Scheme, Shared, block, known, modules, one_of};
use crate::error::ModelError;

/// How codes are stored.
const FORMATS: &[&str] =
    &["pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision"];

pub(super) fn compressed(keys: &Keys) -> Result<Quantization, ModelError> {
    const USED: &[&str] = &[
        "quant_method",
        "format",
        "quantization_status",
        "config_groups",
        "sparsity_config",
        "ignore",
        "transform_config",
    ];
    const UNUSED: &[&str] = &["kv_cache_scheme", "global_compression_ratio", "version"];
    known(keys, &[USED, UNUSED])?;
    modules(keys, &["ignore"])?;
    one_of(keys, "quantization_status", &["compressed", "frozen"])?;
    one_of(keys, "format", FORMATS)?;
    if let Some(sparsity) = keys.section("sparsity_config")? {
        one_of(&sparsity, "format", &["dense"])?;
    }
    if keys.object("transform_config")?.is_some_and(|transforms| !transforms.is_empty()) {
        return Err(keys.unsupported("transform_config", &format!("is not supported; {INSTEAD}")));
    }
    let groups = keys.section("config_groups")?.ok_or_else(|| keys.missing("config_groups"))?;
    let mut schemes = Vec::new();
    for name in groups.names() {
        let group = groups.section(name)?.ok_or_else(|| groups.missing(name))?;
        schemes.extend(scheme(&group, keys.text("format")?)?);
    }
    match schemes.is_empty() {
        true => Err(keys.wrong("config_groups", "groups with weights")),
        false => Ok(Quantization::Scaled(schemes)),
    }
}

/// The form of a group's weights, if they are quantized. What it says about inputs and outputs is not used.
fn scheme(group: &Keys, format: Option<&str>) -> Result<Option<Scheme>, ModelError> {
    known(group, &[&["targets", "weights", "input_activations", "output_activations", "format"]])?;
    modules(group, &["targets"])?;
    one_of(group, "format", FORMATS)?;
    let Some(weights) = group.section("weights")? else { return Ok(None) };
    let format = group.text("format")?.or(format).unwrap_or("mixed-precision");
    const USED: &[&str] = &[
        "num_bits",
        "type",
        "symmetric",
        "strategy",
        "group_size",
        "block_structure",
        "dynamic",
        "actorder",
    ];
    // Tensors say what type they are of.
    const UNUSED: &[&str] = &["observer", "observer_kwargs", "scale_dtype", "zp_dtype"];
    known(&weights, &[USED, UNUSED])?;
    if weights.flag("dynamic")? == Some(true) {
        return Err(weights.unsupported("dynamic", "must be false for weights"));
    }
    let code = code(&weights, format)?;
    let ordered = match weights.get("actorder") {
        Value::Bool(ordered) => *ordered,
        _ => {
            one_of(&weights, "actorder", &["group", "dynamic", "weight", "static"])?;
            matches!(weights.text("actorder")?, Some("group" | "dynamic"))
        }
    };
    let symmetric = weights.flag("symmetric")?.unwrap_or(true);
    Ok(Some(Scheme { code, shared: shared(&weights)?, symmetric, ordered }))
}

fn code(weights: &Keys, format: &str) -> Result<Code, ModelError> {
    let kind = weights.text("type")?.unwrap_or("int");
    let bits = weights.optional_size("num_bits")?.unwrap_or(8);
    match (format, kind, bits) {
        ("float-quantized" | "naive-quantized", "float", 8) => Ok(Code::Float8),
        ("int-quantized" | "naive-quantized", "int", 2..=8) => Ok(Code::Byte),
        ("pack-quantized", "int", 4 | 8) => Ok(Code::Packed { bits }),
        ("mixed-precision", ..) => Err(weights.unsupported(
            "num_bits",
            "can't be read without a format of its group: use a checkpoint that has one of pack-quantized, int-quantized and \
             float-quantized",
        )),
        _ => {
            let why = format!(
                "is {bits} of type {kind} in the format {format}; supported are 4 and 8 of type int as pack-quantized, 8 of \
                 type int as int-quantized, and 8 of type float as float-quantized; {INSTEAD}"
            );
            Err(weights.unsupported("num_bits", &why))
        }
    }
}

/// Which weights share a scale: as `strategy` says, or else the size of groups.
fn shared(weights: &Keys) -> Result<Shared, ModelError> {
    let group = match weights.get("group_size").as_i64() {
        Some(-1) => None,
        _ => weights.optional_size("group_size")?,
    };
    let default = match (weights.get("group_size").is_null(), group) {
        (true, _) => "tensor",
        (false, None) => "channel",
        (false, Some(_)) => "group",
    };
    match (weights.text("strategy")?.unwrap_or(default), group) {
        ("tensor", _) => Ok(Shared::Matrix),
        ("channel", _) => Ok(Shared::Output),
        ("group", Some(group)) => Ok(Shared::Group(group)),
        ("group", None) => Err(weights.wrong("group_size", &format!("a whole number from 1 to {MAX_SIZE}"))),
        ("block", _) => match block(weights, "block_structure")? {
            Some(block) => Ok(Shared::Block(block)),
            None => Err(weights.wrong("block_structure", &format!("two whole numbers from 1 to {MAX_SIZE}"))),
        },
        (other, _) => {
            let why = format!("is {other:?}; supported are tensor, channel, group and block; {INSTEAD}");
            Err(weights.unsupported("strategy", &why))
        }
    }
}
