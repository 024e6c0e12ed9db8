//! Products with the operations around them.

use std::sync::Arc;

use super::support::{Effort, close, numbers, poisoned, rounded, said, tolerance};
use crate::Activation;
use crate::Random;
use crate::cuda::{Buffer, Device, FewParams, Type, product_add, product_gated, product_scaled, shares};
use crate::reference;

const EPSILON: f32 = 1e-5;

/// Numbers of rows for each of the kernels' forms.
fn rows(random: &mut Random) -> [usize; 4] {
    [1, random.size(2, 8), random.size(9, 16), random.size(17, 32)]
}

/// Weights that preserve the size of the rows they multiply.
fn weights(random: &mut Random, ty: Type, outputs: usize, inputs: usize) -> Vec<f32> {
    let scale = (3.0 / inputs as f32).sqrt();
    random.numbers(outputs * inputs).into_iter().map(|w| rounded(ty, w * scale)).collect()
}

pub(super) fn gated(device: &Arc<dyn Device>, effort: Effort, random: &mut Random) -> Result<String, String> {
    for ty in [Type::Bf16, Type::F16] {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            for rows in rows(random) {
                let biased = random.size(0, 1) == 1;
                let (inputs, width) =
                    (8 * random.size(1, effort.pick(20, 400)), random.size(1, effort.pick(90, 3_000)));
                let x = random.rounded(ty, rows * inputs);
                let w = weights(random, ty, 2 * width, inputs);
                let bias = random.rounded(Type::F32, 2 * width);
                let (given, matrix) = (numbers(device, ty, &x)?, numbers(device, ty, &w)?);
                let biases = numbers(device, Type::F32, &bias)?;
                let out = poisoned(device, ty, rows * width)?;
                let params = FewParams {
                    x: given.at(),
                    w: matrix.at(),
                    y: out.at(),
                    bias: if biased { biases.at() } else { 0 },
                    rows: rows as u32,
                    inputs: inputs as u32,
                    outputs: 2 * width as u32,
                    ..FewParams::default()
                };
                // SAFETY: shapes as allocated.
                unsafe { product_gated(device.as_ref(), ty, activation, &params) }.map_err(said)?;
                let want = gates(activation, &x, &w, biased.then_some(&bias[..]), [inputs, width]);
                let got = out.read_numbers(ty, rows * width).map_err(said)?;
                let what = format!("{ty:?} {activation:?} {rows} x {width} x {inputs}, biased: {biased}");
                near(&got, &want, width, ty, &what)?;
            }
        }
    }
    Ok("two types, two activations, 1 to 32 rows, with and without bias".to_owned())
}

/// A sum into the residual stream and both kinds of products that take what it hands on.
pub(super) fn add_norm(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    let ty = Type::Bf16;
    for case in 0..4 {
        let (biased, last) = (case & 1 > 0, case == 3);
        for rows in rows(random) {
            // The stream's width is both the outputs of the sum and the inputs of the next products.
            let [inputs, width] = [0; 2].map(|_| 8 * random.size(1, effort.pick(40, 500)));
            let x = random.rounded(ty, rows * inputs);
            let w = weights(random, ty, width, inputs);
            let [bias, norm] = [0; 2].map(|_| random.rounded(Type::F32, width));
            let residual: Vec<f32> = random.numbers(rows * width).into_iter().map(|x| x * 4.0).collect();
            let (given, matrix) = (numbers(device, ty, &x)?, numbers(device, ty, &w)?);
            let [biases, weight, stream] =
                [&bias, &norm, &residual].map(|numbers_of| numbers(device, Type::F32, numbers_of));
            let (biases, weight, stream) = (biases?, weight?, stream?);
            let handed_on = poisoned(device, ty, rows * width)?;
            let count = shares(width as u32);
            let squares = poisoned(device, Type::F32, rows * count as usize)?;
            let params = FewParams {
                x: given.at(),
                w: matrix.at(),
                y: handed_on.at(),
                bias: if biased { biases.at() } else { 0 },
                residual: stream.at(),
                norm: if last { 0 } else { weight.at() },
                shares_out: squares.at(),
                rows: rows as u32,
                inputs: inputs as u32,
                outputs: width as u32,
                ..FewParams::default()
            };
            // SAFETY: shapes as allocated.
            unsafe { product_add(device.as_ref(), ty, &params) }.map_err(said)?;
            let what = format!("{rows} x {width} x {inputs}, case {case}");
            let mut sums = reference::matmul(&x, &w, inputs);
            for (i, (sum, before)) in sums.iter_mut().zip(&residual).enumerate() {
                *sum += before + if biased { bias[i % width] } else { 0.0 };
            }
            let got = stream.read_numbers(Type::F32, rows * width).map_err(said)?;
            close(&got, &sums, width, 1e-5, &format!("{what}, residual"))?;
            if last {
                let untouched = handed_on.read_numbers(ty, rows * width).map_err(said)?;
                if untouched.iter().any(|x| !x.is_nan()) {
                    return Err(format!("{what}: inputs of a next product although there is none"));
                }
                continue;
            }
            let normed: Vec<f32> =
                sums.chunks(width).flat_map(|row| reference::rms_norm(row, &norm, EPSILON)).collect();
            let next = Next { device, ty, rows, width, x: &handed_on, squares: &squares };
            next.scaled(&normed, random.size(1, effort.pick(100, 2_000)), random, &what)?;
            next.gated(&normed, random.size(1, effort.pick(50, 2_000)), random, &what)?;
        }
    }
    Ok("bf16, 1 to 32 rows, with and without bias, products that scale, and the last one".to_owned())
}

