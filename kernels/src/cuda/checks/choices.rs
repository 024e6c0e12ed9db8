//! Choices of experts: weights, and the lists by which products find an expert's rows.

use std::sync::Arc;

use super::support::{Effort, indexes, numbers, poisoned, said};
use crate::cuda::{
    Buffer, Device, ExpertForm, ExpertShape, NONE, RouteParams, Type, route as launch_route, shares,
};
use crate::{Random, reference};

/// What unwritten words of the lists hold.
const UNWRITTEN: u32 = 0xeeee_eeee;

/// The experts of each row, with their weights; none for padding.
pub(super) type Choices = Vec<Vec<(usize, f32)>>;

const EPSILON: f32 = 1e-5;

/// What `route` reads: logits of rows, their biases, and which rows are padding.
pub(super) struct Logits {
    pub rows: Vec<Vec<f32>>,
    bias: Option<Vec<f32>>,
    /// Shares of the squares of each row, if the logits lack the scale of a norm.
    pub squares: Option<Vec<Vec<f32>>>,
    /// Of the rows.
    width: usize,
    /// `None`: no row is padding.
    tokens: Option<Vec<u32>>,
    normalized: bool,
}

impl Logits {
    /// Of rows of this width. `scaled`: they lack the scale of a norm.
    pub(super) fn random(
        random: &mut Random,
        [rows, experts]: [usize; 2],
        width: usize,
        scaled: bool,
    ) -> Self {
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
    pub(super) fn scale(&self, row: usize) -> f32 {
        let Some(squares) = &self.squares else { return 1.0 };
        let sum: f64 = squares[row].iter().map(|share| f64::from(*share)).sum();
        (1.0 / (sum / self.width as f64 + f64::from(EPSILON)).sqrt()) as f32
    }

    pub(super) fn row(&self, row: usize) -> Self {
        let tokens = self.tokens.as_ref().map(|tokens| vec![tokens[row]]);
        let squares = self.squares.as_ref().map(|squares| vec![squares[row].clone()]);
        Self { rows: vec![self.rows[row].clone()], bias: self.bias.clone(), squares, tokens, ..*self }
    }

    fn is_padding(&self, row: usize) -> bool {
        self.tokens.as_ref().is_some_and(|tokens| tokens[row] == NONE)
    }

    /// What is to be chosen, given what the device chose.
    pub(super) fn choices(&self, per_row: usize, chosen: &[u32]) -> Choices {
        let of_row = |(row, logits): (usize, &Vec<f32>)| {
            if self.is_padding(row) {
                return Vec::new();
            }
            let bias = |expert: usize| self.bias.as_ref().map_or(0.0, |bias| bias[expert]);
            let scale = self.scale(row);
            let logits: Vec<f32> = logits.iter().enumerate().map(|(i, x)| x * scale + bias(i)).collect();
            let rounded =
                self.squares.as_ref().and_then(|_| self.nearly(&logits, &chosen[row * per_row..][..per_row]));
            rounded.unwrap_or_else(|| reference::route(&logits, per_row, self.normalized))
        };
        self.rows.iter().enumerate().map(of_row).collect()
    }

    /// The choice of these experts, if no other logit is larger by more than the rounding of a scale may change.
    fn nearly(&self, logits: &[f32], chosen: &[u32]) -> Option<Vec<(usize, f32)>> {
        let all = || logits.iter().copied().enumerate();
        let is_chosen = |expert: &(usize, f32)| chosen.contains(&(expert.0 as u32));
        let least = all().filter(is_chosen).map(|(_, x)| x).fold(f32::INFINITY, f32::min);
        let most =
            all().filter(|expert| !is_chosen(expert)).map(|(_, x)| x).fold(f32::NEG_INFINITY, f32::max);
        let they_ascend = chosen.is_sorted_by(|a, b| a < b);
        if !they_ascend || all().filter(is_chosen).count() < chosen.len() || least + 1e-5 < most {
            return None;
        }
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let power = |(_, x): (usize, f32)| (f64::from(x) - f64::from(largest)).exp();
        let total: f64 = all().filter(|expert| !self.normalized || is_chosen(expert)).map(power).sum();
        Some(all().filter(is_chosen).map(|expert| (expert.0, (power(expert) / total) as f32)).collect())
    }
}

/// What `route` writes.
pub(super) struct Lists {
    pub chosen: Buffer,
    pub weights: Buffer,
    pub pairs: Buffer,
    pub tiles: Buffer,
    pub scales: Buffer,
}

impl Lists {
    /// The experts of each row.
    pub(super) fn chosen(&self, pairs: usize) -> Result<Vec<u32>, String> {
        words(&self.chosen, pairs)
    }

    pub(super) fn of(
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
        let choices = logits.choices(per_row, &lists.chosen(rows * per_row)?);
        compare(&lists, &choices, &shape, form).map_err(|wrong| format!("{what}: {wrong}"))?;
    }
    rows_without_numbers(device, random)?;
    Ok("one to hundreds of experts, one or all of them per row, equal logits, biases, scales, padding, rows without numbers"
        .to_owned())
}

/// Rows whose logits are no numbers choose experts all the same, and change no other row.
fn rows_without_numbers(device: &Arc<dyn Device>, random: &mut Random) -> Result<(), String> {
    let shape = ExpertShape { ty: Type::Bf16, experts: 40, per_row: 4, hidden: 64, intermediate: 8 };
    let mut logits = Logits::random(random, [4, 40], 64, false);
    logits.tokens = None;
    logits.rows[0].fill(f32::NAN);
    logits.rows[1].fill(f32::INFINITY);
    logits.rows[2][7] = f32::NAN;
    let chosen = Lists::of(device, &shape, ExpertForm::Few8, &logits)?.chosen(4 * 4)?;
    let exist = |row: &[u32]| row.is_sorted_by(|a, b| a < b) && row.iter().all(|expert| *expert < 40);
    if !chosen.chunks(4).all(exist) {
        return Err(format!("rows without numbers have {chosen:?}"));
    }
    let own = &chosen[3 * 4..];
    let wanted = logits.row(3).choices(4, own);
    let wanted: Vec<u32> = wanted[0].iter().map(|(expert, _)| *expert as u32).collect();
    match own == wanted {
        true => Ok(()),
        false => Err(format!("beside rows without numbers one has {own:?} for {wanted:?}")),
    }
}

fn compare(lists: &Lists, choices: &Choices, shape: &ExpertShape, form: ExpertForm) -> Result<(), String> {
    let per_row = shape.per_row as usize;
    let count = choices.len() * per_row;
    let (chosen, got) = (lists.chosen(count)?, lists.weights.read_numbers(Type::F32, count).map_err(said)?);
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
