//! Packing at load time: rows of any source become the panels of a [`Matrix`].
//!
//! Version 3. Sixteen rows at a time are rounded, each front to back into its own buffer, and transposed sixteen by sixteen
//! words in registers, so that everything is read and written in order and by whole cache lines. Version 2 wrote word by
//! word; version 1 wrote each row straight to its place, four bytes in every 256. Cost and limits: kernels/README.md.

use half::f16;

use crate::cpu::{Cpu, Shared};
use crate::element::nearest_bf16;
use crate::matrix::{Format, GROUP, Matrix, PANEL, Shape, largest_and_poison};
use crate::memory::{Arena, OutOfMemory};
use crate::simd::{Isa, LANES, Simd, on_isa};

/// Words of an 8-bit group.
const GROUP_WORDS: usize = GROUP / 4;

/// Packs matrices into memory with huge pages, on several threads.
pub struct Packer {
    cpu: Cpu,
    arena: Arena,
}

impl Packer {
    /// A packer with `threads` threads, including the caller's.
    ///
    /// # Errors
    /// If threads can't be started.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        Ok(Self { cpu: Cpu::new(threads)?, arena: Arena::default() })
    }

    /// Packs a matrix of `outputs` rows of `inputs` numbers. `row(i, numbers)` fills row `i`; it is called once per row, on
    /// any thread, in any order.
    ///
    /// # Errors
    /// If memory runs out.
    ///
    /// # Panics
    /// If the matrix has no columns, or `row` panics.
    pub fn matrix(
        &mut self,
        format: Format,
        outputs: usize,
        inputs: usize,
        row: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Result<Matrix, OutOfMemory> {
        self.pack(Shape { format, outputs, inputs, gated: false }, row)
    }

    /// Packs the matrix of a gated layer, for `Cpu::gated`: rows `0..width` are the gate's, the next `width` rows the other
    /// half's.
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
        let isa = self.cpu.isa();
        self.cpu.for_each(shape.panels(), usize::MAX, |panel| {
            let (start, width) = shape.place(panel);
            let bytes = shape.panel_bytes(width);
            // SAFETY: the panel's bytes lie in the data, and each panel is written by one item.
            let out = unsafe { std::slice::from_raw_parts_mut(target.get().add(start), bytes) };
            let mut numbers = vec![0.0; shape.steps() * shape.format.step()];
            let mut rows = Rounded::new(shape);
            for first in (0..width).step_by(LANES) {
                for lane in 0..LANES {
                    match shape.row_of(panel * PANEL + first + lane) {
                        Some(index) => {
                            row(index, &mut numbers[..shape.inputs]);
                            rows.round(isa, lane, &numbers);
                        }
                        None => rows.clear(lane),
                    }
                }
                rows.deal(isa, Place { out, width, first });
            }
        });
        Ok(Matrix::new(shape, data))
    }
}

/// Sixteen rows in a matrix's format, stored one after another.
struct Rounded {
    format: Format,
    /// Words from one row to the next: sixteen more than needed, since they are read sixteen at a time. It must not be a
    /// power of two, or all rows would compete for the same sets of the L1 cache.
    stride: usize,
    words: Vec<u32>,
    /// Per row and step (int8).
    scales: [Vec<f16>; LANES],
}

/// The destination of sixteen columns: a panel of `width` columns, and the first column.
struct Place<'a> {
    out: &'a mut [u8],
    width: usize,
    first: usize,
}

impl Rounded {
    fn new(shape: Shape) -> Self {
        let quantized = shape.format == Format::Int8;
        let stride = shape.steps() * if quantized { GROUP_WORDS } else { 1 } + LANES;
        let scales = vec![f16::ZERO; if quantized { shape.steps() } else { 0 }];
        Self {
            format: shape.format,
            stride,
            words: vec![0; LANES * stride],
            scales: std::array::from_fn(|_| scales.clone()),
        }
    }

    /// Rounds a row, padded to whole steps.
    fn round(&mut self, isa: Isa, lane: usize, numbers: &[f32]) {
        let words = &mut self.words[lane * self.stride..][..self.stride];
        let (format, scales) = (self.format, self.scales[lane].as_mut_slice());
        on_isa!(isa, round(format: Format, numbers: &[f32], words: &mut [u32], scales: &mut [f16]));
    }

    /// Clears a column of padding.
    fn clear(&mut self, lane: usize) {
        self.words[lane * self.stride..][..self.stride].fill(0);
        self.scales[lane].fill(f16::ZERO);
    }

    fn deal(&self, isa: Isa, place: Place<'_>) {
        let rows = self;
        on_isa!(isa, deal(rows: &Rounded, place: Place<'_>));
    }
}

#[inline(always)]
fn round<S: Simd>(_: S, format: Format, numbers: &[f32], words: &mut [u32], scales: &mut [f16]) {
    match format {
        Format::F32 => words.iter_mut().zip(numbers).for_each(|(word, x)| *word = x.to_bits()),
        Format::Bf16 => words.iter_mut().zip(numbers.as_chunks::<2>().0).for_each(|(word, [even, odd])| {
            *word = pair(nearest_bf16(*even), nearest_bf16(*odd));
        }),
        Format::Int8 => {
            let groups = words.as_chunks_mut::<GROUP_WORDS>().0.iter_mut().zip(scales);
            for ((words, scale), numbers) in groups.zip(numbers.as_chunks::<GROUP>().0) {
                *scale = scale_of(numbers);
                let inverse = if *scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() };
                // Within 1..=255. Adding 1.5 * 2^23 rounds, ties to even, and leaves the integer in the lowest
                // bits.
                let mut bytes = [0_u8; GROUP];
                for (byte, x) in bytes.iter_mut().zip(numbers) {
                    *byte = ((x * inverse).clamp(-127.0, 127.0) + (12_582_912.0 + 128.0)).to_bits() as u8;
                }
                for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *word = u32::from_ne_bytes(*bytes);
                }
            }
        }
    }
}

