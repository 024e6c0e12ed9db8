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
    /// How numbers in bf16 lie.
    layout: Bf16Layout,
    rows: usize,
    width: usize,
    /// An f32, one bf16 or two, or four bytes each: from `first` on, which begins a cache line.
    words: Vec<u32>,
    first: usize,
    /// One per row and group (int8).
    scales: Vec<f32>,
    /// -128 times a group's sum, which undoes the offset of the weights (int8).
    offsets: Vec<i32>,
}

/// How inputs in bf16 lie: as an instruction set multiplies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bf16Layout {
    /// Each widened to an f32.
    Wide,
    /// In pairs, row by row.
    Pairs,
    /// In pairs, in tiles of 16 rows by 32 numbers: a tile of a row of tiles after another.
    Tiles,
}

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;
/// Words of a row of a tile.
const TILE_WORDS: usize = 16;
/// Of a cache line: a row of a tile lies on one, not on two.
const LINE_BYTES: usize = 64;

impl Default for Inputs {
    fn default() -> Self {
        let (words, first, scales, offsets) = Default::default();
        let (format, layout) = (Format::F32, Bf16Layout::Wide);
        Self { format, layout, rows: 0, width: 0, words, first, scales, offsets }
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
    /// If there is no such row, or it has another width.
    pub fn unpack_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.width, "row {row} of {} x {}", self.rows, self.width);
        let words = &self.words[self.first + start(self.format, self.layout, self.width, row)..];
        for (i, out) in out.iter_mut().enumerate() {
            *out = match self.format {
                Format::F32 => f32::from_bits(words[i]),
                Format::Bf16 => match self.layout {
                    Bf16Layout::Wide => f32::from_bits(words[i]),
                    Bf16Layout::Pairs => f32::from_bits(words[i / 2] >> (i % 2 * 16) << 16),
                    Bf16Layout::Tiles => {
                        let word = words[i / GROUP * TILE_ROWS * TILE_WORDS + i % GROUP / 2];
                        f32::from_bits(word >> (i % 2 * 16) << 16)
                    }
                },
                Format::Int8 => {
                    let integer = (words[i / 4] >> (i % 4 * 8)) as u8 as i8;
                    f32::from(integer) * self.scales[row * self.groups() + i / GROUP]
                }
            };
        }
    }

    /// Words from one row to the next.
    pub(crate) fn stride(&self) -> usize {
        stride(self.format, self.layout, self.width)
    }

    /// Where row `row` starts; of rows in tiles, the first of one.
    pub(crate) fn row(&self, row: usize) -> View {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let in_tiles = self.format == Format::Bf16 && self.layout == Bf16Layout::Tiles;
        assert!(!in_tiles || row.is_multiple_of(TILE_ROWS), "row {row} is inside a tile");
        let groups = self.groups();
        let first = |group: usize| if self.format == Format::Int8 { row * groups + group } else { 0 };
        View {
            words: self.words[self.first + row * self.stride()..].as_ptr(),
            stride: self.stride(),
            scales: self.scales[first(0)..].as_ptr(),
            offsets: self.offsets[first(0)..].as_ptr(),
            groups,
        }
    }

    /// Takes up another shape. What it holds is then arbitrary: each row must be written.
    pub(crate) fn reshape(&mut self, isa: Isa, format: Format, rows: usize, width: usize) -> Writer {
        (self.format, self.layout, self.rows, self.width) = (format, isa.bf16_layout(), rows, width);
        let groups = if format == Format::Int8 { rows * self.groups() } else { 0 };
        // Tiles are whole; rows beyond the last are multiplied, too, and nobody reads what comes of it.
        let places = match self.layout {
            Bf16Layout::Tiles => rows.next_multiple_of(TILE_ROWS),
            Bf16Layout::Wide | Bf16Layout::Pairs => rows,
        };
        self.words.resize(places * self.stride() + LINE_BYTES / size_of::<u32>() - 1, 0);
        self.first = self.words.as_ptr().align_offset(LINE_BYTES);
        self.scales.resize(groups, 0.0);
        self.offsets.resize(groups, 0);
        Writer {
            format,
            layout: self.layout,
            width,
            words: Shared(self.words[self.first..].as_mut_ptr()),
            scales: Shared(self.scales.as_mut_ptr()),
            offsets: Shared(self.offsets.as_mut_ptr()),
        }
    }

    /// Whether numbers lie as an instruction set reads them.
    pub(crate) fn suit(&self, isa: Isa) -> bool {
        self.format != Format::Bf16 || self.layout == isa.bf16_layout()
    }

    fn groups(&self) -> usize {
        self.width.div_ceil(GROUP)
    }
}

