//! Elementary functions on lanes, and partial stores.

use crate::simd::{LANES, Simd};

/// `e^x` within about 2 units in the last place (Cody-Waite reduction, the Cephes polynomial). It is 0 below -87.3 and
/// infinite from 88.38 on, slightly early; NaN stays NaN.
#[inline(always)]
pub(super) fn exp<S: Simd>(simd: S, x: S::V) -> S::V {
    const LOWEST: f32 = -87.3;
    /// Beyond this the exponent overflows its bits.
    const HIGHEST: f32 = 88.7;
    /// Adding this leaves a small number's nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let (lowest, round) = (simd.splat(LOWEST), simd.splat(ROUND));
    let clamped = simd.min(simd.splat(HIGHEST), simd.max(lowest, x));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, on_isa};

    fn exp_of(isa: Isa, x: f32) -> f32 {
        let mut out = [x; LANES];
        exp_all(isa, &mut out);
        assert!(out.iter().all(|lane| lane.to_bits() == out[0].to_bits()), "{isa:?}, {x}: {out:?}");
        out[0]
    }

    fn exp_all(isa: Isa, x: &mut [f32; LANES]) {
        on_isa!(isa, exp_lanes(x: &mut [f32; LANES]));
    }

    #[inline(always)]
    fn exp_lanes<S: Simd>(simd: S, x: &mut [f32; LANES]) {
        // SAFETY: sixteen places.
        unsafe { simd.store(x.as_mut_ptr(), exp(simd, simd.load(x.as_ptr()))) };
    }

    #[test]
    fn exp_is_within_two_units_and_saturates_at_its_documented_bounds() {
        for isa in Isa::available() {
            for i in -87_300..=88_370 {
                let x = i as f32 / 1_000.0;
                let (got, want) = (exp_of(isa, x), f64::from(x).exp());
                let unit = f64::from((want as f32).next_up()) - f64::from(want as f32);
                assert!((f64::from(got) - want).abs() <= 2.0 * unit, "{isa:?}, {x}: {got} for {want}");
            }
            for (x, want) in [
                (0.0, 1.0),
                (-87.301, 0.0),
                (-1e30, 0.0),
                (f32::NEG_INFINITY, 0.0),
                (88.38, f32::INFINITY),
                (1e30, f32::INFINITY),
                (f32::INFINITY, f32::INFINITY),
            ] {
                assert_eq!(exp_of(isa, x), want, "{isa:?}, {x}");
            }
            assert!(exp_of(isa, f32::NAN).is_nan(), "{isa:?}");
        }
    }
}
