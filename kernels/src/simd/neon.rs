//! Four 128-bit registers per vector. The same operations per lane as AVX2 and AVX-512, so the same bits. `DOT` adds the
//! instruction for dot products of signed bytes.

use std::arch::aarch64::*;
use std::arch::asm;

use half::bf16;

use super::Simd;
use crate::mx4::RAISED;

/// Exists only where the CPU has what `DOT` says; NEON is part of AArch64.
#[derive(Clone, Copy)]
pub(crate) struct Neon<const DOT: bool>(());

impl Neon<false> {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self(())
    }
}

impl Neon<true> {
    /// # Safety
    /// The CPU has dot products.
    #[inline(always)]
    pub(crate) unsafe fn assume() -> Self {
        Self(())
    }
}

/// Lanes 0..4, 4..8, 8..12 and 12..16.
type Floats = [float32x4_t; 4];
/// The same of integers.
type Words = [uint32x4_t; 4];

/// Applies an expression to each quarter. A closure would be a separate function, compiled without dot products if the
/// compiler doesn't inline it.
macro_rules! quarters {
    (|$at:ident| $quarter:expr) => {{
        [
            {
                let $at = 0;
                $quarter
            },
            {
                let $at = 1;
                $quarter
            },
            {
                let $at = 2;
                $quarter
            },
            {
                let $at = 3;
                $quarter
            },
        ]
    }};
}

macro_rules! arithmetic {
    ($($name:ident = $intrinsic:ident),*) => {$(
        #[inline(always)]
        fn $name(self, a: Floats, b: Floats) -> Floats {
            // SAFETY: NEON is part of AArch64.
            unsafe { quarters!(|i| $intrinsic(a[i], b[i])) }
        }
    )*};
}

