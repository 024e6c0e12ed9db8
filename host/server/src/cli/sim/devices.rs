//! `infer sim devices`: the named devices and model shapes, as tables or as files to change.

use clap::Args;
use infer_sim::{Hardware, ModelShape};
use serde::Serialize;

use super::{Failure, emit};

pub const AFTER_HELP: &str = "\
A file for a device or a model of your own starts as one of these:
  infer sim devices h100 > mine.json
  infer sim run --device mine.json --model 8b

h200 and cpu have what was measured on one; the other GPUs have the shares of an H200 of their own data sheets.";

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
    let few = Hardware::FEW_TOKENS;
    let mut text = format!(
        "device  TFLOP/s    GB/s   GB  products %  attention %  weights %  caches %  us per step  \
         and layer  above {few} tokens\n"
    );
    for device in Hardware::NAMES.into_iter().filter_map(Hardware::named) {
        let (tera, giga, giga_bytes) = (device.flops / 1e12, device.bandwidth / 1e9, device.memory / 1e9);
        let (products, weights) = (100.0 * device.compute_efficiency, 100.0 * device.memory_efficiency);
        let (attention, caches) = (100.0 * device.attention_efficiency, 100.0 * device.cache_efficiency);
        let Hardware { name, step_overhead_us, layer_us, many_tokens_layer_us, .. } = device;
        text += &format!(
            "{name:6}  {tera:>7.1}  {giga:>6.0}  {giga_bytes:>3.0}  {products:>10.0}  {attention:>11.0}  \
             {weights:>9.0}  {caches:>8.0}  {step_overhead_us:>11.0}  {layer_us:>9.0}  {many_tokens_layer_us:>14.0}\n"
        );
    }
    text += "Products and weights: shares of TFLOP/s and GB/s. Attention and caches: shares of these two.\n";
    text +=
        "\nmodel  weights  of output  of embedding  layers  heads  KV heads  head dim  KV bytes per token\n";
    for shape in ModelShape::NAMES.into_iter().filter_map(ModelShape::named) {
        let kv_bytes = shape.kv_token_bytes();
        let billions = [shape.weights, shape.output_weights, shape.embedding_weights].map(|n| n / 1e9);
        let [weights, output, embedding] = billions;
        let ModelShape { name, layers, heads, kv_heads, head_dim, .. } = shape;
        text += &format!(
            "{name:5}  {weights:>6.3}G  {output:>8.3}G  {embedding:>11.3}G  {layers:>6}  {heads:>5}  {kv_heads:>8}  \
             {head_dim:>8}  {kv_bytes:>18.0}\n"
        );
    }
    text
}
