//! Weights on a device: matrices row by row in the device's type; norms and biases in f32.

use std::sync::Arc;

use infer_kernels::Matrix;
use infer_kernels::cuda::{Buffer, CudaError, Device, Type, fill_random};

use crate::config::{ExpertsConfig, LayerConfig, ModelConfig};
use crate::weights::{Experts, Gated, LayerWeights, Linear, Mlp, Weights};

/// Bytes converted at a time before they are copied.
const CHUNK_BYTES: usize = 32 << 20;
/// Bytes for which one more thread converts.
const THREAD_BYTES: usize = 1 << 20;

/// All weights of a decoder.
pub(super) struct DeviceWeights {
    pub embedding: DeviceMatrix,
    pub head: Option<DeviceMatrix>,
    pub final_norm: Buffer,
    /// The same over the divisor of logits, if the model has one: then the head's product needs none.
    divided_norm: Option<Buffer>,
    pub layers: Vec<DeviceLayer>,
}

/// Weights of one layer.
pub(super) struct DeviceLayer {
    pub input_norm: Option<Buffer>,
    pub qkv: DeviceLinear,
    pub q_norm: Option<Buffer>,
    pub k_norm: Option<Buffer>,
    /// Of each query head.
    pub sinks: Option<Buffer>,
    pub output: DeviceLinear,
    pub attention_output_norm: Option<Buffer>,
    pub mlp_norm: Option<Buffer>,
    pub mlp: DeviceMlp,
    pub mlp_output_norm: Option<Buffer>,
}

/// A feed-forward layer.
pub(super) enum DeviceMlp {
    Dense(DeviceGated),
    Experts(DeviceExperts),
}

impl DeviceMlp {
    /// The address of a bias that whoever adds the layer's projection adds to it, or 0.
    pub(super) fn bias(&self) -> u64 {
        match self {
            Self::Dense(gated) => address(&gated.down.bias),
            // Each expert's was added by its product.
            Self::Experts(_) => 0,
        }
    }
}

/// A gated layer.
pub(super) struct DeviceGated {
    pub gate_up: DeviceLinear,
    pub down: DeviceLinear,
}

/// Gated layers of which a router chooses some for each token. Those of all experts lie one behind another, in one matrix and
/// one bias.
pub(super) struct DeviceExperts {
    pub config: ExpertsConfig,
    pub router: DeviceLinear,
    pub gate_up: DeviceLinear,
    pub down: DeviceLinear,
}

impl DeviceLayer {
    /// Bytes of matrices that every step reads.
    fn shared_bytes(&self) -> usize {
        let attention = self.qkv.bytes() + self.output.bytes();
        attention
            + match &self.mlp {
                DeviceMlp::Dense(DeviceGated { gate_up, down }) => gate_up.bytes() + down.bytes(),
                DeviceMlp::Experts(experts) => experts.router.bytes(),
            }
    }

    /// Bytes of the experts' matrices, and which they are.
    fn experts(&self) -> Option<(usize, ExpertsConfig)> {
        match &self.mlp {
            DeviceMlp::Dense(_) => None,
            DeviceMlp::Experts(DeviceExperts { config, gate_up, down, .. }) => {
                Some((gate_up.bytes() + down.bytes(), *config))
            }
        }
    }
}

/// A projection.
pub(super) struct DeviceLinear {
    pub matrix: DeviceMatrix,
    pub bias: Option<Buffer>,
}

impl DeviceLinear {
    fn bytes(&self) -> usize {
        self.matrix.data.bytes()
    }
}

/// Rows of `inputs` numbers.
pub(super) struct DeviceMatrix {
    pub data: Buffer,
    pub outputs: usize,
    pub inputs: usize,
}

/// The address of an optional buffer, or 0.
pub(super) fn address(buffer: &Option<Buffer>) -> u64 {
    buffer.as_ref().map_or(0, Buffer::at)
}

impl DeviceWeights {
    pub(super) fn upload(
        device: &Arc<dyn Device>,
        ty: Type,
        config: &ModelConfig,
        weights: &Weights,
    ) -> Result<Self, CudaError> {
        let upload = Upload { device, ty };
        Ok(Self {
            embedding: upload.matrix(&weights.embedding)?,
            head: weights.head.as_ref().map(|head| upload.matrix(head)).transpose()?,
            final_norm: upload.vector(&weights.final_norm)?,
            divided_norm: divided(device, &weights.final_norm, config)?,
            layers: weights.layers.iter().map(|layer| upload.layer(layer)).collect::<Result<_, _>>()?,
        })
    }