impl<const DOT: bool> Simd for Neon<DOT> {
    type V = Floats;
    type W = Words;
    const TILE_VECTORS: usize = 1;
    const SHARED_QUERIES: usize = 2;
    const PAIRS: bool = false;
    const BF16_ROWS: usize = 4;
    const INT8_ROWS: usize = 3;
    const BIASED: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Floats {
        // SAFETY: NEON is part of AArch64.
        [unsafe { vdupq_n_f32(x) }; 4]
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Floats {
        // SAFETY: the caller promises the memory.
        unsafe { quarters!(|i| vld1q_f32(from.add(4 * i))) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> Floats {
        // SAFETY: the caller promises the memory.
        unsafe {
            let [low, high] = [vld1q_u16(from.cast()), vld1q_u16(from.cast::<u16>().add(8))];
            let wide = [
                vmovl_u16(vget_low_u16(low)),
                vmovl_high_u16(low),
                vmovl_u16(vget_low_u16(high)),
                vmovl_high_u16(high),
            ];
            quarters!(|i| vreinterpretq_f32_u32(vshlq_n_u32::<16>(wide[i])))
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: Floats) {
        // SAFETY: the caller promises the memory.
        unsafe { quarters!(|i| vst1q_f32(to.add(4 * i), v[i])) };
    }

    #[inline(always)]
    fn fma(self, a: Floats, b: Floats, c: Floats) -> Floats {
        // SAFETY: NEON is part of AArch64.
        unsafe { quarters!(|i| vfmaq_f32(c[i], a[i], b[i])) }
    }

    arithmetic!(add = vaddq_f32, sub = vsubq_f32, mul = vmulq_f32, div = vdivq_f32);

    #[inline(always)]
    fn max(self, a: Floats, b: Floats) -> Floats {
        // SAFETY: NEON is part of AArch64. Its own maximum returns any NaN.
        unsafe { quarters!(|i| vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i])) }
    }

    #[inline(always)]
    fn min(self, a: Floats, b: Floats) -> Floats {
        self.select_lt(a, b, a, b)
    }

    #[inline(always)]
    fn select_lt(self, a: Floats, b: Floats, yes: Floats, no: Floats) -> Floats {
        // SAFETY: NEON is part of AArch64.
        unsafe { quarters!(|i| vbslq_f32(vcltq_f32(a[i], b[i]), yes[i], no[i])) }
    }

    #[inline(always)]
    fn exp2_rounded(self, t: Floats) -> Floats {
        // SAFETY: NEON is part of AArch64.
        unsafe {
            let one = vreinterpretq_u32_f32(vdupq_n_f32(1.0));
            quarters!(|i| {
                let shifted = vshlq_n_u32::<23>(vreinterpretq_u32_f32(t[i]));
                vreinterpretq_f32_u32(vaddq_u32(shifted, one))
            })
        }
    }

    #[inline(always)]
    unsafe fn load_words(self, from: *const u32) -> Words {
        // SAFETY: the caller promises the memory.
        unsafe { quarters!(|i| vld1q_u32(from.add(4 * i))) }
    }

    #[inline(always)]
    unsafe fn store_words(self, to: *mut u32, w: Words) {
        // SAFETY: the caller promises the memory.
        unsafe { quarters!(|i| vst1q_u32(to.add(4 * i), w[i])) };
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> Floats {
        // SAFETY: the caller promises the memory.
        unsafe { quarters!(|i| widen_f16(vld1_u16(from.add(4 * i)))) }
    }

    #[inline(always)]
    fn splat_word(self, x: u32) -> Words {
        // SAFETY: NEON is part of AArch64.
        [unsafe { vdupq_n_u32(x) }; 4]
    }

    #[inline(always)]
    fn zip(self, a: Words, b: Words) -> (Words, Words) {
        // SAFETY: NEON is part of AArch64.
        unsafe {
            (
                [
                    vzip1q_u32(a[0], b[0]),
                    vzip2q_u32(a[0], b[0]),
                    vzip1q_u32(a[1], b[1]),
                    vzip2q_u32(a[1], b[1]),
                ],
                [
                    vzip1q_u32(a[2], b[2]),
                    vzip2q_u32(a[2], b[2]),
                    vzip1q_u32(a[3], b[3]),
                    vzip2q_u32(a[3], b[3]),
                ],
            )
        }
    }

    #[inline(always)]
    fn high(self, w: Words) -> Floats {
        // SAFETY: NEON is part of AArch64.
        unsafe {
            let mask = vdupq_n_u32(0xffff_0000);
            quarters!(|i| vreinterpretq_f32_u32(vandq_u32(w[i], mask)))
        }
    }

    #[inline(always)]
    fn low(self, w: Words) -> Floats {
        // SAFETY: NEON is part of AArch64.
        unsafe { quarters!(|i| vreinterpretq_f32_u32(vshlq_n_u32::<16>(w[i]))) }
    }

    #[inline(always)]
    fn dot_int8(self, sum: Words, w: Words, x: Words) -> Words {
        // SAFETY: NEON is part of AArch64, and `self` proves what `DOT` says.
        unsafe {
            let sign = vdupq_n_u8(128);
            quarters!(|i| {
                let w = vreinterpretq_s8_u8(veorq_u8(vreinterpretq_u8_u32(w[i]), sign));
                let (sum, x) = (vreinterpretq_s32_u32(sum[i]), vreinterpretq_s8_u32(x[i]));
                vreinterpretq_u32_s32(if DOT { dot(sum, w, x) } else { multiply_add(sum, w, x) })
            })
        }
    }

    #[inline(always)]
    fn dot_int4(self, sum: Words, w: Words, x: Words) -> Words {
        // SAFETY: NEON is part of AArch64, and `self` proves what `DOT` says.
        unsafe {
            quarters!(|i| {
                let (w, x) = (vreinterpretq_s8_u32(w[i]), vreinterpretq_s8_u32(x[i]));
                let sum = vreinterpretq_s32_u32(sum[i]);
                vreinterpretq_u32_s32(if DOT { dot(sum, w, x) } else { multiply_add(sum, w, x) })
            })
        }
    }

    #[inline(always)]
    fn low_halves(self, w: Words) -> Words {
        // SAFETY: NEON is part of AArch64.
        unsafe { quarters!(|i| vandq_u32(w[i], vdupq_n_u32(0x0f0f_0f0f))) }
    }

    #[inline(always)]
    fn high_halves(self, w: Words) -> Words {
        // SAFETY: NEON is part of AArch64.
        unsafe { self.low_halves(quarters!(|i| vshrq_n_u32::<4>(w[i]))) }
    }

    #[inline(always)]
    fn raised(self, w: Words) -> Words {
        // SAFETY: NEON is part of AArch64; the table has sixteen bytes.
        unsafe {
            let table = vld1q_u8(RAISED.as_ptr());
            quarters!(|i| vreinterpretq_u32_u8(vqtbl1q_u8(table, vreinterpretq_u8_u32(w[i]))))
        }
    }

    #[inline(always)]
    fn widen_words(self, w: Words) -> Floats {
        // SAFETY: NEON is part of AArch64.
        unsafe { quarters!(|i| vcvtq_f32_s32(vreinterpretq_s32_u32(w[i]))) }
    }

    #[inline(always)]
    fn sum(self, v: Floats) -> f32 {
        // SAFETY: NEON is part of AArch64.
        unsafe {
            let four = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }

    #[inline(always)]
    fn largest(self, v: Floats) -> f32 {
        // SAFETY: NEON is part of AArch64. A number is larger than NaN here.
        unsafe { vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(v[0], v[2]), vmaxnmq_f32(v[1], v[3]))) }
    }
}

/// IEEE half floats to floats. Rust has no stable function for the instruction.
#[inline(always)]
fn widen_f16(narrow: uint16x4_t) -> float32x4_t {
    let wide;
    // SAFETY: the instruction is part of NEON and touches registers only.
    unsafe {
        asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) narrow, options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// `sum` plus the four products of each lane. Rust has no stable function for the instruction.
///
/// # Safety
/// The CPU has dot products.
#[inline(always)]
unsafe fn dot(mut sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the caller's promise; the instruction touches registers only.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sum, in(vreg) w, in(vreg) x, options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// As [`dot`], on any CPU. One product fits 16 bits; sums have 32.
#[inline(always)]
fn multiply_add(sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: NEON is part of AArch64.
    unsafe {
        let low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
        let high = vpaddlq_s16(vmull_high_s8(w, x));
        vaddq_s32(sum, vpaddq_s32(low, high))
    }
}
