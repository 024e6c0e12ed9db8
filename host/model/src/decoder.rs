//! The decoder of all families. Differences between families are fields of `ModelConfig`; there is no branch on a family's
//! name. Rows are independent: every operation computes a token from its own inputs and the KV cache alone. Buffers are
//! reused between steps.

use std::slice::ChunksExact;
use std::sync::Arc;

use infer_core::Batch;
use infer_kernels::{
    AttentionParams, Cpu, Format, Gating, HeadRows, Inputs, Norm, Qkv, RopeTable, Rows, Then,
};

use crate::cache::KvStore;
use crate::config::{ModelConfig, QkNorm};
use crate::experts::{ExpertBuffers, ExpertLayer};
use crate::lora::{self, Adapting, Loaded, Origin};
use crate::model::Model;
use crate::weights::{Gated, LayerWeights, Linear, Mlp, Weights};

/// Rows that the feed-forward layer computes at once: its buffers are the widest.
const MLP_ROWS: usize = 512;

/// Computes hidden states, logits and vectors.
pub(crate) struct Decoder {
    config: ModelConfig,
    weights: Arc<Weights>,
    pub(crate) adapters: Loaded,
    ropes: Vec<RopeTable>,
    cpu: Cpu,
    buffers: Buffers,
}

/// Activations of one step, reused.
#[derive(Default)]
struct Buffers {
    /// Residual stream, `[token][hidden]`.
    residual: Vec<f32>,
    /// Inputs of a product.
    inputs: Inputs,
    /// Queries, keys and values in one row.
    qkv: Vec<f32>,
    attended: Vec<f32>,
    /// Output of a projection to the residual's width if a norm follows it; also the rows selected for logits or vectors.
    projected: Vec<f32>,
    normed: Vec<f32>,
    gated: Inputs,
    experts: ExpertBuffers,
    adapters: lora::Buffers,
    logits: Vec<f32>,
}

impl Buffers {
    /// Copies the residual stream of these tokens to `projected`.
    fn select(&mut self, tokens: impl Iterator<Item = usize>, hidden: usize) {
        self.projected.clear();
        for token in tokens {
            self.projected.extend_from_slice(&self.residual[token * hidden..(token + 1) * hidden]);
        }
    }
}

impl Decoder {
    pub(crate) fn new(model: &Model, cpu: Cpu, positions: usize) -> Self {
        let Model { config, weights, adapters, .. } = model.clone();
        let ropes = config.ropes.iter().map(|rope| rope.table(config.head_dim, positions)).collect();
        let adapters = Loaded::numbered(adapters);
        Self { config, weights, adapters, ropes, cpu, buffers: Buffers::default() }
    }

    /// Computes the hidden states of all tokens of a batch and writes their keys and values.
    pub(crate) fn forward(&mut self, batch: &Batch, kv: &mut dyn KvStore) {
        let weights = Arc::clone(&self.weights);
        self.buffers.experts.read_bytes = 0;
        self.buffers.adapters.begin(batch, &self.adapters);
        self.embed(batch);
        for (index, layer) in weights.layers.iter().enumerate() {
            self.attention(index, layer, batch, kv);
            self.mlp(index, layer);
        }
    }

    /// Bytes of the matrices that the last batch read: all that every batch reads, the experts that it chose, and its
    /// adapters.
    pub(crate) fn read_bytes(&self) -> usize {
        self.weights.shared_bytes() + self.buffers.experts.read_bytes + self.buffers.adapters.read_bytes
    }

    /// Logits of the given tokens of the last batch, `[token][vocab]`.
    pub(crate) fn logits(&mut self, tokens: impl Iterator<Item = usize>) -> &mut [f32] {
        let hidden = self.config.hidden;
        self.buffers.select(tokens, hidden);
        let Buffers { projected, inputs, logits, .. } = &mut self.buffers;
        let count = projected.len() / hidden;
        let norm = Norm { weight: &self.weights.final_norm, epsilon: self.config.norm_epsilon };
        let head = self.weights.head();
        self.cpu.rms_norm_inputs(Rows::dense(projected, hidden), count, norm, head.format(), inputs);
        let logits = sized(logits, count * self.config.vocab);
        self.cpu.matmul(inputs, head, None, Then::Store, logits);
        if let Some(divisor) = self.config.logit_divisor {
            logits.iter_mut().for_each(|logit| *logit /= divisor);
        }
        if let Some(cap) = self.config.logit_soft_cap {
            logits.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
        }
        logits
    }