    /// Random weights that keep activations near 1, so that no type overflows.
    pub(super) fn random(
        device: &Arc<dyn Device>,
        ty: Type,
        config: &ModelConfig,
        seed: u64,
    ) -> Result<Self, CudaError> {
        let mut chance = Chance { device, ty, seed };
        let hidden = config.hidden;
        let (q, kv) = (config.q_width(), config.kv_width());
        let constant = |number: f32, len: usize| Buffer::from_numbers(device, Type::F32, &vec![number; len]);
        let ones = |len: usize| constant(1.0, len);
        let [q_norm, k_norm] = [0, 1].map(|i| config.qk_norm_widths().map(|widths| widths[i]));
        let input_norm = || config.input_norms.then(|| ones(hidden)).transpose();
        let output_norm = || config.output_norms.then(|| ones(hidden)).transpose();
        let mut layer = |layer: &LayerConfig| -> Result<DeviceLayer, CudaError> {
            Ok(DeviceLayer {
                input_norm: input_norm()?,
                qkv: chance.linear(q + 2 * kv, hidden)?,
                q_norm: q_norm.map(ones).transpose()?,
                k_norm: k_norm.map(ones).transpose()?,
                sinks: config.sinks.then(|| constant(0.0, config.heads)).transpose()?,
                output: chance.linear(hidden, q)?,
                attention_output_norm: output_norm()?,
                mlp_norm: input_norm()?,
                mlp: match layer.experts {
                    None => DeviceMlp::Dense(DeviceGated {
                        gate_up: chance.linear(2 * config.intermediate, hidden)?,
                        down: chance.linear(hidden, config.intermediate)?,
                    }),
                    Some(experts) => DeviceMlp::Experts(DeviceExperts {
                        config: experts,
                        router: chance.linear(experts.count, hidden)?,
                        gate_up: chance.linear(experts.count * 2 * experts.intermediate, hidden)?,
                        down: chance.linear(experts.count * hidden, experts.intermediate)?,
                    }),
                },
                mlp_output_norm: output_norm()?,
            })
        };
        let layers = config.layers.iter().map(&mut layer).collect::<Result<_, _>>()?;
        let embedding = chance.matrix(config.vocab, hidden)?;
        let head = (!config.tied_head).then(|| chance.matrix(config.vocab, hidden)).transpose()?;
        let divided_norm = divided(device, &vec![1.0; hidden], config)?;
        Ok(Self { embedding, head, final_norm: ones(hidden)?, divided_norm, layers })
    }

    /// The matrix from hidden states to logits.
    pub(super) fn head(&self) -> &DeviceMatrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Weights of the norm before that matrix.
    pub(super) fn logit_norm(&self) -> &Buffer {
        self.divided_norm.as_ref().unwrap_or(&self.final_norm)
    }

    /// Bytes of all matrices.
    pub(super) fn bytes(&self) -> u64 {
        let layer =
            |layer: &DeviceLayer| layer.shared_bytes() + layer.experts().map_or(0, |(bytes, _)| bytes);
        let head = self.head.as_ref().map_or(0, |head| head.data.bytes());
        (self.embedding.data.bytes() + head + self.layers.iter().map(layer).sum::<usize>()) as u64
    }

    /// Bytes of the matrices that a step of so many tokens reads. An embedding that isn't the head is left out: a step reads one
    /// row of it per token. So are experts that no token chooses, if each chooses any of them with the same chance.
    pub(super) fn step_bytes(&self, tokens: u32) -> u64 {
        let rows_only = if self.head.is_some() { self.embedding.data.bytes() } else { 0 };
        let idle = |(bytes, config): (usize, ExpertsConfig)| {
            let others = 1.0 - config.per_token as f64 / config.count as f64;
            bytes as f64 * others.powf(f64::from(tokens))
        };
        let idle: f64 = self.layers.iter().filter_map(DeviceLayer::experts).map(idle).sum();
        self.bytes() - rows_only as u64 - idle as u64
    }
}

/// Weights of the last norm over the divisor of logits. They are in f32, and what they scale is rounded to the device's type once
/// with or without it, so this is as exact as dividing logits.
fn divided(
    device: &Arc<dyn Device>,
    final_norm: &[f32],
    config: &ModelConfig,
) -> Result<Option<Buffer>, CudaError> {
    let Some(divisor) = config.logit_divisor else { return Ok(None) };
    let numbers: Vec<f32> = final_norm.iter().map(|weight| weight / divisor).collect();
    Buffer::from_numbers(device, Type::F32, &numbers).map(Some)
}

/// Converts and copies.
struct Upload<'a> {
    device: &'a Arc<dyn Device>,
    ty: Type,
}

