//! Rows of activations in the form in which a product reads them: as the matrix's weights are stored. They are
//! rounded once, by whoever makes them, and each row by itself: f32 as it is; bf16 to the nearest, ties to
//! even; int8 by groups of 32 with an f32 scale each. The buffers are reused.

use crate::cpu::Shared;
use crate::element::nearest_bf16;
use crate::matrix::{Format, GROUP};
use crate::simd::Isa;

/// Inputs of a product.
#[derive(Debug)]
pub struct Inputs {
    format: Format,
    /// Numbers in bf16 lie in pairs; otherwise each is widened, for instruction sets that multiply so.
    pairs: bool,
    rows: usize,
    width: usize,
    /// An f32, one bf16 or two, or four bytes each.
    words: Vec<u32>,
    /// One per row and group (int8).
    scales: Vec<f32>,
    /// -128 times a group's sum, which undoes the offset of the weights (int8).
    offsets: Vec<i32>,
}

impl Default for Inputs {
    fn default() -> Self {
        let (words, scales, offsets) = Default::default();
        Self { format: Format::F32, pairs: false, rows: 0, width: 0, words, scales, offsets }
    }
}

impl Inputs {
    /// How numbers are stored.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Rows held.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Writes row `row`, as it was rounded, to `out`.
    ///
    /// # Panics
    /// Where there is no such row, or it has another width.
    pub fn unpack_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.width, "row {row} of {} x {}", self.rows, self.width);
        let words = &self.words[row * self.stride()..];
        for (i, out) in out.iter_mut().enumerate() {
            *out = match self.format {
                Format::F32 => f32::from_bits(words[i]),
                Format::Bf16 if self.pairs => f32::from_bits(words[i / 2] >> (i % 2 * 16) << 16),
                Format::Bf16 => f32::from_bits(words[i]),
                Format::Int8 => {
                    let integer = (words[i / 4] >> (i % 4 * 8)) as u8 as i8;
                    f32::from(integer) * self.scales[row * self.groups() + i / GROUP]
                }
            };
        }
    }

    /// Words from one row to the next.
    pub(crate) fn stride(&self) -> usize {
        stride(self.format, self.pairs, self.width)
    }

    /// Where row `row` starts.
    pub(crate) fn row(&self, row: usize) -> View {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let groups = self.groups();
        let first = |group: usize| if self.format == Format::Int8 { row * groups + group } else { 0 };
        View {
            words: self.words[row * self.stride()..].as_ptr(),
            stride: self.stride(),
            scales: self.scales[first(0)..].as_ptr(),
            offsets: self.offsets[first(0)..].as_ptr(),
            groups,
        }
    }

    /// Takes up another shape. What it holds is then arbitrary: each row must be written.
    pub(crate) fn reshape(&mut self, isa: Isa, format: Format, rows: usize, width: usize) -> Writer {
        (self.format, self.pairs, self.rows, self.width) = (format, isa.takes_pairs(), rows, width);
        let groups = if format == Format::Int8 { rows * self.groups() } else { 0 };
        self.words.resize(rows * self.stride(), 0);
        self.scales.resize(groups, 0.0);
        self.offsets.resize(groups, 0);
        Writer {
            format,
            pairs: self.pairs,
            width,
            words: Shared(self.words.as_mut_ptr()),
            scales: Shared(self.scales.as_mut_ptr()),
            offsets: Shared(self.offsets.as_mut_ptr()),
        }
    }

    /// Whether numbers lie as an instruction set reads them.
    pub(crate) fn suit(&self, isa: Isa) -> bool {
        self.format != Format::Bf16 || self.pairs == isa.takes_pairs()
    }

    fn groups(&self) -> usize {
        self.width.div_ceil(GROUP)
    }
}

fn stride(format: Format, pairs: bool, width: usize) -> usize {
    match format {
        Format::F32 => width,
        Format::Bf16 if pairs => width.div_ceil(2),
        Format::Bf16 => width.next_multiple_of(2),
        Format::Int8 => width.div_ceil(GROUP) * (GROUP / 4),
    }
}

/// A row and those that follow it, for kernels.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub words: *const u32,
    pub stride: usize,
    pub scales: *const f32,
    pub offsets: *const i32,
    pub groups: usize,
}

/// Writes rows of [`Inputs`], different ones from different threads.
#[derive(Clone, Copy)]
pub(crate) struct Writer {
    format: Format,
    pairs: bool,
    width: usize,
    words: Shared<u32>,
    scales: Shared<f32>,
    offsets: Shared<i32>,
}

