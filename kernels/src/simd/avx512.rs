//! One 512-bit register per vector. AVX-512F and BW are used, so nearly every AVX-512 CPU qualifies; `DOT`
//! adds the instructions for dot products of bf16 pairs (BF16) and of bytes (VNNI).

use std::arch::x86_64::*;

use half::bf16;

use super::Simd;

/// Exists only where the CPU has AVX-512F and BW, with `DOT` also BF16 and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const DOT: bool>(());

impl<const DOT: bool> Avx512<DOT> {
    /// # Safety
    /// The CPU has AVX-512F and BW, with `DOT` also BF16 and VNNI.
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

impl<const DOT: bool> Simd for Avx512<DOT> {
    type V = __m512;
    type W = __m512i;
    const TILE_VECTORS: usize = 4;
    const SHARED_QUERIES: usize = 4;
    const BF16_ROWS: usize = 6;
    const INT8_ROWS: usize = 3;

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

    #[inline(always)]
    unsafe fn load_words(self, from: *const u32) -> __m512i {
        // SAFETY: `self` proves AVX-512F; the caller promises the memory.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> __m512 {
        // SAFETY: `self` proves AVX-512F; the caller promises the memory.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    fn splat_word(self, x: u32) -> __m512i {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_set1_epi32(x.cast_signed()) }
    }

    #[inline(always)]
    fn dot_bf16(self, sum: __m512, w: __m512i, x: __m512i) -> __m512 {
        // SAFETY: `self` proves AVX-512F, with `DOT` also BF16.
        unsafe {
            if DOT {
                let (w, x) = (
                    std::mem::transmute::<__m512i, __m512bh>(w),
                    std::mem::transmute::<__m512i, __m512bh>(x),
                );
                return _mm512_dpbf16_ps(sum, w, x);
            }
            let high = |v| {
                _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(0xffff_0000_u32.cast_signed())))
            };
            let low = |v| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v));
            let sum = _mm512_fmadd_ps(high(w), high(x), sum);
            _mm512_fmadd_ps(low(w), low(x), sum)
        }
    }

    #[inline(always)]
    fn dot_int8(self, sum: __m512i, w: __m512i, x: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512F and BW, with `DOT` also VNNI.
        unsafe {
            if DOT {
                return _mm512_dpbusd_epi32(sum, w, x);
            }
            let even_w = _mm512_and_si512(w, _mm512_set1_epi16(0xff));
            let even_x = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(x));
            let (odd_w, odd_x) = (_mm512_srli_epi16::<8>(w), _mm512_srai_epi16::<8>(x));
            let sum = _mm512_add_epi32(sum, _mm512_madd_epi16(even_w, even_x));
            _mm512_add_epi32(sum, _mm512_madd_epi16(odd_w, odd_x))
        }
    }

    #[inline(always)]
    fn widen_words(self, w: __m512i) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_cvtepi32_ps(w) }
    }
}