impl Upload<'_> {
    fn layer(&self, layer: &LayerWeights) -> Result<DeviceLayer, CudaError> {
        let maybe =
            |numbers: &Option<Vec<f32>>| numbers.as_ref().map(|numbers| self.vector(numbers)).transpose();
        Ok(DeviceLayer {
            input_norm: maybe(&layer.input_norm)?,
            qkv: self.linear(&layer.qkv)?,
            q_norm: maybe(&layer.q_norm)?,
            k_norm: maybe(&layer.k_norm)?,
            sinks: maybe(&layer.sinks)?,
            output: self.linear(&layer.output)?,
            attention_output_norm: maybe(&layer.attention_output_norm)?,
            mlp_norm: maybe(&layer.mlp_norm)?,
            mlp: match &layer.mlp {
                Mlp::Dense(Gated { gate_up, down }) => {
                    DeviceMlp::Dense(DeviceGated { gate_up: self.linear(gate_up)?, down: self.linear(down)? })
                }
                Mlp::Experts(experts) => DeviceMlp::Experts(self.experts(experts)?),
            },
            mlp_output_norm: maybe(&layer.mlp_output_norm)?,
        })
    }

    fn linear(&self, linear: &Linear) -> Result<DeviceLinear, CudaError> {
        let bias = linear.bias.as_ref().map(|bias| self.vector(bias)).transpose()?;
        Ok(DeviceLinear { matrix: self.matrix(&linear.matrix)?, bias })
    }

    fn experts(&self, Experts { config, router, experts }: &Experts) -> Result<DeviceExperts, CudaError> {
        Ok(DeviceExperts {
            config: *config,
            router: self.linear(router)?,
            gate_up: self.stack(&experts.iter().map(|expert| &expert.gate_up).collect::<Vec<_>>())?,
            down: self.stack(&experts.iter().map(|expert| &expert.down).collect::<Vec<_>>())?,
        })
    }

    /// Equally large projections one behind another.
    fn stack(&self, linears: &[&Linear]) -> Result<DeviceLinear, CudaError> {
        let (outputs, inputs) = (linears[0].matrix.outputs(), linears[0].matrix.inputs());
        let bytes = outputs * inputs * self.ty.bytes();
        let data = Buffer::new(self.device, linears.len() * bytes)?;
        for (index, linear) in linears.iter().enumerate() {
            self.convert(&linear.matrix, &data, index * bytes)?;
        }
        let biases: Vec<&[f32]> = linears.iter().filter_map(|linear| linear.bias.as_deref()).collect();
        let bias = (!biases.is_empty()).then(|| self.vector(&biases.concat())).transpose()?;
        Ok(DeviceLinear { matrix: DeviceMatrix { data, outputs: linears.len() * outputs, inputs }, bias })
    }

    fn vector(&self, numbers: &[f32]) -> Result<Buffer, CudaError> {
        Buffer::from_numbers(self.device, Type::F32, numbers)
    }

    fn matrix(&self, matrix: &Matrix) -> Result<DeviceMatrix, CudaError> {
        let (outputs, inputs) = (matrix.outputs(), matrix.inputs());
        let data = Buffer::new(self.device, outputs * inputs * self.ty.bytes())?;
        self.convert(matrix, &data, 0)?;
        Ok(DeviceMatrix { data, outputs, inputs })
    }

    /// Converts rows on several threads, and copies them chunk by chunk to the bytes from `start` on.
    fn convert(&self, matrix: &Matrix, to: &Buffer, start: usize) -> Result<(), CudaError> {
        let (outputs, inputs) = (matrix.outputs(), matrix.inputs());
        let row_bytes = inputs * self.ty.bytes();
        let rows = (CHUNK_BYTES / row_bytes).clamp(1, outputs.max(1));
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        // Starting a thread takes as long as it converts a few hundred kilobytes, and experts are many small matrices.
        let threads = threads.min((outputs * row_bytes).div_ceil(THREAD_BYTES)).max(1);
        let mut bytes = vec![0; rows * row_bytes];
        for first in (0..outputs).step_by(rows) {
            let count = rows.min(outputs - first);
            let share = count.div_ceil(threads);
            std::thread::scope(|scope| {
                for (part, bytes) in bytes[..count * row_bytes].chunks_mut(share * row_bytes).enumerate() {
                    scope.spawn(move || {
                        let (mut row, mut converted) = (vec![0.0; inputs], Vec::with_capacity(row_bytes));
                        for (i, bytes) in bytes.chunks_exact_mut(row_bytes).enumerate() {
                            matrix.unpack_row(first + part * share + i, 1.0, &mut row);
                            converted.clear();
                            row.iter().for_each(|number| self.ty.write(*number, &mut converted));
                            bytes.copy_from_slice(&converted);
                        }
                    });
                }
            });
            to.write(start + first * row_bytes, &bytes[..count * row_bytes])?;
        }
        Ok(())
    }
}

/// Generates random matrices on the device.
struct Chance<'a> {
    device: &'a Arc<dyn Device>,
    ty: Type,
    seed: u64,
}

impl Chance<'_> {
    fn matrix(&mut self, outputs: usize, inputs: usize) -> Result<DeviceMatrix, CudaError> {
        let data = Buffer::new(self.device, outputs * inputs * self.ty.bytes())?;
        self.seed = self.seed.wrapping_add(0x9e37_79b9);
        let scale = (3.0 / inputs as f32).sqrt();
        #[allow(unsafe_code, reason = "a kernel launch; see SAFETY")]
        // SAFETY: the buffer was just allocated for this many numbers.
        unsafe {
            fill_random(self.device.as_ref(), self.ty, data.at(), outputs * inputs, self.seed, scale)?;
        }
        Ok(DeviceMatrix { data, outputs, inputs })
    }

    fn linear(&mut self, outputs: usize, inputs: usize) -> Result<DeviceLinear, CudaError> {
        Ok(DeviceLinear { matrix: self.matrix(outputs, inputs)?, bias: None })
    }
}
