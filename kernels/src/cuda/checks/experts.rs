//! Layers of experts: choices and lists, and the products that follow them.

use std::sync::Arc;

use super::few::{near, weights};
use super::support::{Effort, close, indexes, numbers, poisoned, rounded, said};
use crate::cuda::{
    Buffer, CombineParams, Device, ExpertForm, ExpertProduct, ExpertShape, ExpertsParams, NONE, ProductKind,
    RouteParams, Type, combine, combine_add, product_experts, route as launch_route, shares,
};
use crate::{Activation, Random, reference};

/// What unwritten words of the lists hold.
const UNWRITTEN: u32 = 0xeeee_eeee;

/// The experts of each row, with their weights; none for padding.
type Choices = Vec<Vec<(usize, f32)>>;

const EPSILON: f32 = 1e-5;

/// What `route` reads: logits of rows, their biases, and which rows are padding.
struct Logits {
    rows: Vec<Vec<f32>>,
    bias: Option<Vec<f32>>,
    /// Shares of the squares of each row, if the logits lack the scale of a norm.
    squares: Option<Vec<Vec<f32>>>,
    /// Of the rows.
    width: usize,
    /// `None`: no row is padding.
    tokens: Option<Vec<u32>>,
    normalized: bool,
}

impl Logits {
    /// Of rows of this width. `scaled`: they lack the scale of a norm.
    fn random(random: &mut Random, [rows, experts]: [usize; 2], width: usize, scaled: bool) -> Self {
        // Of few different numbers many are equal; -0 and 0 are.
        let coarse = random.flag();
        let logit = |random: &mut Random| match coarse {
            true => (random.number() * 2.0).round() * 0.5,
            false => random.number() * 4.0,
        };
        let mut all: Vec<Vec<f32>> =
            (0..rows).map(|_| (0..experts).map(|_| logit(random)).collect()).collect();
        // One expert that all rows choose, and one that none does if it can be avoided.
        if random.flag() {
            let (wanted, avoided) = (random.size(0, experts - 1), random.size(0, experts - 1));
            for row in &mut all {
                row[avoided] = -20.0;
                row[wanted] = 20.0;
            }
        }
        let bias = random.flag().then(|| (0..experts).map(|_| logit(random)).collect());
        let token = |random: &mut Random| if random.size(0, 3) == 0 { NONE } else { 7 };
        let tokens = random.flag().then(|| (0..rows).map(|_| token(random)).collect());
        let shares = shares(width as u32) as usize;
        let of_row = |random: &mut Random| (0..shares).map(|_| 1.0 + 30.0 * random.unit()).collect();
        let squares = scaled.then(|| (0..rows).map(|_| of_row(random)).collect());
        Self { rows: all, bias, squares, width, tokens, normalized: random.flag() }
    }

    /// What a row's sums are to be multiplied by.
    fn scale(&self, row: usize) -> f32 {
        let Some(squares) = &self.squares else { return 1.0 };
        let sum: f64 = squares[row].iter().map(|share| f64::from(*share)).sum();
        (1.0 / (sum / self.width as f64 + f64::from(EPSILON)).sqrt()) as f32
    }

    fn row(&self, row: usize) -> Self {
        let tokens = self.tokens.as_ref().map(|tokens| vec![tokens[row]]);
        let squares = self.squares.as_ref().map(|squares| vec![squares[row].clone()]);
        Self { rows: vec![self.rows[row].clone()], bias: self.bias.clone(), squares, tokens, ..*self }
    }

    fn is_padding(&self, row: usize) -> bool {
        self.tokens.as_ref().is_some_and(|tokens| tokens[row] == NONE)
    }

    fn choices(&self, per_row: usize) -> Choices {
        let of_row = |(row, logits): (usize, &Vec<f32>)| {
            if self.is_padding(row) {
                return Vec::new();
            }
            let bias = |expert: usize| self.bias.as_ref().map_or(0.0, |bias| bias[expert]);
            let scale = self.scale(row);
            let logits: Vec<f32> = logits.iter().enumerate().map(|(i, x)| x * scale + bias(i)).collect();
            reference::route(&logits, per_row, self.normalized)
        };
        self.rows.iter().enumerate().map(of_row).collect()
    }
}

