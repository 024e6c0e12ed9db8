//! Sums of products in vector registers: how a block of rows is tiled, and in which order tiles read a panel.

use super::matmul::{ACROSS, Block};
use super::product::Tile;
use crate::matrix::Format;
use crate::simd::{Isa, LANES, Simd, on_dot_isa};

/// Bytes of a panel's piece: two thirds of the L1 cache.
const PIECE: usize = 32 << 10;
/// Bytes that few rows prefetch ahead: the hardware's own prefetching stops at each 4 KiB boundary.
const AHEAD: usize = 3 << 10;

/// All sums of a block.
pub(super) fn sums(isa: Isa, block: Block<'_>) {
    on_dot_isa!(isa, pieces(block: Block<'_>));
}

#[inline(always)]
fn pieces<S: Simd>(simd: S, block: Block<'_>) {
    let step_bytes = block.width * block.format.step_bytes();
    let steps = block.weights.len() / step_bytes;
    let most = match block.format {
        Format::F32 => 6,
        Format::Bf16 => S::BF16_ROWS,
        Format::Int8 | Format::Int4 => S::INT8_ROWS,
    };
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
                columns::<S, true>(simd, tile, block.format, rows, block.columns.end);
            } else {
                columns::<S, false>(simd, tile, block.format, rows, block.columns.end);
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

/// Multiplies `rows` rows with the block's columns.
#[inline(always)]
fn columns<S: Simd, const FEW: bool>(simd: S, tile: Tile, format: Format, rows: usize, end: usize) {
    match (format, rows) {
        (Format::F32, 1) => all::<S, FEW, 0, 1>(simd, tile, end),
        (Format::F32, 2) => all::<S, FEW, 0, 2>(simd, tile, end),
        (Format::F32, 3) => all::<S, FEW, 0, 3>(simd, tile, end),
        (Format::F32, 4) => all::<S, FEW, 0, 4>(simd, tile, end),
        (Format::F32, 6) => all::<S, FEW, 0, 6>(simd, tile, end),
        (Format::Bf16, 1) => all::<S, FEW, 1, 1>(simd, tile, end),
        (Format::Bf16, 2) => all::<S, FEW, 1, 2>(simd, tile, end),
        (Format::Bf16, 3) => all::<S, FEW, 1, 3>(simd, tile, end),
        (Format::Bf16, 4) => all::<S, FEW, 1, 4>(simd, tile, end),
        (Format::Bf16, 6) if S::PAIRS => all::<S, FEW, 1, 6>(simd, tile, end),
        (Format::Bf16, 6) => all::<S, FEW, 3, 6>(simd, tile, end),
        (Format::Bf16, 8) if !S::PAIRS => all::<S, FEW, 3, 8>(simd, tile, end),
        (Format::Bf16, 12) if !S::PAIRS => all::<S, FEW, 3, 12>(simd, tile, end),
        (Format::Int8, 1) => all::<S, FEW, 2, 1>(simd, tile, end),
        (Format::Int8, 2) => all::<S, FEW, 2, 2>(simd, tile, end),
        (Format::Int8, 3) => all::<S, FEW, 2, 3>(simd, tile, end),
        (Format::Int4, 1) => all::<S, FEW, 4, 1>(simd, tile, end),
        (Format::Int4, 2) => all::<S, FEW, 4, 2>(simd, tile, end),
        (Format::Int4, 3) => all::<S, FEW, 4, 3>(simd, tile, end),
        _ => unreachable!("no tile has {rows} rows of {format:?}"),
    }
}

/// Multiplies `R` rows with the columns up to `end`, as many vectors at a time as fit the registers. `FORMAT` is 0 for
/// f32, 1 for bf16, 2 for int8, 3 for bf16 with more rows and half the vectors, so that a widened weight is used for more
/// rows, 4 for int4.
#[inline(always)]
fn all<S: Simd, const FEW: bool, const FORMAT: usize, const R: usize>(simd: S, mut tile: Tile, end: usize) {
    while tile.column < end {
        let left = (end - tile.column) / LANES;
        // SAFETY: `Cpu::product` checked shapes; the columns up to `end` are the panel's, and `pieces` keeps steps
        // and rows inside panel and inputs.
        unsafe {
            tile.column += LANES
                * match left {
                    4.. if S::TILE_VECTORS == 4 && FORMAT != 3 => one::<S, FEW, FORMAT, R, 4>(simd, tile),
                    2.. if S::TILE_VECTORS == 4 => one::<S, FEW, FORMAT, R, 2>(simd, tile),
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
            2 => tile.groups::<S, FEW, false, R, C>(simd),
            _ => tile.groups::<S, FEW, true, R, C>(simd),
        }
    }
    C
}
