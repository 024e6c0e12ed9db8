//! Gated activations and the elementwise sums between layers.
//!
//! Both activations are `x * sigmoid(g(x))`; the exponential is a polynomial in registers. They are applied to the sums of a
//! gated layer's product while these are in registers, see `matmul`.

use super::Cpu;
use super::math::{sigmoid, store_some};
use crate::simd::{LANES, Simd};

/// The activation of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
}

impl Cpu {
    /// `x[i] += y[i]`.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "lengths must agree");
        for (x, y) in x.iter_mut().zip(y) {
            *x += y;
        }
    }
}

/// `out[i] = activation(gate[i]) * up[i]`.
#[inline(always)]
pub(super) fn gated_lanes<S: Simd>(
    simd: S,
    activation: Activation,
    gate: &[f32],
    up: &[f32],
    out: &mut [f32],
) {
    for ((gate, up), out) in gate.chunks(LANES).zip(up.chunks(LANES)).zip(out.chunks_mut(LANES)) {
        let (x, y) = (load_some(simd, gate), load_some(simd, up));
        let inner = match activation {
            Activation::Silu => x,
            Activation::GeluTanh => {
                // 2 * sqrt(2 / pi) * (x + 0.044715 x^3)
                let cubic = simd.mul(simd.mul(x, x), simd.mul(x, simd.splat(0.044_715)));
                simd.mul(simd.splat(1.595_769_2), simd.add(x, cubic))
            }
        };
        let value = simd.mul(simd.mul(x, sigmoid(simd, inner)), y);
        // SAFETY: `out` has this many numbers.
        unsafe { store_some(simd, out.as_mut_ptr(), value, out.len()) };
    }
}

/// Up to sixteen numbers; missing lanes are 0.
#[inline(always)]
pub(super) fn load_some<S: Simd>(simd: S, from: &[f32]) -> S::V {
    if from.len() == LANES {
        // SAFETY: sixteen numbers.
        unsafe { simd.load(from.as_ptr()) }
    } else {
        let mut lanes = [0.0; LANES];
        lanes[..from.len()].copy_from_slice(from);
        // SAFETY: `lanes` has sixteen places.
        unsafe { simd.load(lanes.as_ptr()) }
    }
}
