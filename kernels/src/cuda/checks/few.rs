//! Products with the operations around them.

use std::sync::Arc;

use super::support::{Effort, Weights, compare, numbers, poisoned, rounded, said, tolerance};
use crate::cuda::{
    Buffer, Device, FewParams, Quantized, Type, product_add, product_gated, product_scaled, shares,
};
use crate::reference;
use crate::{Activation, GROUP, Random};

const EPSILON: f32 = 1e-5;

/// Numbers of rows for each of the kernels' forms.
pub(super) fn rows(random: &mut Random) -> [usize; 4] {
    [1, random.size(2, 8), random.size(9, 16), random.size(17, 32)]
}

/// Weights that preserve the size of the rows they multiply.
pub(super) fn weights(random: &mut Random, ty: Type, outputs: usize, inputs: usize) -> Vec<f32> {
    let scale = (3.0 / inputs as f32).sqrt();
    random.numbers(outputs * inputs).into_iter().map(|w| rounded(ty, w * scale)).collect()
}

/// A random number of inputs of a product, up to 8 `most`: whole groups if weights are integers.
pub(super) fn inputs(random: &mut Random, most: usize, weights: Option<Quantized>) -> usize {
    match weights {
        None => 8 * random.size(1, most),
        Some(_) => GROUP * random.size(1, most.div_ceil(GROUP / 8)),
    }
}

pub(super) fn gated(device: &Arc<dyn Device>, effort: Effort, random: &mut Random) -> Result<String, String> {
    gated_of(device, effort, random, None)
}

pub(super) fn gated_integers(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    gated_of(device, effort, random, Some(Quantized::Int8))?;
    gated_of(device, effort, random, Some(Quantized::Int4))
}