/// What `route` writes.
struct Lists {
    chosen: Buffer,
    weights: Buffer,
    pairs: Buffer,
    tiles: Buffer,
    scales: Buffer,
}

impl Lists {
    fn of(
        device: &Arc<dyn Device>,
        shape: &ExpertShape,
        form: ExpertForm,
        logits: &Logits,
    ) -> Result<Self, String> {
        let list = |bytes: usize| {
            let buffer = Buffer::new(device, bytes).map_err(said)?;
            buffer.fill(UNWRITTEN.to_ne_bytes()[0]).map_err(said)?;
            Ok::<_, String>(buffer)
        };
        let rows = logits.rows.len() as u32;
        let [chosen, weights, pairs, tiles] = shape.list_bytes(rows);
        let lists = Self {
            chosen: list(chosen)?,
            weights: list(weights)?,
            pairs: list(pairs)?,
            tiles: list(tiles)?,
            scales: poisoned(device, Type::F32, logits.rows.len())?,
        };
        let squares = logits.squares.as_ref().map(|squares| squares.concat());
        let squares = squares.map(|squares| numbers(device, Type::F32, &squares)).transpose()?;
        let all = numbers(device, Type::F32, &logits.rows.concat())?;
        let bias = logits.bias.as_ref().map(|bias| numbers(device, Type::F32, bias)).transpose()?;
        let tokens = logits.tokens.as_ref().map(|tokens| indexes(device, tokens)).transpose()?;
        let at = |buffer: &Option<Buffer>| buffer.as_ref().map_or(0, Buffer::at);
        let params = RouteParams {
            logits: all.at(),
            bias: at(&bias),
            tokens: at(&tokens),
            chosen: lists.chosen.at(),
            weights: lists.weights.at(),
            pairs: lists.pairs.at(),
            squares: at(&squares),
            scales: lists.scales.at(),
            tiles: lists.tiles.at(),
            rows,
            epsilon: EPSILON,
            normalized: u32::from(logits.normalized),
            ..RouteParams::default()
        };
        // SAFETY: shapes as allocated.
        unsafe { launch_route(device.as_ref(), shape, form, &params) }.map_err(said)?;
        device.wait().map_err(said)?;
        Ok(lists)
    }
}

fn words(buffer: &Buffer, count: usize) -> Result<Vec<u32>, String> {
    let bytes = buffer.read(4 * count).map_err(said)?;
    Ok(bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect())
}

pub(super) fn route(device: &Arc<dyn Device>, effort: Effort, random: &mut Random) -> Result<String, String> {
    for case in 0..12 {
        let experts = [random.size(1, 9), random.size(10, 130), random.size(131, effort.pick(300, 1_024))];
        let experts = experts[case % 3];
        let per_row = match random.size(0, 3) {
            0 => 1,
            // As many rounds as experts take the emulated device too long if there are many.
            1 if experts <= 130 => experts,
            _ => random.size(1, experts.min(10)),
        };
        let rows = if case < 6 { random.size(1, 32) } else { random.size(33, effort.pick(70, 2_000)) };
        let (width, scaled) = (8 * random.size(1, 100), random.flag());
        let logits = Logits::random(random, [rows, experts], width, scaled);
        let shape = ExpertShape {
            ty: Type::Bf16,
            experts: experts as u32,
            per_row: per_row as u32,
            hidden: width as u32,
            intermediate: 8,
        };
        let form = random.one_of(&[ExpertForm::Few8, ExpertForm::Few16, ExpertForm::Tiled]);
        let what =
            format!("{rows} rows of {width}, {per_row} of {experts} experts, {form:?}, scaled: {scaled}");
        let lists = Lists::of(device, &shape, form, &logits)?;
        compare(&lists, &logits.choices(per_row), per_row, &shape, form)
            .map_err(|wrong| format!("{what}: {wrong}"))?;
    }
    Ok("one to hundreds of experts, one or all of them per row, equal logits, biases, scales, padding"
        .to_owned())
}

