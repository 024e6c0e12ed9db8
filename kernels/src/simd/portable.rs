//! Lanes as an array: correct everywhere, and what the compiler can vectorize by itself.

use half::bf16;

use super::{LANES, Simd};

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
    const TILE_VECTORS: usize = 1;
    const SHARED_QUERIES: usize = 2;

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
}
