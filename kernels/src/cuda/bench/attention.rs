//! Time of attention over a pool in the state of a busy host: a sequence's blocks lie anywhere. Repeated decodes take turns
//! with several copies of their sequences, so that keys and values come from memory and not from the L2 cache.

use std::sync::Arc;

use super::{BLOCK_SIZE, MOST_POOL_BYTES, Table, random, time_us};
use crate::Random;
use crate::cuda::{
    AttentionParams, AttentionShape, Buffer, CudaError, Device, Partition, PrefillForm, decode,
    decode_blocks, partial_numbers, prefill, tickets,
};

pub(super) static DECODE: Table = Table {
    title: "decode attention",
    columns: &[
        ("model", "model"),
        ("batch", "batch"),
        ("context", "context"),
        ("shortest", "of 7 in 8"),
        ("us", "us"),
        ("gb_per_s", "GB/s"),
        ("share_of_copies", "of the copy rate"),
    ],
};
pub(super) static PREFILL: Table = Table {
    title: "prefill attention",
    columns: &[
        ("model", "model"),
        ("tokens", "tokens"),
        ("block_rows", "rows of a block"),
        ("products_by", "products by"),
        ("us", "us"),
        ("tflop_per_s", "TFLOP/s"),
        ("share_of_products", "of the product rate"),
    ],
};

/// Sequences, and what attends.
struct Sequences<'a> {
    rows: u32,
    /// Tokens of the longest: of every eighth.
    context: u32,
    /// Tokens of the others.
    shortest: u32,
    /// Of these the last, which attend.
    tail: u32,
    /// As kernels take them.
    items: &'a [u32],
    /// How many times all of them lie in the pool, each in blocks of its own.
    copies: u32,
}

impl Sequences<'_> {
    fn len(&self, row: u32) -> u32 {
        if row.is_multiple_of(8) { self.context } else { self.shortest }
    }
}

/// Buffers for attention over a pool whose blocks are in random order.
struct Scene {
    buffers: [Buffer; 8],
    q_stride: u32,
    /// Blocks of a copy.
    copy_blocks: u32,
}

impl Scene {
    fn new(
        device: &Arc<dyn Device>,
        shape: AttentionShape,
        sequences: &Sequences<'_>,
    ) -> Result<Self, CudaError> {
        let Sequences { rows, context, tail, items, copies, .. } = *sequences;
        let table = context.div_ceil(BLOCK_SIZE);
        let copy_blocks = rows * table;
        let mut blocks: Vec<u32> = (0..copies * copy_blocks).collect();
        let mut chance = Random::new(1);
        for i in (1..blocks.len()).rev() {
            blocks.swap(i, chance.size(0, i));
        }
        let pool = blocks.len() * (BLOCK_SIZE * shape.kv_heads * shape.head_dim) as usize;
        let q_stride = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
        let tokens = (rows * tail) as usize;
        let positions: Vec<u32> =
            (0..rows).flat_map(|row| sequences.len(row) - tail..sequences.len(row)).collect();
        let tables: Vec<u32> =
            (0..rows).flat_map(|row| std::iter::repeat_n(row * table, tail as usize)).collect();
        let out = tokens * (shape.heads * shape.head_dim) as usize * shape.ty.bytes();
        let buffers = [
            random(device, shape.ty, tokens * q_stride as usize)?,
            random(device, shape.ty, pool)?,
            random(device, shape.ty, pool)?,
            Buffer::new(device, out)?,
            Buffer::from_indexes(device, &positions)?,
            Buffer::from_indexes(device, &tables)?,
            Buffer::from_indexes(device, &blocks)?,
            Buffer::from_indexes(device, items)?,
        ];
        Ok(Self { buffers, q_stride, copy_blocks })
    }

    /// Of one of the copies.
    fn params(&self, shape: AttentionShape, copy: u32) -> AttentionParams {
        let [q, keys, values, out, positions, tables, blocks, items] =
            self.buffers.each_ref().map(Buffer::at);
        AttentionParams {
            q,
            keys,
            values,
            out,
            positions,
            tables,
            blocks: blocks + 4 * u64::from(copy * self.copy_blocks),
            items,
            q_stride: self.q_stride,
            block_size: BLOCK_SIZE,
            scale: (shape.head_dim as f32).powf(-0.5),
            ..AttentionParams::default()
        }
    }
}

