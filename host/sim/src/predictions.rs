//! What requests say of the length of their outputs: nothing, the truth, or what a predictor would make of it.
//!
//! Predictors of lengths err by factors rather than by a number of tokens, so their error is log-normal here. A request's
//! is drawn from the seed and the request's own number: all contenders get the same predictions, and whatever else is
//! drawn stays as it is.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Serialize, Serializer};

use crate::random::Random;

/// Tells the errors of predictions from everything else that is drawn with a seed.
const ERRORS: u64 = 0x7C15_2F0B_94D1_E6A3;

/// What requests say of the length of their outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Predictions {
    /// Nothing, unless clients that were recorded said something. The host goes by what it learns.
    #[default]
    Learned,
    /// The true length.
    Exact,
    /// The true length times an error whose natural logarithm is normal with mean 0 and this standard deviation.
    Erring(f64),
}

impl Predictions {
    /// Standard deviations of the logarithm of errors.
    pub const SIGMA: RangeInclusive<f64> = 0.0..=5.0;

    /// What the request with this number says, if it will get so many tokens; `None` leaves what its client said.
    pub(crate) fn of(self, output_tokens: u32, seed: u64, identity: u64) -> Option<u32> {
        match self {
            Self::Learned => None,
            Self::Exact => Some(output_tokens),
            Self::Erring(sigma) => {
                let normal = Random::new(seed ^ ERRORS, identity).normal();
                let tokens = f64::from(output_tokens) * libm::exp(sigma * normal);
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
                let tokens = libm::round(tokens).clamp(1.0, f64::from(u32::MAX)) as u32;
                Some(tokens)
            }
        }
    }
}

impl fmt::Display for Predictions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Learned => f.write_str("learned"),
            Self::Exact => f.write_str("exact"),
            Self::Erring(sigma) => write!(f, "{sigma}"),
        }
    }
}

impl Serialize for Predictions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_log_normal_and_an_error_of_0_is_none() {
        for sigma in [0.2, 1.0] {
            let logarithm = |identity| {
                let told = Predictions::Erring(sigma).of(1_000_000, 7, identity).expect("it says something");
                libm::log(f64::from(told) / 1e6)
            };
            let all: Vec<f64> = (0..20_000).map(logarithm).collect();
            let mean = all.iter().sum::<f64>() / 20_000.0;
            let variance = all.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 20_000.0;
            assert!(mean.abs() < 0.03 * sigma, "{sigma}: {mean}");
            assert!((variance.sqrt() / sigma - 1.0).abs() < 0.03, "{sigma}: {variance}");
        }
        for tokens in [1, 2, 77, 4_096, u32::MAX] {
            for identity in 0..50 {
                let [none, exact] = [Predictions::Erring(0.0), Predictions::Exact]
                    .map(|predictions| predictions.of(tokens, 3, identity));
                assert_eq!((none, exact), (Some(tokens), Some(tokens)));
                let told = Predictions::Erring(5.0).of(tokens, 3, identity);
                assert!(told >= Some(1), "{told:?} of {tokens}");
            }
        }
        assert_eq!(Predictions::Learned.of(9, 3, 1), None);
    }

    #[test]
    fn errors_are_those_of_a_seed_and_a_request() {
        let told = |seed| (0..50).map(move |identity| Predictions::Erring(0.5).of(1_000, seed, identity));
        assert_eq!(told(1).collect::<Vec<_>>(), told(1).collect::<Vec<_>>());
        assert_ne!(told(1).collect::<Vec<_>>(), told(2).collect::<Vec<_>>());
        let mut distinct: Vec<_> = told(1).collect();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 40, "{distinct:?}");
    }
}
