//! The virtual device: returns a token where one is due, ends each output at the length that the workload gives, and
//! computes the duration of a step, which begins with the copies of the prefix cache's second level. Vectors have no
//! numbers.

use std::collections::BTreeMap;

use infer_core::batch::Batch;
use infer_core::executor::StepOutput;
use infer_core::ids::SequenceId;
use infer_core::sharing::SharedContext;

use crate::cost::{Profile, Work};
use crate::random::Random;

/// Ends an output. Prompts never contain it.
pub const END_TOKEN: u32 = 0;

/// A profile, and the output length of each sequence.
#[derive(Clone, Debug)]
pub struct VirtualDevice {
    profile: Profile,
    /// Per block, between the pool and the second level of the prefix cache.
    copy_us: f64,
    random: Random,
    sharing: SharedContext,
    lengths: BTreeMap<SequenceId, u32>,
}

impl VirtualDevice {
    /// An idle device. `seed` determines the variation of a measured device.
    pub fn new(profile: Profile, block_size: u32, seed: u64) -> Self {
        Self {
            copy_us: profile.copy_us(block_size),
            profile,
            random: Random::new(seed, u64::MAX),
            sharing: SharedContext::default(),
            lengths: BTreeMap::new(),
        }
    }

    /// Sets the output length of `sequence`, including the end token.
    pub fn expect(&mut self, sequence: SequenceId, output_tokens: u32) {
        self.lengths.insert(sequence, output_tokens);
    }

    /// Forgets `sequence`.
    pub fn forget(&mut self, sequence: SequenceId) {
        self.lengths.remove(&sequence);
    }

    /// Computes a batch; returns its duration in microseconds, at least 1.
    pub fn execute(&mut self, batch: &Batch, output: &mut StepOutput) -> u64 {
        output.reset(batch.rows.len());
        for (at, row) in batch.rows.iter().enumerate().filter(|(_, row)| row.sample) {
            if row.sampling.embeds() {
                output.embeddings.push((at, Vec::new()));
                continue;
            }
            let last = self.lengths.get(&row.sequence).is_none_or(|&length| row.generated + 1 >= length);
            output.sampled[at] = Some(if last { END_TOKEN } else { token(row.sequence.0, row.generated) });
        }
        let work = self.work(batch);
        #[expect(clippy::cast_precision_loss, reason = "blocks of a step")]
        let copies = self.copy_us * batch.offload.len() as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and small")]
        let us = (self.profile.draw_us(&work, &mut self.random) + copies) as u64;
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

/// A token that is a function of its sequence and its position.
fn token(sequence: u64, at: u32) -> u32 {
    let mixed = (sequence ^ (u64::from(at) << 40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    1 + (mixed >> 34) as u32
}
