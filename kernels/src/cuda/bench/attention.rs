//! Time of attention over a pool in the state of a busy host: a sequence's blocks lie anywhere.

use std::sync::Arc;

use super::{BLOCK_SIZE, MOST_POOL_BYTES, random, time_us};
use crate::Random;
use crate::cuda::{
    AttentionParams, AttentionShape, Buffer, CudaError, Device, Partition, decode, decode_parts,
    partial_numbers, prefill, prefill_rows,
};

/// Buffers for attention over a pool whose blocks are in random order.
struct Scene {
    buffers: [Buffer; 8],
    q_stride: u32,
}

impl Scene {
    /// `rows` sequences of `context` tokens, of which the last `tail` attend.
    fn new(
        device: &Arc<dyn Device>,
        shape: AttentionShape,
        rows: u32,
        context: u32,
        tail: u32,
        items: &[u32],
    ) -> Result<Self, CudaError> {
        let table = context.div_ceil(BLOCK_SIZE);
        let mut blocks: Vec<u32> = (0..rows * table).collect();
        let mut chance = Random::new(1);
        for i in (1..blocks.len()).rev() {
            blocks.swap(i, chance.size(0, i));
        }
        let pool = (rows * table * BLOCK_SIZE) as usize * (shape.kv_heads * shape.head_dim) as usize;
        let q_stride = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
        let tokens = (rows * tail) as usize;
        let positions: Vec<u32> = (0..rows).flat_map(|_| context - tail..context).collect();
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
        Ok(Self { buffers, q_stride })
    }

    fn params(&self, shape: AttentionShape, partial: u64) -> AttentionParams {
        let [q, keys, values, out, positions, tables, blocks, items] =
            self.buffers.each_ref().map(Buffer::at);
        AttentionParams {
            q,
            keys,
            values,
            out,
            partial,
            positions,
            tables,
            blocks,
            items,
            q_stride: self.q_stride,
            block_size: BLOCK_SIZE,
            scale: (shape.head_dim as f32).powf(-0.5),
            ..AttentionParams::default()
        }
    }
}

/// Time and bytes of a decode, cut as in an engine that allows `longest` tokens; `None` if the pool would be too large.
pub(super) fn decode_us(
    device: &Arc<dyn Device>,
    shape: AttentionShape,
    batch: u32,
    context: u32,
    longest: u32,
) -> Result<Option<(f64, f64)>, CudaError> {
    let numbers = (batch * context) as usize * (shape.kv_heads * shape.head_dim) as usize;
    let bytes = numbers * shape.ty.bytes();
    if bytes > MOST_POOL_BYTES {
        return Ok(None);
    }
    let items: Vec<u32> = (0..batch).collect();
    let scene = Scene::new(device, shape, batch, context, 1, &items)?;
    let partition =
        Partition::Even(decode_parts(&shape, device.properties().multiprocessors, batch, longest));
    let partial = Buffer::new(device, 4 * partial_numbers(&shape, batch, partition))?;
    let params = scene.params(shape, partial.at());
    // SAFETY: shapes as allocated.
    let us = time_us(device.as_ref(), &mut || unsafe {
        decode(device.as_ref(), &shape, partition, params, batch)
    })?;
    Ok(Some((us, 2.0 * bytes as f64)))
}

pub(super) fn prefill_us(
    device: &Arc<dyn Device>,
    shape: AttentionShape,
    tokens: u32,
) -> Result<f64, CudaError> {
    let rows = prefill_rows(&shape).expect("a shape with a kernel");
    // Longest tiles first, so that no long one runs alone at the end.
    let starts = (0..tokens).step_by(rows as usize).rev();
    let items: Vec<u32> = starts.flat_map(|start| [start, rows.min(tokens - start)]).collect();
    let scene = Scene::new(device, shape, 1, tokens, tokens, &items)?;
    let (params, tiles) = (scene.params(shape, 0), items.len() as u32 / 2);
    // SAFETY: shapes as allocated.
    time_us(device.as_ref(), &mut || unsafe { prefill(device.as_ref(), &shape, params, tiles) })
}
