//! The reference backend: each running sequence has one slot of full length. There are no block tables and no sharing, so a
//! sequence always starts at position 0, and prefix caching must be off.

use std::collections::HashMap;

use infer_core::{Batch, DeviceFault, DeviceFaultKind, SequenceId};
use infer_kernels::{AttentionParams, ContiguousLayer, ContiguousQuery, Cpu, Element, Qkv};

use super::KvStore;
use crate::error::ModelError;

/// Shape of the storage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContiguousShape {
    pub slots: usize,
    pub positions: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub layers: usize,
}

/// Keys and values, one slot per sequence.
pub(crate) struct ContiguousCache<T> {
    layers: Vec<ContiguousLayer<T>>,
    positions: usize,
    free: Vec<u32>,
    held: HashMap<SequenceId, Held>,
    /// Each token's slot.
    slots: Vec<u32>,
    scores: Vec<f32>,
}

/// A sequence's slot and the number of positions written.
#[derive(Clone, Copy)]
struct Held {
    slot: u32,
    len: u32,
}

impl<T: Element> ContiguousCache<T> {
    pub(crate) fn new(shape: ContiguousShape) -> Result<Self, ModelError> {
        let ContiguousShape { slots, positions, kv_heads, head_dim, layers } = shape;
        let layers = (0..layers)
            .map(|_| ContiguousLayer::try_new(slots, positions, kv_heads, head_dim))
            .collect::<Result<_, _>>()
            .map_err(|error| {
                ModelError::machine(format!(
                    "no memory for {slots} sequences of {positions} tokens ({error}); lower either"
                ))
            })?;
        let free = (0..u32::try_from(slots).unwrap_or(u32::MAX)).rev().collect();
        Ok(Self { layers, positions, free, held: HashMap::new(), slots: Vec::new(), scores: Vec::new() })
    }

    /// The slot of a row's sequence, which must continue where it stopped.
    fn slot(&mut self, sequence: SequenceId, first: u32, count: u32) -> Result<u32, Refused> {
        let held = match self.held.get(&sequence) {
            Some(held) => *held,
            None => {
                let slot = self.free.pop().ok_or(Refused::NoSlot)?;
                Held { slot, len: 0 }
            }
        };
        if first > held.len || (first + count) as usize > self.positions {
            self.held.insert(sequence, held);
            return Err(if first > held.len { Refused::Gap } else { Refused::TooLong });
        }
        self.held.insert(sequence, Held { len: first + count, ..held });
        Ok(held.slot)
    }
}

/// Why a row is refused.
#[derive(Clone, Copy)]
enum Refused {
    NoSlot,
    Gap,
    TooLong,
}

impl Refused {
    fn fault(self, row: usize) -> DeviceFault {
        let (kind, message) = match self {
            Self::NoSlot => (DeviceFaultKind::OutOfMemory, "the contiguous KV cache has no free slot"),
            Self::Gap => (DeviceFaultKind::Failed, "the contiguous KV cache can't start from cached blocks"),
            Self::TooLong => (DeviceFaultKind::Failed, "the sequence outgrew its KV cache slot"),
        };
        DeviceFault { kind, message: message.to_owned(), rows: Some(vec![row]) }
    }
}

impl<T: Element> KvStore for ContiguousCache<T> {
    fn release(&mut self, sequences: &[SequenceId]) {
        let held = sequences.iter().filter_map(|sequence| self.held.remove(sequence));
        self.free.extend(held.map(|held| held.slot));
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), DeviceFault> {
        self.slots.clear();
        for (index, row) in batch.rows.iter().enumerate() {
            if row.token_len == 0 {
                continue;
            }
            let first = batch.positions[row.token_start as usize];
            let slot = self.slot(row.sequence, first, row.token_len).map_err(|why| why.fault(index))?;
            self.slots.extend(std::iter::repeat_n(slot, row.token_len as usize));
        }
        Ok(())
    }

    fn attend(
        &mut self,
        cpu: &Cpu,
        layer: usize,
        params: &AttentionParams<'_>,
        batch: &Batch,
        mut qkv: Qkv<'_>,
        out: &mut [f32],
    ) {
        let layer = &mut self.layers[layer];
        cpu.rope(&mut qkv);
        let (keys, values) = (qkv.k(), qkv.v());
        for (token, slot) in self.slots.iter().enumerate() {
            let position = batch.positions[token];
            layer.write(*slot, position, keys.row(token), values.row(token));
        }
        let query = ContiguousQuery { q: qkv.q(), positions: &batch.positions, slots: &self.slots };
        cpu.contiguous_attention(layer, params, query, &mut self.scores, out);
    }
}
