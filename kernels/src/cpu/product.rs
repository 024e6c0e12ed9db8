//! Register tiles of a matrix product: `R` rows by `C` vectors of a panel's columns, continuing earlier sums. Each output is
//! one chain over its inputs in order, whatever `R` and `C` are and however often sums were spilled in between, so tile
//! shapes don't change bits.

use super::matmul::ACROSS;
use crate::inputs::{View, sum_of_group, without_bias};
use crate::matrix::Format;
use crate::mx4::BIAS;
use crate::simd::{LANES, Simd, vectors};

/// Formats of groups, for [`Tile::groups`].
pub(super) const INT8: usize = 2;
pub(super) const INT4: usize = 4;
pub(super) const MXFP4: usize = 5;

/// Operands of a tile.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// The panel's bytes, at the tile's first step.
    pub weights: *const u8,
    /// Columns of the panel.
    pub width: usize,
    /// First column of the tile.
    pub column: usize,
    /// First row of the tile.
    pub x: View,
    /// Step at which the tile begins.
    pub first: usize,
    pub steps: usize,
    /// Sums, with row stride `ACROSS`; they start from zero at the first step.
    pub sums: *mut f32,
    /// How far ahead weights are prefetched, in bytes.
    pub ahead: usize,
    /// Prefetch at every `every`-th step, in those with remainder `turn`.
    pub every: usize,
    pub turn: usize,
}

