//! Matrix product `x[m, k] * w[n, k]^T` over packed weights, with the operations that follow it in registers: bias, sum with
//! the residual stream, gated activation.
//!
//! Version 3. A unit of work is a panel of 64 columns by some rows. Few rows read a panel front to back once. More rows take
//! it in pieces that stay in the L1 cache, spilling sums between pieces, while the next piece is prefetched: a panel is then
//! read from memory once, overlapped with arithmetic. `vectors` computes sums in vector registers, `amx` in tile registers
//! if the CPU has them. Each row's inputs are rounded independently and each output is one chain of operations over k in
//! order, so batch, tile and threads can't change its bits. Rates and the machine's limits: kernels/README.md.

use std::ops::Range;

use super::activation::{Activation, gated_lanes};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::amx;
use super::{Cpu, Shared, vectors};
use crate::Rows;
use crate::inputs::{Inputs, Writer};
use crate::matrix::{Format, GATED, Matrix, PANEL};
use crate::simd::{Isa, Simd, on_isa};

/// Rows of a unit of work: few enough that inputs and sums stay in cache.
pub(super) const ROW_BLOCK: usize = 48;
/// Stride of rows of sums.
pub(super) const ACROSS: usize = PANEL;

/// What happens to a product's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// They replace the output.
    Store,
    /// They are added to the output.
    Add,
}

/// What follows the sums of a gated layer's product.
pub struct Gating<'a> {
    /// One per output.
    pub bias: Option<&'a [f32]>,
    /// Of the gate.
    pub activation: Activation,
    /// Of the outputs, which the next product reads.
    pub format: Format,
    /// What else happens to some rows.
    pub aside: Option<Aside<'a>>,
}

/// What else happens to some rows of a gated layer. The others are computed as without it.
pub struct Aside<'a> {
    /// For each row, its row of `sums` if it is one of these.
    pub rows: &'a [Option<u32>],
    /// Added to the sums before the activation: rows as wide as both halves, the gate's first.
    pub sums: &'a [f32],
    /// Receives the outputs of these rows before they are rounded. As many rows as there are inputs, half as wide; those of
    /// other rows stay as they are.
    pub outputs: &'a mut [f32],
}

impl Cpu {
    /// Rounds rows to a product's input format.
    ///
    /// # Panics
    /// If the rows exceed their buffer.
    pub fn load(&self, rows: Rows<'_>, count: usize, format: Format, inputs: &mut Inputs) {
        rows.check(count);
        let (isa, writer) = (self.isa, inputs.reshape(self.isa, format, count, rows.width));
        self.for_each(count, count * rows.width, |row| load_row(isa, rows.row(row), row, writer));
    }

