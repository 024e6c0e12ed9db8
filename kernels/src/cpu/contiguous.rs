//! Attention of the contiguous backend: keys and values are stored as `[sequence slot][position][head][dimension]`. Scores
//! of the whole context go to a buffer, then softmax, then the weighted sum. Plain on purpose: it shares no code with the
//! paged kernel, whose results are checked against it.

use super::Cpu;
use crate::Rows;
use crate::attention_params::AttentionParams;
use crate::element::{Element, try_zeros};

/// Keys and values of one layer, one slot of full length per sequence.
#[derive(Clone, Debug)]
pub struct ContiguousLayer<T> {
    positions: usize,
    kv_heads: usize,
    head_dim: usize,
    keys: Vec<T>,
    values: Vec<T>,
}

/// What attends: token `i` is a row of `q`, at `positions[i]` of the sequence in `slots[i]`.
#[derive(Clone, Copy, Debug)]
pub struct ContiguousQuery<'a> {
    /// Rows of `heads * head_dim`.
    pub q: Rows<'a>,
    /// Each token's position; it attends to `0..=position`.
    pub positions: &'a [u32],
    /// Each token's sequence slot.
    pub slots: &'a [u32],
}

impl<T: Element> ContiguousLayer<T> {
    /// Allocates room for `slots` sequences of `positions` tokens; fails if memory runs out.
    pub fn try_new(
        slots: usize,
        positions: usize,
        kv_heads: usize,
        head_dim: usize,
    ) -> Result<Self, std::collections::TryReserveError> {
        let len = slots.saturating_mul(positions).saturating_mul(kv_heads * head_dim);
        Ok(Self { positions, kv_heads, head_dim, keys: try_zeros(len)?, values: try_zeros(len)? })
    }

    /// Overwrites everything; tests poison with NaN.
    pub fn fill(&mut self, value: f32) {
        self.keys.fill(T::from_f32(value));
        self.values.fill(T::from_f32(value));
    }

    /// Stores a token's keys and values.
    ///
    /// # Panics
    /// If slot or position are beyond the storage.
    pub fn write(&mut self, slot: u32, position: u32, key: &[f32], value: &[f32]) {
        let width = self.kv_heads * self.head_dim;
        assert!((position as usize) < self.positions, "position {position} is beyond {}", self.positions);
        assert!(key.len() == width && value.len() == width, "keys and values must be {width} wide");
        let start = (slot as usize * self.positions + position as usize) * width;
        for i in 0..width {
            self.keys[start + i] = T::from_f32(key[i]);
            self.values[start + i] = T::from_f32(value[i]);
        }
    }

    fn head<'a>(&self, data: &'a [T], slot: u32, position: usize, head: usize) -> &'a [T] {
        let row = slot as usize * self.positions + position;
        &data[(row * self.kv_heads + head) * self.head_dim..][..self.head_dim]
    }
}

impl Cpu {
    /// Computes attention of each token over its own context, one after another. `scores` is reusable scratch.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn contiguous_attention<T: Element>(
        &self,
        layer: &ContiguousLayer<T>,
        params: &AttentionParams<'_>,
        query: ContiguousQuery<'_>,
        scores: &mut Vec<f32>,
        out: &mut [f32],
    ) {
        let width = layer.head_dim;
        let group = params.heads / layer.kv_heads;
        assert_eq!(query.q.width, params.heads * width, "query rows must hold all heads");
        assert!(params.sinks.is_none_or(|sinks| sinks.len() == params.heads), "one sink per query head");
        assert_eq!(out.len(), query.positions.len() * query.q.width, "one output row per token");
        for (token, out) in out.chunks_exact_mut(query.q.width).enumerate() {
            let (slot, position) = (query.slots[token], query.positions[token] as usize);
            let first = params.first_position(query.positions[token]) as usize;
            let heads = query.q.row(token).chunks_exact(width).zip(out.chunks_exact_mut(width));
            for (head, (q, out)) in heads.enumerate() {
                scores.clear();
                scores.extend((first..=position).map(|position| {
                    let key = layer.head(&layer.keys, slot, position, head / group);
                    params.score(dot(q, key))
                }));
                let sum = softmax(scores, params.sink(head));
                out.fill(0.0);
                for (position, weight) in (first..=position).zip(&*scores) {
                    let value = layer.head(&layer.values, slot, position, head / group);
                    for (out, value) in out.iter_mut().zip(value) {
                        *out += weight * value.to_f32();
                    }
                }
                for out in out {
                    *out /= sum;
                }
            }
        }
    }
}

/// Sixteen partial sums, which are then added in order.
fn dot<T: Element>(q: &[f32], key: &[T]) -> f32 {
    let mut sums = [0.0_f32; 16];
    for (q, key) in q.chunks(16).zip(key.chunks(16)) {
        for (i, (q, key)) in q.iter().zip(key).enumerate() {
            sums[i] += q * key.to_f32();
        }
    }
    sums.iter().sum()
}

/// Turns scores into weights and returns their sum, with the sink's weight.
fn softmax(scores: &mut [f32], sink: Option<f32>) -> f32 {
    let largest = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
    let mut sum = sink.map_or(0.0, |sink| (sink - largest).exp());
    for score in scores {
        *score = (*score - largest).exp();
        sum += *score;
    }
    sum
}
