//! Rows of activations in the format of the matrix's weights, as a product reads them. The operation that produces a row
//! rounds it, once and independently of other rows: f32 as it is; bf16 to nearest, ties to even; int8 in groups of 32 with an
//! f32 scale each. Buffers are reused.

use crate::cpu::Shared;
use crate::element::nearest_bf16;
use crate::matrix::{Format, GROUP, largest_and_poison};
use crate::simd::Isa;

/// Inputs of a product.
#[derive(Debug)]
pub struct Inputs {
    format: Format,
    layout: Layout,
    rows: usize,
    width: usize,
    /// Each word holds an f32, one or two bf16, or four bytes. Data starts at `first`, which begins a cache line.
    words: Vec<u32>,
    first: usize,
    /// One per row and group (int8).
    scales: Vec<f32>,
    /// -128 times a group's sum, which undoes the offset of the weights (int8).
    offsets: Vec<i32>,
}

/// Memory layout of bf16 and 8-bit inputs, as an instruction set multiplies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Row by row, bf16 widened to f32.
    Wide,
    /// Row by row, bf16 in pairs.
    Pairs,
    /// In tiles of 16 rows by 32 numbers, row-major by tile, bf16 in pairs; scales are in the same order.
    Tiles,
}

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;
/// Words of a row of a tile of bf16.
const BF16_WORDS: usize = GROUP / 2;
/// Words of a row of a group of 8-bit integers.
const INT8_WORDS: usize = GROUP / 4;
/// Alignment of tiles, so that no row of a tile spans two cache lines.
const LINE_BYTES: usize = 64;

impl Default for Inputs {
    fn default() -> Self {
        let (words, first, scales, offsets) = Default::default();
        let (format, layout) = (Format::F32, Layout::Wide);
        Self { format, layout, rows: 0, width: 0, words, first, scales, offsets }
    }
}

impl Inputs {
    /// Storage format, never one of 4 bits.
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

    /// Writes row `row`, as rounded, to `out`.
    ///
    /// # Panics
    /// If there is no such row, or `out` has another width.
    pub fn unpack_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.width, "row {row} of {} x {}", self.rows, self.width);
        let words = &self.words[self.first + start(self.format, self.layout, self.width, row)..];
        for (i, out) in out.iter_mut().enumerate() {
            *out = match self.format {
                Format::F32 => f32::from_bits(words[i]),
                Format::Bf16 => match self.layout {
                    Layout::Wide => f32::from_bits(words[i]),
                    Layout::Pairs => f32::from_bits(words[i / 2] >> (i % 2 * 16) << 16),
                    Layout::Tiles => {
                        let word = words[i / GROUP * TILE_ROWS * BF16_WORDS + i % GROUP / 2];
                        f32::from_bits(word >> (i % 2 * 16) << 16)
                    }
                },
                Format::Int8 | Format::Int4 | Format::Mxfp4 => {
                    let word = words[i / GROUP * group_words(self.layout) + i % GROUP / 4];
                    let integer = (word >> (i % 4 * 8)) as u8 as i8;
                    f32::from(integer) * self.scales[scale(self.layout, self.groups(), row, i / GROUP)]
                }
            };
        }
    }

    /// Words from one row to the next.
    pub(crate) fn stride(&self) -> usize {
        stride(self.format, self.layout, self.width)
    }

    /// Start of row `row`. In tiles of bf16 it must be the first of one, and in tiles of 8-bit integers rows beyond the tile
    /// can't be reached from it.
    pub(crate) fn row(&self, row: usize) -> View {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let in_tiles = self.format == Format::Bf16 && self.layout == Layout::Tiles;
        assert!(!in_tiles || row.is_multiple_of(TILE_ROWS), "row {row} is inside a tile");
        let (groups, tiles) = (self.groups(), self.layout == Layout::Tiles);
        let first = if self.format == Format::Int8 { scale(self.layout, groups, row, 0) } else { 0 };
        View {
            words: self.words[self.first + start(self.format, self.layout, self.width, row)..].as_ptr(),
            stride: if tiles && self.format == Format::Int8 { INT8_WORDS } else { self.stride() },
            group_words: group_words(self.layout),
            scales: self.scales[first..].as_ptr(),
            offsets: self.offsets[first..].as_ptr(),
            scales_stride: if tiles { 1 } else { groups },
            group_scales: if tiles { TILE_ROWS } else { 1 },
        }
    }

    /// Makes room for a shape: changing to it, or to fewer rows, then allocates nothing. What was held is lost.
    pub(crate) fn reserve(&mut self, isa: Isa, format: Format, rows: usize, width: usize) {
        let (words, groups) = room(format.inputs(), isa.layout(), rows, width);
        self.words.reserve(words.saturating_sub(self.words.len()));
        self.scales.reserve(groups.saturating_sub(self.scales.len()));
        self.offsets.reserve(groups.saturating_sub(self.offsets.len()));
        // The words may have moved, and begin a cache line elsewhere.
        self.rows = 0;
    }

    /// Changes the shape. The content is then arbitrary until each row is written.
    pub(crate) fn reshape(&mut self, isa: Isa, format: Format, rows: usize, width: usize) -> Writer {
        let format = format.inputs();
        (self.format, self.layout, self.rows, self.width) = (format, isa.layout(), rows, width);
        let (words, groups) = room(format, self.layout, rows, width);
        self.words.resize(words, 0);
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

    /// Whether the layout is the one an instruction set reads.
    pub(crate) fn suit(&self, isa: Isa) -> bool {
        self.format == Format::F32 || self.layout == isa.layout()
    }

    fn groups(&self) -> usize {
        self.width.div_ceil(GROUP)
    }
}

