//! Sampling: the token must be allowed by the row's parameters, and its share of the distribution must contain the random
//! number.

use std::sync::Arc;

use super::support::{Effort, indexes, numbers, said};
use crate::Random;
use crate::cuda::{Buffer, Device, NONE, SampleParams, SampleRow, Type, sample};

/// Tolerance of a position in 0..1 that f32 exponentials and shares need.
const ROOM: f64 = 2e-5;
/// Relative error of a weight by f32 exponentials.
const WEIGHT_ROOM: f64 = 2e-6;

/// A row to sample, and its lists.
pub(super) struct Wish {
    pub(super) logits: Vec<f32>,
    pub(super) row: SampleRow,
    history: Vec<u32>,
    forbidden: Vec<u32>,
    /// Added before the repetition penalty; `less` is subtracted after it.
    bias: Vec<(u32, f32)>,
    less: Vec<(u32, f32)>,
}

impl Wish {
    /// Without lists.
    pub(super) fn plain(logits: Vec<f32>, row: SampleRow) -> Self {
        Self { logits, row, history: Vec::new(), forbidden: Vec::new(), bias: Vec::new(), less: Vec::new() }
    }
}

pub(super) fn draws(device: &Arc<dyn Device>, effort: Effort, random: &mut Random) -> Result<String, String> {
    let rows = effort.pick(12, 60);
    // Rows aligned to 16 bytes are read in another way. Flat logits of the last size are more than the kernel lists.
    let some = random.size(300, effort.pick(3_000, 160_000));
    let sizes = [
        (1, rows),
        (random.size(2, 40), rows),
        (some, rows),
        (some.next_multiple_of(4), rows),
        (random.size(66_000, 140_000).next_multiple_of(random.one_of(&[1, 4])), effort.pick(4, 12)),
    ];
    for (vocab, rows) in sizes {
        let mut wishes = Vec::new();
        for case in 0..rows {
            let steps = random.one_of(&[3.0, 1_000_000.0]);
            let logits = random.rounded(Type::F32, vocab);
            // Coarse rounding makes many logits equal; small ones make flat rows, large ones peaked rows.
            let size = random.one_of(&[0.3, 12.0, 12.0, 60.0]);
            let mut logits: Vec<f32> = logits.iter().map(|x| (x * steps).round() / steps * size).collect();
            if case % 3 == 1 {
                let at = random.size(0, vocab - 1);
                logits
                    .iter_mut()
                    .enumerate()
                    .filter(|(i, _)| i % 3 == 0 && *i != at)
                    .for_each(|(_, x)| *x = f32::NEG_INFINITY);
            }
            let list = |random: &mut Random, most: usize| -> Vec<u32> {
                (0..random.size(0, most)).map(|_| random.size(0, vocab + 2) as u32).collect()
            };
            let (history, mut forbidden) =
                (list(random, 30), if vocab > 10 { list(random, 3) } else { Vec::new() });
            let row = SampleRow {
                row: 0,
                top_k: random.one_of(&[0, 0, 1, 2, 7, 50, 1 << 20]),
                temperature: random.one_of(&[0.0, 0.3, 1.0, 1.0, 4.0]),
                top_p: random.one_of(&[1.0, 1.0, 0.95, 0.5, 1e-6]),
                min_p: random.one_of(&[0.0, 0.0, 0.0, 0.05, 0.9]),
                penalty: random.one_of(&[1.0, 1.3, 0.8]),
                uniform: random.unit(),
                ..SampleRow::NOTHING
            };
            let pairs = |random: &mut Random| -> Vec<(u32, f32)> {
                let step = random.size(1, vocab);
                let tokens = (0..vocab as u32 + 2).step_by(step).take(random.size(0, 5));
                tokens.map(|token| (token, 4.0 * random.unit() - 2.0)).collect()
            };
            let (bias, less) = (pairs(random), pairs(random));
            // A token stays forbidden whatever is added to it.
            forbidden.extend(bias.first().filter(|_| vocab > 10 && case % 2 == 0).map(|(token, _)| *token));
            wishes.push(Wish { logits, row, history, forbidden, bias, less });
        }
        let soft_cap = random.one_of(&[0.0, 5.0]);
        for (index, (wish, token)) in wishes.iter().zip(run(device, &wishes, vocab, soft_cap)?).enumerate() {
            allowed(wish, token, soft_cap)
                .map_err(|wrong| format!("vocabulary {vocab}, row {index}, {:?}: {wrong}", wish.row))?;
        }
    }
    Ok("greedy, temperatures, top-k, top-p, penalties, forbidden tokens, equal logits".to_owned())
}

