//! Cost of a step on nominal hardware: rooflines (Williams, Waterman and Patterson, CACM 2009) of what a step does one
//! after another, as serving simulators such as Vidur (MLSys 2024) apply them.
//!
//! Products read every weight once and multiply every token with it, attention reads the keys and values of decodes and
//! multiplies those of prompts, and each layer has times in which neither memory nor arithmetic works. Real devices
//! don't reach their data-sheet peaks, so each has efficiencies. Those of GPUs fit what was measured on an H200
//! (`FIDELITY.md`). A fitted profile needs none of this.

use serde::{Deserialize, Serialize};

use super::{ModelShape, ProfileError, Work};
use crate::range::{named, within};

/// A device, described by its peak rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// Short name, such as `h100`.
    pub name: String,
    /// Peak dense bf16 floating-point operations per second.
    pub flops: f64,
    /// Peak bytes per second from device memory.
    pub bandwidth: f64,
    /// Bytes of device memory.
    pub memory: f64,
    /// Fraction of `flops` that products of many tokens reach.
    pub compute_efficiency: f64,
    /// Fraction of that rate that attention of prompts reaches.
    #[serde(default = "all_of_it")]
    pub attention_efficiency: f64,
    /// Fraction of `bandwidth` at which products of few tokens read weights.
    pub memory_efficiency: f64,
    /// Fraction of that rate at which keys and values are read.
    #[serde(default = "all_of_it")]
    pub cache_efficiency: f64,
    /// Microseconds of fixed overhead per step: sampling, the host.
    pub step_overhead_us: f64,
    /// Microseconds per decoder layer in which neither memory nor arithmetic works, because kernels start and end. Of
    /// steps of up to [`Hardware::FEW_TOKENS`] tokens.
    #[serde(default)]
    pub layer_us: f64,
    /// The same of steps of more tokens.
    #[serde(default)]
    pub many_tokens_layer_us: f64,
    /// Bytes per second of copies between its blocks and the machine's memory.
    #[serde(default = "host_bandwidth")]
    pub host_bandwidth: f64,
}

fn all_of_it() -> f64 {
    1.0
}

/// An assumption for every device: the host copies block by block from and to pageable memory, which no link's peak
/// (PCIe 4.0 x16: 32 GB/s) is reached with.
fn host_bandwidth() -> f64 {
    10e9
}

/// A model on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// The device.
    pub hardware: Hardware,
    /// The model.
    pub model: ModelShape,
}

