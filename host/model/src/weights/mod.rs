//! Weights of a checkpoint, from its files to packed matrices. Each tensor is converted and packed separately, and its pages
//! are released before the next, so a model is never in memory twice. Memory maps are dropped after loading, so later changes
//! of a file can't affect a running model.

mod beside;
mod codes;
mod copy;
mod expert;
mod files;
mod formats;
mod four;
mod fused;
mod gptq;
mod interleaved;
mod mxfp4;
mod order;
mod quantized;
mod stacked;
mod stored;

use std::fmt::Display;
use std::num::NonZero;
use std::ops::ControlFlow;

use infer_kernels::{Format, Matrix, Packer};

pub(crate) use self::copy::copy;
pub(crate) use self::expert::{ExpertMatrix, Within};
use self::files::Files;
pub(crate) use self::files::{PREFIXES, Shard};
use self::formats::Formats;
use self::order::{GatedStacks, MlpStacks, ReadAhead, Stack, Stacks, ends};
use self::stacked::Stacked;
pub(crate) use self::stored::{Mxfp4, RowOrder, Stored, StoredType};
use crate::config::{ExpertsConfig, ModelConfig};
use crate::error::ModelError;
use crate::memory;
use crate::source::Source;
use crate::{DType, LoadOptions, LoadProgress, WeightType};

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
    pub input_norm: Option<Vec<f32>>,
    pub qkv: Linear,
    pub q_norm: Option<Vec<f32>>,
    pub k_norm: Option<Vec<f32>>,
    /// One per query head.
    pub sinks: Option<Vec<f32>>,
    pub output: Linear,
    pub attention_output_norm: Option<Vec<f32>>,
    pub mlp_norm: Option<Vec<f32>>,
    pub mlp: Mlp,
    pub mlp_output_norm: Option<Vec<f32>>,
}

/// A feed-forward layer.
pub(crate) enum Mlp {
    Dense(Gated),
    Experts(Experts),
}

/// A gated layer: gate and up as one matrix, and down.
pub(crate) struct Gated {
    pub gate_up: Linear,
    pub down: Linear,
}

/// Gated layers of which a router chooses some for each token.
pub(crate) struct Experts {
    pub config: ExpertsConfig,
    /// From normed hidden states to a logit per expert.
    pub router: Linear,
    pub experts: Vec<Gated>,
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
    /// Bytes of the weights in the file, if it stores them as quantized blocks.
    pub stored_blocks: Option<u64>,
}

impl Weights {
    pub(crate) fn load(
        source: &Source<'_>,
        config: &ModelConfig,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<Loaded, ModelError> {
        let files = Files::open(source, config)?;
        let stored = files.stored_type(&typical(config));
        let dtype = dtype(options, config, stored)?;
        let in_blocks =
            matches!(stored, Some(StoredType::Blocks(_) | StoredType::Mxfp4(_) | StoredType::Codes));
        let (weight_type, formats) = Formats::chosen(options, dtype, stored);
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let packer = Packer::new(threads)
            .map_err(|error| ModelError::machine(format!("can't start {threads} threads: {error}")))?;
        let done = LoadProgress { done_bytes: 0, total_bytes: files.bytes() };
        let stored_blocks = in_blocks.then_some(done.total_bytes);
        let ahead = ReadAhead::new(&files, config);
        expect_memory(formats.bytes(&files, config))?;
        let mut loader = Loader { files, config, formats, packer, ahead, progress, done };
        let (embedding, head) = ends(config);
        let embedding = loader.pack(&embedding, false)?;
        let head = head.map(|head| loader.pack(&head, false)).transpose()?;
        let final_norm = loader.norm("norm.weight", config.hidden)?;
        let layers = (0..config.layers.len()).map(|i| loader.layer(i)).collect::<Result<_, _>>()?;
        let weights = Self { embedding, head, final_norm, layers };
        let weight_type = match weight_type {
            _ if weights.has(Format::Int4) => WeightType::Q4,
            _ if !options.for_gpu && weights.has(Format::Mxfp4) => WeightType::Mxfp4,
            other => other,
        };
        Ok(Loaded { weights, dtype, weight_type, stored_blocks })
    }

    /// The matrix from hidden states to logits.
    pub(crate) fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// All matrices, in one order.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let ends = std::iter::once(&self.embedding).chain(&self.head);
        ends.chain(self.layers.iter().flat_map(LayerWeights::matrices))
    }

