//! One 512-bit register per vector. Only AVX-512F is used, so every AVX-512 CPU qualifies.

use std::arch::x86_64::*;

use half::bf16;

use super::Simd;

/// Exists only where the CPU has AVX-512F.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The CPU has AVX-512F.
    #[inline(always)]
    pub(crate) unsafe fn assume() -> Self {
        Self(())
    }
}

macro_rules! arithmetic {
    ($($name:ident = $intrinsic:ident),*) => {$(
        #[inline(always)]
        fn $name(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: `self` proves AVX-512F.
            unsafe { $intrinsic(a, b) }
        }
    )*};
}

impl Simd for Avx512 {
    type V = __m512;
    const TILE_VECTORS: usize = 4;
    const SHARED_QUERIES: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: `self` proves AVX-512F; the caller promises the memory.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> __m512 {
        // SAFETY: `self` proves AVX-512F; the caller promises the memory.
        unsafe {
            let narrow = _mm256_loadu_si256(from.cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(narrow)))
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: __m512) {
        // SAFETY: `self` proves AVX-512F; the caller promises the memory.
        unsafe { _mm512_storeu_ps(to, v) }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    arithmetic!(
        add = _mm512_add_ps,
        sub = _mm512_sub_ps,
        mul = _mm512_mul_ps,
        div = _mm512_div_ps,
        max = _mm512_max_ps,
        min = _mm512_min_ps
    );

    #[inline(always)]
    fn select_lt(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes) }
    }

    #[inline(always)]
    fn exp2_rounded(self, t: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe {
            let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(t));
            _mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_castps_si512(_mm512_set1_ps(1.0))))
        }
    }
}