    /// Hidden states of the given tokens of the last batch after the last norm.
    pub(crate) fn vectors(&mut self, tokens: impl Iterator<Item = usize>) -> ChunksExact<'_, f32> {
        let hidden = self.config.hidden;
        self.buffers.select(tokens, hidden);
        let Buffers { projected, normed, .. } = &mut self.buffers;
        let normed = sized(normed, projected.len());
        let (weight, epsilon) = (&self.weights.final_norm, self.config.norm_epsilon);
        self.cpu.rms_norm(Rows::dense(projected, hidden), weight, epsilon, normed);
        normed.chunks_exact(hidden)
    }

    fn embed(&mut self, batch: &Batch) {
        let hidden = self.config.hidden;
        let residual = sized(&mut self.buffers.residual, batch.tokens.len() * hidden);
        for (token, out) in batch.tokens.iter().zip(residual.chunks_exact_mut(hidden)) {
            self.weights.embedding.unpack_row(*token as usize, self.config.embedding_scale, out);
        }
    }

    fn attention(&mut self, index: usize, layer: &LayerWeights, batch: &Batch, kv: &mut dyn KvStore) {
        let config = &self.config;
        let tokens = batch.tokens.len();
        let (q_width, kv_width) = (config.q_width(), config.kv_width());
        let stride = q_width + 2 * kv_width;
        let adapting = Adapting { cpu: &self.cpu, adapters: self.adapters.all(), layer: index };
        let Buffers { residual, inputs, qkv, attended, projected, normed, adapters, .. } = &mut self.buffers;
        let lora::Buffers { all, scratch, .. } = adapters;

        let from = Origin { data: residual, width: config.hidden, norm: norm_of(&layer.input_norm, config) };
        read(&self.cpu, from, layer.qkv.matrix.format(), inputs);
        let qkv = sized(qkv, tokens * stride);
        project(&self.cpu, &layer.qkv, inputs, Then::Store, qkv);
        adapting.add(|layer| layer.qkv.as_ref(), from, all, scratch, qkv);

        let q_heads = HeadRows { rows: tokens, stride, offset: 0, heads: config.heads };
        let k_heads = HeadRows { rows: tokens, stride, offset: q_width, heads: config.kv_heads };
        let rope = &self.ropes[config.layers[index].rope];
        for (heads, norm) in [(q_heads, &layer.q_norm), (k_heads, &layer.k_norm)] {
            let Some(weight) = norm else { continue };
            match config.qk_norm {
                QkNorm::Whole => {
                    let norm = Norm { weight, epsilon: config.norm_epsilon };
                    norm_whole(&self.cpu, qkv, heads, norm, normed);
                }
                QkNorm::None | QkNorm::Heads => {
                    self.cpu.rms_norm_heads(qkv, heads, weight, config.norm_epsilon);
                }
            }
        }

        let (heads, kv_heads) = (config.heads, config.kv_heads);
        let qkv = Qkv { data: qkv, heads, kv_heads, positions: &batch.positions, rope };
        let attended = sized(attended, tokens * q_width);
        let params = AttentionParams { sinks: layer.sinks.as_deref(), ..config.attention(index) };
        kv.attend(&self.cpu, index, &params, batch, qkv, attended);
        self.cpu.load(Rows::dense(attended, q_width), tokens, layer.output.matrix.format(), inputs);
        let back = Back::new(&self.cpu, &layer.output, &layer.attention_output_norm, config);
        let adapt = |out: &mut [f32]| {
            let from = Origin { data: attended, width: q_width, norm: None };
            adapting.add(|layer| layer.output.as_ref(), from, all, scratch, out);
        };
        back.add(inputs, adapt, residual, projected, normed);
    }

    fn mlp(&mut self, index: usize, layer: &LayerWeights) {
        let config = &self.config;
        let adapting = Adapting { cpu: &self.cpu, adapters: self.adapters.all(), layer: index };
        let Buffers { residual, inputs, projected, normed, gated, experts: buffers, adapters, .. } =
            &mut self.buffers;
        let lora::Buffers { all, some, scratch, gate, .. } = adapters;
        let norm = norm_of(&layer.mlp_norm, config);
        for (nth, residual) in residual.chunks_mut(MLP_ROWS * config.hidden).enumerate() {
            let Gated { gate_up: Linear { matrix, bias }, down } = match &layer.mlp {
                Mlp::Dense(gated) => gated,
                Mlp::Experts(experts) => {
                    let (cpu, activation) = (&self.cpu, config.activation);
                    let norm = norm.expect("families with experts have norms before them");
                    ExpertLayer { cpu, norm, activation, experts }.add(residual, buffers);
                    continue;
                }
            };
            let count = residual.len() / config.hidden;
            let from = Origin { data: residual, width: config.hidden, norm };
            read(&self.cpu, from, matrix.format(), inputs);
            some.part_of(all, nth * MLP_ROWS..nth * MLP_ROWS + count);
            let aside = adapting.gate(from, some, scratch, gate, config.intermediate);
            let (bias, activation) = (bias.as_deref(), config.activation);
            let gating = Gating { bias, activation, format: down.matrix.format(), aside };
            self.cpu.gated_aside(inputs, matrix, gating, gated);
            let back = Back::new(&self.cpu, down, &layer.mlp_output_norm, config);
            let adapt = |out: &mut [f32]| {
                let from = Origin { data: &gate.outputs, width: config.intermediate, norm: None };
                adapting.add(|layer| layer.down.as_ref(), from, some, scratch, out);
            };
            back.add(gated, adapt, residual, projected, normed);
        }
    }
}

