//! Cost of a step on nominal hardware: a roofline per step (Williams, Waterman and Patterson, CACM 2009), as serving
//! simulators such as Vidur (MLSys 2024) apply it.
//!
//! A step reads every weight once, reads the keys and values of all its sequences, and multiplies every token with
//! every weight. It takes the longer of memory time and compute time, plus a launch overhead. Real devices don't reach
//! their data-sheet peaks, so each has an efficiency for both. A fitted profile needs neither.

use serde::{Deserialize, Serialize};

use super::Work;

/// A device, described by its peak rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
}

/// Dimensions of a decoder that determine its cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelShape {
    /// Short name, such as `8b`.
    pub name: String,
    /// Weights that each token is multiplied with.
    pub weights: f64,
    /// Bytes per weight.
    pub weight_bytes: f64,
    /// Decoder layers.
    pub layers: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements per head.
    pub head_dim: u32,
    /// Bytes per cached element.
    pub kv_bytes: f64,
}

/// A model on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
        })
    }
}

impl ModelShape {
    /// Names of the known shapes.
    pub const NAMES: [&'static str; 4] = ["demo", "1b", "8b", "70b"];

    /// A shape by name: the demo model, and those of Llama 3.2 1B, Llama 3.1 8B and 70B in bf16.
    pub fn named(name: &str) -> Option<Self> {
        let (weights, layers, heads, kv_heads, head_dim) = match name {
            "demo" => (2.31e6, 5, 6, 2, 32),
            "1b" => (1.24e9, 16, 32, 8, 64),
            "8b" => (8.03e9, 32, 32, 8, 128),
            "70b" => (70.6e9, 80, 64, 8, 128),
            _ => return None,
        };
        let name = name.to_owned();
        Some(Self { name, weights, weight_bytes: 2.0, layers, heads, kv_heads, head_dim, kv_bytes: 2.0 })
    }

    /// Bytes of a token's keys and values in all layers.
    pub fn kv_token_bytes(&self) -> f64 {
        2.0 * f64::from(self.layers) * f64::from(self.kv_heads) * f64::from(self.head_dim) * self.kv_bytes
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

    /// Blocks that fit beside the weights, with a tenth of the memory kept free.
    pub fn blocks(&self, block_size: u32) -> u32 {
        let left = self.hardware.memory * 0.9 - self.model.weights * self.model.weight_bytes;
        let block = self.model.kv_token_bytes() * f64::from(block_size);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let blocks = (left / block).clamp(0.0, 4_000_000.0) as u32;
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(hardware: &str, model: &str) -> Roofline {
        let (hardware, model) = (Hardware::named(hardware).unwrap(), ModelShape::named(model).unwrap());
        Roofline { hardware, model }
    }

    #[test]
    fn decode_is_bound_by_memory_and_prefill_by_arithmetic() {
        let profile = of("h100", "8b");
        let one = profile.step_us(&Work::decode(1.0, 500.0));
        let many = profile.step_us(&Work::decode(32.0, 500.0));
        // 16 GB at 80 % of 3.35 TB/s take 6 ms; 31 more sequences add only their caches.
        assert!((6_000.0..6_500.0).contains(&one), "{one}");
        assert!(many < 1.2 * one, "{many}");
        let prompt = Work::chunk(4_096.0, 4_096.0);
        assert!(profile.step_us(&prompt) > 10.0 * one);
    }

    #[test]
    fn pool_is_the_memory_left_by_the_weights() {
        // 72 GB minus 16 GB of weights, at 128 KiB per token.
        let blocks = of("h100", "8b").blocks(16);
        assert!((26_000..28_000).contains(&blocks), "{blocks}");
        assert_eq!(of("l4", "70b").blocks(16), 0);
    }

    #[test]
    fn every_name_is_known() {
        assert!(Hardware::NAMES.iter().all(|name| Hardware::named(name).is_some()));
        assert!(ModelShape::NAMES.iter().all(|name| ModelShape::named(name).is_some()));
        assert!(Hardware::named("abacus").is_none());
    }
}
