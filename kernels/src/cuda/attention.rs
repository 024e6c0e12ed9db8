//! Launches of attention: which kernel computes which shape, and how a context is cut into parts.

use super::device::{Device, Launch, Properties, Type};
use super::error::CudaError;
use super::params::{AttentionParams, Params};

/// Head widths that have tensor core kernels.
const WIDTHS: [u32; 6] = [32, 64, 80, 96, 128, 256];
/// The widest heads of [`PrefillForm::Rows128`].
const MOST_WIDTH_128: u32 = 128;
/// Head widths that have prefill kernels by products of warpgroups.
const WGMMA_WIDTHS: [u32; 3] = [64, 128, 256];
/// Query heads of a decode block.
const DECODE_ROWS: u32 = 16;
/// Positions that a decode block processes at a time.
const DECODE_UNIT: u32 = 64;

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

/// How the contexts of a decode are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partition {
    /// This many blocks get equal shares of all contexts together, whatever their lengths: fills the device, but a row's
    /// bits depend on the other rows.
    Balanced {
        /// Blocks.
        blocks: u32,
    },
    /// Into parts of a fixed number of tokens from position 0 on: a row's bits depend on nothing else.
    Fixed {
        /// Tokens of a part; a multiple of 16.
        tokens: u32,
        /// Longest context.
        longest: u32,
    },
}

/// How much a block of prefill computes, and by which products. A row's bits depend on the form, but within one on neither
/// batch nor chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PrefillForm {
    /// 64 rows: less is wasted on single tokens.
    Rows64,
    /// 128 rows: keys and values are read from shared memory half as often, by half as many blocks.
    Rows128,
    /// 64 rows of one warpgroup.
    Wgmma64,
    /// 128 rows of two warpgroups: keys and values are copied half as often.
    Wgmma128,
    /// 192 rows of three, for narrow heads, whose softmax takes as long as their products.
    Wgmma192,
}

