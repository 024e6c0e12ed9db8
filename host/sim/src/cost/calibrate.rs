//! Fits the costs of a profile to measured steps: least squares of relative errors over non-negative costs, by
//! coordinate descent on the normal equations. Outliers, such as steps delayed by other processes, weigh less (Huber
//! 1964). The same steps give the same costs.

use super::fitted::{Cost, Fit, Segment};
use super::{ProfileError, Work};

/// A measured step.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// Its work.
    pub work: Work,
    /// Microseconds since the end of the previous step, or since its own start if the host was idle.
    pub us: f64,
}

/// Result of a calibration.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// Costs of a step.
    pub cost: Cost,
    /// See `Fitted::spread`.
    pub spread: Vec<f64>,
    /// How well the costs fit.
    pub fit: Fit,
}

/// Numbers of tokens in a step at which the cost per token may change.
const KNOTS: [f64; 7] = [1.0, 4.0, 16.0, 64.0, 128.0, 256.0, 1_024.0];
/// Number of costs other than those per token: step, row, any sampling, token sampled, decode context, repeated
/// context, chunk attention.
const PLAIN: usize = 7;
const COSTS: usize = PLAIN + KNOTS.len();
/// Minimum number of steps for a fit.
const MIN_STEPS: usize = 64;
/// Relative error above which a step weighs less.
const HUBER: f64 = 0.1;
const ROUNDS: usize = 12;
const SWEEPS: usize = 4_000;
/// Values of a spread: one per 2.5 %.
const SPREAD: usize = 41;

type Row = [f64; COSTS];

/// Fits costs to `steps`.
///
/// # Errors
/// If there are too few steps.
pub fn calibrate(steps: &[Observation]) -> Result<Calibration, ProfileError> {
    let steps: Vec<Observation> = steps.iter().copied().filter(|step| step.us > 0.0).collect();
    if steps.len() < MIN_STEPS {
        let message = format!("{} steps were measured; at least {MIN_STEPS} are needed", steps.len());
        return Err(ProfileError(message));
    }
    let rows: Vec<Row> = steps.iter().map(|step| features(&step.work)).collect();
    let mut costs = [0.0; COSTS];
    let mut weights = vec![1.0; steps.len()];
    for _ in 0..ROUNDS {
        costs = solve(&rows, &steps, &weights);
        for ((weight, row), step) in weights.iter_mut().zip(&rows).zip(&steps) {
            let error = (dot(row, &costs) - step.us).abs() / step.us;
            *weight = if error > HUBER { HUBER / error } else { 1.0 };
        }
    }
    // Throughput depends on the sum, so the total of all steps must match.
    let measured: f64 = steps.iter().map(|step| step.us).sum();
    let computed: f64 = rows.iter().map(|row| dot(row, &costs)).sum();
    let scale = if computed > 0.0 { measured / computed } else { 1.0 };
    let fit_of = |costs: &Row| {
        let errors = rows.iter().zip(&steps).map(|(row, step)| (dot(row, costs) / step.us - 1.0).abs());
        let mut errors: Vec<f64> = errors.collect();
        errors.sort_by(f64::total_cmp);
        let at = |part: f64| 100.0 * quantile(&errors, part);
        Fit {
            steps: steps.len() as u64,
            error_p50_percent: at(0.5),
            error_p95_percent: at(0.95),
            total_percent: 100.0 * (computed / measured - 1.0),
        }
    };
    let fit = fit_of(&costs);
    let spread = spread(&rows, &steps, &costs, scale);
    let cost = Cost {
        step_us: costs[0].max(1.0),
        row_us: costs[1],
        drawing_us: costs[2],
        drawn_us: costs[3],
        decode_context_us: costs[4],
        // Without shared context in the steps, its price is unknown.
        repeated_context_us: if steps.iter().any(|step| step.work.repeated > 0.0) {
            costs[5]
        } else {
            costs[4]
        },
        chunk_attended_us: costs[6],
        tokens: KNOTS
            .iter()
            .zip(&costs[PLAIN..])
            .map(|(&from, &us)| Segment { from: from - 1.0, us })
            .collect(),
    };
    Ok(Calibration { cost, spread, fit })
}

