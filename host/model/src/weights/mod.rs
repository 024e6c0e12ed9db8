//! Weights of a checkpoint, from its files to packed matrices. Each tensor is converted and packed separately, and its pages
//! are released before the next, so a model is never in memory twice. Memory maps are dropped after loading, so later changes
//! of a file can't affect a running model.

mod copy;
mod files;
mod order;
mod stored;

use std::fmt::Display;
use std::num::NonZero;
use std::ops::ControlFlow;
use std::sync::OnceLock;

use infer_kernels::{Format, Matrix, Packer};

pub(crate) use self::copy::copy;
use self::files::Files;
use self::order::{ReadAhead, Stack, Stacks};
pub(crate) use self::stored::{RowOrder, Stored, StoredType};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::memory;
use crate::source::Source;
use crate::{DType, LoadOptions, LoadProgress, Quantize, WeightType};

/// All weights of a decoder.
pub(crate) struct Weights {
    pub embedding: Matrix,
    /// `None` if the embedding is the head.
    pub head: Option<Matrix>,
    pub final_norm: Vec<f32>,
    pub layers: Vec<LayerWeights>,
}

/// Weights of one layer. Projections that read the same input are one matrix.
pub(crate) struct LayerWeights {
    pub input_norm: Vec<f32>,
    pub qkv: Linear,
    pub q_norm: Option<Vec<f32>>,
    pub k_norm: Option<Vec<f32>>,
    pub output: Linear,
    pub attention_output_norm: Option<Vec<f32>>,
    pub mlp_norm: Vec<f32>,
    pub gate_up: Linear,
    pub down: Linear,
    pub mlp_output_norm: Option<Vec<f32>>,
}

/// A projection.
pub(crate) struct Linear {
    pub matrix: Matrix,
    pub bias: Option<Vec<f32>>,
}

/// Weights, and the types chosen for them.
pub(crate) struct Loaded {
    pub weights: Weights,
    /// Type of the KV cache, and of weights that are not quantized.
    pub dtype: DType,
    pub weight_type: WeightType,
}

impl Weights {
    pub(crate) fn load(
        source: &Source<'_>,
        config: &ModelConfig,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<Loaded, ModelError> {
        let files = Files::open(source, config.head_dim)?;
        let stored = files.stored_type("layers.0.mlp.down_proj.weight");
        let dtype = dtype(options, config, stored)?;
        // Blocks of few bits lose almost nothing as groups of 8-bit integers, and Q8_0 loses nothing.
        let quantized = match options.quantize {
            Quantize::Auto => options.dtype.is_none() && matches!(stored, Some(StoredType::Blocks(_))),
            Quantize::Off => false,
            Quantize::Q8 => true,
        };
        let (weight_type, format) = match (quantized, dtype) {
            (true, _) => (WeightType::Q8, Format::Int8),
            (false, DType::F32) => (WeightType::F32, Format::F32),
            (false, DType::Bf16) => (WeightType::Bf16, Format::Bf16),
            // CPUs have no f16 products; the device rounds the f32 weights that it receives.
            (false, DType::F16) => (WeightType::F16, Format::F32),
        };
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let packer = Packer::new(threads)
            .map_err(|error| ModelError::unsupported(format!("can't start {threads} threads: {error}")))?;
        let done = LoadProgress { done_bytes: 0, total_bytes: files.bytes() };
        let ahead = ReadAhead::new(&files, config);
        // Loading reports tensors that are missing or have another shape.
        let there = ahead.matrices().into_iter().filter(|(name, shape)| files.tensor(name, shape).is_ok());
        expect_memory(there.map(|(_, [outputs, inputs])| outputs as u64 * inputs as u64).sum(), format)?;
        let mut loader = Loader { files, config, format, packer, ahead, progress, done };
        let (vocab, hidden) = (config.vocab, config.hidden);
        let embedding = loader.matrix(&[("embed_tokens.weight", vocab)], hidden)?;
        let head = match config.tied_head {
            true => None,
            false => Some(loader.matrix(&[("lm_head.weight", vocab)], hidden)?),
        };
        let final_norm = loader.norm("norm.weight", hidden)?;
        let layers = (0..config.layers.len()).map(|i| loader.layer(i)).collect::<Result<_, _>>()?;
        Ok(Loaded { weights: Self { embedding, head, final_norm, layers }, dtype, weight_type })
    }

    /// The matrix from hidden states to logits.
    pub(crate) fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Bytes of all matrices.
    pub(crate) fn bytes(&self) -> usize {
        let linear = |linear: &Linear| linear.matrix.bytes();
        let layer = |layer: &LayerWeights| {
            [&layer.qkv, &layer.output, &layer.gate_up, &layer.down].map(linear).iter().sum::<usize>()
        };
        self.embedding.bytes()
            + self.head.as_ref().map_or(0, Matrix::bytes)
            + self.layers.iter().map(layer).sum::<usize>()
    }

    /// Bytes of the matrices that every step reads. An embedding that isn't the head is left out: a step reads one row of it
    /// per token.
    pub(crate) fn step_bytes(&self) -> usize {
        self.bytes() - if self.head.is_some() { self.embedding.bytes() } else { 0 }
    }
}

struct Loader<'a> {
    files: Files<'a>,
    config: &'a ModelConfig,
    format: Format,
    packer: Packer,
    ahead: ReadAhead,
    progress: &'a mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    done: LoadProgress,
}

