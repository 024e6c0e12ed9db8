//! Weights in the order in which the matrix kernels read them: panels of 64 output columns; within a panel the first inputs
//! of all columns, then the next inputs of all columns, and so on. A product then needs no horizontal sums, and decode reads
//! each panel front to back. Packing happens once, at load (`packer`).
//!
//! Adjacent numbers are the operands of one instruction: a single f32, a pair of bf16, or four 8-bit integers. The latter
//! are `round(w / scale) + 128`, with an f16 scale per 32 inputs of an output, as in GGUF's Q8_0, whose numbers pass through
//! unchanged. A group's scales precede its integers.
//!
//! 4-bit integers are `n` of `scale * n + base`, both f16 per 32 inputs of an output, which covers GGUF's Q4_0, Q4_1 and Q4_K.
//! Scales come first, then bases, then integers: the low halves of a word's bytes are four inputs, the high halves the next
//! four. They are multiplied by the same inputs as 8-bit integers.
//!
//! 4-bit floats are codes of numbers times a power of two, a bf16 per 32 inputs of an output (`mx4`), in the order of 4-bit
//! integers.
//!
//! The matrix of a gated feed-forward layer has 32 columns of the gate next to the same 32 of the other half, so that both
//! are in registers at the same time.

use half::{bf16, f16};

use crate::memory::Numbers;
use crate::mx4::DOUBLED;
use crate::simd::LANES;

/// Output columns of a full panel: four vectors.
pub(crate) const PANEL: usize = 4 * LANES;
/// Inputs that share a scale.
pub const GROUP: usize = 32;
/// Columns of either half in a gated panel.
pub(crate) const GATED: usize = PANEL / 2;

/// Storage format of weights, and of the inputs that a product takes with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// 32-bit floats; inputs too.
    F32,
    /// bfloat16; inputs are rounded to it, sums are f32.
    Bf16,
    /// 8-bit integers with an f16 scale per 32; inputs are rounded likewise (f32 scale), sums are f32.
    Int8,
    /// 4-bit integers with an f16 scale and an f16 base per 32; inputs are those of [`Format::Int8`].
    Int4,
    /// 4-bit floats with a power of two per 32, MXFP4; inputs are those of [`Format::Int8`].
    Mxfp4,
}

impl Format {
    /// The format of the inputs of a product.
    pub fn inputs(self) -> Self {
        match self {
            Self::Int4 | Self::Mxfp4 => Self::Int8,
            other => other,
        }
    }

    /// Adjacent inputs of a column.
    pub(crate) fn step(self) -> usize {
        match self {
            Self::F32 => 1,
            Self::Bf16 => 2,
            Self::Int8 | Self::Int4 | Self::Mxfp4 => GROUP,
        }
    }

    /// Bytes of one column's step.
    pub(crate) fn step_bytes(self) -> usize {
        2 * self.units() + 4 * self.words()
    }

    /// Scales and bases of one column's step.
    pub(crate) const fn units(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 => 0,
            Self::Int8 | Self::Mxfp4 => 1,
            Self::Int4 => 2,
        }
    }

    /// Words of one column's step, beside its units.
    pub(crate) fn words(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 => 1,
            Self::Int8 => GROUP / 4,
            Self::Int4 | Self::Mxfp4 => GROUP / 8,
        }
    }
}

/// 32 weights of a row of integers: `scale * number + base`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Distance between neighbouring weights.
    pub scale: f16,
    /// The weight of 0; 0 itself unless the format is [`Format::Int4`].
    pub base: f16,
    /// -128 to 127, or 0 to 15.
    pub numbers: [i8; GROUP],
}

/// A packed matrix.
#[derive(Debug)]
pub struct Matrix {
    shape: Shape,
    data: Numbers<u8>,
}

impl Matrix {
    /// Wraps packed data.
    pub(crate) fn new(shape: Shape, data: Numbers<u8>) -> Self {
        Self { shape, data }
    }

    /// Storage format.
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

    /// Whether it belongs to a gated layer.
    pub fn is_gated(&self) -> bool {
        self.shape.gated
    }

    /// The packed numbers.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Size in bytes.
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