    /// Computes `sum over k of x[i][k] * w[j][k] + bias[j]` and stores it in `out[i][j]`, or adds it. `out` is dense.
    ///
    /// # Panics
    /// If shapes or formats disagree.
    pub fn matmul(&self, x: &Inputs, w: &Matrix, bias: Option<&[f32]>, then: Then, out: &mut [f32]) {
        let n = w.outputs();
        assert!(!w.is_gated(), "a gated matrix needs `Cpu::gated`");
        assert_eq!(out.len(), x.rows() * n, "output must be {} rows of {n}", x.rows());
        assert!(bias.is_none_or(|bias| bias.len() == n), "one bias per output");
        let target = Shared(out.as_mut_ptr());
        // Narrow matrices are split into half panels, so that threads finish together.
        let halves = if w.shape().panels() < 16 * self.threads() && x.rows() <= ROW_BLOCK { 2 } else { 1 };
        self.product(x, w, halves, &|part: SumRow<'_>| {
            let first = part.column;
            let count = n.saturating_sub(first).min(part.sums.len());
            // SAFETY: row and columns lie in `out` and belong to this item alone.
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
    /// If shapes or formats disagree.
    pub fn gated(
        &self,
        x: &Inputs,
        w: &Matrix,
        bias: Option<&[f32]>,
        activation: Activation,
        format: Format,
        out: &mut Inputs,
    ) {
        self.gated_aside(x, w, Gating { bias, activation, format, aside: None }, out);
    }

    /// As [`Cpu::gated`], for which it depends on the row what happens before and after the activation.
    ///
    /// # Panics
    /// If shapes or formats disagree.
    pub fn gated_aside(&self, x: &Inputs, w: &Matrix, gating: Gating<'_>, out: &mut Inputs) {
        assert!(w.is_gated(), "`Cpu::gated` needs a gated matrix");
        let n = w.outputs() / 2;
        let Gating { bias, activation, format, aside } = gating;
        assert!(bias.is_none_or(|bias| bias.len() == 2 * n), "one bias per output");
        let (rows, added, outputs): (&[Option<u32>], &[f32], Option<Shared<f32>>) = match aside {
            None => (&[], &[], None),
            Some(Aside { rows, sums, outputs }) => {
                assert_eq!(rows.len(), x.rows(), "as many rows as inputs");
                assert_eq!(outputs.len(), x.rows() * n, "outputs must be {} rows of {n}", x.rows());
                (rows, sums, Some(Shared(outputs.as_mut_ptr())))
            }
        };
        let writer = out.reshape(self.isa, format, x.rows(), n);
        let isa = self.isa;
        self.product(x, w, 1, &|row: SumRow<'_>| {
            let first = row.column / 2;
            let count = (n - first).min(GATED);
            let added = rows.get(row.row).copied().flatten().map(|at| &added[at as usize * 2 * n..][..2 * n]);
            let mut summed = [0.0; PANEL];
            let sums = match (bias, added) {
                (None, None) => row.sums,
                more => {
                    for half in [0, 1] {
                        let summed = &mut summed[half * GATED..][..count];
                        summed.copy_from_slice(&row.sums[half * GATED..][..count]);
                        for more in [more.0, more.1].into_iter().flatten() {
                            let more = &more[half * n + first..][..count];
                            summed.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
                        }
                    }
                    &summed
                }
            };
            let also = outputs.filter(|_| added.is_some()).map(|outputs| {
                // SAFETY: the outputs have this row, which belongs to it alone.
                Shared(unsafe { outputs.get().add(row.row * n + first) })
            });
            gate(isa, Gate { activation, sums, count, row: row.row, first, writer, also });
        });
    }

    /// Computes all sums, and passes each row's part of a panel to `then`.
    fn product(&self, x: &Inputs, w: &Matrix, halves: usize, then: &(impl Fn(SumRow<'_>) + Sync)) {
        let shape = w.shape();
        assert_eq!(x.width(), shape.inputs, "input rows must have {} numbers", shape.inputs);
        assert_eq!(x.format(), shape.format.inputs(), "inputs must be in the format of the weights");
        assert!(x.suit(self.isa), "inputs must be laid out for the same instruction set");
        if x.rows() == 0 {
            return;
        }
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if self.isa == Isa::Amx && shape.format != Format::F32 && x.rows() > amx::FEW {
            // Too few items would leave threads idle.
            let blocks = x.rows().div_ceil(amx::ROWS);
            let group = amx::PANELS.min(shape.panels() * blocks / (4 * self.threads())).max(1);
            return self.items::<{ amx::PANELS * amx::ROWS * ACROSS }>(
                x,
                w,
                Cut { group, halves: 1, rows: amx::ROWS },
                then,
            );
        }
        self.items::<{ ROW_BLOCK * ACROSS }>(x, w, Cut { group: 1, halves, rows: ROW_BLOCK }, then);
    }

    /// As `product`, in items of work with room for `ROOM` sums.
    fn items<const ROOM: usize>(
        &self,
        x: &Inputs,
        w: &Matrix,
        cut: Cut,
        then: &(impl Fn(SumRow<'_>) + Sync),
    ) {
        let (m, shape) = (x.rows(), w.shape());
        let row_blocks = m.div_ceil(cut.rows);
        let items = shape.panels().div_ceil(cut.group) * cut.halves * row_blocks;
        self.for_each(items, m * shape.outputs * shape.inputs, |item| {
            let (part, row) = (item / row_blocks, item % row_blocks * cut.rows);
            let (group, half) = (part / cut.halves, part % cut.halves);
            let panels = group * cut.group..((group + 1) * cut.group).min(shape.panels());
            let rows = (m - row).min(cut.rows);
            let mut sums = Sums::<ROOM>(std::mem::MaybeUninit::uninit());
            let sums: *mut f32 = sums.0.as_mut_ptr().cast();
            let across =
                |width: usize| half * (PANEL / cut.halves)..width.min((half + 1) * (PANEL / cut.halves));
            let block = |panel: usize| {
                let (weights, width) = w.panel(panel);
                let sums = sums.wrapping_add((panel - panels.start) * cut.rows * ACROSS);
                Block { x, row, rows, weights, width, columns: across(width), format: shape.format, sums }
            };
            run(self.isa, panels.clone(), block);
            for panel in panels.clone() {
                let Block { columns, sums, .. } = block(panel);
                for i in 0..if columns.is_empty() { 0 } else { rows } {
                    // SAFETY: `run` wrote these columns of `rows` rows.
                    let sums = unsafe {
                        std::slice::from_raw_parts(sums.add(i * ACROSS + columns.start), columns.len())
                    };
                    then(SumRow { row: row + i, column: panel * PANEL + columns.start, sums });
                }
            }
        });
    }
}

/// How a product is cut into items of work.
#[derive(Clone, Copy)]
struct Cut {
    /// Panels of an item.
    group: usize,
    /// Parts that a panel is split into; an item has one of them.
    halves: usize,
    /// Rows of an item.
    rows: usize,
}

/// One row's sums of consecutive columns.
struct SumRow<'a> {
    row: usize,
    column: usize,
    sums: &'a [f32],
}

/// Aligned, so that no vector spans two cache lines.
#[repr(align(64))]
struct Sums<const ROOM: usize>(std::mem::MaybeUninit<[f32; ROOM]>);

/// Columns of one panel against some rows.
pub(super) struct Block<'a> {
    pub x: &'a Inputs,
    pub row: usize,
    pub rows: usize,
    pub weights: &'a [u8],
    pub width: usize,
    pub columns: Range<usize>,
    pub format: Format,
    /// Room for the sums of the maximum number of rows of an item.
    pub sums: *mut f32,
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
    /// Where its outputs go as well.
    also: Option<Shared<f32>>,
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
    if let Some(also) = gate.also {
        // SAFETY: as above; there is room for these columns.
        unsafe { std::ptr::copy_nonoverlapping(out.as_ptr(), also.get(), gate.count) };
    }
}

fn run<'a>(isa: Isa, panels: Range<usize>, block: impl Fn(usize) -> Block<'a>) {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if isa == Isa::Amx && amx::multiplies(block(panels.start).format, block(panels.start).rows) {
        // SAFETY: the CPU has the instruction set; `product` checked shapes.
        return unsafe { amx::product(panels, block) };
    }
    for panel in panels {
        let block = block(panel);
        if !block.columns.is_empty() {
            vectors::sums(isa, block);
        }
    }
}
