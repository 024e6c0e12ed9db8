//! Time of the kernels between products, in the bytes that each has to read and write. At one row it is the time of a launch.
//! Rows are tokens, of `copy_blocks` blocks of one layer. `attention_plain` runs in f32, at the shortest context. Repeats use
//! the same memory.

use std::sync::Arc;

use super::attention::{Decode, decode_us};
use super::{BLOCK_SIZE, ModelShape, Table, random, time_us};
use crate::Activation;
use crate::cuda::{
    Buffer, CopyParams, CudaError, Device, KvWriteParams, NormParams, Type, add_norm, copy_blocks, embed,
    gated, kv_write,
};

pub(super) static SMALL: Table = Table {
    title: "small kernels",
    columns: &[
        ("model", "model"),
        ("kernel", "kernel"),
        ("rows", "rows"),
        ("us", "us"),
        ("gb_per_s", "GB/s"),
        ("share_of_copies", "of the copy rate"),
    ],
};

/// Time and bytes of a kernel for this many rows, at this context if it attends; `None` if it needs too much memory.
type Kernel = fn(&Arc<dyn Device>, &ModelShape, [u32; 2]) -> Result<Option<(f64, f64)>, CudaError>;

pub(super) const KERNELS: [(&str, Kernel); 6] = [
    ("add_norm", norms),
    ("kv_write", writes),
    ("gated", gates),
    ("embed", embeds),
    ("copy_blocks", copies),
    ("attention_plain", attends),
];

/// Storage of all but the residual stream and the weights of norms.
const TY: Type = Type::Bf16;

/// With the sum into the residual stream.
fn norms(
    device: &Arc<dyn Device>,
    shape: &ModelShape,
    [rows, _]: [u32; 2],
) -> Result<Option<(f64, f64)>, CudaError> {
    let width = shape.hidden as usize;
    let numbers = rows as usize * width;
    let (residual, delta) = (random(device, Type::F32, numbers)?, random(device, TY, numbers)?);
    let (weight, out) = (random(device, Type::F32, width)?, Buffer::new(device, numbers * TY.bytes())?);
    let params = NormParams {
        residual: residual.at(),
        delta: delta.at(),
        weight: weight.at(),
        out: out.at(),
        width: shape.hidden,
        epsilon: 1e-5,
        delta_factor: 1.0,
        ..NormParams::default()
    };
    // SAFETY: shapes as allocated.
    let us = time_us(device.as_ref(), &mut || unsafe { add_norm(device.as_ref(), TY, &params, rows) })?;
    let bytes = numbers * (2 * Type::F32.bytes() + 2 * TY.bytes()) + width * Type::F32.bytes();
    Ok(Some((us, bytes as f64)))
}

/// Where tokens' keys and values go.
pub(super) struct Slots {
    keys: Buffer,
    values: Buffer,
    rope: Buffer,
    /// Token i is at position i, and in slot i.
    order: Buffer,
}

impl Slots {
    pub(super) fn new(device: &Arc<dyn Device>, shape: &ModelShape, rows: u32) -> Result<Self, CudaError> {
        let (tokens, head_dim) = (rows as usize, shape.head_dim as usize);
        let pool = rows.next_multiple_of(BLOCK_SIZE) as usize * shape.kv_width() as usize * TY.bytes();
        // Quarter turns: queries are updated in place, so anything but a rotation would shrink or grow them with each run.
        let half = head_dim / 2;
        let turns: Vec<f32> =
            (0..tokens * head_dim).map(|i| if i % head_dim < half { 0.0 } else { 1.0 }).collect();
        Ok(Self {
            keys: Buffer::new(device, pool)?,
            values: Buffer::new(device, pool)?,
            rope: Buffer::from_numbers(device, Type::F32, &turns)?,
            order: Buffer::from_indexes(device, &(0..rows).collect::<Vec<u32>>())?,
        })
    }

    /// From a projection of `tokens` rows, at most as many as these are for.
    pub(super) fn write(&self, shape: &ModelShape, qkv: u64, tokens: u32) -> KvWriteParams {
        KvWriteParams {
            qkv,
            keys: self.keys.at(),
            values: self.values.at(),
            rope: self.rope.at(),
            positions: self.order.at(),
            slots: self.order.at(),
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            block_size: BLOCK_SIZE,
            epsilon: 1e-5,
            tokens,
            ..KvWriteParams::default()
        }
    }
}

