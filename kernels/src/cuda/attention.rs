//! Launches of attention: which kernel computes which shape, and how a context is cut into parts.

use super::device::{Device, Launch, Type};
use super::error::CudaError;
use super::params::{AttentionParams, Params};

/// Head widths that have tensor core kernels.
const WIDTHS: [u32; 6] = [32, 64, 80, 96, 128, 256];
/// Rows of a prefill block: tokens times query heads of a key head.
const PREFILL_ROWS: u32 = 64;
/// Query heads of a decode block.
const DECODE_ROWS: u32 = 16;
/// Positions that a decode block processes at a time.
const DECODE_TILE: u32 = 64;
/// Maximum parts of a context.
const MAX_PARTS: u32 = 256;

/// What selects a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// How queries, keys and values are stored.
    pub ty: Type,
    /// Query heads.
    pub heads: u32,
    /// Key heads.
    pub kv_heads: u32,
    /// Dimensions of a head; even, at most 256.
    pub head_dim: u32,
}

/// How the context of a decode is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partition {
    /// Into this many equal parts: fills the device, but a row's bits depend on the number.
    Even(u32),
    /// Into parts of a fixed number of tokens from position 0 on: a row's bits depend on nothing else.
    Fixed {
        /// Tokens of a part; a multiple of 16.
        tokens: u32,
        /// Longest context.
        longest: u32,
    },
}

impl AttentionShape {
    fn group(&self) -> u32 {
        self.heads / self.kv_heads
    }

    fn on_tensor_cores(&self) -> bool {
        self.ty != Type::F32 && WIDTHS.contains(&self.head_dim)
    }

    /// Tiles of rows per key head in decode.
    fn row_tiles(&self) -> u32 {
        self.group().div_ceil(DECODE_ROWS)
    }
}

impl Partition {
    fn parts(self) -> u32 {
        match self {
            Self::Even(parts) => parts,
            Self::Fixed { tokens, longest } => longest.div_ceil(tokens),
        }
    }
}

/// Number of parts with which `items` tokens fill a device, but no more than a context of `longest` tokens can use.
pub fn decode_parts(shape: &AttentionShape, multiprocessors: u32, items: u32, longest: u32) -> u32 {
    let blocks = items * shape.kv_heads * shape.row_tiles();
    let places = multiprocessors * blocks_at_once(shape.head_dim);
    // A single block beyond what runs at once would start a second wave and leave the rest of the device idle.
    (places / blocks.max(1)).min(longest.div_ceil(DECODE_TILE)).clamp(1, MAX_PARTS)
}

/// Decode blocks per multiprocessor: enough for about 100 KB of keys and values in flight, within what registers and 227 KB
/// of shared memory allow.
fn blocks_at_once(head_dim: u32) -> u32 {
    match head_dim {
        ..=32 => 8,
        33..=96 => 4,
        _ => 3,
    }
}

/// Shared memory of a decode block: its queries, its warps' softmax state, and their tiles, which the sums later replace.
fn decode_shared_bytes(head_dim: u32) -> u32 {
    let stages = if head_dim > 128 { 1 } else { 2 };
    let tile = 2 * 16 * head_dim * 2;
    16 * key_stride(head_dim) * 2 + 2 * 4 * 16 * 4 + 4 * stages * tile
}

/// Number of partial sums (f32) that a decode of `items` tokens keeps between its two passes.
pub fn partial_numbers(shape: &AttentionShape, items: u32, partition: Partition) -> usize {
    match partition.parts() {
        _ if !shape.on_tensor_cores() => 0,
        1 => 0,
        parts => [items, shape.heads, parts, shape.head_dim + 2].map(|size| size as usize).iter().product(),
    }
}

/// Tokens of one sequence that a prefill block processes. `None` if the shape has no prefill kernel: then all tokens go
/// through [`decode`].
pub fn prefill_rows(shape: &AttentionShape) -> Option<u32> {
    (shape.on_tensor_cores() && shape.group() <= PREFILL_ROWS).then(|| PREFILL_ROWS / shape.group())
}