pub(super) fn broken(device: &Arc<dyn Device>, _: Effort, random: &mut Random) -> Result<String, String> {
    let vocab = random.size(2, 2_000);
    let row = SampleRow { row: 0, temperature: 1.0, uniform: 0.5, ..SampleRow::NOTHING };
    let wish = |logits| Wish::plain(logits, row);
    let mut wishes = vec![wish(vec![f32::NEG_INFINITY; vocab])];
    for bad in [f32::NAN, f32::INFINITY] {
        let mut logits = random.rounded(Type::F32, vocab);
        logits[random.size(0, vocab - 1)] = bad;
        wishes.push(wish(logits));
    }
    match run(device, &wishes, vocab, 0.0)?.iter().position(|token| *token != NONE) {
        Some(row) => Err(format!("row {row} drew a token")),
        None => Ok("nothing is sampled from NaN, infinity or an empty row".to_owned()),
    }
}

pub(super) fn run(
    device: &Arc<dyn Device>,
    wishes: &[Wish],
    vocab: usize,
    soft_cap: f32,
) -> Result<Vec<u32>, String> {
    let (mut tokens, mut rows, mut logits) = (vec![0], Vec::new(), Vec::new());
    for (index, wish) in wishes.iter().enumerate() {
        logits.extend_from_slice(&wish.logits);
        let row = SampleRow {
            row: index as u32,
            history_start: tokens.len() as u32,
            history_len: wish.history.len() as u32,
            forbidden_start: (tokens.len() + wish.history.len()) as u32,
            forbidden_len: wish.forbidden.len() as u32,
            bias_start: (tokens.len() + wish.history.len() + wish.forbidden.len()) as u32,
            bias_len: wish.bias.len() as u32,
            less_start: (tokens.len() + wish.history.len() + wish.forbidden.len() + 2 * wish.bias.len())
                as u32,
            less_len: wish.less.len() as u32,
            ..wish.row
        };
        tokens.extend(wish.history.iter().chain(&wish.forbidden));
        tokens.extend(
            wish.bias.iter().chain(&wish.less).flat_map(|(token, number)| [*token, number.to_bits()]),
        );
        rows.extend_from_slice(row.as_bytes());
    }
    rows.extend_from_slice(SampleRow::NOTHING.as_bytes());
    let count = wishes.len() + 1;
    let seen_words = vocab.div_ceil(32) * count;
    let (logits, rows) =
        (numbers(device, Type::F32, &logits)?, Buffer::from_bytes(device, &rows).map_err(said)?);
    let (tokens, seen) = (indexes(device, &tokens)?, indexes(device, &vec![0; seen_words])?);
    let out = indexes(device, &vec![7_777_777; count])?;
    let params = SampleParams {
        logits: logits.at(),
        rows: rows.at(),
        tokens: tokens.at(),
        seen: seen.at(),
        out: out.at(),
        vocab: vocab as u32,
        soft_cap,
    };
    // SAFETY: shapes as allocated.
    unsafe { sample(device.as_ref(), &params, count as u32) }.map_err(said)?;
    let words = |buffer: &Buffer, count: usize| -> Result<Vec<u32>, String> {
        let bytes = buffer.read(4 * count).map_err(said)?;
        Ok(bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect())
    };
    if words(&seen, seen_words)?.iter().any(|word| *word != 0) {
        return Err("marks of seen tokens were not cleared".to_owned());
    }
    let mut drawn = words(&out, count)?;
    match drawn.pop() {
        Some(7_777_777) => Ok(drawn),
        _ => Err("padding was written".to_owned()),
    }
}

/// Checks that a token may be the result. The device's exponentials may put a token on the other side of min-p's limit, so
/// limits a little above and below it count too.
fn allowed(wish: &Wish, token: u32, soft_cap: f32) -> Result<(), String> {
    let within = |room: f64| allowed_from(f64::from(wish.row.min_p) * (1.0 + room), wish, token, soft_cap);
    within(0.0).or_else(|wrong| {
        let nearly = within(WEIGHT_ROOM).or_else(|_| within(-WEIGHT_ROOM));
        nearly.map_err(|_| wrong)
    })
}

