//! Gated activations and the elementwise sums between layers.
//!
//! Both activations are `x * sigmoid(g(x))`; the exponential is a polynomial in registers. Rows are handled
//! on the calling thread: they are bound by memory and small beside the products around them.

use super::math::sigmoid;
use super::matmul::store_some;
use super::{Cpu, Shared};
use crate::simd::{Isa, LANES, Simd, on_isa};

/// What the gate goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
}

impl Cpu {
    /// `out[i][j] = activation(gate_up[i][j]) * gate_up[i][width + j]`, rows of `2 * width` to rows of `width`.
    ///
    /// # Panics
    /// Where lengths disagree.
    pub fn gated(&self, activation: Activation, gate_up: &[f32], width: usize, out: &mut [f32]) {
        assert!(width > 0 && out.len().is_multiple_of(width), "output must be whole rows of {width}");
        assert_eq!(gate_up.len(), 2 * out.len(), "input rows must be twice as wide as output rows");
        let rows = out.len() / width;
        let target = Shared(out.as_mut_ptr());
        let isa = self.isa;
        // An exponential costs about as much as this many multiply-adds.
        self.for_each(rows, 32 * rows * width, |row| {
            // SAFETY: each row is one item.
            let out = unsafe { std::slice::from_raw_parts_mut(target.get().add(row * width), width) };
            let (gate, up) = gate_up[2 * row * width..][..2 * width].split_at(width);
            gated_row(isa, activation, gate, up, out);
        });
    }

    /// `x[i] += y[i]`.
    ///
    /// # Panics
    /// Where lengths differ.
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "lengths must agree");
        for (x, y) in x.iter_mut().zip(y) {
            *x += y;
        }
    }
}

fn gated_row(isa: Isa, activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    on_isa!(isa, gated_lanes(activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]));
}

#[inline(always)]
fn gated_lanes<S: Simd>(simd: S, activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
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
        // SAFETY: `out` has this many places.
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
