//! Adapters with random weights for benchmarks. Their output is meaningless.

use std::num::NonZero;

use infer_kernels::{Format, Packer, Random};

use super::names::Target;
use super::{AdaptedLayer, Adapter, Delta, Part};
use crate::config::ModelConfig;
use crate::error::ModelError;

impl Adapter {
    /// An adapter of this rank that changes all projections of a model, but not its experts.
    pub(crate) fn random(
        config: &ModelConfig,
        format: Format,
        rank: usize,
        seed: u64,
    ) -> Result<Self, ModelError> {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let mut packer = Packer::new(threads)
            .map_err(|error| ModelError::machine(format!("can't start {threads} threads: {error}")))?;
        let mut random = Random::new(seed);
        let mut matrix = |outputs: usize, inputs: usize| {
            let spread = 1.0 / (inputs as f32).sqrt();
            let numbers: Vec<f32> = random.numbers(outputs * inputs);
            let row = |index: usize, out: &mut [f32]| {
                for (out, number) in out.iter_mut().zip(&numbers[index * inputs..]) {
                    *out = spread * number;
                }
            };
            let packed = packer.matrix(format, outputs, inputs, row);
            packed.map_err(|error| ModelError::machine(error.to_string()))
        };
        let mut delta = |stack: &[Target]| {
            let [_, inputs] = stack[0].shape(config);
            let narrow = matrix(rank * stack.len(), inputs)?;
            let (mut first, mut parts) = (0, Vec::with_capacity(stack.len()));
            for target in stack {
                let [outputs, _] = target.shape(config);
                parts.push(Part { wide: matrix(outputs, rank)?, scale: 1.0, first });
                first += outputs;
            }
            Ok::<_, ModelError>(Some(Delta { narrow, parts }))
        };
        let mut layers = Vec::with_capacity(config.layers.len());
        for layer in &config.layers {
            let mut layer_of = AdaptedLayer {
                qkv: delta(&[Target::Query, Target::Key, Target::Value])?,
                output: delta(&[Target::Output])?,
                ..AdaptedLayer::default()
            };
            if layer.experts.is_none() {
                layer_of.gate_up = delta(&[Target::Gate, Target::Up])?;
                layer_of.down = delta(&[Target::Down])?;
            }
            layers.push(layer_of);
        }
        Ok(Self { layers })
    }
}
