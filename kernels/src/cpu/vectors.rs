//! Sums of products in vector registers: how a block of rows is tiled, and in which order tiles read a panel.

use super::matmul::{ACROSS, Block};
use super::product::{INT4, INT8, MXFP4, Tile};
use crate::matrix::Format;
use crate::simd::{Isa, LANES, Simd, on_dot_isa, on_isa, on_pair_isa};

/// Bytes of a panel's piece: two thirds of the L1 cache.
const PIECE: usize = 32 << 10;
/// Bytes that few rows prefetch ahead: the hardware's own prefetching stops at each 4 KiB boundary.
const AHEAD: usize = 3 << 10;

/// All sums of a block.
pub(super) fn sums(isa: Isa, block: Block<'_>) {
    // Each format is compiled for the instruction sets that differ in it.
    match block.format {
        Format::F32 => on_isa!(isa, f32_pieces(block: Block<'_>)),
        Format::Bf16 => on_pair_isa!(isa, bf16_pieces(block: Block<'_>)),
        Format::Int8 => on_dot_isa!(isa, int8_pieces(block: Block<'_>)),
        Format::Int4 => on_dot_isa!(isa, int4_pieces(block: Block<'_>)),
        Format::Mxfp4 => on_dot_isa!(isa, mxfp4_pieces(block: Block<'_>)),
    }
}

#[inline(always)]
fn f32_pieces<S: Simd>(simd: S, block: Block<'_>) {
    pieces::<S, F32>(simd, block);
}

#[inline(always)]
fn bf16_pieces<S: Simd>(simd: S, block: Block<'_>) {
    pieces::<S, Bf16>(simd, block);
}

#[inline(always)]
fn int8_pieces<S: Simd>(simd: S, block: Block<'_>) {
    pieces::<S, Integers<INT8>>(simd, block);
}

#[inline(always)]
fn int4_pieces<S: Simd>(simd: S, block: Block<'_>) {
    pieces::<S, Integers<INT4>>(simd, block);
}

#[inline(always)]
fn mxfp4_pieces<S: Simd>(simd: S, block: Block<'_>) {
    pieces::<S, Integers<MXFP4>>(simd, block);
}

#[inline(always)]
fn pieces<S: Simd, F: Tiled>(simd: S, block: Block<'_>) {
    let step_bytes = block.width * block.format.step_bytes();
    let steps = block.weights.len() / step_bytes;
    let most = F::most_rows::<S>();
    let tiles = Tiles { left: block.rows, most };
    let count = tiles.clone().count();
    let few = count == 1;
    let piece = if few { steps } else { (PIECE / step_bytes).max(1) };
    let mut first = 0;
    while first < steps {
        let some = (steps - first).min(piece);
        let mut row = 0;
        for (turn, rows) in tiles.clone().enumerate() {
            let tile = Tile {
                weights: block.weights[first * step_bytes..].as_ptr(),
                width: block.width,
                column: block.columns.start,
                x: block.x.row(block.row + row),
                first,
                steps: some,
                sums: block.sums.wrapping_add(row * ACROSS),
                ahead: if few { AHEAD } else { piece * step_bytes },
                every: count,
                turn,
            };
            if few {
                F::columns::<S, true>(simd, tile, rows, block.columns.end);
            } else {
                F::columns::<S, false>(simd, tile, rows, block.columns.end);
            }
            row += rows;
        }
        first += some;
    }
}

/// Iterator over tiles: each item is a tile's number of rows.
#[derive(Clone)]
struct Tiles {
    left: usize,
    /// Maximum rows of a tile.
    most: usize,
}

impl Iterator for Tiles {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let rows = [12, 8, 6, 4, 3, 2, 1].into_iter().find(|rows| *rows <= self.left.min(self.most))?;
        self.left -= rows;
        Some(rows)
    }
}

/// A format's tiles. What an instruction set doesn't use is not compiled for it: conditions are constants.
trait Tiled {
    /// Maximum rows of a tile.
    fn most_rows<S: Simd>() -> usize;

    /// Multiplies `rows` rows with the columns up to `end`.
    fn columns<S: Simd, const FEW: bool>(simd: S, tile: Tile, rows: usize, end: usize);
}

struct F32;
struct Bf16;
/// Of 8 bits, or of 4, or 4-bit floats, which are multiplied as integers.
struct Integers<const FORMAT: usize>;

impl Tiled for F32 {
    #[inline(always)]
    fn most_rows<S: Simd>() -> usize {
        6
    }

    #[inline(always)]
    fn columns<S: Simd, const FEW: bool>(simd: S, tile: Tile, rows: usize, end: usize) {
        match rows {
            1 => all::<S, FEW, 0, 1>(simd, tile, end),
            2 => all::<S, FEW, 0, 2>(simd, tile, end),
            3 => all::<S, FEW, 0, 3>(simd, tile, end),
            4 => all::<S, FEW, 0, 4>(simd, tile, end),
            6 => all::<S, FEW, 0, 6>(simd, tile, end),
            _ => unreachable!("no tile has {rows} rows of f32"),
        }
    }
}

impl Tiled for Bf16 {
    #[inline(always)]
    fn most_rows<S: Simd>() -> usize {
        S::BF16_ROWS
    }

    #[inline(always)]
    fn columns<S: Simd, const FEW: bool>(simd: S, tile: Tile, rows: usize, end: usize) {
        match rows {
            1 => all::<S, FEW, 1, 1>(simd, tile, end),
            2 => all::<S, FEW, 1, 2>(simd, tile, end),
            3 => all::<S, FEW, 1, 3>(simd, tile, end),
            4 => all::<S, FEW, 1, 4>(simd, tile, end),
            6 if const { S::PAIRS } => all::<S, FEW, 1, 6>(simd, tile, end),
            6 if const { S::BF16_ROWS > 4 } => all::<S, FEW, 3, 6>(simd, tile, end),
            8 if const { S::BF16_ROWS > 6 } => all::<S, FEW, 3, 8>(simd, tile, end),
            12 if const { S::BF16_ROWS > 8 } => all::<S, FEW, 3, 12>(simd, tile, end),
            _ => unreachable!("no tile has {rows} rows of bf16"),
        }
    }
}

impl<const FORMAT: usize> Tiled for Integers<FORMAT> {
    #[inline(always)]
    fn most_rows<S: Simd>() -> usize {
        S::INT8_ROWS
    }

    #[inline(always)]
    fn columns<S: Simd, const FEW: bool>(simd: S, tile: Tile, rows: usize, end: usize) {
        match rows {
            1 => all::<S, FEW, FORMAT, 1>(simd, tile, end),
            2 => all::<S, FEW, FORMAT, 2>(simd, tile, end),
            3 if const { S::INT8_ROWS > 2 } => all::<S, FEW, FORMAT, 3>(simd, tile, end),
            _ => unreachable!("no tile has {rows} rows of integers"),
        }
    }
}

/// Multiplies `R` rows with the columns up to `end`, as many vectors at a time as fit the registers. `FORMAT` is 0 for
/// f32, 1 for bf16, 3 for bf16 with more rows and half the vectors, so that a widened weight is used for more rows, else one of
/// groups.
#[inline(always)]
fn all<S: Simd, const FEW: bool, const FORMAT: usize, const R: usize>(simd: S, mut tile: Tile, end: usize) {
    while tile.column < end {
        let left = (end - tile.column) / LANES;
        // SAFETY: `Cpu::product` checked shapes; the columns up to `end` are the panel's, and `pieces` keeps steps
        // and rows inside panel and inputs.
        unsafe {
            tile.column += LANES
                * match left {
                    4.. if const { S::TILE_VECTORS == 4 && FORMAT != 3 } => {
                        one::<S, FEW, FORMAT, R, 4>(simd, tile)
                    }
                    2.. if const { S::TILE_VECTORS == 4 } => one::<S, FEW, FORMAT, R, 2>(simd, tile),
                    _ => one::<S, FEW, FORMAT, R, 1>(simd, tile),
                };
        }
    }
}

/// # Safety
/// As [`Tile::floats`].
#[inline(always)]
unsafe fn one<S: Simd, const FEW: bool, const FORMAT: usize, const R: usize, const C: usize>(
    simd: S,
    tile: Tile,
) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        match FORMAT {
            0 => tile.floats::<S, FEW, false, R, C>(simd),
            1 | 3 => tile.floats::<S, FEW, true, R, C>(simd),
            _ => tile.groups::<S, FEW, FORMAT, R, C>(simd),
        }
    }
    C
}
