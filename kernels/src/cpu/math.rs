//! Elementary functions on lanes, and stores of some of them.

use crate::simd::{LANES, Simd};

/// `e^x` within about 2 units in the last place (Cody-Waite reduction, the Cephes polynomial). Below -87.3 it is 0,
/// above 88.7 it stays finite, a NaN stays a NaN.
#[inline(always)]
pub(super) fn exp<S: Simd>(simd: S, x: S::V) -> S::V {
    const LOWEST: f32 = -87.3;
    /// Adding it leaves a small number's nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let (lowest, round) = (simd.splat(LOWEST), simd.splat(ROUND));
    let clamped = simd.min(simd.splat(88.7), simd.max(lowest, x));
    let t = simd.fma(clamped, simd.splat(std::f32::consts::LOG2_E), round);
    let n = simd.sub(t, round);
    // ln 2 in two parts, so that n times the first is exact.
    let r = simd.fma(n, simd.splat(-0.693_359_4), clamped);
    let r = simd.fma(n, simd.splat(2.121_944_4e-4), r);
    let mut p = simd.splat(1.987_569_2e-4);
    for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5] {
        p = simd.fma(p, r, simd.splat(coefficient));
    }
    let p = simd.add(simd.fma(simd.mul(r, r), p, r), simd.splat(1.0));
    let result = simd.mul(p, simd.exp2_rounded(t));
    simd.select_lt(x, lowest, simd.splat(0.0), result)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(super) fn sigmoid<S: Simd>(simd: S, x: S::V) -> S::V {
    let one = simd.splat(1.0);
    simd.div(one, simd.add(one, exp(simd, simd.sub(simd.splat(0.0), x))))
}

/// Hyperbolic tangent, as `2 sigmoid(2x) - 1`.
#[inline(always)]
pub(super) fn tanh<S: Simd>(simd: S, x: S::V) -> S::V {
    let two = simd.splat(2.0);
    simd.fma(two, sigmoid(simd, simd.mul(two, x)), simd.splat(-1.0))
}

/// Stores the first `count` lanes.
///
/// # Safety
/// `count` numbers are writable at `to`.
#[inline(always)]
pub(super) unsafe fn store_some<S: Simd>(simd: S, to: *mut f32, v: S::V, count: usize) {
    if count == LANES {
        // SAFETY: sixteen places, by the caller's promise.
        unsafe { simd.store(to, v) };
    } else if count > 0 {
        let mut lanes = [0.0; LANES];
        // SAFETY: `lanes` has sixteen places; `count` places at `to`, by the caller's promise.
        unsafe {
            simd.store(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count);
        }
    }
}
