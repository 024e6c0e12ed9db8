//! One 512-bit register per vector. AVX-512F and BW are used, so nearly every AVX-512 CPU qualifies; `VNNI` and
//! `BF16` add the instructions for dot products of bytes and of bf16 pairs.

use std::arch::x86_64::*;

use half::bf16;

use super::Simd;
use crate::mx4::RAISED;

/// Exists only where the CPU has AVX-512F and BW, and what the constants say.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const VNNI: bool, const BF16: bool>(());

impl<const VNNI: bool, const BF16: bool> Avx512<VNNI, BF16> {
    /// # Safety
    /// The CPU has AVX-512F and BW, and what the constants say.
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

impl<const VNNI: bool, const BF16: bool> Simd for Avx512<VNNI, BF16> {
    type V = __m512;
    type W = __m512i;
    const TILE_VECTORS: usize = 4;
    const SHARED_QUERIES: usize = 4;
    const PAIRS: bool = BF16;
    const BF16_ROWS: usize = if BF16 { 6 } else { 12 };
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
    unsafe fn store_words(self, to: *mut u32, w: __m512i) {
        // SAFETY: `self` proves AVX-512F; the caller promises the memory.
        unsafe { _mm512_storeu_si512(to.cast(), w) }
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
    fn zip(self, a: __m512i, b: __m512i) -> (__m512i, __m512i) {
        // SAFETY: `self` proves AVX-512F.
        unsafe {
            // Indexes from 16 on are words of `b`.
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
            (_mm512_permutex2var_epi32(a, low, b), _mm512_permutex2var_epi32(a, high, b))
        }
    }

    #[inline(always)]
    fn high(self, w: __m512i) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe {
            let mask = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
            _mm512_castsi512_ps(_mm512_and_si512(w, mask))
        }
    }

    #[inline(always)]
    fn low(self, w: __m512i) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(w)) }
    }

    #[inline(always)]
    fn dot_bf16(self, sum: __m512, w: __m512i, x: __m512i) -> __m512 {
        if !BF16 {
            let sum = self.fma(self.high(w), self.high(x), sum);
            return self.fma(self.low(w), self.low(x), sum);
        }
        // SAFETY: `self` proves BF16; both types are 64 bytes of any bits.
        unsafe {
            let (w, x) = std::mem::transmute::<(__m512i, __m512i), (__m512bh, __m512bh)>((w, x));
            _mm512_dpbf16_ps(sum, w, x)
        }
    }

    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        // SAFETY: `self` proves AVX-512F, and with it AVX.
        unsafe {
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)));
            super::avx2::sum(_mm256_add_ps(_mm512_castps512_ps256(v), high))
        }
    }

    #[inline(always)]
    fn largest(self, v: __m512) -> f32 {
        // SAFETY: `self` proves AVX-512F, and with it AVX.
        unsafe {
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)));
            super::avx2::largest(_mm256_max_ps(_mm512_castps512_ps256(v), high))
        }
    }

    #[inline(always)]
    fn dot_int8(self, sum: __m512i, w: __m512i, x: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512F and BW, with `VNNI` that too.
        unsafe {
            if VNNI {
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
    fn dot_int4(self, sum: __m512i, w: __m512i, x: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512F and BW, with `VNNI` that too.
        unsafe {
            if VNNI {
                return _mm512_dpbusd_epi32(sum, w, x);
            }
            // Two products of at most 24 * 128 fit 16 bits.
            let pairs = _mm512_maddubs_epi16(w, x);
            _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
        }
    }

    #[inline(always)]
    fn low_halves(self, w: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_and_si512(w, _mm512_set1_epi8(15)) }
    }

    #[inline(always)]
    fn high_halves(self, w: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_and_si512(_mm512_srli_epi32::<4>(w), _mm512_set1_epi8(15)) }
    }

    #[inline(always)]
    fn raised(self, w: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512F and BW; the table has sixteen bytes.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(RAISED.as_ptr().cast()));
            _mm512_shuffle_epi8(table, w)
        }
    }

    #[inline(always)]
    fn widen_words(self, w: __m512i) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_cvtepi32_ps(w) }
    }
}
