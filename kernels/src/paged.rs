//! One layer's share of the paged KV pool. Within a block, each head has its keys transposed (`[dimension]
//! [position]`), so that sixteen positions are scored at once without horizontal sums, and its values as
//! rows (`[position][dimension]`). Who owns which block is not known here.

use crate::Rows;
use crate::element::{Element, try_zeros};
use crate::simd::LANES;

/// Shape of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagedLayout {
    /// Tokens in a block.
    pub block_size: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_dim: usize,
}

impl PagedLayout {
    /// Numbers of a block's keys; as many for its values.
    pub fn block_len(&self) -> usize {
        self.block_size * self.kv_heads * self.head_dim
    }

    /// Start of one head of one block.
    pub(crate) fn head_start(&self, block: usize, head: usize) -> usize {
        (block * self.kv_heads + head) * self.block_size * self.head_dim
    }
}

/// Keys and values of one layer, for all blocks.
#[derive(Clone, Debug)]
pub struct PagedLayer<T> {
    layout: PagedLayout,
    blocks: usize,
    /// Padded, so that a vector load at the last position stays inside.
    pub(crate) keys: Vec<T>,
    pub(crate) values: Vec<T>,
}

impl<T: Element> PagedLayer<T> {
    /// A pool of `blocks` blocks, or an error where memory for it can't be had.
    pub fn try_new(layout: PagedLayout, blocks: usize) -> Result<Self, std::collections::TryReserveError> {
        let len = blocks.saturating_mul(layout.block_len()).saturating_add(LANES);
        Ok(Self { layout, blocks, keys: try_zeros(len)?, values: try_zeros(len)? })
    }

    /// Its shape.
    pub fn layout(&self) -> &PagedLayout {
        &self.layout
    }

    /// Blocks in the pool.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Overwrites everything. Tests poison a pool with NaN to show that only written positions are read.
    pub fn fill(&mut self, value: f32) {
        self.keys.fill(T::from_f32(value));
        self.values.fill(T::from_f32(value));
    }

    /// Stores token `i`'s keys and values (rows of `kv_heads * head_dim`) at `slots[i] = block * block_size +
    /// offset`.
    pub fn write(&mut self, slots: &[u32], keys: Rows<'_>, values: Rows<'_>) {
        let PagedLayout { block_size, kv_heads, head_dim } = self.layout;
        for (token, slot) in slots.iter().enumerate() {
            let (block, offset) = (*slot as usize / block_size, *slot as usize % block_size);
            assert!(block < self.blocks, "slot {slot} is beyond the pool of {} blocks", self.blocks);
            let (key, value) = (keys.row(token), values.row(token));
            for head in 0..kv_heads {
                let start = self.layout.head_start(block, head);
                let from = head * head_dim..(head + 1) * head_dim;
                let column = self.keys[start + offset..].iter_mut().step_by(block_size);
                for (to, from) in column.zip(&key[from.clone()]) {
                    *to = T::from_f32(*from);
                }
                let row = &mut self.values[start + offset * head_dim..][..head_dim];
                for (to, from) in row.iter_mut().zip(&value[from]) {
                    *to = T::from_f32(*from);
                }
            }
        }
    }

    /// Copies the first `tokens` keys and values of a block to another.
    pub fn copy_block(&mut self, from: u32, to: u32, tokens: u32) {
        let PagedLayout { block_size, kv_heads, head_dim } = self.layout;
        let (from, to, tokens) = (from as usize, to as usize, tokens as usize);
        assert!(from < self.blocks && to < self.blocks, "copy {from} -> {to} is beyond the pool");
        assert!(tokens <= block_size, "a block holds {block_size} tokens, not {tokens}");
        for head in 0..kv_heads {
            let (source, target) = (self.layout.head_start(from, head), self.layout.head_start(to, head));
            for dimension in 0..head_dim {
                let row = source + dimension * block_size;
                self.keys.copy_within(row..row + tokens, target + dimension * block_size);
            }
            self.values.copy_within(source..source + tokens * head_dim, target);
        }
    }
}
