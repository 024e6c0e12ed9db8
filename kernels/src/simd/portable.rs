//! Lanes as an array: correct everywhere, and left to the compiler's auto-vectorization.

use half::bf16;

use super::{LANES, Simd};
use crate::mx4::RAISED;

/// Needs nothing of the CPU.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

type V = [f32; LANES];

#[inline(always)]
fn map2(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type V = V;
    type W = [u32; LANES];
    const TILE_VECTORS: usize = 1;
    const SHARED_QUERIES: usize = 2;
    const PAIRS: bool = false;
    const BF16_ROWS: usize = 4;
    const INT8_ROWS: usize = 2;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> V {
        // SAFETY: the caller's promise; an array of f32 has f32's alignment.
        unsafe { from.cast::<V>().read() }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> V {
        // SAFETY: the caller's promise.
        let narrow = unsafe { from.cast::<[u16; LANES]>().read() };
        std::array::from_fn(|i| f32::from_bits(u32::from(narrow[i]) << 16))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: V) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<V>().write(v) }
    }

    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        // Without the instruction, `mul_add` is a slow library call.
        if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
            std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
        } else {
            std::array::from_fn(|i| a[i] * b[i] + c[i])
        }
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        map2(a, b, |x, y| x + y)
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        map2(a, b, |x, y| x - y)
    }

    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        map2(a, b, |x, y| x * y)
    }

    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        map2(a, b, |x, y| x / y)
    }

    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        map2(a, b, |x, y| if x > y { x } else { y })
    }

    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        map2(a, b, |x, y| if x < y { x } else { y })
    }

    #[inline(always)]
    fn select_lt(self, a: V, b: V, yes: V, no: V) -> V {
        std::array::from_fn(|i| if a[i] < b[i] { yes[i] } else { no[i] })
    }

    #[inline(always)]
    fn exp2_rounded(self, t: V) -> V {
        std::array::from_fn(|i| f32::from_bits((t[i].to_bits() << 23).wrapping_add(1.0_f32.to_bits())))
    }

    #[inline(always)]
    unsafe fn load_words(self, from: *const u32) -> [u32; LANES] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[u32; LANES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_words(self, to: *mut u32, w: [u32; LANES]) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[u32; LANES]>().write_unaligned(w) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> V {
        // SAFETY: the caller's promise.
        let narrow = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        std::array::from_fn(|i| half::f16::from_bits(narrow[i]).to_f32_const())
    }

    #[inline(always)]
    fn splat_word(self, x: u32) -> [u32; LANES] {
        [x; LANES]
    }

    #[inline(always)]
    fn zip(self, a: [u32; LANES], b: [u32; LANES]) -> ([u32; LANES], [u32; LANES]) {
        let half =
            |start| std::array::from_fn(|i| if i % 2 == 0 { a[start + i / 2] } else { b[start + i / 2] });
        (half(0), half(LANES / 2))
    }

    #[inline(always)]
    fn high(self, w: [u32; LANES]) -> V {
        w.map(|w| f32::from_bits(w & 0xffff_0000))
    }

    #[inline(always)]
    fn low(self, w: [u32; LANES]) -> V {
        w.map(|w| f32::from_bits(w << 16))
    }

    #[inline(always)]
    fn dot_int8(self, sum: [u32; LANES], w: [u32; LANES], x: [u32; LANES]) -> [u32; LANES] {
        std::array::from_fn(|i| {
            let products = w[i].to_le_bytes().into_iter().zip(x[i].to_le_bytes());
            let dot: i32 = products.map(|(w, x)| i32::from(w) * i32::from(x.cast_signed())).sum();
            sum[i].wrapping_add(dot.cast_unsigned())
        })
    }

    #[inline(always)]
    fn dot_int4(self, sum: [u32; LANES], w: [u32; LANES], x: [u32; LANES]) -> [u32; LANES] {
        self.dot_int8(sum, w, x)
    }

    #[inline(always)]
    fn low_halves(self, w: [u32; LANES]) -> [u32; LANES] {
        w.map(|w| w & 0x0f0f_0f0f)
    }

    #[inline(always)]
    fn high_halves(self, w: [u32; LANES]) -> [u32; LANES] {
        w.map(|w| w >> 4 & 0x0f0f_0f0f)
    }

    #[inline(always)]
    fn raised(self, w: [u32; LANES]) -> [u32; LANES] {
        w.map(|w| u32::from_le_bytes(w.to_le_bytes().map(|code| RAISED[usize::from(code & 15)])))
    }

    #[inline(always)]
    fn widen_words(self, w: [u32; LANES]) -> V {
        w.map(|w| w.cast_signed() as f32)
    }
}
