//! Two 256-bit registers per vector. The same operations per lane as AVX-512, so the same bits.

use std::arch::x86_64::*;

use half::bf16;

use super::Simd;
use crate::mx4::RAISED;

/// Exists only where the CPU has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The CPU has AVX2, FMA and F16C.
    #[inline(always)]
    pub(crate) unsafe fn assume() -> Self {
        Self(())
    }

    /// Interleaves eight words of each.
    #[inline(always)]
    fn zip_half(self, a: __m256i, b: __m256i) -> Words {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let (low, high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            Words(_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high))
        }
    }
}

/// Lanes 0..8 and 8..16.
#[derive(Clone, Copy)]
pub(crate) struct Pair(__m256, __m256);

/// Lanes 0..8 and 8..16 of integers.
#[derive(Clone, Copy)]
pub(crate) struct Words(__m256i, __m256i);

macro_rules! arithmetic {
    ($($name:ident = $intrinsic:ident),*) => {$(
        #[inline(always)]
        fn $name(self, a: Pair, b: Pair) -> Pair {
            // SAFETY: `self` proves AVX2.
            unsafe { Pair($intrinsic(a.0, b.0), $intrinsic(a.1, b.1)) }
        }
    )*};
}

impl Simd for Avx2 {
    type V = Pair;
    type W = Words;
    const TILE_VECTORS: usize = 1;
    const SHARED_QUERIES: usize = 2;
    const PAIRS: bool = false;
    const BF16_ROWS: usize = 4;
    const INT8_ROWS: usize = 2;

    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        // SAFETY: `self` proves AVX2.
        unsafe { Pair(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Pair {
        // SAFETY: `self` proves AVX2; the caller promises the memory.
        unsafe { Pair(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> Pair {
        // SAFETY: `self` proves AVX2; the caller promises the memory.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8).cast()));
            Pair(
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            )
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: Pair) {
        // SAFETY: `self` proves AVX2; the caller promises the memory.
        unsafe {
            _mm256_storeu_ps(to, v.0);
            _mm256_storeu_ps(to.add(8), v.1);
        }
    }

    #[inline(always)]
    fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
        // SAFETY: `self` proves FMA.
        unsafe { Pair(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }

    arithmetic!(
        add = _mm256_add_ps,
        sub = _mm256_sub_ps,
        mul = _mm256_mul_ps,
        div = _mm256_div_ps,
        max = _mm256_max_ps,
        min = _mm256_min_ps
    );

    #[inline(always)]
    fn select_lt(self, a: Pair, b: Pair, yes: Pair, no: Pair) -> Pair {
        // SAFETY: `self` proves AVX2.
        unsafe {
            Pair(
                _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)),
                _mm256_blendv_ps(no.1, yes.1, _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)),
            )
        }
    }

    #[inline(always)]
    fn exp2_rounded(self, t: Pair) -> Pair {
        #[inline(always)]
        unsafe fn half(t: __m256) -> __m256 {
            // SAFETY: called below only, where AVX2 is proved.
            unsafe {
                let shifted = _mm256_slli_epi32::<23>(_mm256_castps_si256(t));
                let one = _mm256_castps_si256(_mm256_set1_ps(1.0));
                _mm256_castsi256_ps(_mm256_add_epi32(shifted, one))
            }
        }
        // SAFETY: `self` proves AVX2.
        unsafe { Pair(half(t.0), half(t.1)) }
    }

    #[inline(always)]
    unsafe fn load_words(self, from: *const u32) -> Words {
        // SAFETY: `self` proves AVX2; the caller promises the memory.
        unsafe { Words(_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast())) }
    }

    #[inline(always)]
    unsafe fn store_words(self, to: *mut u32, w: Words) {
        // SAFETY: `self` proves AVX2; the caller promises the memory.
        unsafe {
            _mm256_storeu_si256(to.cast(), w.0);
            _mm256_storeu_si256(to.add(8).cast(), w.1);
        }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> Pair {
        // SAFETY: `self` proves F16C; the caller promises the memory.
        unsafe {
            Pair(
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())),
            )
        }
    }

    #[inline(always)]
    fn splat_word(self, x: u32) -> Words {
        // SAFETY: `self` proves AVX2.
        unsafe { Words(_mm256_set1_epi32(x.cast_signed()), _mm256_set1_epi32(x.cast_signed())) }
    }

    #[inline(always)]
    fn zip(self, a: Words, b: Words) -> (Words, Words) {
        (self.zip_half(a.0, b.0), self.zip_half(a.1, b.1))
    }

    #[inline(always)]
    fn high(self, w: Words) -> Pair {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let mask = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
            let high = |v| _mm256_castsi256_ps(_mm256_and_si256(v, mask));
            Pair(high(w.0), high(w.1))
        }
    }

