//! Layers of experts: products, gates and sums, with the lists that a choice of random logits made.

use std::sync::Arc;

use super::choices::{Lists, Logits};
use super::few::weights;
use super::support::{Effort, compare, numbers, poisoned, rounded, said, tolerance};
use crate::cuda::{
    Buffer, CombineParams, Device, ExpertForm, ExpertProduct, ExpertShape, ExpertsParams, ProductKind, Type,
    combine, combine_add, product_experts, shares,
};
use crate::{Activation, Random, reference};

/// The weights of a layer, on the host.
struct Layer {
    shape: ExpertShape,
    activation: Activation,
    gate_up: Vec<f32>,
    down: Vec<f32>,
    biases: Option<[Vec<f32>; 2]>,
}

/// What the kernels wrote, in rows.
struct Written {
    /// `[pair]`
    chosen: Vec<u32>,
    /// `[pair][intermediate]`
    between: Vec<f32>,
    /// `[pair][hidden]`
    parts: Vec<f32>,
    /// `[row][hidden]`
    out: Vec<f32>,
    added: Option<Added>,
}

/// The sum into a residual stream, in rows.
struct Added {
    stream: Vec<f32>,
    handed_on: Vec<f32>,
    shares: Vec<f32>,
}

/// The residual stream, the factor of what is added to it, and the weights of the norm that comes next.
struct Stream {
    before: Vec<f32>,
    factor: f32,
    norm: Option<Vec<f32>>,
}

impl Layer {
    fn random(random: &mut Random, effort: Effort, ty: Type, whole: bool) -> Self {
        let experts = random.size(1, effort.pick(9, 40));
        let per_row = if random.size(0, 4) == 0 { experts } else { random.size(1, experts.min(4)) };
        let most = effort.pick(12, 60);
        let width = |random: &mut Random| match whole {
            true => 8 * random.size(1, most),
            false => random.size(1, 8 * most),
        };
        let (hidden, mut intermediate) = (width(random), width(random));
        if !whole && (hidden | intermediate).is_multiple_of(8) {
            intermediate += 1;
        }
        let of = |random: &mut Random, outputs, inputs| -> Vec<f32> {
            (0..experts).flat_map(|_| weights(random, ty, outputs, inputs)).collect()
        };
        let (gate_up, down) = (of(random, 2 * intermediate, hidden), of(random, hidden, intermediate));
        let biases = random
            .flag()
            .then(|| [2 * intermediate, hidden].map(|outputs| random.numbers(experts * outputs)));
        let activation = random.one_of(&[
            Activation::Silu,
            Activation::GeluTanh,
            Activation::ClampedSwish { alpha: 1.702, limit: 0.75 },
        ]);
        let shape = ExpertShape {
            ty,
            experts: experts as u32,
            per_row: per_row as u32,
            hidden: hidden as u32,
            intermediate: intermediate as u32,
        };
        Self { shape, activation, gate_up, down, biases }
    }

    fn run(
        &self,
        device: &Arc<dyn Device>,
        form: ExpertForm,
        x: &[f32],
        logits: &Logits,
        stream: Option<&Stream>,
    ) -> Result<Written, String> {
        let ExpertShape { ty, per_row, hidden, intermediate, .. } = self.shape;
        let rows = logits.rows.len();
        let pairs = rows * per_row as usize;
        let lists = Lists::of(device, &self.shape, form, logits)?;
        let given = numbers(device, ty, x)?;
        let (gate_up, down) = (numbers(device, ty, &self.gate_up)?, numbers(device, ty, &self.down)?);
        let bias = |which: usize| {
            self.biases.as_ref().map(|biases| numbers(device, Type::F32, &biases[which])).transpose()
        };
        let (gate_up_bias, down_bias) = (bias(0)?, bias(1)?);
        let at = |buffer: &Option<Buffer>| buffer.as_ref().map_or(0, Buffer::at);
        let (hidden, intermediate) = (hidden as usize, intermediate as usize);
        let between = poisoned(device, ty, pairs * intermediate)?;
        let parts = poisoned(device, ty, pairs * hidden)?;
        let out = poisoned(device, ty, rows * hidden)?;
        let (pairs_at, tiles) = (lists.pairs.at(), lists.tiles.at());
        let params = ExpertsParams {
            x: given.at(),
            w: gate_up.at(),
            bias: at(&gate_up_bias),
            y: between.at(),
            scales: if logits.squares.is_some() { lists.scales.at() } else { 0 },
            pairs: pairs_at,
            tiles,
            ..ExpertsParams::default()
        };
        let host = device;
        let device = device.as_ref();
        let product = ExpertProduct::Gated(self.activation);
        // SAFETY: shapes as allocated, as below.
        unsafe { product_experts(device, &self.shape, form, product, &params, rows as u32) }.map_err(said)?;
        let params = ExpertsParams {
            x: between.at(),
            w: down.at(),
            bias: at(&down_bias),
            y: parts.at(),
            pairs: pairs_at,
            tiles,
            ..ExpertsParams::default()
        };
        // SAFETY: as above.
        unsafe { product_experts(device, &self.shape, form, ExpertProduct::Down, &params, rows as u32) }
            .map_err(said)?;
        let params = CombineParams {
            x: parts.at(),
            chosen: lists.chosen.at(),
            weights: lists.weights.at(),
            out: out.at(),
            width: hidden as u32,
            per_row,
            ..CombineParams::default()
        };
        // SAFETY: as above.
        unsafe { combine(device, ty, &params, rows as u32) }.map_err(said)?;
        let read = |buffer: &Buffer, count| buffer.read_numbers(ty, count).map_err(said);
        Ok(Written {
            chosen: lists.chosen(pairs)?,
            between: read(&between, pairs * intermediate)?,
            parts: read(&parts, pairs * hidden)?,
            out: read(&out, rows * hidden)?,
            added: stream.map(|stream| self.add(host, &params, stream, rows)).transpose()?,
        })
    }

