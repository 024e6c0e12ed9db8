//! Sums of 8-bit integer products: one instruction multiplies up to sixteen rows by sixteen columns by a group of 32 inputs.
//! Its sums are exact, and vectors then convert, scale and add them in the order in which `product.rs` does, so the bits are
//! the same. That takes most of the time: a product keeps the tile unit busy for sixteen cycles, and a loop whose data stays
//! in the L1 cache needs 65 to 75 per tile.
//!
//! Weights of 8 bits are stored 128 too large, as the vector instruction wants them; those of 4 bits share bytes, and 4-bit
//! floats are codes. A piece of a panel is converted to signed bytes once for all rows, which is less work than undoing the
//! offset in each sum.
//!
//! Tried without gain: two by two tiles with scaling apart from products, converting the next piece between products, and
//! scaling two, four or six groups behind.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::{ROW_BYTES, Shape, Tiles};
use crate::cpu::matmul::{ACROSS, Block};
use crate::inputs::{TILE_ROWS, sum_of_group};
use crate::matrix::{Format, GROUP};
use crate::mx4::DOUBLED;
use crate::simd::LANES;

/// Words of a group: the rows of a tile of weights.
pub(super) const WORDS: usize = GROUP / 4;
/// Rows from which tiles are faster than vectors.
pub(super) const LEAST: usize = 8;
/// Groups of a piece: its converted weights take a third of the L1 cache.
const PIECE: usize = 8;
/// Bytes from one row of tiles of converted weights to the next.
const SIGNED_BYTES: usize = 4 * ACROSS;
/// Bytes of converted weights of a group.
const GROUP_BYTES: usize = WORDS * SIGNED_BYTES;
/// Rows of a tile are a multiple of this.
const ROWS_STEP: usize = 4;
/// Tiles of exact sums in flight: one is scaled while later ones are multiplied.
const RING: usize = 4;
/// Groups between a product and its scaling.
const BEHIND: usize = 2;

/// Memory between tiles and vectors, both of whole cache lines.
#[repr(C, align(64))]
struct Scratch {
    /// Weights of a piece as signed bytes, by group, four inputs and column.
    weights: MaybeUninit<[u8; PIECE * GROUP_BYTES]>,
    /// Tiles of exact sums.
    sums: MaybeUninit<[[[i32; LANES]; TILE_ROWS]; RING]>,
}

// Fewer rows are left to vectors, which read them from one tile of inputs.
const _: () = assert!(LEAST <= TILE_ROWS);
// A group's sums stay until they are scaled.
const _: () = assert!(BEHIND < RING);

/// Computes all sums of blocks.
///
/// # Safety
/// As [`super::product`].
pub(super) unsafe fn product<'a, B: Iterator<Item = Block<'a>>>(blocks: impl Fn() -> B) {
    let Some(Block { weights, width, format, .. }) = blocks().next() else { return };
    let groups = weights.len() / (width * format.step_bytes());
    let mut tiles = Tiles::new();
    let mut scratch = Scratch { weights: MaybeUninit::uninit(), sums: MaybeUninit::uninit() };
    for first in (0..groups).step_by(PIECE) {
        let piece = first..groups.min(first + PIECE);
        for block in blocks() {
            // SAFETY: the caller's promise, and with AMX a CPU has AVX-512; pieces follow each other to the panel's end.
            unsafe { part(&mut tiles, &mut scratch, &block, piece.start, piece.len()) };
        }
    }
}

/// Continues a block's sums with `groups` groups from `first` on.
///
/// # Safety
/// As [`super::product`]; the panel has these groups.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn part(tiles: &mut Tiles, scratch: &mut Scratch, block: &Block<'_>, first: usize, groups: usize) {
    let format = block.format;
    let (group_bytes, unit_bytes) = (block.width * format.step_bytes(), 2 * block.width * format.units());
    let weights = block.weights[first * group_bytes..(first + groups) * group_bytes].as_ptr();
    let signed: *mut u8 = scratch.weights.as_mut_ptr().cast();
    // SAFETY: the caller's promise; a group has scales, and bases, and then words of all columns.
    unsafe {
        for group in 0..groups {
            let from = weights.add(group * group_bytes + unit_bytes);
            let to = signed.add(group * GROUP_BYTES);
            for words in 0..format.words() {
                for column in block.columns.clone().step_by(LANES) {
                    let bytes = _mm512_loadu_si512(from.add(4 * (words * block.width + column)).cast());
                    let put = |row: usize, bytes| {
                        _mm512_store_si512(to.add(row * SIGNED_BYTES + 4 * column).cast(), bytes);
                    };
                    if format == Format::Int8 {
                        put(words, _mm512_xor_si512(bytes, _mm512_set1_epi8(i8::MIN)));
                        continue;
                    }
                    let half = _mm512_set1_epi8(15);
                    let low = _mm512_and_si512(bytes, half);
                    let high = _mm512_and_si512(_mm512_srli_epi32::<4>(bytes), half);
                    match format {
                        Format::Mxfp4 => {
                            let doubled = _mm512_broadcast_i32x4(_mm_loadu_si128(DOUBLED.as_ptr().cast()));
                            put(2 * words, _mm512_shuffle_epi8(doubled, low));
                            put(2 * words + 1, _mm512_shuffle_epi8(doubled, high));
                        }
                        _ => {
                            put(2 * words, low);
                            put(2 * words + 1, high);
                        }
                    }
                }
            }
        }
        // The next piece is prefetched by all runs together.
        let calls = block.rows.div_ceil(TILE_ROWS) * (block.columns.len() / LANES);
        let lines = group_bytes.div_ceil(64 * calls);
        let mut ahead = weights.wrapping_add(groups * group_bytes);
        for row in (0..block.rows).step_by(TILE_ROWS) {
            let rows = (block.rows - row).min(TILE_ROWS).next_multiple_of(ROWS_STEP);
            tiles.configure(Shape { rows, words: WORDS });
            let x = block.x.row(block.row + row);
            for column in block.columns.clone().step_by(LANES) {
                let run = Run {
                    groups,
                    x: x.words.add(first * x.group_words),
                    scales: x.scales.add(first * x.group_scales),
                    offsets: x.offsets.add(first * x.group_scales),
                    weights: signed.add(4 * column),
                    units: weights.add(2 * column),
                    wide_units: format == Format::Mxfp4,
                    bases: (format == Format::Int4).then(|| weights.add(2 * (block.width + column))),
                    group_bytes,
                    exact: scratch.sums.as_mut_ptr().cast(),
                    sums: block.sums.wrapping_add(row * ACROSS + column),
                    goes_on: first > 0,
                    ahead,
                    lines,
                };
                match rows {
                    4 => run.multiply::<4>(),
                    8 => run.multiply::<8>(),
                    12 => run.multiply::<12>(),
                    _ => run.multiply::<TILE_ROWS>(),
                }
                ahead = ahead.wrapping_add(64 * lines * groups);
            }
        }
    }
}