/// Products whose inputs lack the scale of their norm.
struct Next<'a> {
    device: &'a Arc<dyn Device>,
    ty: Type,
    rows: usize,
    width: usize,
    x: &'a Buffer,
    squares: &'a Buffer,
}

impl Next<'_> {
    fn scaled(&self, normed: &[f32], outputs: usize, random: &mut Random, what: &str) -> Result<(), String> {
        let w = weights(random, self.ty, outputs, self.width);
        let matrix = numbers(self.device, self.ty, &w)?;
        let y = poisoned(self.device, self.ty, self.rows * outputs)?;
        let params = self.params(&matrix, &y, outputs);
        // SAFETY: shapes as allocated.
        unsafe { product_scaled(self.device.as_ref(), self.ty, &params) }.map_err(said)?;
        let got = y.read_numbers(self.ty, self.rows * outputs).map_err(said)?;
        let want = reference::matmul(normed, &w, self.width);
        near(&got, &want, outputs, self.ty, &format!("{what}, {outputs} outputs"))
    }

    fn gated(&self, normed: &[f32], width: usize, random: &mut Random, what: &str) -> Result<(), String> {
        let w = weights(random, self.ty, 2 * width, self.width);
        let matrix = numbers(self.device, self.ty, &w)?;
        let y = poisoned(self.device, self.ty, self.rows * width)?;
        let params = self.params(&matrix, &y, 2 * width);
        let activation = Activation::Silu;
        // SAFETY: shapes as allocated.
        unsafe { product_gated(self.device.as_ref(), self.ty, activation, &params) }.map_err(said)?;
        let got = y.read_numbers(self.ty, self.rows * width).map_err(said)?;
        let want = gates(activation, normed, &w, None, [self.width, width]);
        near(&got, &want, width, self.ty, &format!("{what}, {width} gates"))
    }

    fn params(&self, matrix: &Buffer, y: &Buffer, outputs: usize) -> FewParams {
        FewParams {
            x: self.x.at(),
            w: matrix.at(),
            y: y.at(),
            squares: self.squares.at(),
            epsilon: EPSILON,
            rows: self.rows as u32,
            inputs: self.width as u32,
            outputs: outputs as u32,
            ..FewParams::default()
        }
    }
}

/// The reference of a gated product of `width` gates.
fn gates(
    activation: Activation,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    [inputs, width]: [usize; 2],
) -> Vec<f32> {
    let plus = |i: usize| bias.map_or(0.0, |bias| bias[i]);
    let rows = reference::matmul(x, w, inputs);
    rows.chunks(2 * width)
        .flat_map(|row| {
            (0..width)
                .map(|i| reference::gated(activation, row[i] + plus(i), row[width + i] + plus(width + i)))
        })
        .collect()
}

/// Like [`close`]; numbers of a row may cancel, so its error is relative to at least a typical size.
fn near(got: &[f32], want: &[f32], width: usize, ty: Type, what: &str) -> Result<(), String> {
    for (row, (got, want)) in got.chunks(width).zip(want.chunks(width)).enumerate() {
        let error: f64 = got.iter().zip(want).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
        let size: f64 = want.iter().map(|b| f64::from(*b).powi(2)).sum::<f64>().sqrt();
        let error = error / size.max(0.2 * (width as f64).sqrt());
        if error.is_nan() || error > tolerance(ty) {
            return Err(format!("{what}, row {row}: error {error:.2e}"));
        }
    }
    Ok(())
}
