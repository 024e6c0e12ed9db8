//! Packing at load time: rows of any source become the panels of a [`Matrix`].
//!
//! Version 3. Sixteen rows at a time are rounded, each front to back into its own buffer, and transposed sixteen by sixteen
//! words in registers, so that everything is read and written in order and by whole cache lines. Version 2 wrote word by
//! word; version 1 wrote each row straight to its place, four bytes in every 256. Cost and limits: kernels/README.md.

#[cfg(test)]
mod tests;

use half::f16;

use crate::cpu::{Cpu, Shared};
use crate::element::nearest_bf16;
use crate::group4::Group4;
use crate::matrix::{Format, GROUP, Matrix, PANEL, Shape, largest_and_poison};
use crate::memory::{Arena, OutOfMemory};
use crate::mx4::Mx4;
use crate::simd::{Isa, LANES, Simd, on_isa};

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
        self.numbers(Shape { format, outputs, inputs, gated: false }, row)
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
        self.numbers(Shape { format, outputs: 2 * width, inputs, gated: true }, row)
    }

    /// As [`Packer::matrix`], of rows that are groups or blocks of 4 bits already. These stay as they are.
    ///
    /// # Errors
    /// As [`Packer::matrix`].
    ///
    /// # Panics
    /// As [`Packer::matrix`].
    pub fn matrix_of<T: Held>(
        &mut self,
        outputs: usize,
        inputs: usize,
        row: impl Fn(usize, &mut [T]) + Sync,
    ) -> Result<Matrix, OutOfMemory> {
        self.held(Shape { format: T::FORMAT, outputs, inputs, gated: false }, row)
    }

    /// As [`Packer::gated`], of rows that are groups or blocks of 4 bits already. These stay as they are.
    ///
    /// # Errors
    /// As [`Packer::matrix`].
    ///
    /// # Panics
    /// As [`Packer::matrix`].
    pub fn gated_of<T: Held>(
        &mut self,
        width: usize,
        inputs: usize,
        row: impl Fn(usize, &mut [T]) + Sync,
    ) -> Result<Matrix, OutOfMemory> {
        self.held(Shape { format: T::FORMAT, outputs: 2 * width, inputs, gated: true }, row)
    }

    fn numbers(
        &mut self,
        shape: Shape,
        row: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Result<Matrix, OutOfMemory> {
        let isa = self.cpu.isa();
        let padded = vec![0.0; shape.steps() * shape.format.step()];
        self.pack(shape, padded, |index, numbers, lane| {
            row(index, &mut numbers[..shape.inputs]);
            lane.round(isa, shape.format, numbers);
        })
    }

    fn held<T: Held>(
        &mut self,
        shape: Shape,
        row: impl Fn(usize, &mut [T]) + Sync,
    ) -> Result<Matrix, OutOfMemory> {
        self.pack(shape, vec![T::default(); shape.steps()], |index, held, lane| {
            row(index, held);
            lane.hold(held);
        })
    }

    /// `row(i, buffer, lane)` puts row `i` into a lane. Each panel has a copy of the buffer.
    fn pack<T: Clone + Sync>(
        &mut self,
        shape: Shape,
        buffer: Vec<T>,
        row: impl Fn(usize, &mut [T], Lane<'_>) + Sync,
    ) -> Result<Matrix, OutOfMemory> {
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
            let mut buffer = buffer.clone();
            let mut rows = Rounded::new(shape);
            for first in (0..width).step_by(LANES) {
                for lane in 0..LANES {
                    match shape.row_of(panel * PANEL + first + lane) {
                        Some(index) => row(index, &mut buffer, rows.lane(lane)),
                        None => rows.lane(lane).clear(),
                    }
                }
                rows.deal(isa, Place { out, width, first });
            }
        });
        Ok(Matrix::new(shape, data))
    }
}

/// 32 weights of an output as a format of 4 bits holds them: [`Group4`] or [`Mx4`]. Other crates can't name it, so there are
/// no more.
pub trait Held: Copy + Default + Sync {
    /// That format.
    const FORMAT: Format;
    /// Scales and bases.
    const UNITS: usize = Self::FORMAT.units();

    /// Writes the bits of these.
    fn write_units(&self, to: &mut [u16]);

    /// The numbers of 4 bits, each in a byte.
    fn codes(&self) -> &[u8; GROUP];
}

impl Held for Group4 {
    const FORMAT: Format = Format::Int4;

    #[inline(always)]
    fn write_units(&self, to: &mut [u16]) {
        to.copy_from_slice(&[self.scale.to_bits(), self.base.to_bits()]);
    }

    #[inline(always)]
    fn codes(&self) -> &[u8; GROUP] {
        &self.integers
    }
}

impl Held for Mx4 {
    const FORMAT: Format = Format::Mxfp4;

    #[inline(always)]
    fn write_units(&self, to: &mut [u16]) {
        to.copy_from_slice(&[self.unit().to_bits()]);
    }

    #[inline(always)]
    fn codes(&self) -> &[u8; GROUP] {
        &self.codes
    }
}

