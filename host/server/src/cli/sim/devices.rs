//! `infer sim devices`: the named devices and model shapes, as tables or as files to change.

use clap::Args;
use infer_sim::{Hardware, ModelShape};
use serde::Serialize;

use super::{Failure, emit};

pub const AFTER_HELP: &str = "\
A file for a device or a model of your own starts as one of these:
  infer sim devices h100 > mine.json
  infer sim run --device mine.json --model 8b";

/// Arguments of `infer sim devices`.
#[derive(Args)]
pub struct DevicesArgs {
    /// Print this device or model shape as JSON, a file for --device or --model
    name: Option<String>,
}

/// Lists, or prints one.
pub fn run(args: &DevicesArgs) -> Result<(), Failure> {
    let text = match args.name.as_deref() {
        None => listing(),
        Some(name) => match (Hardware::named(name), ModelShape::named(name)) {
            (Some(device), _) => json(&device)?,
            (None, Some(shape)) => json(&shape)?,
            (None, None) => {
                let known = Vec::from_iter(Hardware::NAMES.into_iter().chain(ModelShape::NAMES)).join(", ");
                return Err(Failure::Usage(format!("unknown device or model `{name}`; use one of {known}")));
            }
        },
    };
    emit(None, &text)
}

fn json(described: &impl Serialize) -> Result<String, Failure> {
    Ok(serde_json::to_string_pretty(described).map_err(Failure::failed)? + "\n")
}

fn listing() -> String {
    let mut text = "device  TFLOP/s    GB/s   GB  compute %  memory %  us per step\n".to_owned();
    for device in Hardware::NAMES.into_iter().filter_map(Hardware::named) {
        let Hardware {
            name,
            flops,
            bandwidth,
            memory,
            compute_efficiency,
            memory_efficiency,
            step_overhead_us,
            ..
        } = device;
        let (tera, giga, giga_bytes) = (flops / 1e12, bandwidth / 1e9, memory / 1e9);
        let (compute, read) = (100.0 * compute_efficiency, 100.0 * memory_efficiency);
        text += &format!(
            "{name:6}  {tera:>7.1}  {giga:>6.0}  {giga_bytes:>3.0}  {compute:>9.0}  {read:>8.0}  \
             {step_overhead_us:>11.0}\n"
        );
    }
    text += "\nmodel  weights  layers  heads  KV heads  head dim  KV bytes per token\n";
    for shape in ModelShape::NAMES.into_iter().filter_map(ModelShape::named) {
        let kv_bytes = shape.kv_token_bytes();
        let ModelShape { name, weights, layers, heads, kv_heads, head_dim, .. } = shape;
        let billions = weights / 1e9;
        text += &format!(
            "{name:5}  {billions:>6.3}G  {layers:>6}  {heads:>5}  {kv_heads:>8}  {head_dim:>8}  {kv_bytes:>18.0}\n"
        );
    }
    text
}