fn features(work: &Work) -> Row {
    let chunk = (work.attended - work.decode_context).max(0.0);
    let mut row = [0.0; COSTS];
    let once = (work.decode_context - work.repeated).max(0.0);
    let drawing = f64::from(u8::from(work.drawn > 0.0));
    row[..PLAIN].copy_from_slice(&[1.0, work.rows, drawing, work.drawn, once, work.repeated, chunk]);
    for (at, cell) in row[PLAIN..].iter_mut().enumerate() {
        let end = KNOTS.get(at + 1).map_or(f64::INFINITY, |next| next - 1.0);
        *cell = (work.tokens.min(end) - (KNOTS[at] - 1.0)).max(0.0);
    }
    row
}

/// Minimizes the weighted sum of squared relative errors over non-negative costs.
fn solve(rows: &[Row], steps: &[Observation], weights: &[f64]) -> Row {
    let mut normal = [[0.0; COSTS]; COSTS];
    let mut target = [0.0; COSTS];
    for ((row, step), weight) in rows.iter().zip(steps).zip(weights) {
        let weight = weight / (step.us * step.us);
        for (i, &a) in row.iter().enumerate() {
            target[i] += weight * a * step.us;
            for (j, &b) in row.iter().enumerate() {
                normal[i][j] += weight * a * b;
            }
        }
    }
    // Regularization: segments without observations take their neighbours' cost.
    for at in PLAIN..COSTS - 1 {
        let pull = 1e-4 * normal[at][at].max(normal[at + 1][at + 1]);
        normal[at][at] += pull;
        normal[at + 1][at + 1] += pull;
        normal[at][at + 1] -= pull;
        normal[at + 1][at] -= pull;
    }
    let mut costs = [0.0; COSTS];
    for _ in 0..SWEEPS {
        let mut moved = 0.0_f64;
        for i in 0..COSTS {
            if normal[i][i] <= 0.0 {
                continue;
            }
            let others: f64 = (0..COSTS).filter(|&j| j != i).map(|j| normal[i][j] * costs[j]).sum();
            let next = ((target[i] - others) / normal[i][i]).max(0.0);
            moved = moved.max((next - costs[i]).abs() * normal[i][i].sqrt());
            costs[i] = next;
        }
        if moved < 1e-9 * (steps.len() as f64).sqrt() {
            break;
        }
    }
    costs
}

/// Evenly spaced quantiles of measured over computed time, adjusted to the mean `scale`, which weighs each step by its
/// duration.
fn spread(rows: &[Row], steps: &[Observation], costs: &Row, scale: f64) -> Vec<f64> {
    let mut ratios: Vec<f64> =
        rows.iter().zip(steps).map(|(row, step)| step.us / dot(row, costs).max(1e-9)).collect();
    ratios.sort_by(f64::total_cmp);
    let at = |nth: usize| quantile(&ratios, nth as f64 / (SPREAD - 1) as f64);
    let mut spread: Vec<f64> = (0..SPREAD).map(at).collect();
    // Only the slowest quantile is adjusted to reach the mean, so that rare stalls don't distort ordinary steps.
    let last = SPREAD - 1;
    let others = spread[0] / 2.0 + spread[1..last].iter().sum::<f64>();
    spread[last] = (2.0 * (scale * last as f64 - others)).max(spread[last - 1]);
    spread
}