    /// All norms, biases and sinks, in one order.
    pub(crate) fn vectors(&self) -> impl Iterator<Item = &Vec<f32>> {
        std::iter::once(&self.final_norm).chain(self.layers.iter().flat_map(LayerWeights::vectors))
    }

    fn has(&self, format: Format) -> bool {
        self.matrices().any(|matrix| matrix.format() == format)
    }

    /// Bytes of all matrices.
    pub(crate) fn bytes(&self) -> usize {
        self.matrices().map(Matrix::bytes).sum()
    }

    /// Bytes of the matrices that every step reads: all but experts. An embedding that isn't the head is left out, too: a step
    /// reads one row of it per token.
    pub(crate) fn shared_bytes(&self) -> usize {
        let experts: usize = self.experts().flat_map(|experts| &experts.experts).map(Gated::bytes).sum();
        self.bytes() - experts - if self.head.is_some() { self.embedding.bytes() } else { 0 }
    }

    /// Bytes of the matrices that a step of one token reads: of a layer's experts as many as compute a token.
    pub(crate) fn step_bytes(&self) -> usize {
        let chosen = self.experts().map(|Experts { config, experts, .. }| {
            experts.iter().take(config.per_token).map(Gated::bytes).sum::<usize>()
        });
        self.shared_bytes() + chosen.sum::<usize>()
    }

    fn experts(&self) -> impl Iterator<Item = &Experts> {
        self.layers.iter().filter_map(|layer| match &layer.mlp {
            Mlp::Dense(_) => None,
            Mlp::Experts(experts) => Some(experts),
        })
    }
}

/// The name of a matrix that is stored like most weights.
fn typical(config: &ModelConfig) -> String {
    match config.layers.iter().position(|layer| layer.experts.is_some()) {
        None => "layers.0.mlp.down_proj.weight".to_owned(),
        Some(layer) => format!("layers.{layer}.mlp.experts.0.down_proj.weight"),
    }
}

impl LayerWeights {
    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let (router, gated) = self.mlp.parts();
        let attention = [&self.qkv.matrix, &self.output.matrix].into_iter();
        attention.chain(router.map(|router| &router.matrix)).chain(gated.iter().flat_map(Gated::matrices))
    }

    fn vectors(&self) -> impl Iterator<Item = &Vec<f32>> {
        let inputs = [&self.input_norm, &self.mlp_norm, &self.q_norm, &self.k_norm].into_iter();
        let norms_and_sinks = inputs.chain([&self.sinks, &self.attention_output_norm, &self.mlp_output_norm]);
        let (router, gated) = self.mlp.parts();
        let linear = [&self.qkv, &self.output].into_iter().chain(router);
        let linear = linear.chain(gated.iter().flat_map(|gated| [&gated.gate_up, &gated.down]));
        norms_and_sinks.flatten().chain(linear.filter_map(|linear| linear.bias.as_ref()))
    }
}

impl Mlp {
    /// The router, if there is one, and the gated layers.
    fn parts(&self) -> (Option<&Linear>, &[Gated]) {
        match self {
            Self::Dense(gated) => (None, std::slice::from_ref(gated)),
            Self::Experts(experts) => (Some(&experts.router), &experts.experts),
        }
    }
}

impl Gated {
    fn matrices(&self) -> [&Matrix; 2] {
        [&self.gate_up.matrix, &self.down.matrix]
    }