/// Computes attention of `items` single tokens. `params.items` lists the tokens.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// The parameters describe memory on the device, block tables are long enough for their tokens and name blocks of the
/// pool, and `partial` has room for [`partial_numbers`]. No kernel in flight writes items, positions, tables or blocks, which
/// may be read before it ends.
pub unsafe fn decode(
    device: &dyn Device,
    shape: &AttentionShape,
    partition: Partition,
    params: AttentionParams,
    items: u32,
) -> Result<(), CudaError> {
    let AttentionShape { ty, heads, kv_heads, head_dim } = *shape;
    assert!(
        heads.is_multiple_of(kv_heads) && head_dim <= 256,
        "{heads} heads of {head_dim}, {kv_heads} key heads"
    );
    let parts = partition.parts();
    let part_tokens = match partition {
        Partition::Even(_) => 0,
        Partition::Fixed { tokens, .. } => tokens,
    };
    let params = AttentionParams { heads, kv_heads, head_dim, parts, part_tokens, ..params };
    if !shape.on_tensor_cores() {
        let kernel = ty.pick("attention_plain_float", "attention_plain_bf16", "attention_plain_f16");
        let shared_bytes = 4 * (head_dim + 2) * 4;
        let launch =
            Launch { kernel, grid: [heads, items, 1], threads: 128, shared_bytes, params: params.bytes() };
        // SAFETY: the caller's promise.
        return unsafe { device.launch(launch) };
    }
    let launch = Launch {
        kernel: name(ty, head_dim, &DECODE_BF16, &DECODE_F16),
        grid: [parts, kv_heads * shape.row_tiles(), items],
        threads: 128,
        shared_bytes: decode_shared_bytes(head_dim),
        params: params.bytes(),
    };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }?;
    if parts == 1 {
        return Ok(());
    }
    let kernel = ty.pick("", "attention_reduce_bf16", "attention_reduce_f16");
    let launch = Launch {
        kernel,
        grid: [heads, items, 1],
        threads: 128,
        shared_bytes: 2 * 128 * 4,
        params: params.bytes(),
    };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

/// Computes attention of tiles of consecutive tokens of a sequence: pairs of first token and count, the latter at most
/// [`prefill_rows`].
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// As for [`decode`].
pub unsafe fn prefill(
    device: &dyn Device,
    shape: &AttentionShape,
    params: AttentionParams,
    tiles: u32,
) -> Result<(), CudaError> {
    let AttentionShape { ty, heads, kv_heads, head_dim } = *shape;
    assert!(prefill_rows(shape).is_some(), "{shape:?} has no prefill kernel");
    let params = AttentionParams { heads, kv_heads, head_dim, parts: 1, part_tokens: 0, ..params };
    let tile = if head_dim > 128 { 16 } else { 64 };
    let launch = Launch {
        kernel: name(ty, head_dim, &PREFILL_BF16, &PREFILL_F16),
        grid: [kv_heads, tiles, 1],
        threads: 128,
        shared_bytes: 2
            * (PREFILL_ROWS * key_stride(head_dim)
                + 2 * tile * (key_stride(head_dim) + value_stride(head_dim))),
        params: params.bytes(),
    };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

/// As in `attention.cuh`.
fn key_stride(head_dim: u32) -> u32 {
    head_dim + ((192 - 2 * head_dim % 128) % 128) / 2
}

/// As in `attention.cuh`.
fn value_stride(head_dim: u32) -> u32 {
    head_dim + ((80 - 2 * head_dim % 64) % 64) / 2
}

fn name(ty: Type, head_dim: u32, bf16: &[&'static str; 6], f16: &[&'static str; 6]) -> &'static str {
    let index = WIDTHS.iter().position(|width| *width == head_dim).expect("a width with a kernel");
    ty.pick("", bf16[index], f16[index])
}

macro_rules! names {
    ($name:ident, $start:literal) => {
        const $name: [&str; 6] = [
            concat!($start, "_32"),
            concat!($start, "_64"),
            concat!($start, "_80"),
            concat!($start, "_96"),
            concat!($start, "_128"),
            concat!($start, "_256"),
        ];
    };
}
names!(DECODE_BF16, "attention_decode_bf16");
names!(DECODE_F16, "attention_decode_f16");
names!(PREFILL_BF16, "attention_prefill_bf16");
names!(PREFILL_F16, "attention_prefill_f16");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_decode_blocks_fit_shared_memory() {
        for width in WIDTHS {
            // An H100 has 228 KB and reserves 1 KB per block.
            let bytes = blocks_at_once(width) * (decode_shared_bytes(width) + 1_024);
            assert!(bytes <= 228 * 1_024, "width {width}: {bytes} bytes");
            assert!(decode_shared_bytes(width) <= 99 * 1_024, "width {width} on compute capability 8.9");
        }
    }

    /// On 132 multiprocessors.
    #[test]
    fn parts_of_a_context_fill_the_device_once() {
        let llama = (32, 8, 128);
        let gemma = (4, 1, 256);
        for ((heads, kv_heads, head_dim), items, longest, parts) in [
            (llama, 1, 16_384, 49),
            (llama, 1, 1_000, 16),
            (llama, 8, 16_384, 6),
            (llama, 25, 16_384, 1),
            (llama, 500, 16_384, 1),
            (gemma, 1, 65_536, 256),
            (gemma, 2, 65_536, 198),
            ((32, 8, 64), 1, 16_384, 66),
        ] {
            let shape = AttentionShape { ty: Type::Bf16, heads, kv_heads, head_dim };
            assert_eq!(decode_parts(&shape, 132, items, longest), parts, "{shape:?}, {items} items");
        }
    }
}
