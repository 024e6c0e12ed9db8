//! The Llama decoder in differentiable form, for training only.
//!
//! It computes what `infer-model` serves, in f32 over whole rows and without a cache; a test
//! compares the logits of both. Weight names and layouts are those of Hugging Face checkpoints.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Tensor, Var};

use super::{Batch, Random};

/// The decoder's dimensions.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Rows of the embedding.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, each shared by `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head: usize,
    /// Width of the gated feed-forward.
    pub intermediate: usize,
    /// Longest context that the checkpoint declares.
    pub context: usize,
}

/// Base of the rotary embedding's frequencies.
pub const ROPE_THETA: f64 = 10_000.0;
/// Added to the mean square before its root.
pub const NORM_EPSILON: f64 = 1e-5;

/// The decoder's weights, by their checkpoint names.
pub struct Network {
    shape: Shape,
    weights: BTreeMap<String, Var>,
}

impl Network {
    /// Random weights, generated in the order of their names.
    ///
    /// # Errors
    /// What candle reports.
    pub fn new(shape: Shape, random: &mut Random) -> Result<Self> {
        let (hidden, kv) = (shape.hidden, shape.kv_heads * shape.head);
        let queries = shape.heads * shape.head;
        let mut dimensions = BTreeMap::new();
        dimensions.insert("model.embed_tokens.weight".to_owned(), vec![shape.vocabulary, hidden]);
        dimensions.insert("model.norm.weight".to_owned(), vec![hidden]);
        for layer in 0..shape.layers {
            for (name, size) in [
                ("input_layernorm", vec![hidden]),
                ("post_attention_layernorm", vec![hidden]),
                ("self_attn.q_proj", vec![queries, hidden]),
                ("self_attn.k_proj", vec![kv, hidden]),
                ("self_attn.v_proj", vec![kv, hidden]),
                ("self_attn.o_proj", vec![hidden, queries]),
                ("mlp.gate_proj", vec![shape.intermediate, hidden]),
                ("mlp.up_proj", vec![shape.intermediate, hidden]),
                ("mlp.down_proj", vec![hidden, shape.intermediate]),
            ] {
                dimensions.insert(format!("model.layers.{layer}.{name}.weight"), size);
            }
        }
        // Each layer adds to the residual stream twice; this keeps its variance near 1 at the start.
        #[expect(clippy::cast_precision_loss, reason = "a handful of layers")]
        let residual = 1.0 / (2.0 * shape.layers as f64).sqrt();
        let weights = dimensions
            .into_iter()
            .map(|(name, size)| {
                let values = if name.ends_with("norm.weight") {
                    vec![1.0; size[0]]
                } else {
                    let adds = name.contains("o_proj") || name.contains("down_proj");
                    let deviation = if adds { 0.04 * residual } else { 0.04 };
                    random.normal(size.iter().product(), deviation)
                };
                let tensor = Tensor::from_vec(values, size, &Device::Cpu)?;
                Ok((name, Var::from_tensor(&tensor)?))
            })
            .collect::<Result<_>>()?;
        Ok(Self { shape, weights })
    }

    /// Its dimensions.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Weights by name, in the order of the names.
    #[must_use]
    pub fn weights(&self) -> &BTreeMap<String, Var> {
        &self.weights
    }

    /// Replaces all weights with those of a `model.safetensors`.
    ///
    /// # Errors
    /// A file that can't be read, or that lacks a weight of this shape.
    pub fn load(&self, file: &Path) -> Result<()> {
        let stored = candle_core::safetensors::load(file, &Device::Cpu)
            .with_context(|| format!("reading {}", file.display()))?;
        for (name, weight) in &self.weights {
            let stored = stored.get(name).with_context(|| format!("{} has no {name}", file.display()))?;
            weight.set(&stored.to_dtype(DType::F32)?)?;
        }
        Ok(())
    }

    /// Rounds every weight to bf16, as the checkpoint stores it.
    ///
    /// # Errors
    /// What candle reports.
    pub fn round_to_bf16(&self) -> Result<()> {
        for weight in self.weights.values() {
            weight.set(&weight.to_dtype(DType::BF16)?.to_dtype(DType::F32)?)?;
        }
        Ok(())
    }

    /// Weighted mean cross-entropy of a batch.
    ///
    /// # Errors
    /// What candle reports.
    pub fn loss(&self, batch: &Batch) -> Result<Tensor> {
        let logits = self.logits(&batch.inputs, batch.rows)?;
        let count = batch.targets.len();
        let peak = logits.max_keepdim(1)?.detach();
        let shifted = logits.broadcast_sub(&peak)?;
        let normalizer = shifted.exp()?.sum_keepdim(1)?.log()?;
        let targets = Tensor::from_slice(&batch.targets, (count, 1), &Device::Cpu)?;
        let surprise = (normalizer - shifted.gather(&targets, 1)?)?;
        let weights = Tensor::from_slice(&batch.weights, (count, 1), &Device::Cpu)?;
        let total: f32 = batch.weights.iter().sum();
        Ok(((surprise * weights)?.sum_all()? / f64::from(total))?)
    }