/// A loop over groups, for one tile of sums.
struct Run {
    groups: usize,
    /// Tiles of inputs.
    x: *const u32,
    /// Their scales, those of [`TILE_ROWS`] rows for each group.
    scales: *const f32,
    /// Their offsets, in the same order.
    offsets: *const i32,
    /// Signed bytes of the tile's first column.
    weights: *const u8,
    /// Scales of the weights.
    units: *const u8,
    /// Whether they are bf16.
    wide_units: bool,
    /// Their bases, if they have some.
    bases: Option<*const u8>,
    /// Bytes from one group's scales to the next one's.
    group_bytes: usize,
    /// Room for [`RING`] tiles of exact sums.
    exact: *mut i32,
    sums: *mut f32,
    /// Whether to add to existing sums.
    goes_on: bool,
    /// Where prefetching starts.
    ahead: *const u8,
    /// Cache lines to prefetch with each group.
    lines: usize,
}

impl Run {
    /// Multiplies `R` rows.
    ///
    /// # Safety
    /// Tiles are configured for `R` rows; the memory is valid.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn multiply<const R: usize>(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [_mm512_setzero_ps(); R];
            if self.goes_on {
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_loadu_ps(self.sums.add(r * ACROSS));
                }
            }
            for group in 0..self.groups.min(BEHIND) {
                self.dot(group);
            }
            let mut ahead = self.ahead;
            for group in 0..self.groups {
                for _ in 0..self.lines {
                    _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
                    ahead = ahead.wrapping_add(64);
                }
                if group + BEHIND < self.groups {
                    self.dot(group + BEHIND);
                }
                let exact = self.exact.add(group % RING * TILE_ROWS * LANES);
                let unit = self.units.add(group * self.group_bytes);
                let unit = _mm256_loadu_si256(unit.cast());
                let unit = match self.wide_units {
                    true => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(unit))),
                    false => _mm512_cvtph_ps(unit),
                };
                let scales = self.scales.add(group * TILE_ROWS);
                for (r, sum) in sums.iter_mut().enumerate() {
                    let dots = _mm512_cvtepi32_ps(_mm512_load_si512(exact.add(r * LANES).cast()));
                    let scale = _mm512_set1_ps(*scales.add(r));
                    *sum = _mm512_fmadd_ps(_mm512_mul_ps(dots, unit), scale, *sum);
                }
                if let Some(bases) = self.bases {
                    let base = bases.add(group * self.group_bytes);
                    let base = _mm512_cvtph_ps(_mm256_loadu_si256(base.cast()));
                    let offsets = self.offsets.add(group * TILE_ROWS);
                    for (r, sum) in sums.iter_mut().enumerate() {
                        let x = _mm512_set1_ps(sum_of_group(*offsets.add(r), *scales.add(r)));
                        *sum = _mm512_fmadd_ps(base, x, *sum);
                    }
                }
            }
            for (r, sum) in sums.iter().enumerate() {
                _mm512_storeu_ps(self.sums.add(r * ACROSS), *sum);
            }
        }
    }

    /// Writes the exact sums of a group to its place in the ring.
    ///
    /// # Safety
    /// As [`Run::multiply`].
    #[inline(always)]
    unsafe fn dot(&self, group: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "tileloadd tmm4, [{x} + {xs}]",
                "tileloadd tmm6, [{w} + {ws}]",
                "tilezero tmm0",
                "tdpbssd tmm0, tmm4, tmm6",
                "tilestored [{s} + {ss}], tmm0",
                x = in(reg) self.x.add(group * TILE_ROWS * WORDS),
                xs = in(reg) WORDS * size_of::<u32>(),
                w = in(reg) self.weights.add(group * GROUP_BYTES),
                ws = in(reg) SIGNED_BYTES,
                s = in(reg) self.exact.add(group % RING * TILE_ROWS * LANES),
                ss = in(reg) ROW_BYTES,
                out("tmm0") _, out("tmm4") _, out("tmm6") _,
                options(nostack, preserves_flags),
            );
        }
    }
}