impl Hardware {
    /// Names of the known devices.
    pub const NAMES: [&'static str; 5] = ["cpu", "l4", "a100", "h100", "h200"];
    /// Tokens of a step up to which a layer is a few kernels that start early, since products do what surrounds them.
    /// Those of more rows are the vendor's, and more kernels wait for one another.
    pub const FEW_TOKENS: f64 = 8.0;

    /// A device by name. GPU peaks are from NVIDIA's data sheets (dense bf16; L4, A100 80 GB SXM, H100 SXM, H200 SXM);
    /// what GPUs reach of them, and their times per layer, fit measurements of an H200 alone. `cpu` was measured on two
    /// cores of a server CPU with AVX-512.
    pub fn named(name: &str) -> Option<Self> {
        let [tflops, gb_s, gb] = match name {
            "cpu" => [0.4, 28.0, 8.0],
            "l4" => [121.0, 300.0, 24.0],
            "a100" => [312.0, 2_039.0, 80.0],
            "h100" => [989.0, 3_350.0, 80.0],
            "h200" => [989.0, 4_800.0, 141.0],
            _ => return None,
        };
        let gpu = Self {
            name: name.to_owned(),
            flops: tflops * 1e12,
            bandwidth: gb_s * 1e9,
            memory: gb * 1e9,
            compute_efficiency: 0.67,
            attention_efficiency: 0.39,
            memory_efficiency: 0.87,
            cache_efficiency: 0.8,
            step_overhead_us: 20.0,
            layer_us: 17.0,
            many_tokens_layer_us: 36.0,
            host_bandwidth: host_bandwidth(),
        };
        Some(match name {
            "cpu" => Self {
                compute_efficiency: 0.8,
                attention_efficiency: 1.0,
                memory_efficiency: 0.9,
                cache_efficiency: 1.0,
                step_overhead_us: 30.0,
                layer_us: 0.0,
                many_tokens_layer_us: 0.0,
                ..gpu
            },
            // No kernel starts early there. On an H200, too, a layer takes 9 to 11 us more without that.
            "l4" | "a100" => Self { layer_us: 27.0, ..gpu },
            _ => gpu,
        })
    }

    /// Reads a device from JSON.
    ///
    /// # Errors
    /// If it is not a device, or a number is out of range. The message names the field.
    pub fn from_json(text: &str) -> Result<Self, ProfileError> {
        let device: Self =
            serde_json::from_str(text).map_err(|error| ProfileError(format!("not a device: {error}")))?;
        device.check().map_err(ProfileError)?;
        Ok(device)
    }

    fn check(&self) -> Result<(), String> {
        named(&self.name)?;
        within("`flops`", self.flops, 1e6..=1e20)?;
        within("`bandwidth`", self.bandwidth, 1e6..=1e18)?;
        within("`memory`", self.memory, 1e6..=1e18)?;
        within("`compute_efficiency`", self.compute_efficiency, 0.001..=1.0)?;
        within("`attention_efficiency`", self.attention_efficiency, 0.001..=1.0)?;
        within("`memory_efficiency`", self.memory_efficiency, 0.001..=1.0)?;
        within("`cache_efficiency`", self.cache_efficiency, 0.001..=1.0)?;
        within("`step_overhead_us`", self.step_overhead_us, 0.0..=1e9)?;
        within("`layer_us`", self.layer_us, 0.0..=1e9)?;
        within("`many_tokens_layer_us`", self.many_tokens_layer_us, 0.0..=1e9)?;
        within("`host_bandwidth`", self.host_bandwidth, 1e6..=1e18)
    }
}

impl Roofline {
    /// Duration of a step in microseconds.
    pub fn step_us(&self, work: &Work) -> f64 {
        let (device, model) = (&self.hardware, &self.model);
        if work.tokens <= 0.0 {
            return device.step_overhead_us;
        }
        let layer_us =
            if work.tokens > Hardware::FEW_TOKENS { device.many_tokens_layer_us } else { device.layer_us };
        let products = self.product_s(model.layer_weights(), work.tokens)
            + self.product_s(model.output_weights, work.drawn);
        device.step_overhead_us
            + f64::from(model.layers) * layer_us
            + 1e6 * (products + self.attention_s(work))
    }

    /// Seconds of products of `weights` with `rows`. Where reading and arithmetic take equally long, neither hides the
    /// other: measured times are near the root of the sum of their squares.
    fn product_s(&self, weights: f64, rows: f64) -> f64 {
        if rows <= 0.0 {
            return 0.0;
        }
        let device = &self.hardware;
        let read = weights * self.model.weight_bytes / (device.bandwidth * device.memory_efficiency);
        let multiply = 2.0 * weights * rows / (device.flops * device.compute_efficiency);
        // The same on every machine, which `hypot` isn't.
        (read * read + multiply * multiply).sqrt()
    }

    /// Seconds of attention: reading the keys and values of decodes, and of prompts the longer of reading and
    /// arithmetic.
    fn attention_s(&self, work: &Work) -> f64 {
        let (device, model) = (&self.hardware, &self.model);
        let bandwidth = device.bandwidth * device.memory_efficiency * device.cache_efficiency;
        let read = |context: f64| context.max(0.0) * model.kv_token_bytes() / bandwidth;
        let flops = device.flops * device.compute_efficiency * device.attention_efficiency;
        let pair = 4.0 * f64::from(model.layers) * f64::from(model.heads) * f64::from(model.head_dim);
        let multiply = (work.attended - work.decode_context) * pair / flops;
        read(work.decode_context) + read(work.context - work.decode_context).max(multiply)
    }

    /// Bytes of a block's keys and values.
    pub fn block_bytes(&self, block_size: u32) -> f64 {
        self.model.kv_token_bytes() * f64::from(block_size)
    }

    /// Time to copy a block from the device or to it, in microseconds.
    pub fn copy_us(&self, block_size: u32) -> f64 {
        1e6 * self.block_bytes(block_size) / self.hardware.host_bandwidth
    }

    /// Blocks that fit beside the weights, with a tenth of the memory kept free.
    pub fn blocks(&self, block_size: u32) -> u32 {
        let left = self.hardware.memory * 0.9 - self.model.weights * self.model.weight_bytes;
        let block = self.block_bytes(block_size);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let blocks = (left / block).clamp(0.0, 4_000_000.0) as u32;
        blocks
    }
}

#[cfg(test)]
mod measured;
#[cfg(test)]
mod tests;