impl Writer {
    /// Writes the up to 32 numbers of a row from `start` on, a multiple of 32. Inlined into code that is
    /// compiled for an instruction set, whose lanes it then uses; the bits are the same on all.
    ///
    /// # Safety
    /// The row and the numbers exist, all 32 or up to the row's end, nobody else writes them, and the
    /// `Inputs` lives and was not reshaped.
    #[inline(always)]
    pub(crate) unsafe fn write(self, row: usize, start: usize, numbers: &[f32]) {
        debug_assert!(start.is_multiple_of(GROUP) && start + numbers.len() <= self.width);
        let words = stride(self.format, self.pairs, self.width) * row;
        // SAFETY: the caller's promise; the padding of the last group or pair belongs to the row.
        unsafe {
            match self.format {
                Format::F32 => {
                    let to = self.words.get().add(words + start).cast::<f32>();
                    std::ptr::copy_nonoverlapping(numbers.as_ptr(), to, numbers.len());
                }
                Format::Bf16 if !self.pairs => {
                    let to = self.words.get().add(words + start);
                    let wide = |x: f32| u32::from(nearest_bf16(x)) << 16;
                    match numbers.as_array::<GROUP>() {
                        Some(numbers) => to.cast::<[u32; GROUP]>().write(numbers.map(wide)),
                        None => {
                            for (i, x) in numbers.iter().enumerate() {
                                to.add(i).write(wide(*x));
                            }
                            if !numbers.len().is_multiple_of(2) {
                                to.add(numbers.len()).write(0);
                            }
                        }
                    }
                }
                Format::Bf16 => {
                    let to = self.words.get().add(words + start / 2).cast::<u16>();
                    match numbers.as_array::<GROUP>() {
                        Some(numbers) => to.cast::<[u16; GROUP]>().write(numbers.map(nearest_bf16)),
                        None => {
                            for (i, x) in numbers.iter().enumerate() {
                                to.add(i).write(nearest_bf16(*x));
                            }
                            if !numbers.len().is_multiple_of(2) {
                                to.add(numbers.len()).write(0);
                            }
                        }
                    }
                }
                Format::Int8 => {
                    let group = row * self.width.div_ceil(GROUP) + start / GROUP;
                    let mut padded = [0.0; GROUP];
                    padded[..numbers.len()].copy_from_slice(numbers);
                    let (bytes, scale, sum) = quantize(&padded);
                    self.words.get().add(words + start / 4).cast::<[i8; GROUP]>().write(bytes);
                    self.scales.get().add(group).write(scale);
                    self.offsets.get().add(group).write(-128 * sum);
                }
            }
        }
    }
}

/// Integers in -127..=127, their unit, and their sum. A group with a NaN or an infinity gets a NaN as unit, so
/// that it shows in every product.
#[inline(always)]
fn quantize(numbers: &[f32; GROUP]) -> ([i8; GROUP], f32, i32) {
    /// Adding it leaves a small number's nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // Sixteen chains, so that lanes need no order.
    let (mut largest, mut poison) = ([0.0_f32; 16], [0.0_f32; 16]);
    for half in numbers.as_chunks::<16>().0 {
        for (i, x) in half.iter().enumerate() {
            largest[i] = if x.abs() > largest[i] { x.abs() } else { largest[i] };
            poison[i] += x * 0.0;
        }
    }
    let mut width = 8;
    while width > 0 {
        for i in 0..width {
            largest[i] = if largest[i + width] > largest[i] { largest[i + width] } else { largest[i] };
            poison[i] += poison[i + width];
        }
        width /= 2;
    }
    let scale = largest[0] / 127.0;
    // Below that the inverse is infinite; so small a group is none.
    let inverse = if scale > 1e-37 { 1.0 / scale } else { 0.0 };
    let integers = numbers.map(|x| (x * inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i32);
    let sum = integers.iter().sum();
    (integers.map(|x| x as i8), scale + poison[0], sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_rounded_as_the_half_crate_does() {
        for bits in (0..u32::MAX).step_by(65_521).chain([0x7f7f_ffff, 0x3f80_8000, 0x3f81_8000]) {
            let (x, want) = (f32::from_bits(bits), half::bf16::from_f32(f32::from_bits(bits)));
            let got = half::bf16::from_bits(nearest_bf16(x));
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn a_quantized_group_is_within_half_a_unit_and_faults_show() {
        let numbers: [f32; GROUP] = std::array::from_fn(|i| (i as f32 - 13.3) * 0.37);
        let (integers, scale, sum) = quantize(&numbers);
        assert_eq!(integers.iter().map(|x| i32::from(*x)).sum::<i32>(), sum);
        for (x, integer) in numbers.iter().zip(integers) {
            assert!((x - f32::from(integer) * scale).abs() <= 0.5001 * scale);
        }
        assert_eq!(quantize(&[0.0; GROUP]), ([0; GROUP], 0.0, 0));
        assert!(quantize(&[1e-44; GROUP]).1 < 1e-37);
        for fault in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut numbers = numbers;
            numbers[17] = fault;
            assert!(quantize(&numbers).1.is_nan(), "{fault}");
        }
    }
}
