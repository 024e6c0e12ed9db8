//! Makes plans that keep every limit and never promise a block twice.
//!
//! A scheduler says whom it wants; this counts tokens, prefills, slots and blocks while it does. What
//! is here is bookkeeping that every scheduler needs. Whom to start, and when, is left to the policy.

use crate::blocks::{blocks_for, blocks_to_run, blocks_to_start, tokens_in};
use crate::scheduler::{Plan, Sequence, Step};
use crate::types::Micros;

/// Why a sequence could not be started in this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// As many sequences run as may.
    Slots,
    /// The step's tokens, or its places for prompts, are used up.
    Compute,
    /// There are too few blocks.
    Memory,
}

/// A plan in the making.
#[derive(Clone, Debug)]
pub struct Planner<'a> {
    step: &'a Step,
    plan: Plan,
    blocks: u32,
    tokens: u32,
    prefill_tokens: u32,
    prefill_sequences: u32,
    slots: u32,
    promised_blocks: u32,
}

impl<'a> Planner<'a> {
    /// A plan in which nobody runs yet.
    pub fn new(step: &'a Step) -> Self {
        let limits = step.limits;
        let running = u32::try_from(step.running.len()).unwrap_or(u32::MAX);
        // Every running sequence must be able to compute at least one token a step.
        let slots = limits.max_running.min(limits.max_batch_tokens).saturating_sub(running);
        Self {
            step,
            plan: Plan::default(),
            blocks: step.memory.allocatable_blocks(),
            tokens: limits.max_batch_tokens,
            prefill_tokens: limits.max_prefill_tokens,
            prefill_sequences: limits.max_prefill_sequences,
            slots,
            promised_blocks: 0,
        }
    }

    /// Lets everything that runs go on: decodes first, then prompts in chunks, in the order in which
    /// they started. Where memory is short, the latest started give their blocks back until everybody
    /// who stays can compute at least one token, so the earliest always goes on and nothing locks up.
    /// Returns how many were preempted.
    pub fn go_on(&mut self) -> usize {
        let running = &self.step.running;
        let mut needed: u64 = running.iter().map(|s| u64::from(self.least_blocks(s))).sum();
        let mut stay = running.len();
        while stay > 1 && needed > u64::from(self.blocks) {
            stay -= 1;
            let latest = running.get(stay);
            needed -= u64::from(self.least_blocks(latest));
            self.preempt(latest);
        }
        // What everybody needs at least is set aside, so that a long chunk can't take it.
        self.blocks = self.blocks.saturating_sub(u32::try_from(needed).unwrap_or(u32::MAX));
        for sequence in running.iter().take(stay).filter(|s| s.is_decoding()) {
            self.blocks = self.blocks.saturating_add(self.least_blocks(sequence));
            self.run(sequence, 1);
        }
        let mut prompts = running.iter().take(stay).filter(|s| !s.is_decoding()).count();
        let share = self.least_share(prompts);
        for sequence in running.iter().take(stay).filter(|s| !s.is_decoding()) {
            prompts -= 1;
            self.blocks = self.blocks.saturating_add(self.least_blocks(sequence));
            let behind = share.saturating_mul(u32::try_from(prompts).unwrap_or(u32::MAX));
            self.run(sequence, self.prompt_tokens_left().saturating_sub(behind).max(1));
        }
        running.len() - stay
    }

    /// Lets one running sequence compute at most `most` tokens, as far as limits and blocks allow.
    /// Returns how many; where it returns `None` the sequence isn't in the plan and pauses.
    pub fn run(&mut self, running: Sequence<'_>, most: u32) -> Option<u32> {
        let block_size = self.step.memory.block_size;
        let room = tokens_in(running.blocks().saturating_add(self.blocks), block_size)
            .saturating_sub(running.computed_tokens());
        let mut tokens = self.within_limits(running, most, running.is_decoding()).min(room);
        if tokens == 0 && running.remaining_tokens() > 0 {
            // The host knows its memory best: a lone sequence is listed even where it seems not to fit.
            if self.step.running.len() > 1 || self.tokens == 0 {
                return None;
            }
            tokens = 1;
        }
        let taken = blocks_to_run(running, tokens, block_size);
        self.take(running, tokens, running.is_decoding(), taken);
        let held = running.blocks().saturating_add(taken);
        self.promise(running, held);
        Some(tokens)
    }

