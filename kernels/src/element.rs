//! The types that weights and KV caches are stored in. Arithmetic is always f32; storage is widened in
//! registers. f16 is absent: checkpoints in f16 are converted when they are loaded.

use half::bf16;

use crate::simd::Simd;

use crate::cpu::attention::{Context, attend};
use crate::simd::Isa;

mod sealed {
    use super::{Context, Isa};

    /// Closes [`super::Element`], and has the hot loops compiled in this crate, with its own settings.
    pub trait Sealed: Sized {
        fn attend(isa: Isa, context: Context<'_, Self>, q: &[f32], out: &mut [f32]);
    }
}

pub(crate) use sealed::Sealed;

impl Sealed for f32 {
    fn attend(isa: Isa, context: Context<'_, Self>, q: &[f32], out: &mut [f32]) {
        attend(isa, context, q, out);
    }
}

impl Sealed for bf16 {
    fn attend(isa: Isa, context: Context<'_, Self>, q: &[f32], out: &mut [f32]) {
        attend(isa, context, q, out);
    }
}

/// A storage type.
pub trait Element: Sealed + Copy + Send + Sync + 'static {
    /// Zero.
    const ZERO: Self;

    /// Rounds to nearest, ties to even.
    fn from_f32(value: f32) -> Self;

    /// Exact.
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
        bf16::from_f32(value)
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

/// Zeros, or an error where memory for them can't be had.
pub(crate) fn try_zeros<T: Element>(len: usize) -> Result<Vec<T>, std::collections::TryReserveError> {
    let mut numbers = Vec::new();
    numbers.try_reserve_exact(len)?;
    numbers.resize(len, T::ZERO);
    Ok(numbers)
}