    /// Logits `[rows * length, vocabulary]` of rows of equal length.
    ///
    /// # Errors
    /// What candle reports.
    pub fn logits(&self, tokens: &[u32], rows: usize) -> Result<Tensor> {
        let length = tokens.len() / rows;
        let rotation = Rotation::new(length, self.shape.head)?;
        let embedding = &self.weights["model.embed_tokens.weight"];
        let tokens = Tensor::from_slice(tokens, tokens.len(), &Device::Cpu)?;
        let mut stream = embedding.index_select(&tokens, 0)?;
        for layer in 0..self.shape.layers {
            let weight =
                |name: &str| -> &Tensor { &self.weights[&format!("model.layers.{layer}.{name}.weight")] };
            let normal = norm(&stream, weight("input_layernorm"))?;
            let attended = self.attention(&normal, rows, &rotation, &weight)?;
            stream = (stream + project(&attended, weight("self_attn.o_proj"))?)?;
            let normal = norm(&stream, weight("post_attention_layernorm"))?;
            let gate = project(&normal, weight("mlp.gate_proj"))?.silu()?;
            let gated = (gate * project(&normal, weight("mlp.up_proj"))?)?;
            stream = (stream + project(&gated, weight("mlp.down_proj"))?)?;
        }
        project(&norm(&stream, &self.weights["model.norm.weight"])?, embedding)
    }

    fn attention<'a>(
        &self,
        input: &Tensor,
        rows: usize,
        rotation: &Rotation,
        weight: &dyn Fn(&str) -> &'a Tensor,
    ) -> Result<Tensor> {
        let Shape { heads, kv_heads, head, .. } = self.shape;
        let count = input.dim(0)?;
        let length = count / rows;
        let split = |name: &str, heads: usize| -> Result<Tensor> {
            let flat = project(input, weight(name))?;
            Ok(flat.reshape((rows, length, heads, head))?.transpose(1, 2)?.contiguous()?)
        };
        let queries = rotation.apply(&split("self_attn.q_proj", heads)?)?;
        let keys = rotation.apply(&split("self_attn.k_proj", kv_heads)?)?;
        let values = split("self_attn.v_proj", kv_heads)?;
        // Query heads that share a key head are stacked, so that keys need no repetition.
        let stacked = (rows, kv_heads, heads / kv_heads * length, head);
        let scores = queries.reshape(stacked)?.matmul(&keys.t()?)?;
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "a head's width")]
        let scale = (head as f64).powf(-0.5) as f32;
        let shares = scores.apply_op1(CausalSoftmax { length, scale })?;
        let mixed = shares.matmul(&values)?.reshape((rows, heads, length, head))?;
        Ok(mixed.transpose(1, 2)?.reshape((count, heads * head))?)
    }
}

fn project(input: &Tensor, weight: &Tensor) -> Result<Tensor> {
    Ok(input.matmul(&weight.t()?)?)
}

fn norm(input: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let mean_square = input.sqr()?.mean_keepdim(1)?;
    let root = (mean_square + NORM_EPSILON)?.sqrt()?;
    Ok(input.broadcast_div(&root)?.broadcast_mul(weight)?)
}

/// Cosines and sines of every position, `[length, head / 2]`.
struct Rotation {
    cosines: Tensor,
    sines: Tensor,
}

impl Rotation {
    fn new(length: usize, head: usize) -> Result<Self> {
        let half = head / 2;
        let mut angles = Vec::with_capacity(length * half);
        for position in 0..length {
            for pair in 0..half {
                #[expect(
                    clippy::cast_precision_loss,
                    clippy::cast_possible_truncation,
                    reason = "small angles"
                )]
                angles.push((position as f64 * ROPE_THETA.powf(-((2 * pair) as f64) / head as f64)) as f32);
            }
        }
        let angles = Tensor::from_vec(angles, (length, half), &Device::Cpu)?;
        Ok(Self { cosines: angles.cos()?, sines: angles.sin()? })
    }

    /// Rotates dimension `i` with dimension `i + head / 2` (the convention of Hugging Face's Llama).
    fn apply(&self, heads: &Tensor) -> Result<Tensor> {
        let half = heads.dim(3)? / 2;
        let (low, high) = (heads.narrow(3, 0, half)?, heads.narrow(3, half, half)?);
        let turned_low = (low.broadcast_mul(&self.cosines)? - high.broadcast_mul(&self.sines)?)?;
        let turned_high = (high.broadcast_mul(&self.cosines)? + low.broadcast_mul(&self.sines)?)?;
        Ok(Tensor::cat(&[turned_low, turned_high], 3)?)
    }
}

/// Causal softmax: row `r` is position `r % length` of its text.
///
/// One operation instead of mask, scale and softmax, whose intermediate tensors would take most
/// of a training step.
struct CausalSoftmax {
    length: usize,
    scale: f32,
}

impl CustomOp1 for CausalSoftmax {
    fn name(&self) -> &'static str {
        "causal-softmax"
    }

    fn cpu_fwd(
        &self,
        storage: &CpuStorage,
        layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, candle_core::Shape)> {
        let (start, end) = layout
            .contiguous_offsets()
            .ok_or_else(|| candle_core::Error::Msg("attention scores must be contiguous".into()))?;
        let scores = &storage.as_slice::<f32>()?[start..end];
        let mut shares = vec![0.0_f32; scores.len()];
        let rows = scores.chunks_exact(self.length).zip(shares.chunks_exact_mut(self.length));
        for (row, (from, into)) in rows.enumerate() {
            let seen = row % self.length + 1;
            let peak = from[..seen].iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut sum = 0.0;
            for (share, score) in into[..seen].iter_mut().zip(from) {
                *share = ((score - peak) * self.scale).exp();
                sum += *share;
            }
            into[..seen].iter_mut().for_each(|share| *share /= sum);
        }
        Ok((CpuStorage::F32(shares), layout.shape().clone()))
    }

    fn bwd(
        &self,
        _scores: &Tensor,
        shares: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<Option<Tensor>> {
        let weighted = (gradient * shares)?;
        let mean = weighted.sum_keepdim(3)?;
        let centred = (weighted - shares.broadcast_mul(&mean)?)?;
        Ok(Some((centred * f64::from(self.scale))?))
    }
}