impl PrefillForm {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Rows64, Self::Rows128, Self::Wgmma64, Self::Wgmma128, Self::Wgmma192];

    /// The form of most rows, but no more than `most_rows`, that computes a shape: by products of warpgroups if the device
    /// has them and a form for the shape. `None` if none does: then all tokens go through [`decode`].
    pub fn of(shape: &AttentionShape, most_rows: u32, warpgroups: bool) -> Option<Self> {
        let most = |of_warpgroups| {
            let mut forms = Self::ALL.into_iter().rev().filter(|form| form.of_warpgroups() == of_warpgroups);
            forms.find(|form| form.rows() <= most_rows && form.computes(shape))
        };
        warpgroups.then(|| most(true)).flatten().or_else(|| most(false))
    }

    /// This form and those of fewer rows and the same products that compute a shape, most rows first.
    pub fn and_smaller(self, shape: &AttentionShape) -> impl Iterator<Item = Self> {
        let smaller = Self::ALL.into_iter().rev().filter(move |form| *form <= self);
        smaller.filter(move |form| form.of_warpgroups() == self.of_warpgroups() && form.computes(shape))
    }

    /// The form of fewest rows that has the same products and computes a shape, which this one does.
    pub fn least(self, shape: &AttentionShape) -> Self {
        self.and_smaller(shape).last().unwrap_or(self)
    }

    /// All that compute a shape on a device.
    pub fn all_on(shape: AttentionShape, properties: &Properties) -> impl Iterator<Item = Self> + use<> {
        let warpgroups = properties.warpgroups;
        let can = move |form: &Self| form.computes(&shape) && (warpgroups || !form.of_warpgroups());
        Self::ALL.into_iter().filter(can)
    }

    /// Whether it has a kernel for a shape.
    pub fn computes(self, shape: &AttentionShape) -> bool {
        let width = match self {
            Self::Rows64 => true,
            Self::Rows128 => shape.head_dim <= MOST_WIDTH_128,
            Self::Wgmma64 | Self::Wgmma128 => WGMMA_WIDTHS.contains(&shape.head_dim),
            Self::Wgmma192 => shape.head_dim == 64,
        };
        shape.on_tensor_cores() && shape.group() <= self.rows() && width
    }

    /// Whether its products are those of warpgroups ([`Properties::warpgroups`]).
    pub fn of_warpgroups(self) -> bool {
        self >= Self::Wgmma64
    }

    /// Rows of a block: tokens times query heads of a key head.
    pub fn rows(self) -> u32 {
        match self {
            Self::Rows64 | Self::Wgmma64 => 64,
            Self::Rows128 | Self::Wgmma128 => 128,
            Self::Wgmma192 => 192,
        }
    }

    /// Blocks for each multiprocessor without which a form of fewer rows is better: so many that each warp has others
    /// beside it while it waits for memory.
    pub fn least_blocks(self) -> u32 {
        if self.of_warpgroups() { 1 } else { 2 }
    }

    /// Maximum tokens of a block.
    pub fn tokens(self, shape: &AttentionShape) -> u32 {
        self.rows() / shape.group()
    }

    fn threads(self) -> u32 {
        if self.of_warpgroups() { 2 * self.rows() } else { 128 }
    }

    /// Positions of a stage, as in `attention_prefill.cu` and `attention_prefill_wgmma.cu`.
    fn tile(self, head_dim: u32) -> u32 {
        match self {
            Self::Rows64 | Self::Rows128 if head_dim > 128 => 16,
            Self::Rows128 if head_dim > 80 => 32,
            Self::Rows64 | Self::Rows128 => 64,
            _ if head_dim > 128 || (head_dim > 64 && self == Self::Wgmma64) => 64,
            _ => 128,
        }
    }

    /// Shared memory of a block: its queries, and two stages of keys and values.
    fn shared_bytes(self, head_dim: u32) -> u32 {
        if self.of_warpgroups() {
            return 2 * (self.rows() + 4 * self.tile(head_dim)) * head_dim;
        }
        let stage = self.tile(head_dim) * (key_stride(head_dim) + value_stride(head_dim));
        2 * (self.rows() / 2 * pair_stride(head_dim) + 2 * stage)
    }

    fn kernel(self, ty: Type, head_dim: u32) -> &'static str {
        let (widths, bf16, f16): (&[u32], &[&'static str], &[&'static str]) = match self {
            Self::Rows64 => (&WIDTHS, PREFILL_64_BF16, PREFILL_64_F16),
            Self::Rows128 => (&WIDTHS, PREFILL_128_BF16, PREFILL_128_F16),
            Self::Wgmma64 => (&WGMMA_WIDTHS, WGMMA_64_BF16, WGMMA_64_F16),
            Self::Wgmma128 => (&WGMMA_WIDTHS, WGMMA_128_BF16, WGMMA_128_F16),
            Self::Wgmma192 => (&WGMMA_WIDTHS, WGMMA_192_BF16, WGMMA_192_F16),
        };
        name(ty, head_dim, widths, bf16, f16)
    }
}

impl AttentionShape {
    fn group(&self) -> u32 {
        self.heads / self.kv_heads
    }

    fn on_tensor_cores(&self) -> bool {
        self.ty != Type::F32 && WIDTHS.contains(&self.head_dim)
    }

    /// Tiles of query heads in decode, each of one key head.
    fn tiles(&self) -> u32 {
        self.kv_heads * self.group().div_ceil(DECODE_ROWS)
    }
}

/// The blocks that a decode of `items` tokens is balanced over: as many as run at once, but no more than contexts of `longest`
/// tokens have work for.
pub fn decode_blocks(shape: &AttentionShape, properties: &Properties, items: u32, longest: u32) -> u32 {
    let wanted = properties.switches.decode_blocks.unwrap_or_else(|| blocks_at_once(shape.head_dim));
    let places = properties.blocks_at_once(wanted, decode_shared_bytes(shape.head_dim));
    let units = u64::from(items * shape.tiles()) * u64::from(longest.div_ceil(DECODE_UNIT));
    // The kernel counts them in 32 bits.
    assert!(units <= u64::from(u32::MAX), "{items} contexts of {longest} tokens, {shape:?}");
    units.clamp(1, u64::from(places)) as u32
}

/// Decode blocks per multiprocessor of an H100: enough for about 100 KB of keys and values in flight (80 at 32 dimensions), within what
/// registers and 227 KB of shared memory allow.
fn blocks_at_once(head_dim: u32) -> u32 {
    match head_dim {
        ..=32 => 5,
        33..=96 => 4,
        97..=128 => 3,
        _ => 2,
    }
}