    /// Starts a waiting sequence with at most `most` tokens, as far as limits allow. Its first chunk
    /// must fit in memory. Returns how many tokens it computes.
    pub fn start(&mut self, waiting: Sequence<'_>, most: u32) -> Result<u32, Short> {
        let block_size = self.step.memory.block_size;
        if self.slots == 0 {
            return Err(Short::Slots);
        }
        let tokens = self.within_limits(waiting, most, false);
        if tokens == 0 && waiting.remaining_tokens() > 0 {
            return Err(Short::Compute);
        }
        let taken = blocks_to_start(waiting, tokens, block_size);
        if taken > self.blocks {
            return Err(Short::Memory);
        }
        self.slots -= 1;
        self.take(waiting, tokens, false, taken);
        self.promise(waiting, blocks_for(waiting.computed_tokens().saturating_add(tokens), block_size));
        Ok(tokens)
    }

    /// Takes the blocks of a running sequence back; it waits again. It must not be in the plan.
    pub fn preempt(&mut self, running: Sequence<'_>) {
        debug_assert!(!self.plan.run.contains(&running.id()), "a sequence can't run and be preempted");
        self.blocks = self.blocks.saturating_add(running.freeable_blocks());
        self.plan.preempt.push(running.id());
    }

    /// Asks to be asked again at `at`, though nothing happens until then.
    pub fn wake_at(&mut self, at: Micros) {
        self.plan.wake = self.plan.wake.min(at);
    }

    /// The plan.
    pub fn finish(self) -> Plan {
        self.plan
    }

    /// Whether nobody computes in it so far.
    pub fn is_empty(&self) -> bool {
        self.plan.run.is_empty()
    }

    /// How many compute in it so far.
    pub fn sequences(&self) -> u32 {
        u32::try_from(self.plan.run.len()).unwrap_or(u32::MAX)
    }

    /// Blocks that nobody in the plan has taken.
    pub fn blocks_left(&self) -> u32 {
        self.blocks
    }

    /// Blocks that those in the plan will still need for the rest of their prompts and the token after.
    pub fn promised_blocks(&self) -> u32 {
        self.promised_blocks
    }

    /// Sequences that may still start.
    pub fn slots_left(&self) -> u32 {
        self.slots
    }

    /// Sequences whose prompts may still be computed in this step.
    pub fn prefills_left(&self) -> u32 {
        self.prefill_sequences.min(self.prompt_tokens_left())
    }

    /// Prompt tokens that may still be computed in this step.
    pub fn prompt_tokens_left(&self) -> u32 {
        self.tokens.min(self.prefill_tokens)
    }

    /// Blocks without which a running sequence computes nothing.
    fn least_blocks(&self, running: Sequence<'_>) -> u32 {
        blocks_to_run(running, running.remaining_tokens().min(1), self.step.memory.block_size)
    }

    /// What each of `prompts` running prompts gets at least: nobody holds blocks and stands still.
    fn least_share(&self, prompts: usize) -> u32 {
        let prompts = u32::try_from(prompts).unwrap_or(u32::MAX).min(self.prefill_sequences).max(1);
        (self.prompt_tokens_left() / prompts).min(self.step.memory.block_size)
    }

    fn within_limits(&self, sequence: Sequence<'_>, most: u32, decode: bool) -> u32 {
        let tokens = sequence.remaining_tokens().min(most).min(self.tokens);
        match (decode, self.prefill_sequences) {
            (true, _) => tokens,
            (false, 0) => 0,
            (false, _) => tokens.min(self.step.limits.prefill_chunk).min(self.prefill_tokens),
        }
    }

    fn take(&mut self, sequence: Sequence<'_>, tokens: u32, decode: bool, blocks: u32) {
        self.blocks = self.blocks.saturating_sub(blocks);
        self.tokens = self.tokens.saturating_sub(tokens);
        if !decode && tokens > 0 {
            self.prefill_tokens = self.prefill_tokens.saturating_sub(tokens);
            self.prefill_sequences = self.prefill_sequences.saturating_sub(1);
        }
        self.plan.run.push(sequence.id());
        self.plan.tokens.push(tokens);
    }

    fn promise(&mut self, sequence: Sequence<'_>, held: u32) {
        let whole = blocks_for(sequence.known_tokens().saturating_add(1), self.step.memory.block_size);
        self.promised_blocks = self.promised_blocks.saturating_add(whole.saturating_sub(held));
    }
}
