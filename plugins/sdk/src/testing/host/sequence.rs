//! One request on the host in miniature: its progress, and its row of the view.

use super::Spec;
use crate::testing::pool::{Held, Pool};
use crate::{Micros, Row, SequenceId, blocks_for};

#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub id: SequenceId,
    pub spec: Spec,
    pub held: Held,
    pub computed: u32,
    pub generated: u32,
    pub expected: u32,
    pub preemptions: u32,
    pub started: Micros,
    pub first_token: Micros,
    pub overtaken: Option<Micros>,
    pub paused: u64,
}

impl Sequence {
    /// Full blocks of its prompt that it shares; at least one token is left to compute.
    pub fn shareable(&self, block_size: u32) -> u32 {
        let (_, tokens) = self.spec.shared.unwrap_or_default();
        tokens.min(self.spec.prompt_tokens - 1) / block_size
    }

    pub fn grow(&mut self, tokens: u32, pool: &mut Pool) -> bool {
        let needed = blocks_for(self.computed + tokens, pool.block_size);
        let held = self.held.shared + self.held.own;
        pool.grow(&mut self.held, needed.saturating_sub(held))
    }

    /// Whether its next step generates from a single token.
    pub fn decodes(&self) -> bool {
        self.generated > 0 && self.spec.prompt_tokens + self.generated <= self.computed + 1
    }

    pub fn compute(&mut self, tokens: u32, pool: &mut Pool, now: Micros) {
        self.computed += tokens;
        if self.spec.shared.is_some() {
            let blocks = (self.computed / pool.block_size).min(self.shareable(pool.block_size));
            pool.share(&mut self.held, blocks);
        }
        if self.computed == self.spec.prompt_tokens + self.generated {
            self.generated += 1;
            if self.generated == self.expected {
                self.expected = self.expected.saturating_mul(2).min(self.spec.max_new_tokens);
            }
            self.first_token = self.first_token.min(now);
        }
    }

    pub fn row(&self) -> Row {
        Row {
            id: self.id.0,
            tenant: self.spec.tenant,
            session: self.spec.session,
            priority: self.spec.priority,
            arrived: self.spec.arrived.0,
            deadline: self.spec.deadline.unwrap_or(Micros::NEVER).0,
            prompt_tokens: self.spec.prompt_tokens,
            computed_tokens: self.computed,
            generated_tokens: self.generated,
            max_new_tokens: self.spec.max_new_tokens,
            expected_tokens: self.expected,
            blocks: self.held.shared + self.held.own,
            freeable_blocks: self.held.own,
            preemptions: self.preemptions,
            ..Row::default()
        }
    }
}
