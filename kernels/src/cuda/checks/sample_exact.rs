//! Sampling with weights that are powers of two: the token must be exactly the one that integers give. Logits are whole
//! numbers and the temperature makes each the double of the next, so there are also many equal ones.

use std::sync::Arc;

use super::sample::{Wish, run};
use super::support::Effort;
use crate::Random;
use crate::cuda::{Device, NONE, SampleRow};

/// Bits of the likeliest token's weight.
const BITS: i32 = 44;
/// The random number's largest value.
const ALMOST_ONE: f32 = 1.0 - f32::EPSILON / 2.0;

pub(super) fn draws(device: &Arc<dyn Device>, effort: Effort, random: &mut Random) -> Result<String, String> {
    let rows = effort.pick(8, 70);
    // More than the 8,192 candidates that the kernel lists; rows aligned to 16 bytes and others.
    let large = random.size(9_000, effort.pick(10_500, 200_000));
    for vocab in [random.size(1, 40), 4 * random.size(1, 1_000), large, large.next_multiple_of(4)] {
        let wishes: Vec<Wish> = (0..rows)
            .map(|case| {
                let within = random.unit();
                let row = SampleRow {
                    row: 0,
                    top_k: random.one_of(&[0, 0, 0, 2, 50, 1_000, 8_500, 1 << 20]),
                    temperature: std::f32::consts::LOG2_E * f32::from(u8::from(case % 7 != 0)),
                    top_p: random.one_of(&[1.0, 0.999_99, 0.9, 0.5, 1e-6]),
                    min_p: random.one_of(&[0.0, 0.0, 0.25, 1e-5, 1.0]),
                    uniform: random.one_of(&[0.0, ALMOST_ONE, within, within]),
                    ..SampleRow::NOTHING
                };
                Wish::plain((0..vocab).map(|_| logit(case % 6, random)).collect(), row)
            })
            .collect();
        for (index, (wish, token)) in wishes.iter().zip(run(device, &wishes, vocab, 0.0)?).enumerate() {
            let want = expected(wish);
            if token != want {
                let row = wish.row;
                return Err(format!("vocabulary {vocab}, row {index}, {row:?}: {token} instead of {want}"));
            }
        }
    }
    Ok("equal, flat, peaked and forbidden logits, more candidates than a list holds".to_owned())
}

fn logit(kind: usize, random: &mut Random) -> f32 {
    let whole = |random: &mut Random, low: usize, high: usize| -(random.size(low, high) as f32);
    match kind {
        0 => random.one_of(&[0.0, -0.0]),
        1 => whole(random, 0, 2),
        2 if random.size(0, 500) > 0 => whole(random, 25, 60),
        3 if random.flag() => f32::NEG_INFINITY,
        4 if random.size(0, 3_000) > 0 => 93.0,
        4 => 94.0,
        _ => whole(random, 0, 20),
    }
}

/// The rule of `sample.cu` by integers.
fn expected(wish: &Wish) -> u32 {
    let (row, logits) = (&wish.row, &wish.logits);
    let mut order: Vec<u32> =
        (0..logits.len() as u32).filter(|token| logits[*token as usize] > f32::NEG_INFINITY).collect();
    // A stable sort: of equal logits, zeros of both signs included, the lower token comes first.
    order.sort_by(|a, b| (logits[*b as usize] + 0.0).total_cmp(&(logits[*a as usize] + 0.0)));
    let Some(best) = order.first().copied() else { return NONE };
    if row.temperature <= 0.0 {
        return best;
    }
    let weight = |token: &u32| {
        let below = (logits[best as usize] - logits[*token as usize]) as i32;
        if below > BITS { 0 } else { 1_u64 << (BITS - below) }
    };
    let total = |order: &[u32]| order.iter().map(weight).sum::<u64>();
    let part = |total: u64, part: f32| (total as f64 * f64::from(part)) as u64;
    let at = |order: &[u32], target: u64| {
        let mut reached = 0;
        order.iter().position(|token| {
            reached += weight(token);
            reached > target
        })
    };
    let least = part(1 << BITS, row.min_p);
    order.retain(|token| weight(token) >= least);
    let limited = row.top_k != 0 && (row.top_k as usize) < logits.len();
    if !limited && row.top_p >= 1.0 && least == 0 {
        order.sort_unstable();
    }
    if limited {
        order.truncate(row.top_k as usize);
    }
    if row.top_p < 1.0 {
        let goal = part(total(&order), row.top_p);
        let last = at(&order, goal.saturating_sub(1)).expect("a part of the total");
        order.truncate(last + 1);
    }
    let sum = total(&order);
    order[at(&order, part(sum, row.uniform).min(sum - 1)).expect("less than the total")]
}