fn dot(row: &Row, costs: &Row) -> f64 {
    row.iter().zip(costs).map(|(a, b)| a * b).sum()
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the list")]
    let at = ((sorted.len() - 1) as f64 * part).round() as usize;
    sorted[at]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Typical steps: decodes of 1 to 32 sequences, every fourth with a chunk of a prompt.
    fn steps(cost: impl Fn(&Work) -> f64, noise: f64) -> Vec<Observation> {
        let mut random = Random::new(5, 5);
        let one = |random: &mut Random| {
            let mut work = Work::default();
            for _ in 0..1 + random.below(32) {
                work.add(1, 40 + random.below(1_200) as u32, true);
            }
            if random.below(4) == 0 {
                let tokens = 2 + random.below(511) as u32;
                work.add(tokens, tokens + random.below(600) as u32, random.below(2) == 0);
            }
            let factor = 1.0 + noise * (random.unit() - 0.5);
            Observation { work, us: cost(&work) * factor }
        };
        (0..4_000).map(|_| one(&mut random)).collect()
    }

    fn truth(work: &Work) -> f64 {
        let chunk = work.attended - work.decode_context;
        150.0 + 20.0 * work.rows + 0.01 * work.decode_context + 0.002 * chunk + 40.0 * work.tokens
    }

    #[test]
    fn costs_are_recovered_and_extrapolate() {
        let found = calibrate(&steps(truth, 0.0)).unwrap();
        assert!(found.fit.error_p95_percent < 1.0, "{found:?}");
        for unseen in [Work::decode(1.0, 30.0), Work::decode(64.0, 900.0), Work::chunk(512.0, 2_000.0)] {
            let (says, is) = (found.cost.step_us(&unseen), truth(&unseen));
            assert!((says / is - 1.0).abs() < 0.03, "{says} {is} {unseen:?}");
        }
    }

    #[test]
    fn noise_becomes_spread_and_rare_stalls_change_little() {
        let mut noisy = steps(truth, 0.2);
        for halted in noisy.iter_mut().step_by(100) {
            halted.us += 20_000.0;
        }
        let found = calibrate(&noisy).unwrap();
        let work = Work::decode(16.0, 500.0);
        let says = found.cost.step_us(&work);
        assert!((says / truth(&work) - 1.0).abs() < 0.03, "{says} {}", truth(&work));
        let (low, high) = (found.spread[2], found.spread[SPREAD - 3]);
        assert!(low < 0.97 && high > 1.06, "{:?}", found.spread);
        assert_eq!(found, calibrate(&noisy).unwrap(), "the same steps give the same costs");
    }

    #[test]
    fn memory_bound_small_batches_cost_the_same() {
        let flat = |work: &Work| 6_000.0_f64.max(40.0 * work.tokens);
        let found = calibrate(&steps(flat, 0.0)).unwrap();
        let (one, sixteen) = (Work::decode(1.0, 300.0), Work::decode(16.0, 300.0));
        let ratio = found.cost.step_us(&sixteen) / found.cost.step_us(&one);
        assert!(ratio < 1.05, "{ratio} {found:?}");
        let long = Work::chunk(500.0, 500.0);
        assert!((found.cost.step_us(&long) / flat(&long) - 1.0).abs() < 0.1);
    }

    #[test]
    fn shared_context_has_its_own_cost_if_it_was_measured() {
        let plain = calibrate(&steps(truth, 0.0)).unwrap().cost;
        assert_eq!(plain.repeated_context_us, plain.decode_context_us, "nothing was shared");
        let mut sharing = steps(truth, 0.0);
        for step in sharing.iter_mut().step_by(2) {
            step.work.repeated = 0.8 * step.work.decode_context;
            step.us -= 0.75 * 0.01 * step.work.repeated;
        }
        let found = calibrate(&sharing).unwrap().cost;
        let ratio = found.repeated_context_us / found.decode_context_us;
        assert!((ratio - 0.25).abs() < 0.03, "{found:?}");
    }

    #[test]
    fn steps_without_sampling_skip_the_output_projection() {
        let is = |work: &Work| truth(work) + if work.drawn > 0.0 { 3_000.0 } else { 0.0 };
        let mut seen = steps(is, 0.0);
        for quiet in seen.iter_mut().step_by(7) {
            quiet.work = Work::chunk(64.0, quiet.work.rows * 64.0);
            quiet.us = is(&quiet.work);
        }
        let found = calibrate(&seen).unwrap().cost;
        assert!((found.drawing_us / 3_000.0 - 1.0).abs() < 0.1, "{found:?}");
        // If every step samples, the cost of sampling can't be separated from the cost of a step.
        let unknown = calibrate(&steps(is, 0.0)).unwrap().cost;
        let alone = Work::chunk(64.0, 64.0);
        let says = unknown.step_us(&Work { drawn: 1.0, ..alone });
        assert!((says / is(&Work { drawn: 1.0, ..alone }) - 1.0).abs() < 0.05, "{unknown:?}");
    }

    #[test]
    fn too_few_steps_are_refused() {
        let few = steps(truth, 0.0)[..10].to_vec();
        assert!(calibrate(&few).unwrap_err().to_string().contains("10 steps were measured"));
    }
}