/// Sixteen rows in a matrix's format, stored one after another.
struct Rounded {
    format: Format,
    /// Words from one row to the next: sixteen more than needed, since they are read sixteen at a time. It must not be a
    /// power of two, or all rows would compete for the same sets of the L1 cache.
    stride: usize,
    words: Vec<u32>,
    /// Bits of scales, and of bases, per row and step.
    units: [Vec<u16>; LANES],
}

/// One of the sixteen rows.
struct Lane<'a> {
    words: &'a mut [u32],
    units: &'a mut [u16],
}

/// The destination of sixteen columns: a panel of `width` columns, and the first column.
struct Place<'a> {
    out: &'a mut [u8],
    width: usize,
    first: usize,
}

impl Rounded {
    fn new(shape: Shape) -> Self {
        let (steps, format) = (shape.steps(), shape.format);
        let stride = steps * format.words() + LANES;
        let units = vec![0; steps * format.units()];
        Self { format, stride, words: vec![0; LANES * stride], units: std::array::from_fn(|_| units.clone()) }
    }

    fn lane(&mut self, lane: usize) -> Lane<'_> {
        Lane { words: &mut self.words[lane * self.stride..][..self.stride], units: &mut self.units[lane] }
    }

    fn deal(&self, isa: Isa, place: Place<'_>) {
        let rows = self;
        on_isa!(isa, deal(rows: &Rounded, place: Place<'_>));
    }
}

impl Lane<'_> {
    /// Rounds a row, padded to whole steps.
    fn round(self, isa: Isa, format: Format, numbers: &[f32]) {
        let lane = self;
        on_isa!(isa, round(format: Format, numbers: &[f32], lane: Lane<'_>));
    }

    /// Takes groups or blocks as they are.
    #[inline(always)]
    fn hold<T: Held>(self, held: &[T]) {
        let words = self.words.as_chunks_mut::<{ GROUP / 8 }>().0.iter_mut();
        for ((words, units), held) in words.zip(self.units.chunks_exact_mut(T::UNITS)).zip(held) {
            held.write_units(units);
            share_bytes(words, held.codes());
        }
    }

    /// Makes the row a column of padding.
    fn clear(self) {
        self.words.fill(0);
        self.units.fill(0);
    }
}

#[inline(always)]
fn round<S: Simd>(_: S, format: Format, numbers: &[f32], lane: Lane<'_>) {
    let Lane { words, units } = lane;
    match format {
        Format::F32 => words.iter_mut().zip(numbers).for_each(|(word, x)| *word = x.to_bits()),
        Format::Bf16 => words.iter_mut().zip(numbers.as_chunks::<2>().0).for_each(|(word, [even, odd])| {
            *word = pair(nearest_bf16(*even), nearest_bf16(*odd));
        }),
        Format::Int8 => {
            let groups = words.as_chunks_mut::<{ GROUP / 4 }>().0.iter_mut().zip(units);
            for ((words, scale), numbers) in groups.zip(numbers.as_chunks::<GROUP>().0) {
                let unit = scale_of(numbers);
                *scale = unit.to_bits();
                let inverse = if unit == f16::ZERO { 0.0 } else { 1.0 / unit.to_f32() };
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
        Format::Int4 => {
            let words = words.chunks_exact_mut(GROUP / 8).zip(units.chunks_exact_mut(2));
            for ((words, units), numbers) in words.zip(numbers.as_chunks::<GROUP>().0) {
                Lane { words, units }.hold(&[Group4::nearest(numbers)]);
            }
        }
        Format::Mxfp4 => {
            let words = words.chunks_exact_mut(GROUP / 8).zip(units.chunks_exact_mut(1));
            for ((words, units), numbers) in words.zip(numbers.as_chunks::<GROUP>().0) {
                Lane { words, units }.hold(&[Mx4::nearest(numbers)]);
            }
        }
    }
}

/// Puts numbers of 4 bits into words: four into the low halves of the bytes, the next four into the high ones.
#[inline(always)]
fn share_bytes(words: &mut [u32; GROUP / 8], numbers: &[u8; GROUP]) {
    for (word, [a, b]) in words.iter_mut().zip(numbers.as_chunks::<4>().0.as_chunks::<2>().0) {
        *word = u32::from_ne_bytes(*a) | u32::from_ne_bytes(*b) << 4;
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
    // A step's scales and bases, if any, then its words, with the rows' next to each other.
    let (units, of_step) = (rows.format.units(), rows.format.words());
    let step_bytes = width * rows.format.step_bytes();
    let steps = out.len() / step_bytes;
    if units > 0 {
        for (step, out) in out.chunks_exact_mut(step_bytes).enumerate() {
            for unit in 0..units {
                let out = out[2 * unit * width..].as_chunks_mut::<2>().0[first..].iter_mut();
                for (to, from) in out.zip(&rows.units) {
                    *to = from[step * units + unit].to_ne_bytes();
                }
            }
        }
    }
    let before = 2 * units * width;
    let (mut to, mut of_step_left) = (before + 4 * first, of_step);
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
                (to, of_step_left) = (to + before, of_step);
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
