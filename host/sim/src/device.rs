//! The device that isn't there: draws a token where one is due, ends each answer where the workload
//! says, and tells how long the step took.

use std::collections::BTreeMap;

use infer_core::batch::Batch;
use infer_core::executor::StepOutput;
use infer_core::ids::SequenceId;
use infer_core::sharing::SharedContext;

use crate::cost::{Profile, Work};
use crate::random::Random;

/// Ends an answer. Prompts never hold it.
pub const END_TOKEN: u32 = 0;

/// A profile, and how long each answer will be.
#[derive(Clone, Debug)]
pub struct VirtualDevice {
    profile: Profile,
    random: Random,
    sharing: SharedContext,
    lengths: BTreeMap<SequenceId, u32>,
}

impl VirtualDevice {
    /// A device without work. `seed` names how the steps of a measured device vary.
    pub fn new(profile: Profile, seed: u64) -> Self {
        Self {
            profile,
            random: Random::new(seed, u64::MAX),
            sharing: SharedContext::default(),
            lengths: BTreeMap::new(),
        }
    }

    /// The answer of `sequence` will have so many tokens, the end token included.
    pub fn expect(&mut self, sequence: SequenceId, output_tokens: u32) {
        self.lengths.insert(sequence, output_tokens);
    }

    /// Nothing more is drawn for `sequence`.
    pub fn forget(&mut self, sequence: SequenceId) {
        self.lengths.remove(&sequence);
    }

    /// Computes a batch. Returns the microseconds that it takes, at least one.
    pub fn execute(&mut self, batch: &Batch, output: &mut StepOutput) -> u64 {
        output.sampled.clear();
        output.sampled.extend(batch.rows.iter().map(|row| {
            row.sample.then(|| {
                let last = self.lengths.get(&row.sequence).is_none_or(|&length| row.generated + 1 >= length);
                if last { END_TOKEN } else { token(row.sequence.0, row.generated) }
            })
        }));
        let work = self.work(batch);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and small")]
        let us = self.profile.draw_us(&work, &mut self.random) as u64;
        us.max(1)
    }

    #[expect(clippy::cast_precision_loss, reason = "tokens of a step")]
    fn work(&mut self, batch: &Batch) -> Work {
        let work = Work::of(batch);
        match self.profile.knows_sharing() {
            true => Work { repeated: self.sharing.repeated(batch) as f64, ..work },
            false => work,
        }
    }
}

/// A token that depends on whose it is and where it stands.
fn token(sequence: u64, at: u32) -> u32 {
    let mixed = (sequence ^ (u64::from(at) << 40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    1 + (mixed >> 34) as u32
}
