//! Gated activations and the elementwise sums between layers.
//!
//! All activations are `x * sigmoid(g(x))`; the exponential is a polynomial in registers. They are applied to the sums of a
//! gated layer's product while these are in registers, see `matmul`.

use super::math::{sigmoid, store_some};
use super::{Cpu, Shared};
use crate::simd::{LANES, Simd};

/// The activation of the gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// `x * sigmoid(alpha * x)` of the gate, at most `limit`, times 1 plus the other half, within `limit` on both sides: that of
    /// gpt-oss.
    ClampedSwish {
        /// Factor of the gate in the sigmoid.
        alpha: f32,
        /// Bound of both halves.
        limit: f32,
    },
}

/// Where rows are added: to parts of some rows of a dense matrix.
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    /// Which rows, in ascending order.
    pub rows: &'a [u32],
    /// How wide they are.
    pub stride: usize,
    /// Where the parts begin in them.
    pub first: usize,
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

    /// `out[to.rows[i]][to.first + j] += scale * x[i][j]`; `x` is dense.
    ///
    /// # Panics
    /// If `x` has another number of rows, or they don't ascend or fit within `out`.
    pub fn add_scaled(&self, x: &[f32], scale: f32, to: Targets<'_>, out: &mut [f32]) {
        let Targets { rows, stride, first } = to;
        let width = x.len() / rows.len().max(1);
        assert_eq!(x.len(), rows.len() * width, "a row for each target");
        assert!(first + width <= stride, "rows must be wide enough");
        assert!(rows.is_sorted_by(|a, b| a < b), "rows must ascend");
        let end = rows.last().map_or(0, |last| *last as usize + 1);
        assert!(end * stride <= out.len(), "rows must be there");
        let target = Shared(out.as_mut_ptr());
        self.for_each(rows.len(), x.len(), |i| {
            let at = rows[i] as usize * stride + first;
            // SAFETY: rows ascend, so each is one item; the last lies in `out`.
            let out = unsafe { std::slice::from_raw_parts_mut(target.get().add(at), width) };
            for (out, x) in out.iter_mut().zip(&x[i * width..][..width]) {
                *out += scale * x;
            }
        });
    }
}

/// `out[i] = activation(gate[i]) * up[i]`, or what the activation says.
#[inline(always)]
pub(super) fn gated_lanes<S: Simd>(
    simd: S,
    activation: Activation,
    gate: &[f32],
    up: &[f32],
    out: &mut [f32],
) {
    for ((gate, up), out) in gate.chunks(LANES).zip(up.chunks(LANES)).zip(out.chunks_mut(LANES)) {
        let (mut x, mut y) = (load_some(simd, gate), load_some(simd, up));
        let inner = match activation {
            Activation::Silu => x,
            Activation::GeluTanh => {
                // 2 * sqrt(2 / pi) * (x + 0.044715 x^3)
                let cubic = simd.mul(simd.mul(x, x), simd.mul(x, simd.splat(0.044_715)));
                simd.mul(simd.splat(1.595_769_2), simd.add(x, cubic))
            }
            Activation::ClampedSwish { alpha, limit } => {
                // The second operand may be NaN, and stays so.
                x = simd.min(simd.splat(limit), x);
                y = simd.max(simd.splat(-limit), simd.min(simd.splat(limit), y));
                y = simd.add(y, simd.splat(1.0));
                simd.mul(x, simd.splat(alpha))
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
