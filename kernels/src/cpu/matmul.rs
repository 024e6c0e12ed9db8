//! Matrix product `x[m, k] * w[n, k]^T` over packed weights, and what follows it in registers: biases, the sum
//! with the residual stream, the gated activation.
//!
//! Version 2. Work is panels of 64 columns by up to 48 rows. Few rows read a panel front to back once. More
//! take it in pieces that stay in the first cache level, sums put down between pieces, while the next piece
//! is asked for: then a panel comes from memory once, under arithmetic. A row's inputs are rounded by
//! themselves and each output is one chain of operations over k in order, so batch, tile and threads can't
//! change its bits. Rates and the machine's limits: see kernels/README.md.

use super::activation::{Activation, gated_lanes};
use super::product::Tile;
use super::{Cpu, Shared};
use crate::Rows;
use crate::inputs::{Inputs, Writer};
use crate::matrix::{Format, GATED, Matrix, PANEL};
use crate::simd::{Isa, LANES, Simd, on_dot_isa, on_isa};

/// Rows of a unit of work: few enough that inputs and sums stay in cache.
const ROW_BLOCK: usize = 48;
/// Columns from one row of sums to the next.
pub(super) const ACROSS: usize = PANEL;
/// Bytes of a panel's piece: two thirds of the first cache level.
const PIECE: usize = 32 << 10;
/// How far ahead few rows ask for weights: the hardware's own look-ahead ends at each 4 KiB.
const AHEAD: usize = 3 << 10;

/// What becomes of a product's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// They replace the output.
    Store,
    /// They are added to the output.
    Add,
}

impl Cpu {
    /// Rounds rows to a product's input format.
    ///
    /// # Panics
    /// Where the rows don't lie in their buffer.
    pub fn load(&self, rows: Rows<'_>, count: usize, format: Format, inputs: &mut Inputs) {
        rows.check(count);
        let (isa, writer) = (self.isa, inputs.reshape(self.isa, format, count, rows.width));
        self.for_each(count, count * rows.width, |row| load_row(isa, rows.row(row), row, writer));
    }

    /// `out[i][j] = sum over k of x[i][k] * w[j][k] + bias[j]`, or that added to `out`, which is dense.
    ///
    /// # Panics
    /// Where shapes or formats disagree.
    pub fn matmul(&self, x: &Inputs, w: &Matrix, bias: Option<&[f32]>, then: Then, out: &mut [f32]) {
        let n = w.outputs();
        assert!(!w.is_gated(), "a gated matrix has a product of its own");
        assert_eq!(out.len(), x.rows() * n, "output must be {} rows of {n}", x.rows());
        assert!(bias.is_none_or(|bias| bias.len() == n), "one bias per output");
        let target = Shared(out.as_mut_ptr());
        // Narrow matrices are handed out in halves, so that two threads end together.
        let halves = if w.shape().panels() < 16 * self.threads() && x.rows() <= ROW_BLOCK { 2 } else { 1 };
        self.product(x, w, halves, &|part: SumRow<'_>| {
            let first = part.column;
            let count = n.saturating_sub(first).min(part.sums.len());
            // SAFETY: row and columns lie in `out`, and one item alone has them.
            let out =
                unsafe { std::slice::from_raw_parts_mut(target.get().add(part.row * n + first), count) };
            let bias = bias.map(|bias| &bias[first..first + count]);
            finish(out, part.sums, bias, then);
        });
    }

    /// `out[i][j] = activation(g) * u`, where `g` and `u` are outputs `j` and `n + j` of a gated matrix of
    /// `2n` outputs, biases added; rounded to `format` for the next product.
    ///
    /// # Panics
    /// Where shapes or formats disagree.
    pub fn gated(
        &self,
        x: &Inputs,
        w: &Matrix,
        bias: Option<&[f32]>,
        activation: Activation,
        format: Format,
        out: &mut Inputs,
    ) {
        assert!(w.is_gated(), "the matrix of a gated layer is packed for it");
        let n = w.outputs() / 2;
        assert!(bias.is_none_or(|bias| bias.len() == 2 * n), "one bias per output");
        let writer = out.reshape(self.isa, format, x.rows(), n);
        let isa = self.isa;
        self.product(x, w, 1, &|row: SumRow<'_>| {
            let first = row.column / 2;
            let count = (n - first).min(GATED);
            let mut biased = [0.0; PANEL];
            let sums = match bias {
                None => row.sums,
                Some(bias) => {
                    for i in 0..count {
                        biased[i] = row.sums[i] + bias[first + i];
                        biased[GATED + i] = row.sums[GATED + i] + bias[n + first + i];
                    }
                    &biased
                }
            };
            gate(isa, Gate { activation, sums, count, row: row.row, first, writer });
        });
    }

    /// Computes all sums, and hands each row's part of a panel to `then`.
    fn product(&self, x: &Inputs, w: &Matrix, halves: usize, then: &(impl Fn(SumRow<'_>) + Sync)) {
        let shape = w.shape();
        assert_eq!(x.width(), shape.inputs, "input rows must have {} numbers", shape.inputs);
        assert_eq!(x.format(), shape.format, "inputs must be in the format of the weights");
        assert!(x.suit(self.isa), "inputs must be made for the same instruction set");
        let m = x.rows();
        if m == 0 {
            return;
        }
        let row_blocks = m.div_ceil(ROW_BLOCK);
        let items = shape.panels() * halves * row_blocks;
        self.for_each(items, m * shape.outputs * shape.inputs, |item| {
            let (part, row) = (item / row_blocks, item % row_blocks * ROW_BLOCK);
            let (panel, half) = (part / halves, part % halves);
            let (weights, width) = w.panel(panel);
            let columns = half * (PANEL / halves)..width.min((half + 1) * (PANEL / halves));
            if columns.is_empty() {
                return;
            }
            let rows = (m - row).min(ROW_BLOCK);
            let mut sums = Sums(std::mem::MaybeUninit::uninit());
            let first = sums.0.as_mut_ptr().cast();
            let format = shape.format;
            run(
                self.isa,
                Block { x, row, rows, weights, width, columns: columns.clone(), format, sums: first },
            );
            for i in 0..rows {
                let column = panel * PANEL + columns.start;
                // SAFETY: `run` wrote these columns of `rows` rows.
                let sums = unsafe {
                    std::slice::from_raw_parts(first.add(i * ACROSS + columns.start), columns.len())
                };
                then(SumRow { row: row + i, column, sums });
            }
        });
    }
}

/// One row's sums of consecutive columns.
struct SumRow<'a> {
    row: usize,
    column: usize,
    sums: &'a [f32],
}

