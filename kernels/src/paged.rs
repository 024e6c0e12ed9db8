//! One layer's share of the paged KV pool. Within a block, each head's keys are transposed (`[dimension][position]`), so that
//! sixteen positions are scored at once without horizontal sums, and its values are rows (`[position][dimension]`). Block
//! ownership is managed elsewhere.

use std::ops::Range;

use crate::Rows;
use crate::cpu::Shared;
use crate::element::Element;
use crate::memory::{Arena, Numbers, OutOfMemory, bytes, bytes_mut};
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
    /// Numbers of a block's keys, and likewise of its values.
    pub fn block_len(&self) -> usize {
        self.block_size.saturating_mul(self.kv_heads).saturating_mul(self.head_dim)
    }

    /// Start of one head of one block.
    pub(crate) fn head_start(&self, block: usize, head: usize) -> usize {
        (block * self.kv_heads + head) * self.block_size * self.head_dim
    }
}

/// Keys and values of one layer, for all blocks.
#[derive(Debug)]
pub struct PagedLayer<T> {
    layout: PagedLayout,
    blocks: usize,
    /// Padded, so that a vector load at the last position stays inside.
    pub(crate) keys: Numbers<T>,
    pub(crate) values: Numbers<T>,
}

impl<T: Element> PagedLayer<T> {
    /// Allocates a pool of `blocks` blocks from `arena`, which layers share. Pages are committed when first written.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(layout: PagedLayout, blocks: usize, arena: &mut Arena) -> Result<Self, OutOfMemory> {
        let len = blocks.saturating_mul(layout.block_len()).saturating_add(LANES);
        Ok(Self { layout, blocks, keys: arena.numbers(len)?, values: arena.numbers(len)? })
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
    ///
    /// # Panics
    /// If a slot is beyond the pool or rows are too narrow.
    pub fn write(&mut self, slots: &[u32], keys: Rows<'_>, values: Rows<'_>) {
        let (layout, heads) = (self.layout, self.heads(slots));
        for head in 0..layout.kv_heads {
            let part = head * layout.head_dim..(head + 1) * layout.head_dim;
            for (token, slot) in slots.iter().enumerate() {
                let (key, value) = (&keys.row(token)[part.clone()], &values.row(token)[part.clone()]);
                // SAFETY: the slot was checked, and the layer is borrowed exclusively.
                unsafe { heads.store(*slot, head, key, value) };
            }
        }
    }

    /// The pool for threads that write different heads at these slots.
    ///
    /// # Panics
    /// If a slot is beyond the pool.
    pub(crate) fn heads(&mut self, slots: &[u32]) -> Heads<T> {
        let slots_in_all = self.blocks * self.layout.block_size;
        for slot in slots {
            assert!(
                (*slot as usize) < slots_in_all,
                "slot {slot} is beyond the pool of {} blocks",
                self.blocks
            );
        }
        let (keys, values) = (Shared(self.keys.as_mut_ptr()), Shared(self.values.as_mut_ptr()));
        Heads { layout: self.layout, keys, values }
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

    /// Bytes of a block's keys and values.
    pub fn block_bytes(&self) -> usize {
        2 * self.layout.block_len() * size_of::<T>()
    }

    /// Copies a block's keys, then its values, to `to` ([`PagedLayer::block_bytes`] long), as they are stored.
    ///
    /// # Panics
    /// If the block is beyond the pool, or `to` has another length.
    pub fn read_block(&self, block: u32, to: &mut [u8]) {
        let (keys, values) = to.split_at_mut(self.block_bytes() / 2);
        let place = self.place(block);
        keys.copy_from_slice(bytes(&self.keys[place.clone()]));
        values.copy_from_slice(bytes(&self.values[place]));
    }

    /// Overwrites a block with what [`PagedLayer::read_block`] copied.
    ///
    /// # Panics
    /// As [`PagedLayer::read_block`].
    pub fn write_block(&mut self, block: u32, from: &[u8]) {
        let (keys, values) = from.split_at(self.block_bytes() / 2);
        let place = self.place(block);
        bytes_mut(&mut self.keys[place.clone()]).copy_from_slice(keys);
        bytes_mut(&mut self.values[place]).copy_from_slice(values);
    }

    /// The numbers of a block's keys, and likewise of its values.
    fn place(&self, block: u32) -> Range<usize> {
        assert!((block as usize) < self.blocks, "block {block} is beyond the pool of {} blocks", self.blocks);
        let start = self.layout.head_start(block as usize, 0);
        start..start + self.layout.block_len()
    }
}

/// Destination of keys and values; each head is written by one thread.
#[derive(Clone, Copy)]
pub(crate) struct Heads<T> {
    layout: PagedLayout,
    keys: Shared<T>,
    values: Shared<T>,
}

impl<T: Element> Heads<T> {
    /// Stores one head's key and value of a token.
    ///
    /// # Safety
    /// The slot was passed to [`PagedLayer::heads`], the layer is alive, and no other thread uses this head.
    #[inline(always)]
    pub(crate) unsafe fn store(self, slot: u32, head: usize, key: &[f32], value: &[f32]) {
        let PagedLayout { block_size, kv_heads, head_dim } = self.layout;
        assert!(
            head < kv_heads && key.len() == head_dim && value.len() == head_dim,
            "a head is {head_dim} wide"
        );
        let (block, offset) = (slot as usize / block_size, slot as usize % block_size);
        let start = self.layout.head_start(block, head);
        // SAFETY: the head lies in the pool; a key is a column of it and a value a row.
        unsafe {
            let (keys, values) = (self.keys.get().add(start + offset), self.values.get().add(start));
            for (d, key) in key.iter().enumerate() {
                keys.add(d * block_size).write(T::from_f32(*key));
            }
            for (d, value) in value.iter().enumerate() {
                values.add(offset * head_dim + d).write(T::from_f32(*value));
            }
        }
    }
}
