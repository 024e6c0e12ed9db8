//! Distributions of prompt and output lengths.

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// A distribution of token counts, all at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Lengths {
    /// Always the same.
    Fixed(u32),
    /// Uniform, both ends included.
    Uniform(u32, u32),
    /// Log-normal, clamped to a maximum: most are short, a few very long, as in traces of real services.
    HeavyTailed {
        /// Median.
        median: u32,
        /// Standard deviation of the logarithm; 1 is heavy, 1.5 very heavy.
        sigma: f64,
        /// Maximum.
        max: u32,
    },
}

impl Lengths {
    /// Samples a length.
    pub fn draw(&self, random: &mut Random) -> u32 {
        match *self {
            Self::Fixed(tokens) => tokens.max(1),
            Self::Uniform(low, high) => {
                let (low, high) = (low.max(1), high.max(low).max(1));
                low + u32::try_from(random.below(u64::from(high - low) + 1)).expect("at most the span")
            }
            Self::HeavyTailed { median, sigma, max } => {
                let tokens = f64::from(median) * libm::exp(sigma * random.normal());
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
                let tokens = tokens.clamp(1.0, f64::from(max.max(1))) as u32;
                tokens
            }
        }
    }

    /// The mean, ignoring the maximum of a heavy-tailed distribution except as a bound.
    pub fn mean(&self) -> f64 {
        match *self {
            Self::Fixed(tokens) => f64::from(tokens.max(1)),
            Self::Uniform(low, high) => f64::midpoint(f64::from(low.max(1)), f64::from(high.max(low).max(1))),
            Self::HeavyTailed { median, sigma, max } => {
                (f64::from(median) * libm::exp(sigma * sigma / 2.0)).clamp(1.0, f64::from(max.max(1)))
            }
        }
    }

    /// The largest possible length.
    pub fn max(&self) -> u32 {
        match *self {
            Self::Fixed(tokens) => tokens.max(1),
            Self::Uniform(low, high) => high.max(low).max(1),
            Self::HeavyTailed { max, .. } => max.max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_bounded_and_have_the_expected_mean() {
        let mut random = Random::new(11, 0);
        for (lengths, expected) in [
            (Lengths::Fixed(40), 40.0),
            (Lengths::Uniform(10, 90), 50.0),
            (Lengths::HeavyTailed { median: 100, sigma: 0.5, max: 4_000 }, 113.3),
        ] {
            assert!((lengths.mean() - expected).abs() < 0.1, "{lengths:?}");
            let draws: Vec<u32> = (0..20_000).map(|_| lengths.draw(&mut random)).collect();
            assert!(draws.iter().all(|tokens| (1..=lengths.max()).contains(tokens)));
            let mean = draws.iter().map(|&tokens| f64::from(tokens)).sum::<f64>() / draws.len() as f64;
            assert!((mean / expected - 1.0).abs() < 0.02, "{lengths:?}: {mean}");
        }
    }
}
