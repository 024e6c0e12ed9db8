//! Weights on a device: matrices row by row in the device's type, or as integers where there are kernels for these; norms and
//! biases in f32.

use std::sync::Arc;

use infer_kernels::Matrix;
use infer_kernels::cuda::{Buffer, CudaError, Device, Factors, Quantized, Type, fill_integers, fill_random};

use crate::WeightType;
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

    /// Matrices of tokens, none of which is chosen by a router.
    fn dense(&self) -> impl Iterator<Item = &DeviceMatrix> {
        let mlp = match &self.mlp {
            DeviceMlp::Dense(DeviceGated { gate_up, down }) => Some([gate_up, down]),
            DeviceMlp::Experts(_) => None,
        };
        let attention = [&self.qkv, &self.output].into_iter();
        attention.chain(mlp.into_iter().flatten()).map(|linear| &linear.matrix)
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
    /// How they are stored if they are integers.
    pub integers: Option<Quantized>,
}

impl DeviceMatrix {
    /// What products in this type multiply, with memory where integers can be widened.
    pub(super) fn factors(&self, ty: Type, scratch: &Buffer) -> Factors {
        let fits = self.widened_bytes(ty) <= scratch.bytes();
        Factors { ty, weights: self.integers, scratch: if fits { scratch.at() } else { 0 } }
    }

    /// Bytes of its numbers in this type.
    fn widened_bytes(&self, ty: Type) -> usize {
        self.outputs * self.inputs * ty.bytes()
    }
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

    /// Random weights that keep activations near 1, so that no type overflows. Integers as loading a checkpoint makes them:
    /// embedding and head have 8 bits, experts none.
    pub(super) fn random(
        device: &Arc<dyn Device>,
        (ty, weight_type): (Type, WeightType),
        config: &ModelConfig,
        seed: u64,
    ) -> Result<Self, CudaError> {
        let (integers, of_ends) = match weight_type {
            WeightType::F32 | WeightType::Bf16 | WeightType::F16 | WeightType::Mxfp4 => (None, None),
            WeightType::Q8 => (Some(Quantized::Int8), Some(Quantized::Int8)),
            WeightType::Q4 => (Some(Quantized::Int4), Some(Quantized::Int8)),
        };
        let mut chance = Chance { device, ty, seed };
        let hidden = config.hidden;
        let (q, kv) = (config.q_width(), config.kv_width());
        let constant = |number: f32, len: usize| Buffer::from_numbers(device, Type::F32, &vec![number; len]);
        let ones = |len: usize| constant(1.0, len);
        let [q_norm, k_norm] = [0, 1].map(|i| config.qk_norm_widths().map(|widths| widths[i]));
        let input_norm = || config.input_norms.then(|| ones(hidden)).transpose();
        let output_norm = || config.output_norms.then(|| ones(hidden)).transpose();
        let gate_up = [2 * config.intermediate, hidden];
        let mut layer = |layer: &LayerConfig| -> Result<DeviceLayer, CudaError> {
            Ok(DeviceLayer {
                input_norm: input_norm()?,
                qkv: chance.linear([q + 2 * kv, hidden], integers)?,
                q_norm: q_norm.map(ones).transpose()?,
                k_norm: k_norm.map(ones).transpose()?,
                sinks: config.sinks.then(|| constant(0.0, config.heads)).transpose()?,
                output: chance.linear([hidden, q], integers)?,
                attention_output_norm: output_norm()?,
                mlp_norm: input_norm()?,
                mlp: match layer.experts {
                    None => DeviceMlp::Dense(DeviceGated {
                        gate_up: chance
                            .linear(gate_up, integers.filter(|_| Quantized::fits(gate_up, true, ty)))?,
                        down: chance.linear([hidden, config.intermediate], integers)?,
                    }),
                    Some(experts) => DeviceMlp::Experts(DeviceExperts {
                        config: experts,
                        router: chance.linear([experts.count, hidden], None)?,
                        gate_up: chance.linear([experts.count * 2 * experts.intermediate, hidden], None)?,
                        down: chance.linear([experts.count * hidden, experts.intermediate], None)?,
                    }),
                },
                mlp_output_norm: output_norm()?,
            })
        };
        let layers = config.layers.iter().map(&mut layer).collect::<Result<_, _>>()?;
        let ends = [config.vocab, hidden];
        let embedding = chance.matrix(ends, of_ends)?;
        let head = (!config.tied_head).then(|| chance.matrix(ends, of_ends)).transpose()?;
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

    /// How layers' matrices are stored if all but experts' and routers' are integers: then the vendor's library, which has no
    /// products with them, is no reason to take other kernels for more rows.
    pub(super) fn integers(&self) -> Option<Quantized> {
        let mut all = self.layers.iter().flat_map(DeviceLayer::dense).map(|matrix| matrix.integers);
        let first = all.next()??;
        all.all(|integers| integers.is_some()).then_some(first)
    }

    /// Bytes in which any matrix of integers of a layer can be widened. A larger head isn't.
    pub(super) fn scratch_bytes(&self, ty: Type) -> usize {
        let dense = self.layers.iter().flat_map(DeviceLayer::dense);
        let integers = dense.filter(|matrix| matrix.integers.is_some());
        integers.map(|matrix| matrix.widened_bytes(ty)).max().unwrap_or(0)
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
            self.widen(&linear.matrix, &data, index * bytes)?;
        }
        let biases: Vec<&[f32]> = linears.iter().filter_map(|linear| linear.bias.as_deref()).collect();
        let bias = (!biases.is_empty()).then(|| self.vector(&biases.concat())).transpose()?;
        let outputs = linears.len() * outputs;
        Ok(DeviceLinear { matrix: DeviceMatrix { data, outputs, inputs, integers: None }, bias })
    }