/// Shared memory of a decode block: its queries, its warps' softmax state, and their tiles, which the sums later replace.
fn decode_shared_bytes(head_dim: u32) -> u32 {
    let stages = if head_dim > 128 { 1 } else { 2 };
    let tile = 2 * 16 * head_dim * 2;
    8 * pair_stride(head_dim) * 2 + 2 * 4 * 16 * 4 + 4 * stages * tile
}

/// Number of partial sums (f32) that a decode of `items` tokens keeps for contexts that several blocks share.
pub fn partial_numbers(shape: &AttentionShape, items: u32, partition: Partition) -> usize {
    if !shape.on_tensor_cores() {
        return 0;
    }
    let rows = shape.group().min(DECODE_ROWS) as usize * (shape.head_dim + 4) as usize;
    let places = match partition {
        // A block's share may end in one context and begin in another.
        Partition::Balanced { blocks } => 2 * blocks as usize,
        Partition::Fixed { tokens, longest } => {
            [items, shape.tiles(), longest.div_ceil(tokens)].map(|size| size as usize).iter().product()
        }
    };
    places * rows
}

/// Number of counters (u32) that a decode of `items` tokens needs.
pub fn tickets(shape: &AttentionShape, items: u32) -> usize {
    if shape.on_tensor_cores() { items as usize * shape.tiles() as usize } else { 0 }
}

/// Computes attention of `items` single tokens. `params.items` lists the tokens.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// The parameters describe memory on the device, block tables are long enough for their tokens and name blocks of the
/// pool, `partial` has room for [`partial_numbers`], and the [`tickets`] are zero, as decodes leave them. No kernel in flight
/// writes items, positions, tables or blocks, which may be read before it ends.
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
    let (grid, part_tokens) = match partition {
        Partition::Balanced { blocks } => ([blocks, 1, 1], 0),
        Partition::Fixed { tokens, longest } => ([longest.div_ceil(tokens), shape.tiles(), items], tokens),
    };
    let params = AttentionParams { heads, kv_heads, head_dim, count: items, part_tokens, ..params };
    if !shape.on_tensor_cores() {
        let kernel = ty.pick("attention_plain_float", "attention_plain_bf16", "attention_plain_f16");
        let shared_bytes = 4 * (head_dim + 2) * 4;
        let launch =
            Launch { kernel, grid: [heads, items, 1], threads: 128, shared_bytes, params: params.bytes() };
        // SAFETY: the caller's promise.
        return unsafe { device.launch(launch) };
    }
    let launch = Launch {
        kernel: name(ty, head_dim, &WIDTHS, DECODE_BF16, DECODE_F16),
        grid,
        threads: 128,
        shared_bytes: decode_shared_bytes(head_dim),
        params: params.bytes(),
    };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

