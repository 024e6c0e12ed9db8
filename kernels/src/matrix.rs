//! Weights in the order in which the matrix kernels read them: panels of 64 output columns, and in a panel all
//! columns' first inputs, then all columns' next ones, and so on. A product then needs no horizontal sums, and
//! the decode path reads each panel front to back. Packing happens once, at load.
//!
//! What lies side by side is what one instruction takes: single f32; pairs of bf16; or four 8-bit integers.
//! Those are `round(w / scale) + 128`, with an f16 scale for each 32 inputs of an output, as in GGUF's Q8_0,
//! whose numbers come through unchanged. A group's scales stand before its integers.
//!
//! The matrix of a gated feed-forward layer has 32 columns of the gate beside the same 32 of the other half,
//! so that both meet in registers.

use half::{bf16, f16};

use crate::cpu::{Cpu, Shared};
use crate::memory::{Arena, Numbers, OutOfMemory};
use crate::simd::LANES;

/// Output columns of a full panel: four vectors.
pub(crate) const PANEL: usize = 4 * LANES;
/// Inputs that share a scale.
pub const GROUP: usize = 32;
/// Columns of either half in a gated panel.
pub(crate) const GATED: usize = PANEL / 2;

/// How weights are stored, and in what form a product takes its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// 32-bit floats; inputs too.
    F32,
    /// bfloat16; inputs are rounded to it, sums are f32.
    Bf16,
    /// 8-bit integers with an f16 scale per 32; inputs are rounded likewise (f32 scale), sums are f32.
    Int8,
}

impl Format {
    /// Inputs that lie together.
    pub(crate) fn step(self) -> usize {
        match self {
            Self::F32 => 1,
            Self::Bf16 => 2,
            Self::Int8 => GROUP,
        }
    }

    /// Bytes of one column's step.
    pub(crate) fn step_bytes(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 => 4,
            Self::Int8 => GROUP + 2,
        }
    }
}

/// Packs matrices into memory with huge pages, on several threads.
pub struct Packer {
    cpu: Cpu,
    arena: Arena,
}

impl Packer {
    /// With `threads` threads, the caller's included.
    ///
    /// # Errors
    /// Where the system gives no threads.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        Ok(Self { cpu: Cpu::new(threads)?, arena: Arena::default() })
    }

    /// A matrix of `outputs` rows of `inputs` numbers. `row(i, numbers)` fills row `i`; it is called once for
    /// each row, by any thread, in no order.
    ///
    /// # Errors
    /// Where memory can't be had.
    ///
    /// # Panics
    /// Where the matrix has no columns, or `row` does.
    pub fn matrix(
        &mut self,
        format: Format,
        outputs: usize,
        inputs: usize,
        row: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Result<Matrix, OutOfMemory> {
        self.pack(Shape { format, outputs, inputs, gated: false }, row)
    }

    /// The matrix of a gated layer, for `Cpu::gated`: rows `0..width` are the gate's, the `width` rows
    /// after them the other half's.
    ///
    /// # Errors
    /// As [`Packer::matrix`].
    ///
    /// # Panics
    /// As [`Packer::matrix`].
    pub fn gated(
        &mut self,
        format: Format,
        width: usize,
        inputs: usize,
        row: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Result<Matrix, OutOfMemory> {
        self.pack(Shape { format, outputs: 2 * width, inputs, gated: true }, row)
    }

    fn pack(&mut self, shape: Shape, row: impl Fn(usize, &mut [f32]) + Sync) -> Result<Matrix, OutOfMemory> {
        assert!(shape.inputs > 0, "a matrix needs columns");
        let bytes = shape.columns().checked_mul(shape.steps() * shape.format.step_bytes());
        let mut data = self.arena.numbers::<u8>(bytes.unwrap_or(usize::MAX))?;
        let target = Shared(data.as_mut_ptr());
        self.cpu.for_each(shape.panels(), usize::MAX, |panel| {
            let (start, width) = shape.place(panel);
            let bytes = shape.panel_bytes(width);
            // SAFETY: the panel's bytes lie in the data, and each panel is one item.
            let out = unsafe { std::slice::from_raw_parts_mut(target.get().add(start), bytes) };
            let mut numbers = vec![0.0; shape.steps() * shape.format.step()];
            for column in 0..width {
                let Some(index) = shape.row_of(panel * PANEL + column) else { continue };
                row(index, &mut numbers[..shape.inputs]);
                write_column(shape.format, &numbers, column, width, out);
            }
        });
        Ok(Matrix { shape, data })
    }
}

/// Writes one column of a panel. `numbers` are whole steps.
fn write_column(format: Format, numbers: &[f32], column: usize, width: usize, out: &mut [u8]) {
    let steps = out.chunks_exact_mut(width * format.step_bytes()).zip(numbers.chunks_exact(format.step()));
    match format {
        Format::F32 => steps.for_each(|(out, x)| out[4 * column..][..4].copy_from_slice(&x[0].to_ne_bytes())),
        Format::Bf16 => steps.for_each(|(out, x)| {
            out[4 * column..][..2].copy_from_slice(&bf16::from_f32(x[0]).to_ne_bytes());
            out[4 * column + 2..][..2].copy_from_slice(&bf16::from_f32(x[1]).to_ne_bytes());
        }),
        Format::Int8 => steps.for_each(|(out, x)| {
            let scale = scale_of(x);
            let (scales, words) = out.split_at_mut(2 * width);
            scales[2 * column..][..2].copy_from_slice(&scale.to_ne_bytes());
            let inverse = if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() };
            for (words, x) in words.chunks_exact_mut(4 * width).zip(x.chunks_exact(4)) {
                for (to, x) in words[4 * column..].iter_mut().zip(x) {
                    // Within 1..=255. Adding 1.5 * 2^23 rounds, ties to even, and leaves the integer in the
                    // lowest bits.
                    *to = ((x * inverse).clamp(-127.0, 127.0) + (12_582_912.0 + 128.0)).to_bits() as u8;
                }
            }
        }),
    }
}

