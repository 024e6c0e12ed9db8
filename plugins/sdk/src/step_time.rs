//! How long a step takes, learned from past steps: `a + b * decodes + c * prompt tokens`.
//!
//! The line over the decodes comes from steps without prompts, and a prompt token's cost from what the others
//! took beyond that line. Fitting both at once would need steps in which the two vary independently, which a
//! steady load doesn't have. Old steps are forgotten exponentially; while nothing varies, what was learned
//! stays. Plain `f64` additions, multiplications and divisions: the same on every machine and in Wasm.

use crate::scheduler::Step;
use crate::types::Micros;

/// Means cover about this many of the last steps.
const MEMORY: f64 = 32.0;

/// What is known of a device's steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTime {
    /// The step that was being planned when it last learned, so that none counts twice.
    seen: u64,
    without_prompts: Line,
    prompts: Ratio,
}

/// A straight line through exponentially weighted points.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Line {
    points: f64,
    x: f64,
    y: f64,
    variance: f64,
    covariance: f64,
}

/// A quotient of exponentially weighted means.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ratio {
    points: f64,
    x: f64,
    y: f64,
}

impl StepTime {
    /// Learns from a view's last step. A step that computed nothing is ignored.
    pub fn learn(&mut self, step: &Step) {
        let (prompt_tokens, decodes) = (step.last_prefill_tokens, step.last_decodes);
        let nothing = prompt_tokens == 0 && decodes == 0;
        if step.number == self.seen || step.last_step == Micros::ZERO || nothing {
            return;
        }
        self.seen = step.number;
        let time = step.last_step.0 as f64;
        if prompt_tokens == 0 {
            self.without_prompts.add(f64::from(decodes), time);
        } else {
            let beyond = (time - self.without_prompts.at(f64::from(decodes))).max(0.0);
            self.prompts.add(f64::from(prompt_tokens), beyond);
        }
    }

    /// Prompt tokens that a step may compute beside this many decodes to take `target`; `None` until a prompt
    /// was seen, or if prompts cost nothing.
    pub fn prompt_tokens_within(&self, target: Micros, decodes: u32) -> Option<u32> {
        let left = target.0 as f64 - self.without_prompts.at(f64::from(decodes));
        let cost = self.prompts.quotient();
        (cost > 0.0).then(|| (left / cost) as u32)
    }

    /// How long `prompt_tokens` take in chunks of at most `chunk`, one a step, beside this many decodes. Zero
    /// until a prompt was seen.
    pub fn prompt_time(&self, prompt_tokens: u32, chunk: u32, decodes: u32) -> Micros {
        if self.prompts.points == 0.0 {
            return Micros::ZERO;
        }
        let steps = f64::from(prompt_tokens.div_ceil(chunk.max(1)));
        let prompts = f64::from(prompt_tokens) * self.prompts.quotient();
        Micros((steps * self.without_prompts.at(f64::from(decodes)) + prompts) as u64)
    }

    /// What is known, for a policy's state.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (line, ratio) = (self.without_prompts, self.prompts);
        let numbers =
            [line.points, line.x, line.y, line.variance, line.covariance, ratio.points, ratio.x, ratio.y];
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// Reads what [`Self::to_bytes`] wrote; an error says what is wrong with it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let (chunks, rest) = bytes.as_chunks::<8>();
        let numbers: Vec<f64> = chunks.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
        let (&[points, x, y, variance, covariance, prompt_points, prompt_x, prompt_y], []) =
            (numbers.as_slice(), rest)
        else {
            return Err(format!("step times take 64 bytes, not {}", bytes.len()));
        };
        let positive = [points, x, y, variance, prompt_points, prompt_x, prompt_y];
        let valid = positive.iter().all(|number| (0.0..1e40).contains(number));
        if !valid || !(-1e40..1e40).contains(&covariance) {
            return Err("step times are not finite".to_owned());
        }
        Ok(Self {
            seen: 0,
            without_prompts: Line { points, x, y, variance, covariance },
            prompts: Ratio { points: prompt_points, x: prompt_x, y: prompt_y },
        })
    }
}