    /// Weights `32 * group` on of a row, as they are held; `None` if they aren't integers. What pads a row counts.
    ///
    /// # Panics
    /// If there are no such weights.
    pub fn group(&self, row: usize, group: usize) -> Option<Group> {
        let Shape { format, outputs, .. } = self.shape;
        assert!(row < outputs && group < self.shape.steps(), "row {row} of {outputs}, group {group}");
        let column = self.shape.column_of(row);
        let (data, width) = self.panel(column / PANEL);
        let (column, bytes) = (column % PANEL, width * format.step_bytes());
        let step = &data[group * bytes..][..bytes];
        let unit = |nth: usize| {
            let at = 2 * (nth * width + column);
            f16::from_bits(u16::from_ne_bytes([step[at], step[at + 1]]))
        };
        let words =
            step[2 * format.units() * width..].chunks_exact(4 * width).map(|words| &words[4 * column..][..4]);
        let mut numbers = [0; GROUP];
        match format {
            Format::F32 | Format::Bf16 | Format::Mxfp4 => return None,
            Format::Int8 => {
                for (numbers, bytes) in numbers.chunks_exact_mut(4).zip(words) {
                    numbers.iter_mut().zip(bytes).for_each(|(n, byte)| *n = (byte ^ 0x80).cast_signed());
                }
            }
            Format::Int4 => {
                for (numbers, bytes) in numbers.chunks_exact_mut(8).zip(words) {
                    for (i, byte) in bytes.iter().enumerate() {
                        (numbers[i], numbers[4 + i]) = ((byte & 15).cast_signed(), (byte >> 4).cast_signed());
                    }
                }
            }
        }
        let base = if format == Format::Int4 { unit(1) } else { f16::ZERO };
        Some(Group { scale: unit(0), base, numbers })
    }

    /// Writes row `row`, times `scale`, to `out`: the embedding lookup of a tied matrix. In a gated matrix the gate's rows
    /// come first.
    ///
    /// # Panics
    /// If there is no such row, or `out` has another width.
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
                Format::Int4 => {
                    let [unit, base] =
                        [0, 2 * width].map(|units| f16::from_bits(number(step, units + 2 * column)).to_f32());
                    for (i, out) in out.iter_mut().enumerate() {
                        let byte = step[4 * width + i / 8 * 4 * width + 4 * column + i % 4];
                        let integer = byte >> (i % 8 / 4 * 4) & 15;
                        *out = (f32::from(integer) * unit + base) * scale;
                    }
                }
                Format::Mxfp4 => {
                    let unit = bf16::from_bits(number(step, 2 * column)).to_f32();
                    for (i, out) in out.iter_mut().enumerate() {
                        let byte = step[2 * width + i / 8 * 4 * width + 4 * column + i % 4];
                        let doubled = DOUBLED[usize::from(byte >> (i % 8 / 4 * 4) & 15)];
                        *out = f32::from(doubled) * unit * scale;
                    }
                }
            }
        }
    }
}

/// Shape and memory layout of a matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub format: Format,
    pub outputs: usize,
    pub inputs: usize,
    pub gated: bool,
}

impl Shape {
    /// Number of panels; the last may be narrower.
    pub(crate) fn panels(&self) -> usize {
        self.columns().div_ceil(PANEL)
    }

    /// Steps of a panel.
    pub(crate) fn steps(&self) -> usize {
        self.inputs.div_ceil(self.format.step())
    }

    /// Columns of all panels, padding included.
    pub(crate) fn columns(&self) -> usize {
        match self.gated {
            true => (self.outputs / 2).next_multiple_of(GATED) * 2,
            false => self.outputs.next_multiple_of(LANES),
        }
    }

    /// Where a panel starts, and its width.
    pub(crate) fn place(&self, panel: usize) -> (usize, usize) {
        (panel * self.panel_bytes(PANEL), (self.columns() - panel * PANEL).min(PANEL))
    }

    pub(crate) fn panel_bytes(&self, width: usize) -> usize {
        width * self.steps() * self.format.step_bytes()
    }

    /// The row of a column; none for padding.
    pub(crate) fn row_of(&self, column: usize) -> Option<usize> {
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

/// The largest magnitude of a group's numbers, and 0, or NaN if any of them is NaN or infinite.
#[inline(always)]
pub(crate) fn largest_and_poison(numbers: &[f32; GROUP]) -> (f32, f32) {
    // A chain per lane, so that the loops vectorize without reordering operations.
    let (mut largest, mut poison) = ([0.0_f32; LANES], [0.0_f32; LANES]);
    for half in numbers.as_chunks::<LANES>().0 {
        for (i, x) in half.iter().enumerate() {
            largest[i] = if x.abs() > largest[i] { x.abs() } else { largest[i] };
            poison[i] += x * 0.0;
        }
    }
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            largest[i] = if largest[i + width] > largest[i] { largest[i + width] } else { largest[i] };
            poison[i] += poison[i + width];
        }
    }
    (largest[0], poison[0])
}