    fn add(
        &self,
        device: &Arc<dyn Device>,
        params: &CombineParams,
        stream: &Stream,
        rows: usize,
    ) -> Result<Added, String> {
        let (ty, width) = (self.shape.ty, self.shape.hidden as usize);
        let residual = numbers(device, Type::F32, &stream.before)?;
        let norm = stream.norm.as_ref().map(|norm| numbers(device, Type::F32, norm)).transpose()?;
        let handed_on = poisoned(device, ty, rows * width)?;
        let count = rows * shares(width as u32) as usize;
        let squares = poisoned(device, Type::F32, count)?;
        let params = CombineParams {
            out: handed_on.at(),
            residual: residual.at(),
            norm: norm.as_ref().map_or(0, Buffer::at),
            shares_out: squares.at(),
            factor: stream.factor,
            ..*params
        };
        // SAFETY: shapes as allocated.
        unsafe { combine_add(device.as_ref(), ty, &params, rows as u32) }.map_err(said)?;
        Ok(Added {
            stream: residual.read_numbers(Type::F32, rows * width).map_err(said)?,
            handed_on: handed_on.read_numbers(ty, rows * width).map_err(said)?,
            shares: squares.read_numbers(Type::F32, count).map_err(said)?,
        })
    }

    /// Compares each operation, given what the device made of the one before. What belongs to no expert must be unwritten.
    fn compare(&self, got: &Written, x: &[f32], logits: &Logits, what: &str) -> Result<(), String> {
        let ExpertShape { ty, per_row, hidden, intermediate, .. } = self.shape;
        let [per_row, hidden, intermediate] = [per_row, hidden, intermediate].map(|size| size as usize);
        for (row, choices) in logits.choices(per_row, &got.chosen).iter().enumerate() {
            let of = |numbers: &[f32], index: usize, width: usize| {
                numbers[index * width..(index + 1) * width].to_vec()
            };
            let out = of(&got.out, row, hidden);
            if choices.is_empty() {
                let pairs = row * per_row..(row + 1) * per_row;
                let unwritten = |numbers: &[f32], width: usize| {
                    numbers[pairs.start * width..pairs.end * width].iter().all(|x| x.is_nan())
                };
                if !unwritten(&got.between, intermediate) || !unwritten(&got.parts, hidden) {
                    return Err(format!("{what}: an expert computed row {row}, which is padding"));
                }
                if out.iter().any(|x| *x != 0.0) {
                    return Err(format!("{what}: row {row} is padding and not zero"));
                }
                continue;
            }
            let mut sum = vec![0.0; hidden];
            for (place, (expert, weight)) in choices.iter().enumerate() {
                let (pair, what) = (row * per_row + place, format!("{what}, row {row}, expert {expert}"));
                let between = of(&got.between, pair, intermediate);
                let given = of(x, row, hidden);
                let want = self.between(*expert, &given, logits.scale(row));
                compare(&between, &want, intermediate).near(tolerance(ty), &format!("{what}, gated"))?;
                let parts = of(&got.parts, pair, hidden);
                let want = self.part(*expert, &between);
                compare(&parts, &want, hidden).near(tolerance(ty), &format!("{what}, down"))?;
                sum.iter_mut().zip(&parts).for_each(|(sum, part)| *sum += weight * part);
            }
            let want: Vec<f32> = sum.iter().map(|x| rounded(ty, *x)).collect();
            compare(&out, &want, hidden).near(tolerance(ty), &format!("{what}, row {row}, sum"))?;
        }
        Ok(())
    }