/// Aligned, so that no vector lies on two cache lines.
#[repr(align(64))]
struct Sums(std::mem::MaybeUninit<[f32; ROW_BLOCK * ACROSS]>);

/// Columns of one panel against some rows.
struct Block<'a> {
    x: &'a Inputs,
    row: usize,
    rows: usize,
    weights: &'a [u8],
    width: usize,
    columns: std::ops::Range<usize>,
    format: Format,
    /// Room for `ROW_BLOCK` rows of sums.
    sums: *mut f32,
}

fn finish(out: &mut [f32], sums: &[f32], bias: Option<&[f32]>, then: Then) {
    match (bias, then) {
        (None, Then::Store) => out.copy_from_slice(&sums[..out.len()]),
        (None, Then::Add) => out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum),
        (Some(bias), then) => {
            for ((out, sum), bias) in out.iter_mut().zip(sums).zip(bias) {
                let sum = sum + bias;
                *out = if then == Then::Add { *out + sum } else { sum };
            }
        }
    }
}

fn load_row(isa: Isa, numbers: &[f32], row: usize, writer: Writer) {
    on_isa!(isa, load_lanes(numbers: &[f32], row: usize, writer: Writer));
}

#[inline(always)]
fn load_lanes<S: Simd>(_: S, numbers: &[f32], row: usize, writer: Writer) {
    for (i, numbers) in numbers.chunks(GATED).enumerate() {
        // SAFETY: each row is one item of `Cpu::load`, which made room for it.
        unsafe { writer.write(row, i * GATED, numbers) };
    }
}

/// One row's part of a gated panel.
struct Gate<'a> {
    activation: Activation,
    sums: &'a [f32],
    count: usize,
    row: usize,
    first: usize,
    writer: Writer,
}