    #[inline(always)]
    fn low(self, w: Words) -> Pair {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let low = |v| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v));
            Pair(low(w.0), low(w.1))
        }
    }

    #[inline(always)]
    fn sum(self, v: Pair) -> f32 {
        // SAFETY: `self` proves AVX2.
        unsafe { sum(_mm256_add_ps(v.0, v.1)) }
    }

    #[inline(always)]
    fn largest(self, v: Pair) -> f32 {
        // SAFETY: `self` proves AVX2.
        unsafe { largest(_mm256_max_ps(v.0, v.1)) }
    }

    #[inline(always)]
    fn dot_int8(self, sum: Words, w: Words, x: Words) -> Words {
        #[inline(always)]
        unsafe fn half(sum: __m256i, w: __m256i, x: __m256i) -> __m256i {
            // SAFETY: called below only, where AVX2 is proved.
            unsafe {
                let even_w = _mm256_and_si256(w, _mm256_set1_epi16(0xff));
                let even_x = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x));
                let (odd_w, odd_x) = (_mm256_srli_epi16::<8>(w), _mm256_srai_epi16::<8>(x));
                let sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even_w, even_x));
                _mm256_add_epi32(sum, _mm256_madd_epi16(odd_w, odd_x))
            }
        }
        // SAFETY: `self` proves AVX2.
        unsafe { Words(half(sum.0, w.0, x.0), half(sum.1, w.1, x.1)) }
    }

    #[inline(always)]
    fn dot_int4(self, sum: Words, w: Words, x: Words) -> Words {
        #[inline(always)]
        unsafe fn half(sum: __m256i, w: __m256i, x: __m256i) -> __m256i {
            // SAFETY: called below only, where AVX2 is proved. Two products of at most 24 * 128 fit 16 bits.
            unsafe {
                let pairs = _mm256_maddubs_epi16(w, x);
                _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
            }
        }
        // SAFETY: `self` proves AVX2.
        unsafe { Words(half(sum.0, w.0, x.0), half(sum.1, w.1, x.1)) }
    }

    #[inline(always)]
    fn low_halves(self, w: Words) -> Words {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            Words(_mm256_and_si256(w.0, mask), _mm256_and_si256(w.1, mask))
        }
    }

    #[inline(always)]
    fn high_halves(self, w: Words) -> Words {
        // SAFETY: `self` proves AVX2.
        unsafe { self.low_halves(Words(_mm256_srli_epi32::<4>(w.0), _mm256_srli_epi32::<4>(w.1))) }
    }

    #[inline(always)]
    fn raised(self, w: Words) -> Words {
        // SAFETY: `self` proves AVX2; the table has sixteen bytes.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(RAISED.as_ptr().cast()));
            Words(_mm256_shuffle_epi8(table, w.0), _mm256_shuffle_epi8(table, w.1))
        }
    }

    #[inline(always)]
    fn widen_words(self, w: Words) -> Pair {
        // SAFETY: `self` proves AVX2.
        unsafe { Pair(_mm256_cvtepi32_ps(w.0), _mm256_cvtepi32_ps(w.1)) }
    }
}

/// Eight lanes, halves added to halves.
///
/// # Safety
/// The CPU has AVX.
#[inline(always)]
pub(super) unsafe fn sum(v: __m256) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
    }
}

/// The largest of eight lanes.
///
/// # Safety
/// The CPU has AVX.
#[inline(always)]
pub(super) unsafe fn largest(v: __m256) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
    }
}