    /// The sums into the residual stream and what is handed on, given the sums without it.
    fn compare_added(&self, got: &Written, stream: &Stream, what: &str) -> Result<(), String> {
        let Some(added) = &got.added else { return Ok(()) };
        let (ty, width) = (self.shape.ty, self.shape.hidden as usize);
        // The sums were rounded.
        let sums = stream.before.iter().zip(&got.out);
        let want: Vec<f32> = sums.map(|(before, sum)| before + sum * stream.factor).collect();
        compare(&added.stream, &want, width).near(tolerance(ty), &format!("{what}, residual"))?;
        let Some(norm) = &stream.norm else {
            let untouched = added.handed_on.iter().chain(&added.shares).all(|x| x.is_nan());
            return untouched.then_some(()).ok_or_else(|| format!("{what}: something was handed on"));
        };
        let rows = || added.stream.chunks(width);
        let want: Vec<f32> =
            rows().flat_map(|row| row.iter().zip(norm)).map(|(x, norm)| rounded(ty, x * norm)).collect();
        if added.handed_on != want {
            return Err(format!("{what}: other inputs of the next product"));
        }
        let squares = |numbers: &[f32]| numbers.iter().map(|x| x * x).sum::<f32>();
        let want: Vec<f32> = rows().flat_map(|row| row.chunks(16)).map(squares).collect();
        let per_row = shares(width as u32) as usize;
        compare(&added.shares, &want, per_row).close(1e-5, &format!("{what}, squares"))
    }

    fn between(&self, expert: usize, x: &[f32], scale: f32) -> Vec<f32> {
        let half = self.shape.intermediate as usize;
        let scaled: Vec<f32> = x.iter().map(|x| x * scale).collect();
        let sums = self.sums(&self.gate_up, 0, expert, &scaled);
        (0..half).map(|i| reference::gated(self.activation, sums[i], sums[half + i])).collect()
    }

    fn part(&self, expert: usize, between: &[f32]) -> Vec<f32> {
        self.sums(&self.down, 1, expert, between)
    }

    fn sums(&self, weights: &[f32], which: usize, expert: usize, x: &[f32]) -> Vec<f32> {
        let own = weights.len() / self.shape.experts as usize;
        let mut sums = reference::matmul(x, &weights[expert * own..(expert + 1) * own], x.len());
        if let Some(biases) = &self.biases {
            let outputs = sums.len();
            let bias = &biases[which][expert * outputs..];
            sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
        }
        sums
    }
}

pub(super) fn layers(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    for ty in [Type::F32, Type::Bf16, Type::F16] {
        for case in 0..8 {
            let whole = case < 6;
            let layer = Layer::random(random, effort, ty, whole);
            let shape = layer.shape;
            let rows = match case % 3 {
                0 => random.size(1, 3),
                1 => random.size(4, 20),
                // More than one tile if they choose the same expert.
                _ => random.size(21, effort.pick(80, 400)),
            };
            // Norms are fused in bf16.
            let width = shape.hidden as usize;
            let fused = ty == Type::Bf16 && width.is_multiple_of(8) && random.flag();
            let logits = Logits::random(random, [rows, shape.experts as usize], width, fused);
            let x = random.rounded(ty, rows * width);
            let stream = fused.then(|| Stream {
                before: random.numbers(rows * width),
                factor: random.one_of(&[1.0, 0.22]),
                norm: random.flag().then(|| random.numbers(width)),
            });
            let forms = match shape.form(ProductKind::Fastest, 1) {
                ExpertForm::Plain => vec![ExpertForm::Plain],
                _ => vec![random.one_of(&[ExpertForm::Few8, ExpertForm::Few16]), ExpertForm::Tiled],
            };
            for form in forms {
                let what = format!("{form:?}, {rows} rows, {shape:?}, {:?}", layer.activation);
                let factor = stream.as_ref().map(|stream| stream.factor);
                let what = format!("{what}, biases: {}, fused by {factor:?}", layer.biases.is_some());
                let got = layer.run(device, form, &x, &logits, stream.as_ref());
                let got = got.map_err(|wrong| format!("{what}: {wrong}"))?;
                layer.compare(&got, &x, &logits, &what)?;
                stream.iter().try_for_each(|stream| layer.compare_added(&got, stream, &what))?;
                // All forms sum a row's inputs in an order that doesn't depend on the rows beside it.
                let row = random.size(0, rows - 1);
                let own = &x[row * width..(row + 1) * width];
                let alone = layer.run(device, form, own, &logits.row(row), None)?;
                let bits = |numbers: &[f32]| -> Vec<u32> { numbers.iter().map(|x| x.to_bits()).collect() };
                if bits(&got.out[row * width..(row + 1) * width]) != bits(&alone.out) {
                    return Err(format!("{what}: row {row} differs alone"));
                }
            }
        }
    }
    Ok("three types, all forms, three activations, with and without biases, norms and sums, rows alone"
        .to_owned())
}