    /// Bytes of its matrices.
    pub(crate) fn bytes(&self) -> usize {
        self.matrices().into_iter().map(Matrix::bytes).sum()
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
        let norm_if = |there: bool, part: &str| there.then(|| norm(part)).transpose();
        // In models with norms on outputs, post_attention is the norm after attention.
        let (inputs, outputs) = (config.input_norms, config.output_norms);
        let before_mlp = if outputs { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
        let mlp_norm = norm_if(inputs, before_mlp)?;
        let attention_output_norm = norm_if(outputs, "post_attention_layernorm")?;
        let mlp_output_norm = norm_if(outputs, "post_feedforward_layernorm")?;
        let input_norm = norm_if(inputs, "input_layernorm")?;
        let widths = config.qk_norm_widths();
        let head_norm = |part: &str, which: usize| {
            let name = name(&format!("self_attn.{part}.weight"));
            widths.map(|widths| self.norm(&name, widths[which])).transpose()
        };
        let (q_norm, k_norm) = (head_norm("q_norm", 0)?, head_norm("k_norm", 1)?);
        let sinks = config.sinks.then(|| self.sinks(&name("self_attn.sinks"))).transpose()?;
        let Stacks { qkv, output, mlp } = Stacks::of(config, index);
        Ok(LayerWeights {
            input_norm,
            qkv: self.linear(&qkv, config.qkv_bias, false)?,
            q_norm,
            k_norm,
            sinks,
            output: self.linear(&output, config.output_bias, false)?,
            attention_output_norm,
            mlp_norm,
            mlp: match &mlp {
                MlpStacks::Dense(stacks) => Mlp::Dense(self.gated(stacks, config.mlp_bias)?),
                MlpStacks::Experts { config, router, experts } => Mlp::Experts(Experts {
                    config: *config,
                    router: self.linear(router, config.bias, false)?,
                    experts: experts
                        .iter()
                        .map(|stacks| self.gated(stacks, config.bias))
                        .collect::<Result<_, _>>()?,
                }),
            },
            mlp_output_norm,
        })
    }

    fn gated(&mut self, stacks: &GatedStacks, bias: bool) -> Result<Gated, ModelError> {
        let GatedStacks { gate_up, down } = stacks;
        Ok(Gated { gate_up: self.linear(gate_up, bias, true)?, down: self.linear(down, bias, false)? })
    }

    fn linear(&mut self, stack: &Stack, bias: bool, gated: bool) -> Result<Linear, ModelError> {
        let matrix = self.pack(stack, gated)?;
        let bias = match bias {
            true => {
                let biases = stack.parts.iter().map(|(part, n)| self.vector(&format!("{part}.bias"), *n));
                Some(biases.collect::<Result<Vec<_>, _>>()?.concat())
            }
            false => None,
        };
        Ok(Linear { matrix, bias })
    }

    /// Packs a stack; the two halves of a gated layer are packed as such.
    fn pack(&mut self, stack: &Stack, gated: bool) -> Result<Matrix, ModelError> {
        let stacked = Stacked::open(&self.files, stack)?;
        self.ahead.ask(&self.files, self.done.done_bytes);
        stacked.tensors().iter().for_each(|tensor| self.files.prefetch(tensor));
        let packed = stacked.pack(&mut self.packer, self.formats.of(&stacked), gated);
        for tensor in stacked.tensors() {
            self.files.release(tensor);
            self.done.done_bytes += tensor.own_len();
        }
        if (self.progress)(self.done).is_break() {
            return Err(ModelError::weights("loading was cancelled"));
        }
        packed
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        self.files.tensor(name, &[len])?.numbers()
    }

    /// The sinks of a layer. One without a bound above all scores would leave nothing of the others, on some paths not even
    /// zeros; one below all is none.
    fn sinks(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        let tensor = self.files.tensor(name, &[self.config.heads])?;
        let sinks = tensor.numbers()?;
        match sinks.iter().position(|sink| sink.is_nan() || *sink == f32::INFINITY) {
            None => Ok(sinks),
            Some(at) => Err(ModelError::weights(format!(
                "tensor {}: the sink of head {at} is {}, not a score; the file may be damaged",
                tensor.name, sinks[at]
            ))),
        }
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
    // Sums in such layers may exceed the range of f16: transformers and vLLM support Gemma 2 and 3 only in bf16 or f32. OLMo's,
    // which aren't normed before a projection, are treated alike.
    let overflows = config.output_norms;
    match options.dtype {
        Some(DType::F16) if !options.for_gpu => {
            Err(ModelError::unsupported("f16 is computed on GPUs only; use f32 or bf16".to_owned()))
        }
        Some(DType::F16) if overflows => Err(ModelError::unsupported(
            "activations of this family overflow f16; use bf16 or f32".to_owned(),
        )),
        Some(dtype) => Ok(dtype),
        None => {
            let stored = config.stored_dtype.unwrap_or(match stored {
                Some(StoredType::Bf16 | StoredType::Mxfp4(_)) => DType::Bf16,
                Some(StoredType::F16) => DType::F16,
                _ => DType::F32,
            });
            let widened = stored == DType::F16 && (overflows || !options.for_gpu);
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
        // Two bytes per 32 numbers.
        Format::Mxfp4 => numbers / 2 + numbers / 16,
    }
}

/// Refuses weights of `bytes` bytes if memory can't hold them.
pub(crate) fn expect_memory(bytes: u64) -> Result<(), ModelError> {
    memory::check("the weights don't fit: they take", bytes, "store them in fewer bits (quantize, dtype)")
}

fn does_not_fit(error: &dyn Display) -> ModelError {
    ModelError::machine(format!("the weights don't fit: {error}"))
}