impl Line {
    /// Means, variance and covariance move together, by West (1979).
    fn add(&mut self, x: f64, y: f64) {
        self.points = (self.points + 1.0).min(MEMORY);
        let weight = 1.0 / self.points;
        let (dx, dy) = (x - self.x, y - self.y);
        self.x += weight * dx;
        self.y += weight * dy;
        self.variance = (1.0 - weight) * (self.variance + weight * dx * dx);
        self.covariance = (1.0 - weight) * (self.covariance + weight * dx * dy);
    }

    /// The line's value at `x`; never below zero and never falling. Flat while `x` hasn't varied.
    fn at(&self, x: f64) -> f64 {
        let slope = if self.variance > 1e-9 { (self.covariance / self.variance).max(0.0) } else { 0.0 };
        (self.y + slope * (x - self.x)).max(0.0)
    }
}

impl Ratio {
    fn add(&mut self, x: f64, y: f64) {
        self.points = (self.points + 1.0).min(MEMORY);
        let weight = 1.0 / self.points;
        self.x += weight * (x - self.x);
        self.y += weight * (y - self.y);
    }

    fn quotient(&self) -> f64 {
        if self.x > 0.0 { self.y / self.x } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{for_seeds, hostile_step};

    fn learn(model: &mut StepTime, steps: &[(u32, u32)], time: impl Fn(u32, u32) -> u64) {
        for &(decodes, prompt_tokens) in steps {
            let number = model.seen + 1;
            let last_step = Micros(time(decodes, prompt_tokens));
            model.learn(&Step {
                number,
                last_step,
                last_decodes: decodes,
                last_prefill_tokens: prompt_tokens,
                ..Step::default()
            });
        }
    }

    fn time(decodes: u32, prompt_tokens: u32) -> u64 {
        5_000 + 100 * u64::from(decodes) + 20 * u64::from(prompt_tokens)
    }

    #[test]
    fn it_finds_the_costs_of_decodes_and_prompts() {
        let mut model = StepTime::default();
        assert_eq!(model.prompt_tokens_within(Micros(10_000), 10), None);
        learn(&mut model, &[(4, 0), (8, 0), (6, 0), (10, 300), (10, 512)], time);
        let within = model.prompt_tokens_within(Micros(10_000), 10).unwrap();
        assert!((199..=201).contains(&within), "{within}, 200 is exact");
        assert_eq!(model.prompt_tokens_within(Micros(5_500), 10), Some(0));
        let needed = model.prompt_time(1_024, 512, 10).0;
        assert!(needed.abs_diff(2 * 6_000 + 20 * 1_024) < 50, "{needed}");
    }

    #[test]
    fn learned_times_stay_while_nothing_varies_and_follow_the_device() {
        let mut model = StepTime::default();
        learn(&mut model, &[(4, 0), (8, 0), (6, 300)], time);
        learn(&mut model, &[(8, 0); 300], time);
        let within = model.prompt_tokens_within(Micros(10_000), 20).unwrap();
        assert!((149..=151).contains(&within), "{within}, 150 is exact");
        learn(&mut model, &[(8, 0), (4, 300), (6, 0)].repeat(150), |d, p| 3 * time(d, p));
        let within = model.prompt_tokens_within(Micros(30_000), 10).unwrap();
        assert!((195..=205).contains(&within), "{within}, 200 is exact");
    }

    #[test]
    fn state_survives_a_swap_and_foreign_state_is_refused() {
        let mut model = StepTime::default();
        learn(&mut model, &[(4, 0), (8, 0), (6, 300)], time);
        let copy = StepTime::from_bytes(&model.to_bytes()).unwrap();
        assert_eq!((copy.without_prompts, copy.prompts), (model.without_prompts, model.prompts));
        assert!(StepTime::from_bytes(&[0; 63]).unwrap_err().contains("63"));
        assert!(StepTime::from_bytes(&[0xff; 64]).is_err(), "not a number");
    }

    #[test]
    fn any_number_is_survived() {
        let mut model = StepTime::default();
        for_seeds(0..1_000, |rng| {
            model.learn(&hostile_step(rng));
            assert!(StepTime::from_bytes(&model.to_bytes()).is_ok(), "{model:?}");
            let _ = model.prompt_tokens_within(Micros(u64::MAX), u32::MAX);
            let _ = model.prompt_time(u32::MAX, 0, u32::MAX);
        });
    }
}