fn writes(
    device: &Arc<dyn Device>,
    shape: &ModelShape,
    [rows, _]: [u32; 2],
) -> Result<Option<(f64, f64)>, CudaError> {
    let (tokens, head_dim) = (rows as usize, shape.head_dim as usize);
    let numbers = tokens * shape.qkv_width() as usize;
    let (slots, qkv) = (Slots::new(device, shape, rows)?, random(device, TY, numbers)?);
    let params = slots.write(shape, qkv.at(), rows);
    // SAFETY: shapes as allocated.
    let us = time_us(device.as_ref(), &mut || unsafe { kv_write(device.as_ref(), TY, &params) })?;
    let bytes = numbers * 2 * TY.bytes() + tokens * head_dim * Type::F32.bytes();
    Ok(Some((us, bytes as f64)))
}

fn gates(
    device: &Arc<dyn Device>,
    shape: &ModelShape,
    [rows, _]: [u32; 2],
) -> Result<Option<(f64, f64)>, CudaError> {
    let numbers = rows as usize * shape.intermediate as usize;
    let (gate_up, out) = (random(device, TY, 2 * numbers)?, Buffer::new(device, numbers * TY.bytes())?);
    let places = [gate_up.at(), 0, out.at()];
    // SAFETY: shapes as allocated.
    let us = time_us(device.as_ref(), &mut || unsafe {
        gated(device.as_ref(), TY, Activation::Silu, places, shape.intermediate, rows)
    })?;
    Ok(Some((us, (numbers * 3 * TY.bytes()) as f64)))
}

/// Of tokens all over the table.
fn embeds(
    device: &Arc<dyn Device>,
    shape: &ModelShape,
    [rows, _]: [u32; 2],
) -> Result<Option<(f64, f64)>, CudaError> {
    let numbers = rows as usize * shape.hidden as usize;
    let table = random(device, TY, shape.vocab as usize * shape.hidden as usize)?;
    let tokens: Vec<u32> = (0..rows).map(|row| row * 7_919 % shape.vocab).collect();
    let tokens = Buffer::from_indexes(device, &tokens)?;
    let out = Buffer::new(device, numbers * Type::F32.bytes())?;
    let places = [table.at(), tokens.at(), out.at()];
    // SAFETY: shapes as allocated.
    let us = time_us(device.as_ref(), &mut || unsafe {
        embed(device.as_ref(), TY, places, shape.hidden, 1.0, rows)
    })?;
    Ok(Some((us, (numbers * (TY.bytes() + Type::F32.bytes())) as f64)))
}

/// Keys and values of a layer, from the first half of a pool to the second.
fn copies(
    device: &Arc<dyn Device>,
    shape: &ModelShape,
    [blocks, _]: [u32; 2],
) -> Result<Option<(f64, f64)>, CudaError> {
    let block_bytes = BLOCK_SIZE as usize * shape.kv_width() as usize * TY.bytes();
    let (stride, parts) = (2 * blocks as usize * block_bytes, 2);
    let pool = random(device, TY, parts * stride / TY.bytes())?;
    let pairs =
        Buffer::from_indexes(device, &(0..blocks).flat_map(|i| [i, blocks + i]).collect::<Vec<u32>>())?;
    let params = CopyParams {
        from: pool.at(),
        to: pool.at(),
        pairs: pairs.at(),
        from_stride: stride as u64,
        to_stride: stride as u64,
        block_bytes: block_bytes as u32,
        parts: parts as u32,
    };
    // SAFETY: the pool as allocated.
    let us = time_us(device.as_ref(), &mut || unsafe { copy_blocks(device.as_ref(), &params, blocks) })?;
    // Half of the pool is read, the other half written.
    Ok(Some((us, (parts * stride) as f64)))
}

/// In the type that has no other kernel, a sequence per row.
fn attends(
    device: &Arc<dyn Device>,
    shape: &ModelShape,
    [rows, context]: [u32; 2],
) -> Result<Option<(f64, f64)>, CudaError> {
    let decode = Decode { batch: rows, context, shortest: context, longest: context };
    decode_us(device, shape.attention(Type::F32), decode, 0)
}
