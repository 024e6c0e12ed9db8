//! Weights of a checkpoint, from safetensors to packed matrices. One file or shards, mapped or embedded;
//! each tensor is converted and packed by itself, so that at most one is held twice. Memory maps are
//! dropped when loading ends: a file that changes later can't hurt a running model.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::path::PathBuf;

use candle_core::safetensors::{MmapedSafetensors, SliceSafetensors};
use candle_core::{Device, Tensor};
use infer_kernels::{Format, Matrix, Packer};

use crate::DType;
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::source::{Source, plain_name};

/// All weights of a decoder.
pub(crate) struct Weights {
    pub embedding: Matrix,
    /// Absent where the embedding serves.
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

impl Weights {
    pub(crate) fn load(
        source: &Source<'_>,
        config: &ModelConfig,
        dtype: Option<DType>,
    ) -> Result<(Self, DType), ModelError> {
        let files = Files::open(source)?;
        let dtype = match dtype.or(config.stored_dtype) {
            Some(dtype) => dtype,
            None => files.stored_dtype("model.embed_tokens.weight")?,
        };
        let format = match dtype {
            DType::F32 => Format::F32,
            DType::Bf16 => Format::Bf16,
        };
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let packer = Packer::new(threads)
            .map_err(|error| ModelError::unsupported(format!("can't start {threads} threads: {error}")))?;
        let mut loader = Loader { files, config, format, packer };
        let embedding = loader.matrix(&[("model.embed_tokens.weight", config.vocab)], config.hidden)?;
        let head = match config.tied_head {
            true => None,
            false => Some(loader.matrix(&[("lm_head.weight", config.vocab)], config.hidden)?),
        };
        let final_norm = loader.norm("model.norm.weight", config.hidden)?;
        let layers = (0..config.layers.len()).map(|i| loader.layer(i)).collect::<Result<_, _>>()?;
        Ok((Self { embedding, head, final_norm, layers }, dtype))
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
}

struct Loader<'a> {
    files: Files<'a>,
    config: &'a ModelConfig,
    format: Format,
    packer: Packer,
}

impl Loader<'_> {
    fn layer(&mut self, index: usize) -> Result<LayerWeights, ModelError> {
        let config = self.config;
        let (hidden, intermediate) = (config.hidden, config.intermediate);
        let (q, kv) = (config.q_width(), config.kv_width());
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let norm = |part: &str| self.norm(&name(&format!("{part}.weight")), hidden);
        let head_norm = |part: &str| match config.qk_norm {
            true => self.norm(&name(&format!("self_attn.{part}.weight")), config.head_dim).map(Some),
            false => Ok(None),
        };
        // With norms on outputs, the one called post_attention moves behind the attention.
        let (mlp_norm, attention_output_norm, mlp_output_norm) = match config.output_norms {
            true => (
                norm("pre_feedforward_layernorm")?,
                Some(norm("post_attention_layernorm")?),
                Some(norm("post_feedforward_layernorm")?),
            ),
            false => (norm("post_attention_layernorm")?, None, None),
        };
        let input_norm = norm("input_layernorm")?;
        let (q_norm, k_norm) = (head_norm("q_norm")?, head_norm("k_norm")?);
        let named = |parts: &[(&str, usize)]| -> Vec<(String, usize)> {
            parts.iter().map(|(part, outputs)| (name(part), *outputs)).collect()
        };
        let qkv = named(&[("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)]);
        let output = named(&[("self_attn.o_proj", hidden)]);
        let gate_up = named(&[("mlp.gate_proj", intermediate), ("mlp.up_proj", intermediate)]);
        let down = named(&[("mlp.down_proj", hidden)]);
        Ok(LayerWeights {
            input_norm,
            qkv: self.linear(&qkv, hidden, config.qkv_bias, false)?,
            q_norm,
            k_norm,
            output: self.linear(&output, q, config.output_bias, false)?,
            attention_output_norm,
            mlp_norm,
            gate_up: self.linear(&gate_up, hidden, config.mlp_bias, true)?,
            down: self.linear(&down, intermediate, config.mlp_bias, false)?,
            mlp_output_norm,
        })
    }

    fn linear(
        &mut self,
        parts: &[(String, usize)],
        inputs: usize,
        bias: bool,
        gated: bool,
    ) -> Result<Linear, ModelError> {
        let named: Vec<_> = parts.iter().map(|(part, n)| (format!("{part}.weight"), *n)).collect();
        let borrowed: Vec<_> = named.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        let matrix = self.pack(&borrowed, inputs, gated)?;
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

    /// Matrices of `(name, outputs)`, stacked; two halves of a gated layer are packed as such.
    fn pack(&mut self, parts: &[(&str, usize)], inputs: usize, gated: bool) -> Result<Matrix, ModelError> {
        let tensors = parts.iter().map(|(name, outputs)| self.files.tensor(name, &[*outputs, inputs]));
        let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
        let numbers = parts.iter().zip(&tensors).map(|((name, _), tensor)| numbers::<f32>(name, tensor));
        let numbers = numbers.collect::<Result<Vec<_>, _>>()?.concat();
        let row = |i: usize, out: &mut [f32]| out.copy_from_slice(&numbers[i * inputs..(i + 1) * inputs]);
        let outputs = numbers.len() / inputs;
        let packed = match gated {
            true => self.packer.gated(self.format, outputs / 2, inputs, row),
            false => self.packer.matrix(self.format, outputs, inputs, row),
        };
        packed.map_err(|error| ModelError::unsupported(format!("the weights don't fit: {error}")))
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        numbers(name, &self.files.tensor(name, &[len])?)
    }

    /// A norm's weight, with its offset added once and for all.
    fn norm(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let mut weight = self.vector(name, len)?;
        if self.config.norm_offset {
            weight.iter_mut().for_each(|w| *w += 1.0);
        }
        Ok(weight)
    }
}

fn numbers<T: candle_core::WithDType>(name: &str, tensor: &Tensor) -> Result<Vec<T>, ModelError> {
    let converted = tensor.to_dtype(T::DTYPE).and_then(|tensor| tensor.flatten_all()?.to_vec1());
    converted.map_err(|error| ModelError::weights(format!("tensor {name} can't be converted: {error}")))
}

/// Open safetensors files.
enum Files<'a> {
    Mapped(MmapedSafetensors),
    Embedded(Vec<SliceSafetensors<'a>>),
}

impl<'a> Files<'a> {
    fn open(source: &Source<'a>) -> Result<Self, ModelError> {
        let names = shard_names(source)?;
        match source {
            Source::Directory(directory) => {
                let paths: Vec<_> = names.iter().map(|name| directory.join(name)).collect();
                map_files(&paths)
            }
            Source::Embedded(files) => {
                let shards = names.iter().map(|name| {
                    let (_, bytes) = files
                        .iter()
                        .find(|(file, _)| file == name)
                        .ok_or_else(|| ModelError::weights(format!("{} has no {name}", source.name())))?;
                    SliceSafetensors::new(bytes)
                        .map_err(|error| ModelError::weights(format!("{name} is not safetensors: {error}")))
                });
                shards.collect::<Result<_, _>>().map(Self::Embedded)
            }
        }
    }

    /// A tensor of exactly this shape.
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let device = Device::Cpu;
        let loaded = match self {
            Self::Mapped(files) => files.load(name, &device),
            Self::Embedded(shards) => match shards.iter().find(|shard| shard.get(name).is_ok()) {
                Some(shard) => shard.load(name, &device),
                None => return Err(ModelError::weights(format!("tensor {name} is missing"))),
            },
        };
        let tensor =
            loaded.map_err(|error| ModelError::weights(format!("tensor {name} can't be loaded: {error}")))?;
        if tensor.dims() != shape {
            return Err(ModelError::weights(format!(
                "tensor {name} has shape {:?}, config.json asks for {shape:?}",
                tensor.dims()
            )));
        }
        Ok(tensor)
    }

    /// How a tensor is stored, for checkpoints that don't say.
    fn stored_dtype(&self, name: &str) -> Result<DType, ModelError> {
        let view = match self {
            Self::Mapped(files) => files.get(name).ok(),
            Self::Embedded(shards) => shards.iter().find_map(|shard| shard.get(name).ok()),
        };
        let view = view.ok_or_else(|| ModelError::weights(format!("tensor {name} is missing")))?;
        Ok(if view.dtype() == safetensors::Dtype::BF16 { DType::Bf16 } else { DType::F32 })
    }
}

#[allow(unsafe_code, reason = "a memory map; see SAFETY")]
fn map_files<'a>(paths: &[PathBuf]) -> Result<Files<'a>, ModelError> {
    for path in paths {
        std::fs::File::open(path).map_err(|error| ModelError::io(path, &error))?;
    }
    // SAFETY: the map is read during loading only. Someone who truncates the file in that time ends this
    // process with a bus error, but no other memory is touched.
    let mapped = unsafe { MmapedSafetensors::multi(paths) };
    mapped.map(Files::Mapped).map_err(|error| {
        let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        ModelError::weights(format!("not safetensors, or cut off: {}: {error}", names.join(", ")))
    })
}

/// `model.safetensors`, or the shards that the index names.
fn shard_names(source: &Source<'_>) -> Result<Vec<String>, ModelError> {
    const INDEX: &str = "model.safetensors.index.json";
    let Some(bytes) = source.read(INDEX)? else {
        return Ok(vec!["model.safetensors".to_owned()]);
    };
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_slice(&bytes)
        .map_err(|error| ModelError::weights(format!("{INDEX} can't be read: {error}")))?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    if names.is_empty() {
        return Err(ModelError::weights(format!("{INDEX} names no file")));
    }
    for name in &names {
        plain_name(name)?;
    }
    Ok(names.into_iter().collect())
}
