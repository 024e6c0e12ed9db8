//! Weights of a checkpoint, from its files to packed matrices. Each tensor is converted and packed separately, and its pages
//! are released before the next, so a model is never in memory twice. Memory maps are dropped after loading, so later changes
//! of a file can't affect a running model.

mod copy;
mod files;
mod four;
mod order;
mod stored;

use std::fmt::Display;
use std::num::NonZero;
use std::ops::ControlFlow;
use std::sync::OnceLock;

use infer_kernels::{Format, Group4, Matrix, Packer};

pub(crate) use self::copy::copy;
use self::files::Files;
use self::order::{ReadAhead, Stack, Stacks};
pub(crate) use self::stored::{RowOrder, Stored, StoredType};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::memory;
use crate::source::Source;
use crate::{DType, LoadOptions, LoadProgress, Quantize, WeightType};

/// How the names of matrices between embedding and head begin.
const LAYERS: &str = "layers.";

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
        let blocks = options.dtype.is_none() && matches!(stored, Some(StoredType::Blocks(_)));
        let (weight_type, formats) = match (options.quantize, dtype) {
            (Quantize::Auto, _) if blocks => (WeightType::Q8, Formats::AsStored),
            (Quantize::Q8, _) => (WeightType::Q8, Formats::All(Format::Int8)),
            (Quantize::Q4, _) => (WeightType::Q4, Formats::Four),
            (_, DType::F32) => (WeightType::F32, Formats::All(Format::F32)),
            (_, DType::Bf16) => (WeightType::Bf16, Formats::All(Format::Bf16)),
            // CPUs have no f16 products; the device rounds the f32 weights that it receives.
            (_, DType::F16) => (WeightType::F16, Formats::All(Format::F32)),
        };
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let packer = Packer::new(threads)
            .map_err(|error| ModelError::unsupported(format!("can't start {threads} threads: {error}")))?;
        let done = LoadProgress { done_bytes: 0, total_bytes: files.bytes() };
        let ahead = ReadAhead::new(&files, config);
        // Loading reports tensors that are missing or have another shape.
        let sizes = ahead.matrices().into_iter().filter_map(|(name, shape)| {
            let tensor = files.tensor(&name, &shape).ok()?;
            Some(size(shape, formats.of(&name, std::slice::from_ref(&tensor))))
        });
        expect_memory(sizes.fold(0, u64::saturating_add))?;
        let mut loader = Loader { files, config, formats, packer, ahead, progress, done };
        let (vocab, hidden) = (config.vocab, config.hidden);
        let embedding = loader.matrix(&[("embed_tokens.weight", vocab)], hidden)?;
        let head = match config.tied_head {
            true => None,
            false => Some(loader.matrix(&[("lm_head.weight", vocab)], hidden)?),
        };
        let final_norm = loader.norm("norm.weight", hidden)?;
        let layers = (0..config.layers.len()).map(|i| loader.layer(i)).collect::<Result<_, _>>()?;
        let weights = Self { embedding, head, final_norm, layers };
        let weight_type = if weights.has_four_bits() { WeightType::Q4 } else { weight_type };
        Ok(Loaded { weights, dtype, weight_type })
    }

    /// The matrix from hidden states to logits.
    pub(crate) fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let ends = std::iter::once(&self.embedding).chain(&self.head);
        ends.chain(self.layers.iter().flat_map(LayerWeights::matrices))
    }

    fn has_four_bits(&self) -> bool {
        self.matrices().any(|matrix| matrix.format() == Format::Int4)
    }

    /// Bytes of all matrices.
    pub(crate) fn bytes(&self) -> usize {
        self.matrices().map(Matrix::bytes).sum()
    }

    /// Bytes of the matrices that every step reads. An embedding that isn't the head is left out: a step reads one row of it
    /// per token.
    pub(crate) fn step_bytes(&self) -> usize {
        self.bytes() - if self.head.is_some() { self.embedding.bytes() } else { 0 }
    }
}

/// The formats of matrices.
#[derive(Clone, Copy)]
enum Formats {
    All(Format),
    /// [`Quantize::Auto`] of quantized files. Blocks of other than 4 bits lose almost nothing as groups of 8-bit integers, and
    /// Q8_0 loses nothing.
    AsStored,
    /// [`Quantize::Q4`].
    Four,
}

impl Formats {
    /// The format of stacked tensors; `name` is the first one's.
    fn of(self, name: &str, tensors: &[Stored<'_>]) -> Format {
        let kept = tensors.iter().all(|tensor| tensor.kind.is_four_bits());
        match self {
            Self::All(format) => format,
            Self::AsStored if kept => Format::Int4,
            Self::Four if kept || name.starts_with(LAYERS) => Format::Int4,
            Self::AsStored | Self::Four => Format::Int8,
        }
    }
}

impl LayerWeights {
    fn matrices(&self) -> [&Matrix; 4] {
        [&self.qkv, &self.output, &self.gate_up, &self.down].map(|linear| &linear.matrix)
    }
}

struct Loader<'a> {
    files: Files<'a>,
    config: &'a ModelConfig,
    formats: Formats,
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
        // The tensor of a row of the stack, and its row there.
        let at = |mut row: usize| {
            let found = tensors.iter().find(|tensor| {
                let here = row < tensor.rows();
                row -= if here { 0 } else { tensor.rows() };
                here
            });
            (found.expect("the stack has the row"), row)
        };
        let outputs = parts.iter().map(|(_, outputs)| outputs).sum::<usize>();
        let format = self.formats.of(parts[0].0, &tensors);
        let packed = if format == Format::Int4 && tensors.iter().all(|tensor| tensor.kind.is_four_bits()) {
            let row = |row: usize, out: &mut [Group4]| {
                let (tensor, row) = at(row);
                tensor.groups(row, out);
            };
            match gated {
                true => self.packer.gated_of_groups(outputs / 2, inputs, row),
                false => self.packer.matrix_of_groups(outputs, inputs, row),
            }
        } else {
            let row = |row: usize, out: &mut [f32]| {
                let (tensor, row) = at(row);
                if let Err(error) = tensor.row(row, out) {
                    unreadable.get_or_init(|| error);
                }
            };
            match gated {
                true => self.packer.gated(format, outputs / 2, inputs, row),
                false => self.packer.matrix(format, outputs, inputs, row),
            }
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

/// Bytes of a matrix in memory.
pub(crate) fn size([outputs, inputs]: [usize; 2], format: Format) -> u64 {
    let numbers = (outputs as u64).saturating_mul(inputs as u64);
    match format {
        Format::F32 => numbers.saturating_mul(4),
        Format::Bf16 => numbers.saturating_mul(2),
        // Two bytes of scale per 32 numbers, and two of base.
        Format::Int8 => numbers.saturating_add(numbers / 16),
        Format::Int4 => numbers / 2 + numbers / 8,
    }
}

/// Refuses weights of `bytes` bytes if memory can't hold them.
pub(crate) fn expect_memory(bytes: u64) -> Result<(), ModelError> {
    memory::check("the weights don't fit: they take", bytes, "store them in fewer bits (quantize, dtype)")
}

fn does_not_fit(error: &dyn Display) -> ModelError {
    ModelError::unsupported(format!("the weights don't fit: {error}"))
}
