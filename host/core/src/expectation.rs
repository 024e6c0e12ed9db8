//! How long an output will get: what its client says, or else what its tenant's outputs were like lately.
//!
//! What a client says holds until as many tokens are there. Then it was wrong, and what was learned holds, given that
//! the output got this far: one that outgrew that, too, may well grow as long again.

/// What is known of an output's length, whatever was generated of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expectation {
    /// What the client says.
    pub told: Option<u32>,
    /// What was learned of its tenant's outputs when the host last looked.
    pub learned: u32,
    /// The most that it may get; at least 1.
    pub limit: u32,
}

impl Expectation {
    /// The length to expect of an output of which `generated` tokens are there: more than these, unless they are all that
    /// it may have.
    pub fn at(self, generated: u32) -> u32 {
        let told = self.told.map(|told| told.clamp(1, self.limit)).filter(|&told| generated < told);
        told.unwrap_or_else(|| self.learned_at(generated))
    }

    fn learned_at(self, generated: u32) -> u32 {
        let mut length = self.learned.clamp(1, self.limit);
        while length <= generated && length < self.limit {
            length = length.saturating_mul(2).min(self.limit);
        }
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::SplitMix;

    #[test]
    fn what_a_client_says_holds_until_as_many_tokens_are_there() {
        for (told, learned, limit, expected) in [
            // What to expect after 0, 1, 4, 9, 10, 20 and 39 tokens.
            (None, 10, 40, [10, 10, 10, 10, 20, 40, 40]),
            (Some(4), 10, 40, [4, 4, 10, 10, 20, 40, 40]),
            (Some(20), 3, 40, [20, 20, 20, 20, 20, 24, 40]),
            (Some(20), 30, 40, [20, 20, 20, 20, 20, 30, 40]),
            (Some(0), 10, 40, [1, 10, 10, 10, 20, 40, 40]),
            (Some(u32::MAX), 10, 40, [40; 7]),
            (Some(4), u32::MAX, 40, [4, 4, 40, 40, 40, 40, 40]),
            (Some(4), 0, 40, [4, 4, 8, 16, 16, 32, 40]),
        ] {
            let expectation = Expectation { told, learned, limit };
            let found = [0, 1, 4, 9, 10, 20, 39].map(|generated| expectation.at(generated));
            assert_eq!(found, expected, "{told:?}, learned {learned}");
        }
    }

    /// Step by step: a length that is reached is doubled.
    fn doubled(expectation: Expectation, generated: u32) -> u32 {
        let mut length = expectation.learned.clamp(1, expectation.limit);
        for nth in 1..=generated {
            if nth == length {
                length = length.saturating_mul(2).min(expectation.limit);
            }
        }
        length
    }

    #[test]
    fn an_expectation_is_ahead_of_the_output_within_its_limit_and_never_shrinks() {
        for seed in 0..4_000 {
            let mut rng = SplitMix(seed);
            let limit = rng.between(1, 90) as u32;
            let told = (rng.below(3) > 0).then(|| rng.below(120) as u32);
            let expectation = Expectation { told, learned: rng.below(120) as u32, limit };
            let mut before = 0;
            for generated in 0..limit {
                let length = expectation.at(generated);
                assert!((generated + 1..=limit).contains(&length), "seed {seed}: {length} at {generated}");
                assert!(length >= before, "seed {seed}: {length} after {before}");
                if told.is_none_or(|told| generated >= told.max(1)) {
                    assert_eq!(length, doubled(expectation, generated), "seed {seed} at {generated}");
                } else {
                    assert_eq!(length, told.unwrap_or(0).clamp(1, limit), "seed {seed} at {generated}");
                }
                before = length;
            }
            assert_eq!(expectation.at(limit), limit, "seed {seed}");
        }
    }
}