/// Computes attention of tiles of consecutive tokens of a sequence: pairs of first token and count, the latter at most
/// [`PrefillForm::tokens`].
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// As for [`decode`].
pub unsafe fn prefill(
    device: &dyn Device,
    shape: &AttentionShape,
    form: PrefillForm,
    params: AttentionParams,
    tiles: u32,
) -> Result<(), CudaError> {
    let AttentionShape { ty, heads, kv_heads, head_dim } = *shape;
    assert!(form.computes(shape), "{shape:?} has no prefill kernel of this form: {form:?}");
    let params = AttentionParams { heads, kv_heads, head_dim, ..params };
    let launch = Launch {
        kernel: form.kernel(ty, head_dim),
        grid: [kv_heads, tiles, 1],
        threads: form.threads(),
        shared_bytes: form.shared_bytes(head_dim),
        params: params.bytes(),
    };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

/// As in `attention.cuh`.
fn pair_stride(head_dim: u32) -> u32 {
    2 * head_dim + 8
}

/// As in `attention.cuh`.
fn key_stride(head_dim: u32) -> u32 {
    head_dim + ((192 - 2 * head_dim % 128) % 128) / 2
}

/// As in `attention.cuh`.
fn value_stride(head_dim: u32) -> u32 {
    head_dim + ((80 - 2 * head_dim % 64) % 64) / 2
}

fn name(
    ty: Type,
    head_dim: u32,
    widths: &[u32],
    bf16: &[&'static str],
    f16: &[&'static str],
) -> &'static str {
    let index = widths.iter().position(|width| *width == head_dim).expect("a width with a kernel");
    ty.pick("", bf16[index], f16[index])
}

macro_rules! names {
    ($($name:ident: $start:literal [$($width:literal)*];)*) => {
        $(const $name: &[&str] = &[$(concat!($start, "_", $width)),*];)*
    };
}
names! {
    DECODE_BF16: "attention_decode_bf16" [32 64 80 96 128 256];
    DECODE_F16: "attention_decode_f16" [32 64 80 96 128 256];
    PREFILL_64_BF16: "attention_prefill_rows64_bf16" [32 64 80 96 128 256];
    PREFILL_64_F16: "attention_prefill_rows64_f16" [32 64 80 96 128 256];
    PREFILL_128_BF16: "attention_prefill_rows128_bf16" [32 64 80 96 128];
    PREFILL_128_F16: "attention_prefill_rows128_f16" [32 64 80 96 128];
    WGMMA_64_BF16: "attention_prefill_wgmma64_bf16" [64 128 256];
    WGMMA_64_F16: "attention_prefill_wgmma64_f16" [64 128 256];
    WGMMA_128_BF16: "attention_prefill_wgmma128_bf16" [64 128 256];
    WGMMA_128_F16: "attention_prefill_wgmma128_f16" [64 128 256];
    WGMMA_192_BF16: "attention_prefill_wgmma192_bf16" [64];
    WGMMA_192_F16: "attention_prefill_wgmma192_f16" [64];
}

/// The kernel that an image has if it has those of products of warpgroups.
pub(super) const WARPGROUP_KERNEL: &str = "attention_prefill_wgmma64_bf16_64";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Switches;
    use crate::cuda::device::RESERVED_BYTES;

    #[test]
    fn concurrent_decode_blocks_fit_shared_memory() {
        for width in WIDTHS {
            // An H100 has 228 KB.
            let bytes = blocks_at_once(width) * (decode_shared_bytes(width) + RESERVED_BYTES);
            assert!(bytes <= 228 * 1_024, "width {width}: {bytes} bytes");
            assert!(decode_shared_bytes(width) <= 99 * 1_024, "width {width} on compute capability 8.9");
        }
    }

    #[test]
    fn concurrent_prefill_blocks_fit_shared_memory() {
        const A100_BYTES: u32 = 164 * 1_024;
        const H100_BYTES: u32 = 228 * 1_024;
        // Blocks that the compiler leaves registers for on an H100, as in the kernels' files, by head width.
        for (form, blocks) in [
            (PrefillForm::Rows64, [5, 4, 3, 3, 2, 3]),
            (PrefillForm::Rows128, [3, 2, 2, 2, 2, 0]),
            (PrefillForm::Wgmma64, [0, 3, 0, 0, 2, 1]),
            (PrefillForm::Wgmma128, [0, 1, 0, 0, 1, 1]),
            (PrefillForm::Wgmma192, [0, 1, 0, 0, 0, 0]),
        ] {
            for (width, blocks) in WIDTHS.into_iter().zip(blocks) {
                let shape = AttentionShape { ty: Type::Bf16, heads: 1, kv_heads: 1, head_dim: width };
                assert_eq!(form.computes(&shape), blocks > 0, "{form:?}, width {width}");
                let bytes = form.shared_bytes(width);
                assert!(
                    blocks * (bytes + RESERVED_BYTES) <= H100_BYTES,
                    "{form:?}, width {width}: {bytes} bytes"
                );
                if blocks > 0 && !form.of_warpgroups() {
                    assert!(bytes <= 99 * 1_024, "{form:?}, width {width} on compute capability 8.9");
                }
                if blocks > 0 && form == PrefillForm::Rows128 {
                    assert!(2 * (bytes + RESERVED_BYTES) <= A100_BYTES, "width {width}: {bytes} bytes");
                }
            }
        }
    }

    #[test]
    fn prefill_takes_the_form_of_most_rows_that_has_a_kernel() {
        use PrefillForm::{Rows64, Rows128, Wgmma64, Wgmma128, Wgmma192};
        let shape =
            |group: u32, head_dim| AttentionShape { ty: Type::Bf16, heads: 2 * group, kv_heads: 2, head_dim };
        for (group, width, forms) in [
            // Within 64 and 128 rows, by products of warps; within 64, 128 and 192, by those of warpgroups.
            (4, 128, [Some(Rows64), Some(Rows128), Some(Wgmma64), Some(Wgmma128), Some(Wgmma128)]),
            (7, 64, [Some(Rows64), Some(Rows128), Some(Wgmma64), Some(Wgmma128), Some(Wgmma192)]),
            (4, 256, [Some(Rows64), Some(Rows64), Some(Wgmma64), Some(Wgmma128), Some(Wgmma128)]),
            (4, 96, [Some(Rows64), Some(Rows128), Some(Rows64), Some(Rows128), Some(Rows128)]),
            (65, 128, [None, Some(Rows128), None, Some(Wgmma128), Some(Wgmma128)]),
            (65, 256, [None, None, None, Some(Wgmma128), Some(Wgmma128)]),
            (129, 32, [None; 5]),
            (129, 64, [None, None, None, None, Some(Wgmma192)]),
            (1, 192, [None; 5]),
        ] {
            let shape = shape(group, width);
            let within = [(64, false), (128, false), (64, true), (128, true), (192, true)]
                .map(|(rows, warpgroups)| PrefillForm::of(&shape, rows, warpgroups));
            assert_eq!(within, forms, "{shape:?}");
        }
        assert_eq!(Rows128.tokens(&shape(7, 64)), 18);
        assert_eq!(Wgmma192.and_smaller(&shape(4, 64)).collect::<Vec<_>>(), [Wgmma192, Wgmma128, Wgmma64]);
        assert_eq!((Wgmma128.least(&shape(65, 256)), Rows128.least(&shape(4, 64))), (Wgmma128, Rows64));
        assert_eq!(PrefillForm::of(&AttentionShape { ty: Type::F32, ..shape(4, 128) }, 192, true), None);
    }

    fn properties(multiprocessors: u32, shared_kib: u32, decode_blocks: Option<u32>) -> Properties {
        let switches = Switches { decode_blocks, ..Switches::default() };
        Properties::hopper(multiprocessors, shared_kib, switches)
    }

    #[test]
    fn decodes_fill_the_device_once() {
        let h100 = properties(132, 228, None);
        let llama = (32, 8, 128);
        let gemma = (4, 1, 256);
        for ((heads, kv_heads, head_dim), items, longest, blocks) in [
            (llama, 1, 16_384, 396),
            (llama, 1, 1_000, 128),
            (llama, 500, 16_384, 396),
            (gemma, 1, 65_536, 264),
            (gemma, 1, 100, 2),
            ((32, 8, 64), 1, 16_384, 528),
            ((40, 2, 128), 1, 64, 4),
            (llama, 4_096, 1 << 20, 396),
        ] {
            let shape = AttentionShape { ty: Type::Bf16, heads, kv_heads, head_dim };
            assert_eq!(decode_blocks(&shape, &h100, items, longest), blocks, "{shape:?}, {items} items");
        }
    }

    #[test]
    fn decodes_have_no_more_blocks_than_fit_at_once() {
        let of = |properties: &Properties, head_dim| {
            let shape = AttentionShape { ty: Type::Bf16, heads: 32, kv_heads: 8, head_dim };
            decode_blocks(&shape, properties, 64, 16_384)
        };
        let (a100, ada) = (properties(108, 164, None), properties(128, 100, None));
        for (properties, head_dim, blocks) in [
            (&a100, 64, 4 * 108),
            (&a100, 128, 2 * 108),
            (&a100, 256, 2 * 108),
            (&ada, 64, 2 * 128),
            (&ada, 128, 128),
            (&ada, 256, 128),
            (&properties(132, 228, Some(2)), 128, 2 * 132),
            (&properties(132, 228, Some(8)), 128, 3 * 132),
        ] {
            assert_eq!(of(properties, head_dim), blocks, "{head_dim}, {properties:?}");
        }
    }
}