fn gate(isa: Isa, gate: Gate<'_>) {
    on_isa!(isa, gate_lanes(gate: Gate<'_>));
}

#[inline(always)]
fn gate_lanes<S: Simd>(simd: S, gate: Gate<'_>) {
    let mut out = [0.0; GATED];
    gated_lanes(simd, gate.activation, &gate.sums[..GATED], &gate.sums[GATED..], &mut out);
    // SAFETY: the row exists, and these columns are of this panel alone.
    unsafe { gate.writer.write(gate.row, gate.first, &out[..gate.count]) };
}

fn run(isa: Isa, block: Block<'_>) {
    on_dot_isa!(isa, pieces(block: Block<'_>));
}

#[inline(always)]
fn pieces<S: Simd>(simd: S, block: Block<'_>) {
    let step_bytes = block.width * block.format.step_bytes();
    let steps = block.weights.len() / step_bytes;
    let most = match block.format {
        Format::F32 => 6,
        Format::Bf16 => S::BF16_ROWS,
        Format::Int8 => S::INT8_ROWS,
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
            columns(simd, tile, block.format, rows, block.columns.end);
            row += rows;
        }
        first += some;
    }
}

/// The tiles that rows are cut into: each item is a tile's rows.
#[derive(Clone)]
struct Tiles {
    left: usize,
    /// Most rows of a tile.
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

/// `rows` rows against the block's columns.
#[inline(always)]
fn columns<S: Simd>(simd: S, tile: Tile, format: Format, rows: usize, end: usize) {
    match (format, rows) {
        (Format::F32, 1) => all::<S, 0, 1>(simd, tile, end),
        (Format::F32, 2) => all::<S, 0, 2>(simd, tile, end),
        (Format::F32, 3) => all::<S, 0, 3>(simd, tile, end),
        (Format::F32, 4) => all::<S, 0, 4>(simd, tile, end),
        (Format::F32, 6) => all::<S, 0, 6>(simd, tile, end),
        (Format::Bf16, 1) => all::<S, 1, 1>(simd, tile, end),
        (Format::Bf16, 2) => all::<S, 1, 2>(simd, tile, end),
        (Format::Bf16, 3) => all::<S, 1, 3>(simd, tile, end),
        (Format::Bf16, 4) => all::<S, 1, 4>(simd, tile, end),
        (Format::Bf16, 6) if S::PAIRS => all::<S, 1, 6>(simd, tile, end),
        (Format::Bf16, 6) => all::<S, 3, 6>(simd, tile, end),
        (Format::Bf16, 8) if !S::PAIRS => all::<S, 3, 8>(simd, tile, end),
        (Format::Bf16, 12) if !S::PAIRS => all::<S, 3, 12>(simd, tile, end),
        (Format::Int8, 1) => all::<S, 2, 1>(simd, tile, end),
        (Format::Int8, 2) => all::<S, 2, 2>(simd, tile, end),
        (Format::Int8, 3) => all::<S, 2, 3>(simd, tile, end),
        _ => unreachable!("no tile has {rows} rows of {format:?}"),
    }
}

/// `R` rows against the columns up to `end`, as many vectors at a time as the registers hold. `FORMAT` is 0 for
/// f32, 1 for bf16, 2 for int8, 3 for bf16 with more rows and half the vectors, so that a widened weight serves
/// more rows.
#[inline(always)]
fn all<S: Simd, const FORMAT: usize, const R: usize>(simd: S, mut tile: Tile, end: usize) {
    while tile.column < end {
        let left = (end - tile.column) / LANES;
        // SAFETY: `product` checked shapes; the columns up to `end` are the panel's, and `pieces` keeps steps
        // and rows inside panel and inputs.
        unsafe {
            tile.column += LANES
                * match left {
                    4.. if S::TILE_VECTORS == 4 && FORMAT != 3 => one::<S, FORMAT, R, 4>(simd, tile),
                    2.. if S::TILE_VECTORS == 4 => one::<S, FORMAT, R, 2>(simd, tile),
                    _ => one::<S, FORMAT, R, 1>(simd, tile),
                };
        }
    }
}

/// # Safety
/// As [`Tile::floats`].
#[inline(always)]
unsafe fn one<S: Simd, const FORMAT: usize, const R: usize, const C: usize>(simd: S, tile: Tile) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        match FORMAT {
            0 => tile.floats::<S, false, R, C>(simd),
            1 | 3 => tile.floats::<S, true, R, C>(simd),
            _ => tile.groups::<S, R, C>(simd),
        }
    }
    C
}

/// Stores the first `count` lanes.
///
/// # Safety
/// `count` numbers are writable at `to`.
#[inline(always)]
pub(super) unsafe fn store_some<S: Simd>(simd: S, to: *mut f32, v: S::V, count: usize) {
    if count == LANES {
        // SAFETY: sixteen places, by the caller's promise.
        unsafe { simd.store(to, v) };
    } else if count > 0 {
        let mut lanes = [0.0; LANES];
        // SAFETY: `lanes` has sixteen places; `count` places at `to`, by the caller's promise.
        unsafe {
            simd.store(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count);
        }
    }
}
