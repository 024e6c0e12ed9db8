//! Root-mean-square norm (Zhang and Sennrich 2019): `x / sqrt(mean(x^2) + eps) * weight`.
//!
//! Sixteen partial sums are folded in a fixed order. For models that multiply by `1 + weight`, the one is added when weights
//! are loaded.

use super::activation::load_some;
use super::attention::MAX_HEAD_DIM;
use super::math::store_some;
use super::{Cpu, Shared};
use crate::Rows;
use crate::inputs::{Inputs, Writer};
use crate::matrix::{Format, GROUP};
use crate::simd::{Isa, LANES, Simd, on_isa};

impl Cpu {
    /// Norms rows of `x` into `out`, which is dense.
    ///
    /// # Panics
    /// If widths disagree.
    pub fn rms_norm(&self, x: Rows<'_>, weight: &[f32], epsilon: f32, out: &mut [f32]) {
        assert_eq!(x.width, weight.len(), "rows and weight must be equally wide");
        assert!(out.len().is_multiple_of(x.width), "output must be whole rows");
        let (count, width, isa) = (out.len() / x.width, x.width, self.isa);
        x.check(count);
        let target = Shared(out.as_mut_ptr());
        self.for_each(count, 4 * count * width, |row| {
            // SAFETY: each row is one item and lies in `out`.
            let out = unsafe { std::slice::from_raw_parts_mut(target.get().add(row * width), width) };
            norm_row(isa, x.row(row), Norm { weight, epsilon }, out);
        });
    }

    /// Norms the first `count` rows of `x` into the inputs of a product.
    ///
    /// # Panics
    /// If widths disagree.
    pub fn rms_norm_inputs(
        &self,
        x: Rows<'_>,
        count: usize,
        norm: Norm<'_>,
        format: Format,
        inputs: &mut Inputs,
    ) {
        x.check(count);
        assert_eq!(x.width, norm.weight.len(), "rows and weight must be equally wide");
        let (isa, writer) = (self.isa, inputs.reshape(self.isa, format, count, x.width));
        self.for_each(count, 4 * count * x.width, |row| norm_inputs(isa, x.row(row), norm, row, writer));
    }

    /// Norms each of `heads` consecutive heads of a row in place, for `rows` rows `stride` apart.
    ///
    /// # Panics
    /// If the heads don't lie in the buffer.
    pub fn rms_norm_heads(&self, data: &mut [f32], heads: HeadRows, weight: &[f32], epsilon: f32) {
        let width = weight.len();
        let all = heads.heads.checked_mul(width).expect("heads lie in the buffer");
        let rows = Rows { data, offset: heads.offset, stride: heads.stride, width: all };
        rows.check(heads.rows);
        let (isa, data) = (self.isa, Shared(data.as_mut_ptr()));
        self.for_each(heads.rows, 8 * heads.rows * heads.heads * width, |row| {
            let mut scratch = [0.0; MAX_HEAD_DIM];
            let scratch = &mut scratch[..width];
            for head in 0..heads.heads {
                let start = heads.offset + row * heads.stride + head * width;
                // SAFETY: rows were checked, and each is one item.
                let values = unsafe { std::slice::from_raw_parts_mut(data.get().add(start), width) };
                scratch.copy_from_slice(values);
                norm_row(isa, scratch, Norm { weight, epsilon }, values);
            }
        });
    }
}

/// Parameters of a norm.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// One per column.
    pub weight: &'a [f32],
    /// Added to the mean square.
    pub epsilon: f32,
}

/// Heads inside wider rows.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows {
    /// Rows.
    pub rows: usize,
    /// Numbers from one row to the next.
    pub stride: usize,
    /// Where the first head of row 0 starts.
    pub offset: usize,
    /// Heads of a row.
    pub heads: usize,
}

fn norm_row(isa: Isa, x: &[f32], norm: Norm<'_>, out: &mut [f32]) {
    on_isa!(isa, norm_lanes(x: &[f32], norm: Norm<'_>, out: &mut [f32]));
}

fn norm_inputs(isa: Isa, x: &[f32], norm: Norm<'_>, row: usize, writer: Writer) {
    on_isa!(isa, norm_inputs_lanes(x: &[f32], norm: Norm<'_>, row: usize, writer: Writer));
}

#[inline(always)]
fn norm_inputs_lanes<S: Simd>(simd: S, x: &[f32], norm: Norm<'_>, row: usize, writer: Writer) {
    let scale = scale(simd, x, norm.epsilon);
    let parts = x.chunks(GROUP).zip(norm.weight.chunks(GROUP));
    for (i, (x, weight)) in parts.enumerate() {
        let mut out = [0.0; GROUP];
        scaled(simd, x, weight, scale, &mut out[..x.len()]);
        // SAFETY: each row is one item of `rms_norm_inputs`, which made room for it.
        unsafe { writer.write(row, i * GROUP, &out[..x.len()]) };
    }
}

#[inline(always)]
fn norm_lanes<S: Simd>(simd: S, x: &[f32], norm: Norm<'_>, out: &mut [f32]) {
    let scale = scale(simd, x, norm.epsilon);
    scaled(simd, x, norm.weight, scale, out);
}

/// The factor `1 / sqrt(mean(x^2) + epsilon)` of a row.
#[inline(always)]
fn scale<S: Simd>(simd: S, x: &[f32], epsilon: f32) -> f32 {
    let mut squares = simd.splat(0.0);
    for x in x.chunks(LANES) {
        let x = load_some(simd, x);
        squares = simd.fma(x, x, squares);
    }
    1.0 / (simd.sum(squares) / x.len() as f32 + epsilon).sqrt()
}

#[inline(always)]
fn scaled<S: Simd>(simd: S, x: &[f32], weight: &[f32], scale: f32, out: &mut [f32]) {
    let scale = simd.splat(scale);
    for ((x, weight), out) in x.chunks(LANES).zip(weight.chunks(LANES)).zip(out.chunks_mut(LANES)) {
        let value = simd.mul(simd.mul(load_some(simd, x), scale), load_some(simd, weight));
        // SAFETY: `out` has this many places.
        unsafe { store_some(simd, out.as_mut_ptr(), value, out.len()) };
    }
}