/// The projection back to the residual stream, in some families followed by a norm or times a factor.
struct Back<'a> {
    cpu: &'a Cpu,
    linear: &'a Linear,
    norm: Option<Norm<'a>>,
    scale: Option<f32>,
}

impl<'a> Back<'a> {
    fn new(cpu: &'a Cpu, linear: &'a Linear, norm: &'a Option<Vec<f32>>, config: &ModelConfig) -> Self {
        let norm = norm_of(norm, config);
        Self { cpu, linear, norm, scale: config.branch_scale }
    }

    /// `adapt` adds to the projection what adapters add.
    fn add(
        self,
        inputs: &Inputs,
        adapt: impl FnOnce(&mut [f32]),
        residual: &mut [f32],
        projected: &mut Vec<f32>,
        normed: &mut Vec<f32>,
    ) {
        let Self { cpu, linear, norm, scale } = self;
        if norm.is_none() && scale.is_none() {
            project(cpu, linear, inputs, Then::Add, residual);
            adapt(residual);
            return;
        }
        let projected = sized(projected, residual.len());
        project(cpu, linear, inputs, Then::Store, projected);
        adapt(projected);
        let branch = match norm {
            None => projected,
            Some(Norm { weight, epsilon }) => {
                let normed = sized(normed, residual.len());
                cpu.rms_norm(Rows::dense(projected, weight.len()), weight, epsilon, normed);
                normed
            }
        };
        if let Some(scale) = scale {
            branch.iter_mut().for_each(|x| *x *= scale);
        }
        cpu.add(residual, branch);
    }
}

fn norm_of<'a>(weight: &'a Option<Vec<f32>>, config: &ModelConfig) -> Option<Norm<'a>> {
    weight.as_ref().map(|weight| Norm { weight, epsilon: config.norm_epsilon })
}

/// Makes rows the inputs of a product, in most families through a norm.
fn read(cpu: &Cpu, from: Origin<'_>, format: Format, inputs: &mut Inputs) {
    let (rows, count) = (Rows::dense(from.data, from.width), from.data.len() / from.width);
    match from.norm {
        Some(norm) => cpu.rms_norm_inputs(rows, count, norm, format, inputs),
        None => cpu.load(rows, count, format, inputs),
    }
}

/// Norms all heads of each row together.
fn norm_whole(cpu: &Cpu, data: &mut [f32], heads: HeadRows, norm: Norm<'_>, normed: &mut Vec<f32>) {
    let HeadRows { rows, stride, offset, .. } = heads;
    let width = norm.weight.len();
    let normed = sized(normed, rows * width);
    cpu.rms_norm(Rows { data, offset, stride, width }, norm.weight, norm.epsilon, normed);
    for (row, normed) in data.chunks_exact_mut(stride).zip(normed.chunks_exact(width)) {
        row[offset..offset + width].copy_from_slice(normed);
    }
}

fn project(cpu: &Cpu, linear: &Linear, inputs: &Inputs, then: Then, out: &mut [f32]) {
    cpu.matmul(inputs, &linear.matrix, linear.bias.as_deref(), then, out);
}

/// Resizes a buffer to `len` numbers that will be overwritten, keeping its memory.
pub(crate) fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    buffer.resize(len, 0.0);
    buffer
}