impl Tile {
    #[inline(always)]
    unsafe fn begin<S: Simd, const R: usize, const C: usize>(&self, simd: S) -> [[S::V; C]; R] {
        let mut sums = [[simd.splat(0.0); C]; R];
        if self.first > 0 {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (c, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: the caller's promise: `R` rows of sums.
                    *sum = unsafe { simd.load(self.sums.add(r * ACROSS + self.column + c * LANES)) };
                }
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn end<S: Simd, const R: usize, const C: usize>(&self, simd: S, sums: [[S::V; C]; R]) {
        for (r, sums) in sums.into_iter().enumerate() {
            for (c, sum) in sums.into_iter().enumerate() {
                // SAFETY: the caller's promise: `R` rows of sums.
                unsafe { simd.store(self.sums.add(r * ACROSS + self.column + c * LANES), sum) };
            }
        }
    }

    /// Prefetches `bytes` bytes, `ahead` of `weights`. Few rows read at the rate of memory: they ask for every second line only,
    /// since the hardware fetches the others by itself.
    #[inline(always)]
    fn prefetch<S: Simd, const FEW: bool>(&self, simd: S, weights: *const u8, bytes: usize) {
        for line in (0..bytes).step_by(if FEW { 128 } else { 64 }) {
            simd.prefetch(weights.wrapping_add(self.ahead + line));
        }
    }

    /// Whether to prefetch at this step; `until` counts down to the next one that does.
    #[inline(always)]
    fn asks(&self, until: &mut usize) -> bool {
        let now = *until == 0;
        *until = if now { self.every } else { *until } - 1;
        now
    }

    /// The place of a scale of the inputs, and of an offset.
    #[inline(always)]
    fn scale(&self, row: usize, group: usize) -> usize {
        row * self.x.scales_stride + group * self.x.group_scales
    }

    /// Multiplies `R` rows of f32 or bf16.
    ///
    /// # Safety
    /// The panel has the steps, from `weights` on; `x` has `R` rows with these steps; `sums` has `R` rows.
    #[inline(always)]
    pub(super) unsafe fn floats<
        S: Simd,
        const FEW: bool,
        const BF16: bool,
        const R: usize,
        const C: usize,
    >(
        &self,
        simd: S,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = self.begin::<S, R, C>(simd);
            let stride = self.width * Format::F32.step_bytes();
            let mut weights = self.weights.add(self.column * Format::F32.step_bytes());
            // Words of a step: a widened pair takes two.
            let per_step = if const { BF16 && !S::PAIRS } { 2 } else { 1 };
            let x = self.x.words.add(self.first * per_step);
            let mut until = self.turn;
            for step in 0..self.steps {
                if self.asks(&mut until) {
                    self.prefetch::<S, FEW>(simd, weights, C * LANES * Format::F32.step_bytes());
                }
                let x = x.add(step * per_step);
                if const { BF16 && !S::PAIRS } {
                    let w = vectors!(C, simd.splat_word(0), |c| simd.load_words(weights.add(c * 64).cast()));
                    let high = vectors!(C, simd.splat(0.0), |c| simd.high(w[c]));
                    let low = vectors!(C, simd.splat(0.0), |c| simd.low(w[c]));
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let x = x.add(r * self.x.stride);
                        let (even, odd) =
                            (simd.splat(f32::from_bits(*x)), simd.splat(f32::from_bits(*x.add(1))));
                        for c in 0..C {
                            sums[c] = simd.fma(low[c], even, simd.fma(high[c], odd, sums[c]));
                        }
                    }
                } else if BF16 {
                    let w = vectors!(C, simd.splat_word(0), |c| simd.load_words(weights.add(c * 64).cast()));
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let x = simd.splat_word(*x.add(r * self.x.stride));
                        for c in 0..C {
                            sums[c] = simd.dot_bf16(sums[c], w[c], x);
                        }
                    }
                } else {
                    let w = vectors!(C, simd.splat(0.0), |c| simd.load(weights.add(c * 64).cast()));
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let x = simd.splat(f32::from_bits(*x.add(r * self.x.stride)));
                        for c in 0..C {
                            sums[c] = simd.fma(x, w[c], sums[c]);
                        }
                    }
                }
                weights = weights.wrapping_add(stride);
            }
            self.end(simd, sums);
        }
    }

    /// Multiplies `R` rows of int8 groups, or those of another `FORMAT` of groups.
    ///
    /// # Safety
    /// As [`Tile::floats`].
    #[inline(always)]
    pub(super) unsafe fn groups<
        S: Simd,
        const FEW: bool,
        const FORMAT: usize,
        const R: usize,
        const C: usize,
    >(
        &self,
        simd: S,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = self.begin::<S, R, C>(simd);
            let (int8, int4) = const { (FORMAT == INT8, FORMAT == INT4) };
            let format = match FORMAT {
                INT8 => Format::Int8,
                INT4 => Format::Int4,
                _ => Format::Mxfp4,
            };
            let stride = self.width * format.step_bytes();
            let mut until = self.turn;
            for step in 0..self.steps {
                let asks = self.asks(&mut until);
                let group = self.weights.add(step * stride);
                let at = self.first + step;
                let mut dots = vectors!(R, [simd.splat_word(0); C], |r| {
                    let offset = match FORMAT {
                        INT8 if const { S::BIASED } => *self.x.offsets.add(self.scale(r, at)),
                        MXFP4 => without_bias(*self.x.offsets.add(self.scale(r, at)), BIAS),
                        _ => 0,
                    };
                    [simd.splat_word(offset.cast_unsigned()); C]
                });
                let mut weights = group.add(2 * format.units() * self.width + 4 * self.column);
                let x = self.x.words.add(at * self.x.group_words);
                for word in 0..format.words() {
                    if asks {
                        self.prefetch::<S, FEW>(simd, weights, C * LANES * 4);
                    }
                    let w = vectors!(C, simd.splat_word(0), |c| simd.load_words(weights.add(c * 64).cast()));
                    if !int8 {
                        for high in 0..2 {
                            let mut w = match high {
                                0 => vectors!(C, w[0], |c| simd.low_halves(w[c])),
                                _ => vectors!(C, w[0], |c| simd.high_halves(w[c])),
                            };
                            if !int4 {
                                w = vectors!(C, w[0], |c| simd.raised(w[c]));
                            }
                            for (r, dots) in dots.iter_mut().enumerate() {
                                let x = simd.splat_word(*x.add(r * self.x.stride + 2 * word + high));
                                for c in 0..C {
                                    dots[c] = simd.dot_int4(dots[c], w[c], x);
                                }
                            }
                        }
                    } else {
                        for (r, dots) in dots.iter_mut().enumerate() {
                            let x = simd.splat_word(*x.add(r * self.x.stride + word));
                            for c in 0..C {
                                dots[c] = simd.dot_int8(dots[c], w[c], x);
                            }
                        }
                    }
                    weights = weights.add(4 * self.width);
                }
                for c in 0..C {
                    let units = group.add(2 * self.column + 2 * c * LANES);
                    let unit = match FORMAT {
                        MXFP4 => simd.load_bf16(units.cast()),
                        _ => simd.load_f16(units.cast()),
                    };
                    for r in 0..R {
                        let scaled = simd.mul(simd.widen_words(dots[r][c]), unit);
                        let x = simd.splat(*self.x.scales.add(self.scale(r, at)));
                        sums[r][c] = simd.fma(scaled, x, sums[r][c]);
                    }
                    if int4 {
                        let base = simd.load_f16(units.add(2 * self.width).cast());
                        for (r, sums) in sums.iter_mut().enumerate() {
                            let at = self.scale(r, at);
                            let x = sum_of_group(*self.x.offsets.add(at), *self.x.scales.add(at));
                            sums[c] = simd.fma(base, simd.splat(x), sums[c]);
                        }
                    }
                }
            }
            self.end(simd, sums);
        }
    }
}
