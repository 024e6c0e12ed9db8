//! Storage types of weights and KV caches. Arithmetic is always f32; storage is widened in registers. There is no f16:
//! checkpoints in f16 are converted on load.

use half::bf16;

use crate::simd::Simd;

use crate::cpu::attention::{Context, attend};
use crate::cpu::block::Queries;
use crate::cpu::split::attend_piece;
use crate::memory::Plain;
use crate::simd::Isa;

mod sealed {
    use super::{Context, Isa, Queries};

    /// Seals [`super::Element`], and makes the hot loops compile in this crate, with its build settings.
    pub trait Sealed: Sized {
        fn attend(isa: Isa, context: Context<'_, Self>, queries: Queries);

        fn attend_piece(
            isa: Isa,
            context: Context<'_, Self>,
            q: &[f32],
            piece: (u32, u32),
            parts: &mut [f32],
        );
    }
}

pub(crate) use sealed::Sealed;

impl Sealed for f32 {
    fn attend(isa: Isa, context: Context<'_, Self>, queries: Queries) {
        attend(isa, context, queries);
    }

    fn attend_piece(isa: Isa, context: Context<'_, Self>, q: &[f32], piece: (u32, u32), parts: &mut [f32]) {
        attend_piece(isa, context, q, piece, parts);
    }
}

impl Sealed for bf16 {
    fn attend(isa: Isa, context: Context<'_, Self>, queries: Queries) {
        attend(isa, context, queries);
    }

    fn attend_piece(isa: Isa, context: Context<'_, Self>, q: &[f32], piece: (u32, u32), parts: &mut [f32]) {
        attend_piece(isa, context, q, piece, parts);
    }
}

/// A storage type.
pub trait Element: Sealed + Plain {
    /// Zero.
    const ZERO: Self;

    /// Rounds to nearest, ties to even.
    fn from_f32(value: f32) -> Self;

    /// Converts exactly.
    fn to_f32(self) -> f32;

    /// Sixteen elements, widened.
    ///
    /// # Safety
    /// Sixteen elements are readable at `from`.
    #[doc(hidden)]
    unsafe fn load<S: Simd>(simd: S, from: *const Self) -> S::V;
}

impl Element for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const Self) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { simd.load(from) }
    }
}

impl Element for bf16 {
    const ZERO: Self = bf16::ZERO;

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        bf16::from_bits(nearest_bf16(value))
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const Self) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { simd.load_bf16(from) }
    }
}

/// The bits of the nearest bf16, ties to even; NaN stays NaN. Branchless, so that loops vectorize.
#[inline(always)]
pub(crate) fn nearest_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    (if x.is_nan() { 0x7fc0 } else { rounded }) as u16
}

/// Allocates zeros, or fails if memory runs out.
pub(crate) fn try_zeros<T: Element>(len: usize) -> Result<Vec<T>, std::collections::TryReserveError> {
    let mut numbers = Vec::new();
    numbers.try_reserve_exact(len)?;
    numbers.resize(len, T::ZERO);
    Ok(numbers)
}