/// Words of a shape with those that alignment may skip, and its scales, which are as many as its offsets.
fn room(format: Format, layout: Layout, rows: usize, width: usize) -> (usize, usize) {
    // Tiles are whole. Rows beyond the last are multiplied too, and the results ignored.
    let places = match layout {
        Layout::Tiles => rows.next_multiple_of(TILE_ROWS),
        Layout::Wide | Layout::Pairs => rows,
    };
    let groups = if format == Format::Int8 { places * width.div_ceil(GROUP) } else { 0 };
    (places * stride(format, layout, width) + LINE_BYTES / size_of::<u32>() - 1, groups)
}

/// Words of a row.
#[inline(always)]
fn stride(format: Format, layout: Layout, width: usize) -> usize {
    match (format, layout) {
        (Format::F32, _) => width,
        (Format::Bf16, Layout::Wide) => width.next_multiple_of(2),
        (Format::Bf16, Layout::Pairs) => width.div_ceil(2),
        (Format::Bf16, Layout::Tiles) => width.div_ceil(GROUP) * BF16_WORDS,
        (Format::Int8 | Format::Int4 | Format::Mxfp4, _) => width.div_ceil(GROUP) * INT8_WORDS,
    }
}

/// The word at which a row starts.
#[inline(always)]
fn start(format: Format, layout: Layout, width: usize, row: usize) -> usize {
    let stride = stride(format, layout, width);
    match (format, layout) {
        (Format::Bf16, Layout::Tiles) => row / TILE_ROWS * TILE_ROWS * stride + row % TILE_ROWS * BF16_WORDS,
        (Format::Int8, Layout::Tiles) => row / TILE_ROWS * TILE_ROWS * stride + row % TILE_ROWS * INT8_WORDS,
        _ => row * stride,
    }
}

/// What the exact sum of a group's products begins with if the weights are `bias` too large, of its offset.
#[inline(always)]
pub(crate) fn without_bias(offset: i32, bias: i8) -> i32 {
    (offset >> 7) * i32::from(bias)
}

/// The sum of a group's numbers, of its offset and its scale.
#[inline(always)]
pub(crate) fn sum_of_group(offset: i32, scale: f32) -> f32 {
    -(offset >> 7) as f32 * scale
}

/// Words from one group of 8-bit integers of a row to the next.
#[inline(always)]
fn group_words(layout: Layout) -> usize {
    if layout == Layout::Tiles { TILE_ROWS * INT8_WORDS } else { INT8_WORDS }
}

/// The place of a group's scale.
#[inline(always)]
fn scale(layout: Layout, groups: usize, row: usize, group: usize) -> usize {
    match layout {
        Layout::Tiles => (row / TILE_ROWS * groups + group) * TILE_ROWS + row % TILE_ROWS,
        Layout::Wide | Layout::Pairs => row * groups + group,
    }
}

/// A row and those that follow it, for kernels.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub words: *const u32,
    /// Words from one row to the next; in tiles of bf16, a sixteenth of those from one tile to the one below.
    pub stride: usize,
    /// Words from one group of 8-bit integers to the next.
    pub group_words: usize,
    pub scales: *const f32,
    pub offsets: *const i32,
    /// Scales, and offsets, from one row to the next.
    pub scales_stride: usize,
    /// Scales, and offsets, from one group to the next.
    pub group_scales: usize,
}

/// Writes rows of [`Inputs`]; several threads may write different rows.
#[derive(Clone, Copy)]
pub(crate) struct Writer {
    format: Format,
    layout: Layout,
    width: usize,
    words: Shared<u32>,
    scales: Shared<f32>,
    offsets: Shared<i32>,
}

impl Writer {
    /// Copies row `from` of inputs of the same format, layout and width to row `to`.
    ///
    /// # Safety
    /// Row `to` exists; no other thread writes it; its `Inputs` is alive and was not reshaped.
    pub(crate) unsafe fn copy(self, to: usize, x: &Inputs, from: usize) {
        assert!(from < x.rows && x.width == self.width, "row {from} of {} x {}", x.rows, x.width);
        let (count, words, apart) = runs(self.format, self.layout, self.width);
        let source = &x.words[x.first + start(x.format, x.layout, x.width, from)..];
        let target = start(self.format, self.layout, self.width, to);
        for run in 0..count {
            let source = &source[run * apart..][..words];
            // SAFETY: the run belongs to the row, by the caller's promise, and to other inputs than the source.
            unsafe {
                let target = self.words.get().add(target + run * apart);
                std::ptr::copy_nonoverlapping(source.as_ptr(), target, words);
            }
        }
        let groups = if self.format == Format::Int8 { x.groups() } else { 0 };
        for group in 0..groups {
            let source = scale(x.layout, groups, from, group);
            let target = scale(self.layout, groups, to, group);
            // SAFETY: the row has a scale and an offset for each group.
            unsafe {
                self.scales.get().add(target).write(x.scales[source]);
                self.offsets.get().add(target).write(x.offsets[source]);
            }
        }
    }