fn gated_of(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
    stored: Option<Quantized>,
) -> Result<String, String> {
    for ty in [Type::Bf16, Type::F16] {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            for rows in rows(random) {
                let biased = random.size(0, 1) == 1;
                let inputs = inputs(random, effort.pick(20, 400), stored);
                let width = random.size(1, effort.pick(200, 3_400));
                let width = if stored.is_some() { width.next_multiple_of(8) } else { width };
                let x = random.rounded(ty, rows * inputs);
                let w = weights(random, ty, 2 * width, inputs);
                let bias = random.rounded(Type::F32, 2 * width);
                let given = numbers(device, ty, &x)?;
                let matrix = Weights::new(device, (ty, stored), &w, inputs, true)?;
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
                unsafe { product_gated(device.as_ref(), matrix.factors, activation, &params) }
                    .map_err(said)?;
                let want =
                    gates(activation, &x, &matrix.numbers, biased.then_some(&bias[..]), [inputs, width]);
                let got = out.read_numbers(ty, rows * width).map_err(said)?;
                let what =
                    format!("{ty:?} {stored:?} {activation:?} {rows} x {width} x {inputs}, biased: {biased}");
                compare(&got, &want, width).near(tolerance(ty), &what)?;
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
    add_norm_of(device, effort, random, None)
}

pub(super) fn add_norm_integers(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    add_norm_of(device, effort, random, Some(Quantized::Int8))?;
    add_norm_of(device, effort, random, Some(Quantized::Int4))
}

fn add_norm_of(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
    stored: Option<Quantized>,
) -> Result<String, String> {
    let small = Case { size: 1e-3, ..Case::USUAL };
    for case in [
        Case::USUAL,
        Case { biased: true, ..Case::USUAL },
        Case { biased: true, last: true, ..Case::USUAL },
        Case { biased: true, factor: 0.22, ..Case::USUAL },
        Case { wide: true, ..small },
        Case { biased: true, ..small },
        Case { many: true, ..Case::USUAL },
        Case { many: true, biased: true, ..Case::USUAL },
    ] {
        for rows in rows(random) {
            let layer = Layer::new(device, effort, random, (&case, stored))?;
            let x = random.rounded(TYPE, rows * layer.inputs);
            let stream: Vec<f32> =
                random.numbers(rows * layer.width).into_iter().map(|x| x * 4.0 * case.size).collect();
            let got = layer.run(device, &x, &stream)?;
            let what = format!("{rows} x {} x {}, {stored:?}, {case:?}", layer.width, layer.inputs);
            layer.compare(&got, &x, &stream, &what)?;
            let row = random.size(0, rows - 1);
            let of = |all: &[f32]| all[row * all.len() / rows..(row + 1) * all.len() / rows].to_vec();
            let alone = layer.run(device, &of(&x), &of(&stream))?;
            for ((name, all), (_, alone)) in got.named().into_iter().zip(alone.named()) {
                let bits = |numbers: &[f32]| -> Vec<u32> { numbers.iter().map(|x| x.to_bits()).collect() };
                if bits(&of(all)) != bits(alone) {
                    return Err(format!("{what}: row {row} has other {name} alone"));
                }
            }
        }
    }
    Ok("bf16, 1 to 32 rows, with and without bias and factor, products that scale, small rows, and the last one"
        .to_owned())
}

const TYPE: Type = Type::Bf16;

#[derive(Debug)]
struct Case {
    /// The sum and the gates have biases.
    biased: bool,
    /// Nothing comes next.
    last: bool,
    /// So many inputs of the next products that shares of squares of 32 rows are not read at once.
    wide: bool,
    /// So many outputs of the next products that not all blocks run at once, on the emulated device or on a large one.
    many: bool,
    /// Of the numbers that are added up. If they are small, epsilon counts.
    size: f32,
    /// Of what is added to the stream.
    factor: f32,
}

impl Case {
    const USUAL: Self = Self { biased: false, last: false, wide: false, many: false, size: 1.0, factor: 1.0 };
}

/// A projection into the residual stream, the norm after it, and two products of its outputs.
struct Layer {
    factor: f32,
    inputs: usize,
    width: usize,
    weights: Weights,
    bias: Option<Vec<f32>>,
    /// `None`: nothing comes after it.
    norm: Option<Vec<f32>>,
    outputs: usize,
    next: Weights,
    gates: usize,
    gate_up: Weights,
    gate_bias: Option<Vec<f32>>,
}

/// What a [`Layer`]'s products write, in rows.
struct Written {
    stream: Vec<f32>,
    handed_on: Vec<f32>,
    shares: Vec<f32>,
    scaled: Vec<f32>,
    gated: Vec<f32>,
}

impl Written {
    fn named(&self) -> [(&'static str, &[f32]); 5] {
        [
            ("residuals", &self.stream),
            ("inputs of the next product", &self.handed_on),
            ("squares", &self.shares),
            ("scaled outputs", &self.scaled),
            ("gates", &self.gated),
        ]
    }
}

impl Layer {
    fn new(
        device: &Arc<dyn Device>,
        effort: Effort,
        random: &mut Random,
        (case, stored): (&Case, Option<Quantized>),
    ) -> Result<Self, String> {
        let Case { biased, last, wide, many, size, factor } = *case;
        // The stream's width is both the outputs of the sum and the inputs of the next products.
        let [inputs, width] = [0; 2].map(|_| inputs(random, effort.pick(40, 500), stored));
        let width = if wide { width + 2_048 } else { width };
        let [outputs, gates] = [100, 50].map(|quick| random.size(1, effort.pick(quick, 2_000)));
        let (width, outputs, gates) = match many {
            true => (width.min(320), outputs + effort.pick(200, 6_400), gates + effort.pick(100, 3_200)),
            false => (width, outputs, gates),
        };
        let gates = if stored.is_some() { gates.next_multiple_of(8) } else { gates };
        let small = |numbers: Vec<f32>| -> Vec<f32> {
            numbers.into_iter().map(|x| rounded(TYPE, x * size)).collect()
        };
        let matrix =
            |given: &[f32], inputs, gated| Weights::new(device, (TYPE, stored), given, inputs, gated);
        Ok(Self {
            factor,
            inputs,
            width,
            weights: matrix(&small(weights(random, TYPE, width, inputs)), inputs, false)?,
            bias: biased.then(|| small(random.numbers(width))),
            norm: (!last).then(|| random.numbers(width)),
            outputs,
            next: matrix(&weights(random, TYPE, outputs, width), width, false)?,
            gates,
            gate_up: matrix(&weights(random, TYPE, 2 * gates, width), width, true)?,
            gate_bias: biased.then(|| random.numbers(2 * gates)),
        })
    }

    fn run(&self, device: &Arc<dyn Device>, x: &[f32], stream: &[f32]) -> Result<Written, String> {
        let rows = x.len() / self.inputs;
        let optional = |given: &Option<Vec<f32>>| {
            given.as_ref().map(|given| numbers(device, Type::F32, given)).transpose()
        };
        let at = |given: &Option<Buffer>| given.as_ref().map_or(0, Buffer::at);
        let read = |buffer: &Buffer, ty, count| buffer.read_numbers(ty, count).map_err(said);
        let x = numbers(device, TYPE, x)?;
        let (bias, norm) = (optional(&self.bias)?, optional(&self.norm)?);
        let stream = numbers(device, Type::F32, stream)?;
        let handed_on = poisoned(device, TYPE, rows * self.width)?;
        let count = rows * shares(self.width as u32) as usize;
        let squares = poisoned(device, Type::F32, count)?;
        let params = FewParams {
            x: x.at(),
            w: self.weights.at(),
            y: handed_on.at(),
            bias: at(&bias),
            residual: stream.at(),
            norm: at(&norm),
            shares_out: squares.at(),
            rows: rows as u32,
            inputs: self.inputs as u32,
            outputs: self.width as u32,
            factor: self.factor,
            ..FewParams::default()
        };
        // SAFETY: shapes as allocated.
        unsafe { product_add(device.as_ref(), self.weights.factors, &params) }.map_err(said)?;
        let mut written = Written {
            stream: read(&stream, Type::F32, rows * self.width)?,
            handed_on: read(&handed_on, TYPE, rows * self.width)?,
            shares: read(&squares, Type::F32, count)?,
            scaled: Vec::new(),
            gated: Vec::new(),
        };
        if self.norm.is_none() {
            return Ok(written);
        }
        let next = FewParams {
            x: handed_on.at(),
            squares: squares.at(),
            epsilon: EPSILON,
            rows: rows as u32,
            inputs: self.width as u32,
            ..FewParams::default()
        };
        let y = poisoned(device, Type::F32, rows * self.outputs)?;
        // In f32, which shows the last bits of the scale.
        let outputs = self.outputs as u32;
        let params = FewParams { w: self.next.at(), y: y.at(), outputs, out_f32: 1, ..next };
        // SAFETY: shapes as allocated.
        unsafe { product_scaled(device.as_ref(), self.next.factors, &params) }.map_err(said)?;
        written.scaled = read(&y, Type::F32, rows * self.outputs)?;
        let y = poisoned(device, TYPE, rows * self.gates)?;
        let bias = optional(&self.gate_bias)?;
        let outputs = 2 * self.gates as u32;
        let params = FewParams { w: self.gate_up.at(), y: y.at(), bias: at(&bias), outputs, ..next };
        // SAFETY: shapes as allocated.
        unsafe { product_gated(device.as_ref(), self.gate_up.factors, Activation::Silu, &params) }
            .map_err(said)?;
        written.gated = read(&y, TYPE, rows * self.gates)?;
        Ok(written)
    }

    fn compare(&self, got: &Written, x: &[f32], stream: &[f32], what: &str) -> Result<(), String> {
        let mut sums = reference::matmul(x, &self.weights.numbers, self.inputs);
        for (i, (sum, before)) in sums.iter_mut().zip(stream).enumerate() {
            let bias = self.bias.as_ref().map_or(0.0, |bias| bias[i % self.width]);
            *sum = before + (*sum + bias) * self.factor;
        }
        compare(&got.stream, &sums, self.width).close(1e-5, &format!("{what}, residual"))?;
        let Some(norm) = &self.norm else {
            let untouched = got.handed_on.iter().chain(&got.shares).all(|x| x.is_nan());
            return untouched.then_some(()).ok_or_else(|| {
                format!("{what}: inputs or squares for a next product although there is none")
            });
        };
        let normed: Vec<f32> =
            sums.chunks(self.width).flat_map(|row| reference::rms_norm(row, norm, EPSILON)).collect();
        let want = reference::matmul(&normed, &self.next.numbers, self.width);
        let named = format!("{what}, {} outputs", self.outputs);
        compare(&got.scaled, &want, self.outputs).near(tolerance(TYPE), &named)?;
        let shape = [self.width, self.gates];
        let gate_up = &self.gate_up.numbers;
        let want = gates(Activation::Silu, &normed, gate_up, self.gate_bias.as_deref(), shape);
        let named = format!("{what}, {} gates", self.gates);
        compare(&got.gated, &want, self.gates).near(tolerance(TYPE), &named)
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
