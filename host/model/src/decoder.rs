//! The one decoder. What differs between families is read from `ModelConfig`; there is no branch on a
//! family's name. Rows are independent: every operation computes a token from its own inputs and from the
//! KV cache alone. Buffers are kept between steps.

use std::sync::Arc;

use infer_core::Batch;
use infer_kernels::{Activation, Cpu, HeadRows, RopeTable, Rows};

use crate::cache::{KvStore, Projections};
use crate::config::ModelConfig;
use crate::weights::{LayerWeights, Linear, Weights};

/// Rows that the feed-forward layer holds at once: its buffers are the widest.
const MLP_ROWS: usize = 192;

/// Computes hidden states and logits.
pub(crate) struct Decoder {
    config: ModelConfig,
    weights: Arc<Weights>,
    ropes: Vec<RopeTable>,
    cpu: Cpu,
    buffers: Buffers,
}

/// Activations of one step, reused.
#[derive(Default)]
struct Buffers {
    /// Residual stream, `[token][hidden]`.
    residual: Vec<f32>,
    /// What a norm made of it.
    normed: Vec<f32>,
    /// Queries, keys and values side by side.
    qkv: Vec<f32>,
    attended: Vec<f32>,
    /// Output of a projection back to the residual's width.
    projected: Vec<f32>,
    gate_up: Vec<f32>,
    gated: Vec<f32>,
    logits: Vec<f32>,
}

impl Decoder {
    pub(crate) fn new(config: ModelConfig, weights: Arc<Weights>, cpu: Cpu, positions: usize) -> Self {
        let table = |rope: &crate::config::RopeConfig| {
            RopeTable::new(&rope.inverse_frequencies(config.head_dim), positions, 1.0)
        };
        let ropes = config.ropes.iter().map(table).collect();
        Self { config, weights, ropes, cpu, buffers: Buffers::default() }
    }

    /// Computes the hidden states of all tokens of a batch, writing keys and values on the way.
    pub(crate) fn forward(&mut self, batch: &Batch, kv: &mut dyn KvStore) {
        let weights = Arc::clone(&self.weights);
        self.embed(batch);
        for (index, layer) in weights.layers.iter().enumerate() {
            self.attention(index, layer, batch, kv);
            self.mlp(layer);
        }
    }

    /// Logits of the given tokens of the last batch, `[token][vocab]`.
    pub(crate) fn logits(&mut self, tokens: impl Iterator<Item = usize>) -> &mut [f32] {
        let hidden = self.config.hidden;
        let Buffers { residual, projected, normed, logits, .. } = &mut self.buffers;
        projected.clear();
        for token in tokens {
            projected.extend_from_slice(&residual[token * hidden..(token + 1) * hidden]);
        }
        let count = projected.len() / hidden;
        let normed = sized(normed, projected.len());
        let (rows, epsilon) = (Rows::dense(projected, hidden), self.config.norm_epsilon);
        self.cpu.rms_norm(rows, &self.weights.final_norm, epsilon, normed);
        let logits = sized(logits, count * self.config.vocab);
        self.cpu.matmul(Rows::dense(normed, hidden), self.weights.head(), logits);
        if let Some(cap) = self.config.logit_soft_cap {
            logits.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
        }
        logits
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
        let Buffers { residual, normed, qkv, attended, projected, .. } = &mut self.buffers;

        let normed = sized(normed, residual.len());
        let rows = Rows::dense(residual, config.hidden);
        self.cpu.rms_norm(rows, &layer.input_norm, config.norm_epsilon, normed);
        let qkv = sized(qkv, tokens * stride);
        project(&self.cpu, &layer.qkv, normed, qkv);

        let q_heads = HeadRows { rows: tokens, stride, offset: 0, heads: config.heads };
        let k_heads = HeadRows { rows: tokens, stride, offset: q_width, heads: config.kv_heads };
        let rope = &self.ropes[config.layers[index].rope];
        for (heads, norm) in [(q_heads, &layer.q_norm), (k_heads, &layer.k_norm)] {
            if let Some(weight) = norm {
                self.cpu.rms_norm_heads(qkv, heads, weight, config.norm_epsilon);
            }
            self.cpu.rope(qkv, heads, &batch.positions, rope);
        }

        let part = |offset, width| Rows { data: qkv, offset, stride, width };
        let projections = Projections {
            q: part(0, q_width),
            k: part(q_width, kv_width),
            v: part(q_width + kv_width, kv_width),
        };
        let attended = sized(attended, tokens * q_width);
        kv.attend(&self.cpu, index, &config.attention(index), batch, projections, attended);
        let projected = sized(projected, residual.len());
        project(&self.cpu, &layer.output, attended, projected);
        if let Some(weight) = &layer.attention_output_norm {
            let rows = Rows::dense(projected, config.hidden);
            self.cpu.rms_norm(rows, weight, config.norm_epsilon, normed);
            self.cpu.add(residual, normed);
        } else {
            self.cpu.add(residual, projected);
        }
    }

    fn mlp(&mut self, layer: &LayerWeights) {
        let config = &self.config;
        let Buffers { residual, normed, projected, gate_up, gated, .. } = &mut self.buffers;
        for residual in residual.chunks_mut(MLP_ROWS * config.hidden) {
            let tokens = residual.len() / config.hidden;
            let normed = sized(normed, residual.len());
            let rows = Rows::dense(residual, config.hidden);
            self.cpu.rms_norm(rows, &layer.mlp_norm, config.norm_epsilon, normed);
            let gate_up = sized(gate_up, tokens * 2 * config.intermediate);
            project(&self.cpu, &layer.gate_up, normed, gate_up);
            let gated = sized(gated, tokens * config.intermediate);
            let activation: Activation = config.activation;
            self.cpu.gated(activation, gate_up, config.intermediate, gated);
            let projected = sized(projected, residual.len());
            project(&self.cpu, &layer.down, gated, projected);
            if let Some(weight) = &layer.mlp_output_norm {
                let rows = Rows::dense(projected, config.hidden);
                self.cpu.rms_norm(rows, weight, config.norm_epsilon, normed);
                self.cpu.add(residual, normed);
            } else {
                self.cpu.add(residual, projected);
            }
        }
    }
}

/// `out = x * matrix^T + bias`.
fn project(cpu: &Cpu, linear: &Linear, x: &[f32], out: &mut [f32]) {
    cpu.matmul(Rows::dense(x, linear.matrix.inputs()), &linear.matrix, out);
    if let Some(bias) = &linear.bias {
        for row in out.chunks_exact_mut(bias.len()) {
            cpu.add(row, bias);
        }
    }
}

/// A buffer of `len` numbers that will be overwritten; its memory is kept.
fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    buffer.resize(len, 0.0);
    buffer
}
