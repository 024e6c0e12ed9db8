//! Sums of products in tile registers (Intel AMX): one instruction multiplies up to sixteen rows by sixteen columns by 64 bytes
//! of inputs, at many times the rate of vectors. Panels of bf16 already have the layout these registers need. Loops are
//! written in assembly where they hold tiles, because Rust has no type for them.

mod bf16;
mod int8;

use std::arch::asm;
use std::ops::Range;

use super::matmul::{Block, ROW_BLOCK};
use crate::inputs::TILE_ROWS;
use crate::matrix::Format;
use crate::simd::LANES;

/// Maximum rows for which weights are read once, front to back.
pub(super) const FEW: usize = TILE_ROWS;
/// Rows of an item of work with more rows than [`FEW`].
pub(super) const ROWS: usize = 128;
/// Maximum panels of an item: inputs are read once for all of them.
pub(super) const PANELS: usize = 4;
// Items of work begin with a tile of inputs.
const _: () = assert!(ROWS.is_multiple_of(TILE_ROWS) && ROW_BLOCK.is_multiple_of(TILE_ROWS));
/// Bytes of a row of a tile.
const ROW_BYTES: usize = 64;

/// Whether tiles are the faster choice for this many rows.
pub(super) fn multiplies(format: Format, rows: usize) -> bool {
    match format {
        Format::F32 => false,
        Format::Bf16 => true,
        Format::Int8 | Format::Int4 | Format::Mxfp4 => rows >= int8::LEAST,
    }
}

/// Computes all sums of blocks that differ only in their panel.
///
/// # Safety
/// The process may use AMX; the blocks' weights, inputs and sums are valid; a block's first row begins a tile of inputs, and
/// it has room for sums of whole tiles.
pub(super) unsafe fn product<'a>(panels: Range<usize>, block: impl Fn(usize) -> Block<'a>) {
    let format = block(panels.start).format;
    let blocks = || panels.clone().map(&block).filter(|block| !block.columns.is_empty());
    // SAFETY: the caller's promise.
    unsafe {
        match format {
            Format::Int8 | Format::Int4 | Format::Mxfp4 => int8::product(blocks),
            Format::Bf16 => bf16::product(blocks),
            Format::F32 => unreachable!("tiles don't multiply f32"),
        }
    }
}

/// Shape of the tiles of a product.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    /// Rows of inputs and of sums.
    rows: usize,
    /// Words of a row of inputs: the rows of weights.
    words: usize,
}

/// This thread's tile registers: 0 to 3 are sums, 4 and 5 inputs, 6 and 7 weights.
struct Tiles {
    /// What they are configured for.
    shape: Option<Shape>,
}

impl Drop for Tiles {
    fn drop(&mut self) {
        if self.shape.is_some() {
            // SAFETY: tiles are configured and their content is no longer needed. Releasing them makes context switches
            // faster.
            unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
        }
    }
}

impl Tiles {
    fn new() -> Self {
        Self { shape: None }
    }

    /// Configures the tiles.
    ///
    /// # Safety
    /// The process may use AMX.
    unsafe fn configure(&mut self, shape: Shape) {
        if self.shape == Some(shape) {
            return;
        }
        let Shape { rows, words } = shape;
        assert!((1..=TILE_ROWS).contains(&rows) && (1..=ROW_BYTES / 4).contains(&words), "{rows} x {words}");
        self.shape = Some(shape);
        let (sums, inputs, weights) = ((rows, ROW_BYTES), (rows, 4 * words), (words, ROW_BYTES));
        let mut config =
            Config { palette: 1, start: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let all = [sums, sums, sums, sums, inputs, inputs, weights, weights];
        for (at, (rows, row_bytes)) in all.into_iter().enumerate() {
            (config.rows[at], config.row_bytes[at]) = (rows as u8, row_bytes as u16);
        }
        // SAFETY: the caller's promise; the layout is that of the instruction's operand.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const config, options(readonly, nostack, preserves_flags));
        }
    }
}

/// The operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Words of a whole tile of a product.
fn words(format: Format) -> usize {
    if format.inputs() == Format::Int8 { int8::WORDS } else { bf16::CHUNK }
}

/// Operations (two per multiply-add) of `steps` steps of [`multiply`].
pub(super) fn operations(format: Format, steps: usize) -> usize {
    let per_word = if format == Format::Int8 { 4 } else { 2 };
    2 * steps * 4 * TILE_ROWS * LANES * words(format) * per_word
}

/// Multiplies the tiles' content to measure the rate: four independent sums.
///
/// # Safety
/// The process may use AMX.
pub(super) unsafe fn multiply(format: Format, steps: usize) {
    macro_rules! repeat {
        ($instruction:literal) => {
            asm!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", "tilezero tmm4", "tilezero tmm6",
                "2:",
                concat!($instruction, " tmm0, tmm4, tmm6"),
                concat!($instruction, " tmm1, tmm4, tmm6"),
                concat!($instruction, " tmm2, tmm4, tmm6"),
                concat!($instruction, " tmm3, tmm4, tmm6"),
                "dec {steps}",
                "jnz 2b",
                steps = inout(reg) steps => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm6") _,
                options(nomem, nostack),
            )
        };
    }
    let mut tiles = Tiles::new();
    // SAFETY: the caller's promise; zeros are multiplied.
    unsafe {
        tiles.configure(Shape { rows: TILE_ROWS, words: words(format) });
        if format == Format::Int8 { repeat!("tdpbssd") } else { repeat!("tdpbf16ps") }
    }
}