    fn vector(&self, numbers: &[f32]) -> Result<Buffer, CudaError> {
        Buffer::from_numbers(self.device, Type::F32, numbers)
    }

    fn matrix(&self, matrix: &Matrix) -> Result<DeviceMatrix, CudaError> {
        let (outputs, inputs) = (matrix.outputs(), matrix.inputs());
        let integers = Quantized::of(matrix, self.ty);
        let bytes = match integers {
            Some(integers) => integers.bytes([outputs, inputs]),
            None => outputs * inputs * self.ty.bytes(),
        };
        let data = Buffer::new(self.device, bytes)?;
        match integers {
            Some(integers) => {
                let parts = [Quantized::stripes(outputs), integers.stripe_bytes(inputs)];
                let pack = |stripe, bytes: &mut [u8]| integers.pack(matrix, stripe, bytes);
                self.convert(parts, (&data, 0), pack)?;
            }
            None => self.widen(matrix, &data, 0)?,
        }
        Ok(DeviceMatrix { data, outputs, inputs, integers })
    }

    /// Copies rows in the device's type to the bytes from `start` on.
    fn widen(&self, matrix: &Matrix, to: &Buffer, start: usize) -> Result<(), CudaError> {
        let inputs = matrix.inputs();
        let row_bytes = inputs * self.ty.bytes();
        self.convert([matrix.outputs(), row_bytes], (to, start), |row, bytes| {
            let (mut numbers, mut converted) = (vec![0.0; inputs], Vec::with_capacity(row_bytes));
            matrix.unpack_row(row, 1.0, &mut numbers);
            numbers.iter().for_each(|number| self.ty.write(*number, &mut converted));
            bytes.copy_from_slice(&converted);
        })
    }

    /// Makes parts of so many bytes on several threads, and copies them chunk by chunk to a buffer from a place on.
    fn convert(
        &self,
        [parts, part_bytes]: [usize; 2],
        (to, start): (&Buffer, usize),
        part: impl Fn(usize, &mut [u8]) + Sync,
    ) -> Result<(), CudaError> {
        let at_once = (CHUNK_BYTES / part_bytes).clamp(1, parts.max(1));
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        // Starting a thread takes as long as it converts a few hundred kilobytes, and experts are many small matrices.
        let threads = threads.min((parts * part_bytes).div_ceil(THREAD_BYTES)).max(1);
        let mut bytes = vec![0; at_once * part_bytes];
        for first in (0..parts).step_by(at_once) {
            let count = at_once.min(parts - first);
            let share = count.div_ceil(threads);
            std::thread::scope(|scope| {
                let shares = bytes[..count * part_bytes].chunks_mut(share * part_bytes);
                for (nth, bytes) in shares.enumerate() {
                    let part = &part;
                    scope.spawn(move || {
                        for (i, bytes) in bytes.chunks_exact_mut(part_bytes).enumerate() {
                            part(first + nth * share + i, bytes);
                        }
                    });
                }
            });
            to.write(start + first * part_bytes, &bytes[..count * part_bytes])?;
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
    /// As integers if any are asked for and products take them.
    fn matrix(
        &mut self,
        [outputs, inputs]: [usize; 2],
        integers: Option<Quantized>,
    ) -> Result<DeviceMatrix, CudaError> {
        let integers = integers.filter(|_| Quantized::fits([outputs, inputs], false, self.ty));
        let bytes = match integers {
            Some(integers) => integers.bytes([outputs, inputs]),
            None => outputs * inputs * self.ty.bytes(),
        };
        let data = Buffer::new(self.device, bytes)?;
        self.seed = self.seed.wrapping_add(0x9e37_79b9);
        let scale = (3.0 / inputs as f32).sqrt();
        let device = self.device.as_ref();
        #[allow(unsafe_code, reason = "a kernel launch; see SAFETY")]
        // SAFETY: the buffer was just allocated for this many numbers.
        unsafe {
            match integers {
                None => fill_random(device, self.ty, data.at(), outputs * inputs, self.seed, scale)?,
                Some(integers) => {
                    fill_integers(device, integers, data.at(), [outputs, inputs], (self.seed, scale))?;
                }
            }
        }
        Ok(DeviceMatrix { data, outputs, inputs, integers })
    }

    fn linear(&mut self, sides: [usize; 2], integers: Option<Quantized>) -> Result<DeviceLinear, CudaError> {
        Ok(DeviceLinear { matrix: self.matrix(sides, integers)?, bias: None })
    }
}