/// The scale by which the largest number of a group becomes 127. Numbers that f16 can't scale are cut off.
fn scale_of(numbers: &[f32]) -> f16 {
    let largest = numbers.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    let scale = f16::from_f32((largest / 127.0).min(f16::MAX.to_f32()));
    // Rounding among the smallest halves can fall far below; the next one above covers the number.
    if largest > 127.5 * scale.to_f32() && scale < f16::MAX {
        f16::from_bits(scale.to_bits() + 1)
    } else {
        scale
    }
}

/// A packed matrix.
#[derive(Debug)]
pub struct Matrix {
    shape: Shape,
    data: Numbers<u8>,
}

impl Matrix {
    /// How it is stored.
    pub fn format(&self) -> Format {
        self.shape.format
    }

    /// Rows of the matrix: outputs of the product.
    pub fn outputs(&self) -> usize {
        self.shape.outputs
    }

    /// Columns of the matrix: inputs of the product.
    pub fn inputs(&self) -> usize {
        self.shape.inputs
    }

    /// Whether it is a gated layer's.
    pub fn is_gated(&self) -> bool {
        self.shape.gated
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// A panel's bytes and its width, a multiple of the lanes.
    pub(crate) fn panel(&self, panel: usize) -> (&[u8], usize) {
        let (start, width) = self.shape.place(panel);
        (&self.data[start..start + self.shape.panel_bytes(width)], width)
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Writes row `row`, times `scale`, to `out`: the embedding lookup of a tied matrix. Of a gated matrix, the
    /// gate's rows come first.
    ///
    /// # Panics
    /// Where there is no such row, or it has another width.
    pub fn unpack_row(&self, row: usize, scale: f32, out: &mut [f32]) {
        let Shape { format, outputs, inputs, .. } = self.shape;
        assert!(row < outputs, "row {row} of {outputs}");
        assert_eq!(out.len(), inputs, "output must be one row");
        let column = self.shape.column_of(row);
        let (panel, column) = (column / PANEL, column % PANEL);
        let (data, width) = self.panel(panel);
        let steps = data.chunks_exact(width * format.step_bytes());
        let number = |bytes: &[u8], at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        for (out, step) in out.chunks_mut(format.step()).zip(steps) {
            match format {
                Format::F32 => {
                    let bytes = &step[4 * column..][..4];
                    out[0] = f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) * scale;
                }
                Format::Bf16 => {
                    for (i, out) in out.iter_mut().enumerate() {
                        *out = bf16::from_bits(number(step, 4 * column + 2 * i)).to_f32() * scale;
                    }
                }
                Format::Int8 => {
                    let unit = f16::from_bits(number(step, 2 * column)).to_f32();
                    for (i, out) in out.iter_mut().enumerate() {
                        let byte = step[2 * width + i / 4 * 4 * width + 4 * column + i % 4];
                        *out = (f32::from(byte) - 128.0) * unit * scale;
                    }
                }
            }
        }
    }
}

/// What a matrix is and where its numbers lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub format: Format,
    pub outputs: usize,
    pub inputs: usize,
    pub gated: bool,
}

impl Shape {
    /// Panels in all; the last may be narrower.
    pub(crate) fn panels(&self) -> usize {
        self.columns().div_ceil(PANEL)
    }

    /// Steps of a panel.
    pub(crate) fn steps(&self) -> usize {
        self.inputs.div_ceil(self.format.step())
    }

    /// Columns of all panels, padding included.
    fn columns(&self) -> usize {
        match self.gated {
            true => (self.outputs / 2).next_multiple_of(GATED) * 2,
            false => self.outputs.next_multiple_of(LANES),
        }
    }

    /// Where a panel starts, and its width.
    fn place(&self, panel: usize) -> (usize, usize) {
        (panel * self.panel_bytes(PANEL), (self.columns() - panel * PANEL).min(PANEL))
    }

    fn panel_bytes(&self, width: usize) -> usize {
        width * self.steps() * self.format.step_bytes()
    }

    /// The row of a column; none for padding.
    fn row_of(&self, column: usize) -> Option<usize> {
        if !self.gated {
            return (column < self.outputs).then_some(column);
        }
        let (half, width) = (column % PANEL / GATED, self.outputs / 2);
        let at = column / PANEL * GATED + column % GATED;
        (at < width).then_some(half * width + at)
    }

    /// The column of a row.
    fn column_of(&self, row: usize) -> usize {
        if !self.gated {
            return row;
        }
        let (half, at) = (row / (self.outputs / 2), row % (self.outputs / 2));
        at / GATED * PANEL + half * GATED + at % GATED
    }
}