/// Two numbers in memory order as a word.
#[inline(always)]
fn pair(even: u16, odd: u16) -> u32 {
    let ([a, b], [c, d]) = (even.to_ne_bytes(), odd.to_ne_bytes());
    u32::from_ne_bytes([a, b, c, d])
}

#[inline(always)]
fn deal<S: Simd>(simd: S, rows: &Rounded, place: Place<'_>) {
    let Place { out, width, first } = place;
    // A step's scales, if any, then its words, with the rows' next to each other.
    let (scales, of_step) = match rows.format {
        Format::F32 | Format::Bf16 => (0, 1),
        Format::Int8 => (2 * width, GROUP_WORDS),
    };
    let steps = out.len() / (width * rows.format.step_bytes());
    if scales > 0 {
        for (step, out) in out.chunks_exact_mut(width * rows.format.step_bytes()).enumerate() {
            for (to, from) in out[..scales].as_chunks_mut::<2>().0[first..].iter_mut().zip(&rows.scales) {
                *to = from[step].to_ne_bytes();
            }
        }
    }
    let (mut to, mut of_step_left) = (scales + 4 * first, of_step);
    for at in (0..steps * of_step).step_by(LANES) {
        let mut tile = [simd.splat_word(0); LANES];
        for (lane, tile) in tile.iter_mut().enumerate() {
            let from = &rows.words[lane * rows.stride + at..][..LANES];
            // SAFETY: sixteen words.
            *tile = unsafe { simd.load_words(from.as_ptr()) };
        }
        for word in simd.turn(tile).into_iter().take(steps * of_step - at) {
            let bytes = &mut out[to..][..4 * LANES];
            // SAFETY: sixteen words' bytes.
            unsafe { simd.store_words(bytes.as_mut_ptr().cast(), word) };
            to += 4 * width;
            of_step_left -= 1;
            if of_step_left == 0 {
                (to, of_step_left) = (to + scales, of_step);
            }
        }
    }
}

/// The scale that maps the largest number of a group to 127. Numbers beyond the range of an f16 scale are clamped. NaN or
/// infinity makes the whole group NaN, which propagates into every product.
#[inline(always)]
fn scale_of(numbers: &[f32; GROUP]) -> f16 {
    let (largest, poison) = largest_and_poison(numbers);
    if poison.is_nan() {
        return f16::NAN;
    }
    let scale = f16::from_f32((largest / 127.0).min(f16::MAX.to_f32()));
    // Among the smallest halves rounding can err by much; the next larger one covers the number.
    if largest > 127.5 * scale.to_f32() && scale < f16::MAX {
        f16::from_bits(scale.to_bits() + 1)
    } else {
        scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    /// Ragged in both directions; numbers differ in their low bits, so that rounding shows.
    #[test]
    fn rows_come_back_as_they_were_rounded_on_every_instruction_set() {
        for isa in Isa::available() {
            let cpu = Cpu::with_isa(isa, 2).unwrap();
            let mut packer = Packer { cpu, arena: Arena::default() };
            for (format, outputs, inputs) in
                [Format::F32, Format::Bf16, Format::Int8].into_iter().flat_map(|format| {
                    [(1, 1), (16, 32), (70, 33), (130, 100), (256, 64)].map(|(n, k)| (format, n, k))
                })
            {
                let number = |row: usize, i: usize| (((row * 131 + i * 17) % 1009) as f32 - 504.3) / 7.1;
                let fill = |row: usize, out: &mut [f32]| {
                    out.iter_mut().enumerate().for_each(|(i, x)| *x = number(row, i));
                };
                let mut matrices = vec![packer.matrix(format, outputs, inputs, fill).unwrap()];
                if outputs.is_multiple_of(2) {
                    matrices.push(packer.gated(format, outputs / 2, inputs, fill).unwrap());
                }
                let mut got = vec![f32::NAN; inputs];
                for (matrix, row) in
                    matrices.iter().flat_map(|matrix| (0..outputs).map(move |row| (matrix, row)))
                {
                    matrix.unpack_row(row, 1.0, &mut got);
                    for (i, got) in got.iter().enumerate() {
                        let (want, group) = (number(row, i), i / GROUP * GROUP);
                        let largest = (group..inputs.min(group + GROUP))
                            .fold(0.0_f32, |largest, i| largest.max(number(row, i).abs()));
                        let right = match format {
                            Format::F32 => *got == want,
                            Format::Bf16 => *got == bf16::from_f32(want).to_f32(),
                            Format::Int8 => (got - want).abs() <= 0.51 * largest / 127.0,
                        };
                        assert!(right, "{isa:?}, {format:?}, row {row} of {outputs}, {i}: {got}, not {want}");
                    }
                }
            }
        }
    }
}