/// The same if tokens need this weight, of which the likeliest has 1.
fn allowed_from(least: f64, wish: &Wish, token: u32, soft_cap: f32) -> Result<(), String> {
    let mut logits = wish.logits.clone();
    if soft_cap > 0.0 {
        logits.iter_mut().for_each(|x| *x = soft_cap * (*x / soft_cap).tanh());
    }
    for (token, bias) in &wish.bias {
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit += bias;
        }
    }
    for token in &wish.forbidden {
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
    let mut seen: Vec<u32> = wish.history.clone();
    seen.sort_unstable();
    seen.dedup();
    for token in seen {
        if let Some(x) = logits.get_mut(token as usize) {
            *x = if *x > 0.0 { *x / wish.row.penalty } else { *x * wish.row.penalty };
        }
    }
    for (token, less) in &wish.less {
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit -= less;
        }
    }
    let mut order: Vec<u32> =
        (0..logits.len() as u32).filter(|t| logits[*t as usize] > f32::NEG_INFINITY).collect();
    let limited = wish.row.top_k != 0 && (wish.row.top_k as usize) < logits.len()
        || wish.row.top_p < 1.0
        || wish.row.min_p > 0.0;
    // Zeros of both signs are equal.
    let logit = |token: &u32| logits[*token as usize] + 0.0;
    let likelier = |a: &u32, b: &u32| logit(b).total_cmp(&logit(a)).then(a.cmp(b));
    let best = order.iter().copied().min_by(|a, b| likelier(a, b));
    let greedy = wish.row.temperature <= 0.0 || wish.row.top_k == 1;
    let Some(best) = best else {
        return if token == NONE { Ok(()) } else { Err(format!("token {token} where there is none")) };
    };
    // The device's tanh may order nearly equal logits differently.
    let near = |least: u32| {
        let drawn = logits.get(token as usize);
        soft_cap > 0.0 && drawn.is_some_and(|x| logits[least as usize] - x <= 1e-5 * soft_cap)
    };
    if greedy {
        return if token == best || near(best) { Ok(()) } else { Err(format!("{token} instead of {best}")) };
    }
    let largest = f64::from(logits[best as usize]);
    let weight =
        |t: &u32| ((f64::from(logits[*t as usize]) - largest) / f64::from(wish.row.temperature)).exp();
    if wish.row.min_p > 0.0 {
        order.retain(|t| weight(t) >= least);
    }
    if limited {
        order.sort_unstable_by(likelier);
    }
    if wish.row.top_k > 0 {
        order.truncate(wish.row.top_k as usize);
    }
    let largest = f64::from(logits[best as usize]);
    let weight =
        |t: &u32| ((f64::from(logits[*t as usize]) - largest) / f64::from(wish.row.temperature)).exp();
    let mut total: f64 = order.iter().map(weight).sum();
    if wish.row.top_p < 1.0 {
        let goal = f64::from(wish.row.top_p) * total;
        let mut reached = 0.0;
        let last = order.iter().position(|t| {
            reached += weight(t);
            reached >= goal * (1.0 - ROOM)
        });
        order.truncate(last.map_or(order.len(), |last| last + 1));
        total = order.iter().map(weight).sum();
    }
    let Some(place) = order.iter().position(|t| *t == token) else {
        return match order.last() {
            Some(last) if near(*last) => Ok(()),
            _ => Err(format!("token {token} is not among the {} allowed", order.len())),
        };
    };
    let before: f64 = order[..place].iter().map(weight).sum::<f64>() / total;
    let after = before + weight(&token) / total;
    let at = f64::from(wish.row.uniform);
    // With equal logits and a soft cap the device's order may differ from this one, so only the size of the share counts.
    // At a limit the device's exponentials may decide otherwise about several tokens of small shares.
    let cut = wish.row.top_p < 1.0 || wish.row.min_p > 0.0;
    let room = if soft_cap > 0.0 { 1.0 } else { ROOM + if cut { 1e-3 } else { 0.0 } };
    if before - room <= at && at <= after + room {
        Ok(())
    } else {
        Err(format!("token {token} has {before} to {after}, the number is {at}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tokens_at_the_limit_of_min_p_may_be_on_either_side() {
        // Of two tokens the number is in the second one's share, if that is allowed.
        let row = SampleRow { row: 0, temperature: 1.0, min_p: 0.9, uniform: 0.99, ..SampleRow::NOTHING };
        for (offset, first, second) in [(0.0, true, true), (1e-4, false, true), (-1e-4, true, false)] {
            let wish = Wish::plain(vec![0.0, 0.9_f32.ln() + offset], row);
            let outcomes = [0, 1].map(|token| allowed(&wish, token, 0.0).is_ok());
            assert_eq!(outcomes, [first, second], "{offset} above the limit");
        }
    }
}
