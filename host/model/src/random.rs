//! Models with random weights for benchmarks. Their output is meaningless.

use std::num::NonZero;
use std::sync::Arc;

use infer_kernels::{Format, Matrix, Packer};

use crate::config::{ExpertsConfig, ModelConfig};
use crate::error::ModelError;
use crate::model::Model;
use crate::weights::{Experts, Gated, LayerWeights, Linear, Mlp, Weights, expect_memory, size};
use crate::{DType, WeightType};

impl Model {
    /// Creates a model of the given shape; the same seed gives the same weights. Keys and values are f32 if weights are,
    /// otherwise bf16.
    ///
    /// # Errors
    /// If memory runs out or threads can't be started.
    pub fn random(config: ModelConfig, weight_type: WeightType, seed: u64) -> Result<Self, ModelError> {
        // As loading a checkpoint with such weights stores them: attention, feed-forward layers, embedding and head.
        let ([attention, gated, ends], dtype) = match weight_type {
            WeightType::F32 => ([Format::F32; 3], DType::F32),
            WeightType::Bf16 => ([Format::Bf16; 3], DType::Bf16),
            WeightType::F16 => ([Format::F32; 3], DType::F16),
            WeightType::Q8 => ([Format::Int8; 3], DType::Bf16),
            WeightType::Q4 => ([Format::Int4, Format::Int4, Format::Int8], DType::Bf16),
            WeightType::Mxfp4 => ([Format::Bf16, Format::Mxfp4, Format::Bf16], DType::Bf16),
        };
        let attending = 2 * config.hidden * config.layers.len() * (config.q_width() + config.kv_width());
        let layers = size([1, attending], attention)
            .saturating_add(size([1, config.layers_weights() - attending], gated));
        let width = if config.tied_head { config.hidden } else { 2 * config.hidden };
        expect_memory(layers.saturating_add(size([config.vocab, width], ends)))?;
        let weights = Arc::new(Weights::random(&config, [attention, gated, ends], seed)?);
        Ok(Self { config, dtype, weight_type, stored_blocks: None, weights, adapters: Vec::new() })
    }
}

impl Weights {
    /// Attention is in the first format, feed-forward layers in the second, embedding and head in the third.
    fn random(
        config: &ModelConfig,
        [attention, gated, ends]: [Format; 3],
        seed: u64,
    ) -> Result<Self, ModelError> {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let packer = Packer::new(threads)
            .map_err(|error| ModelError::machine(format!("can't start {threads} threads: {error}")))?;
        let mut source = Random { packer, format: attention, seed };
        let hidden = config.hidden;
        let ones = |width: usize| vec![1.0; width];
        let mut layers = Vec::with_capacity(config.layers.len());
        for layer in &config.layers {
            source.format = attention;
            let qkv = source.linear(config.q_width() + 2 * config.kv_width(), hidden, config.qkv_bias)?;
            let output = source.linear(hidden, config.q_width(), config.output_bias)?;
            source.format = gated;
            layers.push(LayerWeights {
                input_norm: config.input_norms.then(|| ones(hidden)),
                qkv,
                q_norm: config.qk_norm_widths().map(|[width, _]| ones(width)),
                k_norm: config.qk_norm_widths().map(|[_, width]| ones(width)),
                sinks: config.sinks.then(|| vec![0.0; config.heads]),
                output,
                attention_output_norm: config.output_norms.then(|| ones(hidden)),
                mlp_norm: config.input_norms.then(|| ones(hidden)),
                mlp: match layer.experts {
                    None => Mlp::Dense(source.gated(config.intermediate, hidden, config.mlp_bias)?),
                    Some(experts) => Mlp::Experts(source.experts(experts, hidden)?),
                },
                mlp_output_norm: config.output_norms.then(|| ones(hidden)),
            });
        }
        source.format = ends;
        let head = match config.tied_head {
            true => None,
            false => Some(source.matrix(config.vocab, hidden, false)?),
        };
        let embedding = source.matrix(config.vocab, hidden, false)?;
        Ok(Self { embedding, head, final_norm: ones(hidden), layers })
    }
}

struct Random {
    packer: Packer,
    /// Format of the next matrix.
    format: Format,
    /// Seed of the next matrix.
    seed: u64,
}

impl Random {
    fn linear(&mut self, outputs: usize, inputs: usize, bias: bool) -> Result<Linear, ModelError> {
        Ok(Linear { matrix: self.matrix(outputs, inputs, false)?, bias: bias.then(|| vec![0.0; outputs]) })
    }

    fn gated(&mut self, width: usize, hidden: usize, bias: bool) -> Result<Gated, ModelError> {
        let matrix = self.matrix(width, hidden, true)?;
        let gate_up = Linear { matrix, bias: bias.then(|| vec![0.0; 2 * width]) };
        Ok(Gated { gate_up, down: self.linear(hidden, width, bias)? })
    }

    fn experts(&mut self, config: ExpertsConfig, hidden: usize) -> Result<Experts, ModelError> {
        let format = std::mem::replace(&mut self.format, Format::F32);
        let router = self.linear(config.count, hidden, config.bias);
        self.format = format;
        let experts = (0..config.count).map(|_| self.gated(config.intermediate, hidden, config.bias));
        let experts = experts.collect::<Result<_, _>>()?;
        Ok(Experts { config, router: router?, experts })
    }

    /// A matrix of uniform numbers that preserves the magnitude of activations. For a gated layer `outputs` counts one half.
    fn matrix(&mut self, outputs: usize, inputs: usize, gated: bool) -> Result<Matrix, ModelError> {
        self.seed = self.seed.wrapping_add(1);
        let (seed, size) = (self.seed, (12.0 / inputs as f32).sqrt());
        let row = |index: usize, out: &mut [f32]| {
            let mut state = (seed << 32 ^ index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            for out in out {
                // Xorshift (Marsaglia 2003).
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *out = ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * size;
            }
        };
        let packed = match gated {
            true => self.packer.gated(self.format, outputs, inputs, row),
            false => self.packer.matrix(self.format, outputs, inputs, row),
        };
        packed.map_err(|error| ModelError::machine(error.to_string()))
    }
}