fn compare(
    lists: &Lists,
    choices: &Choices,
    per_row: usize,
    shape: &ExpertShape,
    form: ExpertForm,
) -> Result<(), String> {
    let count = choices.len() * per_row;
    let (chosen, got) =
        (words(&lists.chosen, count)?, lists.weights.read_numbers(Type::F32, count).map_err(said)?);
    for (row, wanted) in choices.iter().enumerate() {
        let span = row * per_row..(row + 1) * per_row;
        let (chosen, got) = (&chosen[span.clone()], &got[span]);
        if wanted.is_empty() {
            if chosen.iter().any(|expert| *expert != NONE) || got.iter().any(|weight| *weight != 0.0) {
                return Err(format!("row {row} is padding and has {chosen:?}"));
            }
            continue;
        }
        let experts: Vec<u32> = wanted.iter().map(|(expert, _)| *expert as u32).collect();
        if chosen != experts {
            return Err(format!("row {row} has {chosen:?} for {experts:?}"));
        }
        if let Some((got, (_, want))) =
            got.iter().zip(wanted).find(|(got, (_, want))| (*got - want).abs() > 5e-5 * want.max(1e-3))
        {
            return Err(format!("row {row} has a weight of {got} for {want}"));
        }
    }
    // By expert and then by row.
    let mut pairs: Vec<(u32, u32)> = (0_u32..).zip(&chosen).map(|(pair, expert)| (*expert, pair)).collect();
    pairs.retain(|(expert, _)| *expert != NONE);
    pairs.sort_unstable();
    let listed = words(&lists.pairs, count)?;
    let wanted: Vec<u32> = pairs.iter().map(|(_, pair)| *pair).collect();
    if listed[..wanted.len()] != wanted || listed[wanted.len()..].iter().any(|word| *word != UNWRITTEN) {
        return Err(format!("pairs {listed:?} for {wanted:?}"));
    }
    let room = shape.tiles(form, choices.len() as u32) as usize;
    let all = shape.list_bytes(choices.len() as u32)[3] / 4;
    let tiles = words(&lists.tiles, all)?;
    let mut wanted = Vec::new();
    for expert in 0..shape.experts {
        let first = pairs.partition_point(|(other, _)| *other < expert) as u32;
        let end = pairs.partition_point(|(other, _)| *other <= expert) as u32;
        for at in (first..end).step_by(form.tile_rows() as usize) {
            wanted.extend([expert, at, (end - at).min(form.tile_rows()), 0]);
        }
    }
    while wanted.len() < 4 * room {
        wanted.extend([NONE, 0, 0, 0]);
    }
    wanted.resize(all, UNWRITTEN);
    if tiles != wanted {
        return Err(format!("tiles {tiles:?} for {wanted:?}"));
    }
    Ok(())
}

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
        for (row, choices) in logits.choices(per_row).iter().enumerate() {
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
                near(&between, &want, intermediate, ty, &format!("{what}, gated"))?;
                let parts = of(&got.parts, pair, hidden);
                let want = self.part(*expert, &between);
                near(&parts, &want, hidden, ty, &format!("{what}, down"))?;
                sum.iter_mut().zip(&parts).for_each(|(sum, part)| *sum += weight * part);
            }
            let want: Vec<f32> = sum.iter().map(|x| rounded(ty, *x)).collect();
            near(&out, &want, hidden, ty, &format!("{what}, row {row}, sum"))?;
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
        near(&added.stream, &want, width, ty, &format!("{what}, residual"))?;
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
        close(&added.shares, &want, shares(width as u32) as usize, 1e-5, &format!("{what}, squares"))
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
                let what = format!("{what}, biases: {}, fused with factor {factor:?}", layer.biases.is_some());
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