/// Words of a row.
#[inline(always)]
fn stride(format: Format, layout: Bf16Layout, width: usize) -> usize {
    match (format, layout) {
        (Format::F32, _) => width,
        (Format::Bf16, Bf16Layout::Wide) => width.next_multiple_of(2),
        (Format::Bf16, Bf16Layout::Pairs) => width.div_ceil(2),
        (Format::Bf16, Bf16Layout::Tiles) => width.div_ceil(GROUP) * TILE_WORDS,
        (Format::Int8, _) => width.div_ceil(GROUP) * (GROUP / 4),
    }
}

/// The word at which a row starts.
#[inline(always)]
fn start(format: Format, layout: Bf16Layout, width: usize, row: usize) -> usize {
    let stride = stride(format, layout, width);
    match (format, layout) {
        (Format::Bf16, Bf16Layout::Tiles) => {
            row / TILE_ROWS * TILE_ROWS * stride + row % TILE_ROWS * TILE_WORDS
        }
        _ => row * stride,
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
    layout: Bf16Layout,
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
        let words = self::start(self.format, self.layout, self.width, row);
        // SAFETY: the caller's promise; the padding of the last group or pair belongs to the row.
        unsafe {
            match self.format {
                Format::F32 => {
                    let to = self.words.get().add(words + start).cast::<f32>();
                    std::ptr::copy_nonoverlapping(numbers.as_ptr(), to, numbers.len());
                }
                Format::Bf16 if self.layout == Bf16Layout::Wide => {
                    let to = self.words.get().add(words + start);
                    let wide = |x: f32| u32::from(nearest_bf16(x)) << 16;
                    match numbers.as_array::<GROUP>() {
                        Some(numbers) => {
                            for (i, x) in numbers.iter().enumerate() {
                                to.add(i).write(wide(*x));
                            }
                        }
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
                    let tiles = self.layout == Bf16Layout::Tiles;
                    let within = if tiles { start / GROUP * TILE_ROWS * TILE_WORDS } else { start / 2 };
                    let to = self.words.get().add(words + within).cast::<u16>();
                    match numbers.as_array::<GROUP>() {
                        Some(numbers) => {
                            for (i, x) in numbers.iter().enumerate() {
                                to.add(i).write(nearest_bf16(*x));
                            }
                        }
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
                    self.offsets.get().add(group).write(sum.wrapping_mul(-128));
                }
            }
        }
    }
}

/// Integers in -127..=127, their unit, and their sum. A group with a NaN or an infinity gets a NaN as unit, so
/// that it shows in every product; its integers and their sum are arbitrary.
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
    let (mut integers, mut bytes, mut sum) = ([0; GROUP], [0; GROUP], 0_i32);
    for (integer, x) in integers.iter_mut().zip(numbers) {
        *integer = (x * inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    }
    for (byte, integer) in bytes.iter_mut().zip(integers) {
        *byte = integer as i8;
        sum = sum.wrapping_add(integer);
    }
    (bytes, scale + poison[0], sum)
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
    fn rows_of_tiles_begin_cache_lines_whatever_the_buffer_was_before() {
        let mut inputs = Inputs::default();
        for (rows, width) in [(1, 32), (17, 33), (512, 2_048), (16, 7), (600, 2_048), (1, 1)] {
            inputs.reshape(Isa::Amx, Format::Bf16, rows, width);
            for row in (0..rows).step_by(TILE_ROWS) {
                let at = inputs.row(row).words.addr();
                assert!(at.is_multiple_of(LINE_BYTES), "{rows} x {width}, row {row}: {at:#x}");
            }
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
            assert!(quantize(&[fault; GROUP]).1.is_nan(), "nothing but {fault}");
        }
    }
}