/// A decode.
#[derive(Clone, Copy)]
pub(super) struct Decode {
    /// Sequences.
    pub batch: u32,
    /// The context of every eighth.
    pub context: u32,
    /// Of the others.
    pub shortest: u32,
    /// The most that the engine allows.
    pub longest: u32,
}

/// Time and bytes of a decode; `None` if the pool would be too large. Repeats read `cycle_bytes` before they read something
/// again.
pub(super) fn decode_us(
    device: &Arc<dyn Device>,
    shape: AttentionShape,
    Decode { batch, context, shortest, longest }: Decode,
    cycle_bytes: usize,
) -> Result<Option<(f64, f64)>, CudaError> {
    let bytes = |tokens: u32| tokens as usize * (shape.kv_heads * shape.head_dim) as usize * shape.ty.bytes();
    // Short sequences have as many blocks as long ones, of which they use the first.
    let pool = bytes(batch * context);
    if pool > MOST_POOL_BYTES {
        return Ok(None);
    }
    let items: Vec<u32> = (0..batch).collect();
    let mut sequences = Sequences { rows: batch, context, shortest, tail: 1, items: &items, copies: 1 };
    let bytes = bytes(items.iter().map(|row| sequences.len(*row)).sum());
    sequences.copies = copies(cycle_bytes, 2 * bytes, 2 * pool, device.memory()?.free);
    let copies = sequences.copies;
    let scene = Scene::new(device, shape, &sequences)?;
    let partition =
        Partition::Balanced { blocks: decode_blocks(&shape, device.properties(), batch, longest) };
    let partial = Buffer::new(device, 4 * partial_numbers(&shape, batch, partition))?;
    let tickets = Buffer::new(device, 4 * tickets(&shape, batch))?;
    tickets.fill(0)?;
    let mut turn = 0;
    let us = time_us(device.as_ref(), &mut || {
        turn = (turn + 1) % copies;
        let params =
            AttentionParams { partial: partial.at(), tickets: tickets.at(), ..scene.params(shape, turn) };
        // SAFETY: shapes as allocated.
        unsafe { decode(device.as_ref(), &shape, partition, params, batch) }
    })?;
    Ok(Some((us, 2.0 * bytes as f64)))
}

/// Number of copies of what a decode reads that make up `cycle_bytes`, as far as half of the free memory holds their pools.
fn copies(cycle_bytes: usize, bytes: usize, pool_bytes: usize, free_bytes: u64) -> u32 {
    let most = (free_bytes / 2) as usize / pool_bytes;
    cycle_bytes.div_ceil(bytes).min(most).max(1) as u32
}

pub(super) fn prefill_us(
    device: &Arc<dyn Device>,
    shape: AttentionShape,
    form: PrefillForm,
    tokens: u32,
) -> Result<f64, CudaError> {
    let most = form.tokens(&shape);
    // Longest tiles first, so that no long one runs alone at the end.
    let starts = (0..tokens).step_by(most as usize).rev();
    let items: Vec<u32> = starts.flat_map(|start| [start, most.min(tokens - start)]).collect();
    let all =
        Sequences { rows: 1, context: tokens, shortest: tokens, tail: tokens, items: &items, copies: 1 };
    let scene = Scene::new(device, shape, &all)?;
    let (params, tiles) = (scene.params(shape, 0), items.len() as u32 / 2);
    // SAFETY: shapes as allocated.
    time_us(device.as_ref(), &mut || unsafe { prefill(device.as_ref(), &shape, form, params, tiles) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_exceed_the_l2_cache_but_not_half_of_the_free_memory() {
        const MIB: usize = 1 << 20;
        for (bytes, free_mib, expected) in
            [(MIB, 80_000, 512), (300 * MIB, 80_000, 2), (600 * MIB, 80_000, 1), (MIB, 100, 50), (MIB, 1, 1)]
        {
            let copies = copies(512 * MIB, bytes, bytes, (free_mib * MIB) as u64);
            assert_eq!(copies, expected, "{bytes} bytes, {free_mib} MiB free");
        }
        assert_eq!(copies(0, MIB, MIB, (80_000 * MIB) as u64), 1, "no cycle");
        assert_eq!(
            copies(512 * MIB, MIB, 4 * MIB, (400 * MIB) as u64),
            50,
            "pools of which a quarter is read"
        );
    }
}
