//! Cost of a step on nominal hardware: a roofline per step (Williams, Waterman and Patterson, CACM 2009), as serving
//! simulators such as Vidur (MLSys 2024) apply it.
//!
//! A step reads every weight once, reads the keys and values of all its sequences, and multiplies every token with
//! every weight. It takes the longer of memory time and compute time, plus a launch overhead. Real devices don't reach
//! their data-sheet peaks, so each has an efficiency for both. A fitted profile needs neither.

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
    /// Fraction of `flops` that large products reach.
    pub compute_efficiency: f64,
    /// Fraction of `bandwidth` at which weights and caches are read.
    pub memory_efficiency: f64,
    /// Microseconds of fixed overhead per step: launches, sampling, the host.
    pub step_overhead_us: f64,
    /// Bytes per second of copies between its blocks and the machine's memory.
    #[serde(default = "host_bandwidth")]
    pub host_bandwidth: f64,
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

    /// A device by name. GPU peaks are from NVIDIA's data sheets (dense bf16; L4, A100 80 GB SXM, H100 SXM, H200 SXM);
    /// `cpu` was measured on two cores of a server CPU with AVX-512.
    pub fn named(name: &str) -> Option<Self> {
        let (tflops, gb_s, gb, overhead_us) = match name {
            "cpu" => (0.4, 28.0, 8.0, 30.0),
            "l4" => (121.0, 300.0, 24.0, 150.0),
            "a100" => (312.0, 2_039.0, 80.0, 150.0),
            "h100" => (989.0, 3_350.0, 80.0, 150.0),
            "h200" => (989.0, 4_800.0, 141.0, 150.0),
            _ => return None,
        };
        let is_cpu = name == "cpu";
        Some(Self {
            name: name.to_owned(),
            flops: tflops * 1e12,
            bandwidth: gb_s * 1e9,
            memory: gb * 1e9,
            compute_efficiency: if is_cpu { 0.8 } else { 0.6 },
            memory_efficiency: if is_cpu { 0.9 } else { 0.8 },
            step_overhead_us: overhead_us,
            host_bandwidth: host_bandwidth(),
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
        within("`memory_efficiency`", self.memory_efficiency, 0.001..=1.0)?;
        within("`step_overhead_us`", self.step_overhead_us, 0.0..=1e9)?;
        within("`host_bandwidth`", self.host_bandwidth, 1e6..=1e18)
    }
}

impl Roofline {
    /// Duration of a step in microseconds.
    pub fn step_us(&self, work: &Work) -> f64 {
        let (device, model) = (&self.hardware, &self.model);
        let attention = 4.0 * f64::from(model.layers) * f64::from(model.heads) * f64::from(model.head_dim);
        let flops = 2.0 * model.weights * work.tokens + attention * work.attended;
        let bytes =
            model.weights * model.weight_bytes + model.kv_token_bytes() * (work.context + work.tokens);
        let compute = flops / (device.flops * device.compute_efficiency);
        let memory = bytes / (device.bandwidth * device.memory_efficiency);
        device.step_overhead_us + 1e6 * if work.tokens > 0.0 { compute.max(memory) } else { 0.0 }
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
mod tests;