    /// Writes up to 32 numbers of a row from `start` on, a multiple of 32. Inlined into code compiled for an instruction set,
    /// so that it vectorizes; the bits are the same on all.
    ///
    /// # Safety
    /// The row exists and has the numbers, which are 32 or reach its end; no other thread writes them; the `Inputs` is alive
    /// and was not reshaped.
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
                Format::Bf16 if self.layout == Layout::Wide => {
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
                    let tiles = self.layout == Layout::Tiles;
                    let within = if tiles { start / GROUP * TILE_ROWS * BF16_WORDS } else { start / 2 };
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
                Format::Int8 | Format::Int4 | Format::Mxfp4 => {
                    let group = start / GROUP;
                    let at = scale(self.layout, self.width.div_ceil(GROUP), row, group);
                    let mut padded = [0.0; GROUP];
                    padded[..numbers.len()].copy_from_slice(numbers);
                    let (bytes, unit, sum) = quantize(&padded);
                    let to = self.words.get().add(words + group * group_words(self.layout));
                    to.cast::<[i8; GROUP]>().write(bytes);
                    self.scales.get().add(at).write(unit);
                    self.offsets.get().add(at).write(sum.wrapping_mul(-128));
                }
            }
        }
    }
}

/// How a row's words are stored: the number of runs, the words of one, and those from one to the next.
#[inline(always)]
fn runs(format: Format, layout: Layout, width: usize) -> (usize, usize, usize) {
    let groups = width.div_ceil(GROUP);
    match (format, layout) {
        (Format::Bf16, Layout::Tiles) => (groups, BF16_WORDS, TILE_ROWS * BF16_WORDS),
        (Format::Int8, Layout::Tiles) => (groups, INT8_WORDS, TILE_ROWS * INT8_WORDS),
        _ => (1, stride(format, layout, width), 0),
    }
}

/// Returns integers in -127..=127, their scale, and their sum. A group with NaN or infinity gets a NaN scale, which
/// propagates into every product; its integers and sum are arbitrary.
#[inline(always)]
fn quantize(numbers: &[f32; GROUP]) -> ([i8; GROUP], f32, i32) {
    /// Adding this leaves a small number's nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let (largest, poison) = largest_and_poison(numbers);
    let scale = largest / 127.0;
    // Below this the inverse would be infinite; treat such a group as zeros.
    let inverse = if scale > 1e-37 { 1.0 / scale } else { 0.0 };
    let (mut integers, mut bytes, mut sum) = ([0; GROUP], [0; GROUP], 0_i32);
    for (integer, x) in integers.iter_mut().zip(numbers) {
        *integer = (x * inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    }
    for (byte, integer) in bytes.iter_mut().zip(integers) {
        *byte = integer as i8;
        sum = sum.wrapping_add(integer);
    }
    (bytes, scale + poison, sum)
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
    fn rows_of_tiles_begin_cache_lines_after_any_reshape() {
        let mut inputs = Inputs::default();
        for (rows, width) in [(1, 32), (17, 33), (512, 2_048), (16, 7), (600, 2_048), (1, 1)] {
            for format in [Format::Bf16, Format::Int8] {
                inputs.reshape(Isa::Amx, format, rows, width);
                for row in (0..rows).step_by(TILE_ROWS) {
                    let at = inputs.row(row).words.addr();
                    assert!(
                        at.is_multiple_of(LINE_BYTES),
                        "{format:?}, {rows} x {width}, row {row}: {at:#x}"
                    );
                }
            }
        }
    }

    #[test]
    fn changing_to_a_shape_with_room_allocates_nothing() {
        for format in [Format::F32, Format::Bf16, Format::Int8, Format::Int4, Format::Mxfp4] {
            for isa in [Isa::Portable, Isa::Amx] {
                let mut inputs = Inputs::default();
                inputs.reshape(isa, format, 2, 7);
                inputs.reserve(isa, format, 40, 70);
                assert_eq!(inputs.rows(), 0, "what was held is lost");
                let room = |inputs: &Inputs| {
                    [inputs.words.capacity(), inputs.scales.capacity(), inputs.offsets.capacity()]
                };
                let before = room(&inputs);
                for rows in [1, 17, 40, 3] {
                    inputs.reshape(isa, format, rows, 70);
                    assert_eq!(room(&inputs), before, "{format:?}, {isa:?}, {rows} rows");
                }
            }
        }
    }

    #[test]
    fn quantized_group_is_within_half_a_unit_and_propagates_nan() {
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
            assert!(quantize(&[fault; GROUP]).1.is_nan(), "all {fault}");
        }
    }
}