impl Loader<'_> {
    fn layer(&mut self, index: usize) -> Result<LayerWeights, ModelError> {
        let config = self.config;
        let hidden = config.hidden;
        let name = |part: &str| format!("layers.{index}.{part}");
        let norm = |part: &str| self.norm(&name(&format!("{part}.weight")), hidden);
        // In models with norms on outputs, post_attention is the norm after attention.
        let (mlp_norm, attention_output_norm, mlp_output_norm) = match config.output_norms {
            true => (
                norm("pre_feedforward_layernorm")?,
                Some(norm("post_attention_layernorm")?),
                Some(norm("post_feedforward_layernorm")?),
            ),
            false => (norm("post_attention_layernorm")?, None, None),
        };
        let input_norm = norm("input_layernorm")?;
        let head_norm = |part: &str| match config.qk_norm {
            true => self.norm(&name(&format!("self_attn.{part}.weight")), config.head_dim).map(Some),
            false => Ok(None),
        };
        let (q_norm, k_norm) = (head_norm("q_norm")?, head_norm("k_norm")?);
        let Stacks { qkv, output, gate_up, down } = Stacks::of(config, index);
        Ok(LayerWeights {
            input_norm,
            qkv: self.linear(&qkv, config.qkv_bias, false)?,
            q_norm,
            k_norm,
            output: self.linear(&output, config.output_bias, false)?,
            attention_output_norm,
            mlp_norm,
            gate_up: self.linear(&gate_up, config.mlp_bias, true)?,
            down: self.linear(&down, config.mlp_bias, false)?,
            mlp_output_norm,
        })
    }

    fn linear(&mut self, stack: &Stack, bias: bool, gated: bool) -> Result<Linear, ModelError> {
        let Stack { parts, inputs } = stack;
        let named: Vec<_> = parts.iter().map(|(part, n)| (format!("{part}.weight"), *n)).collect();
        let borrowed: Vec<_> = named.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        let matrix = self.pack(&borrowed, *inputs, gated)?;
        let bias = match bias {
            true => {
                let biases = parts.iter().map(|(part, n)| self.vector(&format!("{part}.bias"), *n));
                Some(biases.collect::<Result<Vec<_>, _>>()?.concat())
            }
            false => None,
        };
        Ok(Linear { matrix, bias })
    }

    fn matrix(&mut self, parts: &[(&str, usize)], inputs: usize) -> Result<Matrix, ModelError> {
        self.pack(parts, inputs, false)
    }

    /// Packs the stacked matrices `(name, outputs)`; the two halves of a gated layer are packed as such.
    fn pack(&mut self, parts: &[(&str, usize)], inputs: usize, gated: bool) -> Result<Matrix, ModelError> {
        let tensors = parts.iter().map(|(name, outputs)| self.files.tensor(name, &[*outputs, inputs]));
        let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
        self.ahead.ask(&self.files, self.done.done_bytes);
        tensors.iter().for_each(|tensor| self.files.prefetch(tensor));
        let unreadable = OnceLock::new();
        let row = |mut row: usize, out: &mut [f32]| {
            for tensor in &tensors {
                if row < tensor.rows() {
                    if let Err(error) = tensor.row(row, out) {
                        unreadable.get_or_init(|| error);
                    }
                    return;
                }
                row -= tensor.rows();
            }
        };
        let outputs = parts.iter().map(|(_, outputs)| outputs).sum::<usize>();
        let packed = match gated {
            true => self.packer.gated(self.format, outputs / 2, inputs, row),
            false => self.packer.matrix(self.format, outputs, inputs, row),
        };
        for tensor in &tensors {
            self.files.release(tensor);
            self.done.done_bytes += tensor.bytes.len() as u64;
        }
        if (self.progress)(self.done).is_break() {
            return Err(ModelError::weights("loading was cancelled"));
        }
        match unreadable.into_inner() {
            Some(error) => Err(error),
            None => packed.map_err(|error| does_not_fit(&error)),
        }
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        self.files.tensor(name, &[len])?.numbers()
    }

    /// A norm's weight, with its offset added.
    fn norm(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let mut weight = self.vector(name, len)?;
        if self.config.norm_offset {
            weight.iter_mut().for_each(|w| *w += 1.0);
        }
        Ok(weight)
    }
}

/// The requested type, or one that keeps the stored precision.
fn dtype(
    options: &LoadOptions,
    config: &ModelConfig,
    stored: Option<StoredType>,
) -> Result<DType, ModelError> {
    // Sums in such layers exceed the range of f16: transformers and vLLM support Gemma 2 and 3 only in bf16 or f32.
    let overflows = config.output_norms;
    match options.dtype {
        Some(DType::F16) if !options.knows_f16 => {
            Err(ModelError::unsupported("f16 is computed on GPUs only; use f32 or bf16".to_owned()))
        }
        Some(DType::F16) if overflows => Err(ModelError::unsupported(
            "activations of this family overflow f16; use bf16 or f32".to_owned(),
        )),
        Some(dtype) => Ok(dtype),
        None => {
            let stored = config.stored_dtype.unwrap_or(match stored {
                Some(StoredType::Bf16) => DType::Bf16,
                Some(StoredType::F16) => DType::F16,
                _ => DType::F32,
            });
            let widened = stored == DType::F16 && (overflows || !options.knows_f16);
            Ok(if widened { DType::F32 } else { stored })
        }
    }
}

/// Refuses weights of `numbers` numbers if memory can't hold them.
pub(crate) fn expect_memory(numbers: u64, format: Format) -> Result<(), ModelError> {
    let bytes = match format {
        Format::F32 => numbers.saturating_mul(4),
        Format::Bf16 => numbers.saturating_mul(2),
        // Two bytes of scale per 32 numbers.
        Format::Int8 => numbers.saturating_add(numbers / 16),
    };
    memory::check("the weights don't fit: they take", bytes, "store them in fewer bits (quantize, dtype)")
}

fn does_not_fit(error: &dyn Display) -> ModelError {
    ModelError::unsupported(format!("the weights don't fit: {error}"))
}
