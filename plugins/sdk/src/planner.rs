//! Makes plans that keep every limit and never promise a block twice.
//!
//! A scheduler says which sequences it wants, and the planner counts tokens, prefills, slots and blocks:
//! bookkeeping that every scheduler needs. Which sequences to start, and when, is left to the policy, and so
//! is naming none twice, which only builds with debug assertions check.

use std::cmp::Reverse;

use crate::blocks::{blocks_for, blocks_to_run, blocks_to_start, tokens_in};
use crate::scheduler::{Plan, Sequence, Step};
use crate::types::{Micros, SequenceId};

/// Why a sequence could not be started in this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// As many sequences run as may.
    Slots,
    /// The step's tokens, or its slots for prompts, are used up.
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
    places: u32,
    /// How many run once the plan is carried out.
    running: u32,
    started: Vec<SequenceId>,
    promised_blocks: u32,
}

impl<'a> Planner<'a> {
    /// An empty plan.
    pub fn new(step: &'a Step) -> Self {
        let limits = step.limits;
        let mut plan = Plan::default();
        plan.run.reserve(step.running.len() + 8);
        plan.tokens.reserve(step.running.len() + 8);
        Self {
            step,
            plan,
            blocks: step.memory.allocatable_blocks(),
            tokens: limits.max_batch_tokens,
            prefill_tokens: limits.max_prefill_tokens,
            prefill_sequences: limits.max_prefill_sequences,
            // Every running sequence must be able to compute at least one token a step.
            places: limits.max_running.min(limits.max_batch_tokens),
            running: u32::try_from(step.running.len()).unwrap_or(u32::MAX),
            started: Vec::new(),
            promised_blocks: 0,
        }
    }

    /// Limits the step to `most` prompt tokens, if its limits allow more.
    pub fn limit_prompt_tokens(&mut self, most: u32) {
        self.prefill_tokens = self.prefill_tokens.min(most);
    }

    /// Lets all running sequences continue: decodes first, then prompts in chunks, in the order in which they
    /// started. If memory is short, the latest to start are preempted until each that stays can compute at
    /// least one token, so the earliest always continues and nothing locks up. Returns how many were
    /// preempted.
    pub fn go_on(&mut self) -> usize {
        self.go_on_by(|_| ())
    }

    /// Like [`Self::go_on`], for sequences of different worth: prompts are computed most worth first, and if
    /// memory is short, those of least worth are preempted, among equal ones the latest to start. The
    /// sequence of most worth always continues. A policy whose worth doesn't grow with age can starve a
    /// sequence like this. Sequences that the plan preempts already stay out.
    pub fn go_on_by<K: Ord>(&mut self, worth: impl Fn(Sequence<'_>) -> K) -> usize {
        if self.plan.preempt.is_empty()
            && let Some(prompts) = self.go_on_with_decodes()
        {
            self.go_on_with_prompts(prompts, worth);
            return 0;
        }
        self.go_on_one_by_one(worth)
    }

    fn go_on_one_by_one<K: Ord>(&mut self, worth: impl Fn(Sequence<'_>) -> K) -> usize {
        let running = &self.step.running;
        let mut stay: Vec<usize> = (0..running.len()).filter(|row| !self.gives_way(*row)).collect();
        let before = stay.len();
        let needed = self.make_room(&mut stay, &worth);
        // Each sequence's minimum is set aside, so that a long chunk can't take it.
        self.blocks = self.blocks.saturating_sub(u32::try_from(needed).unwrap_or(u32::MAX));
        let mut prompts = Vec::new();
        for &row in &stay {
            if running.get(row).is_decoding() {
                self.go_on_with(running.get(row), 1);
            } else {
                prompts.push(row);
            }
        }
        self.go_on_with_prompts(prompts, worth);
        before - stay.len()
    }

    /// The usual step, in one pass over the columns: memory suffices for all, and every decode computes its
    /// one token. Returns the rows of the prompts, for which their least blocks are set aside; `None`, with
    /// nothing done, if the step isn't like that.
    fn go_on_with_decodes(&mut self) -> Option<Vec<usize>> {
        let running = &self.step.running;
        let rows = running.len();
        let block_size = self.step.memory.block_size.max(1);
        let (prompt, computed) = (&running.prompt_tokens[..rows], &running.computed_tokens[..rows]);
        let (generated, blocks) = (&running.generated_tokens[..rows], &running.blocks[..rows]);
        let mut prompts = Vec::new();
        let mut needed = 0u64;
        for row in 0..rows {
            let known = prompt[row].saturating_add(generated[row]);
            match known.saturating_sub(computed[row]) {
                0 => return None,
                1 if generated[row] > 0 => {}
                _ => prompts.push(row),
            }
            let next = computed[row].saturating_add(1);
            if next > tokens_in(blocks[row], block_size) {
                needed += u64::from(blocks_for(next, block_size).saturating_sub(blocks[row]));
            }
        }
        let decodes = u32::try_from(rows - prompts.len()).ok()?;
        if needed > u64::from(self.blocks) || decodes > self.tokens {
            return None;
        }
        self.blocks -= u32::try_from(needed).ok()?;
        self.tokens -= decodes;
        let mut next_prompt = prompts.iter().copied().peekable();
        let decoding = |row: &usize| next_prompt.next_if_eq(row).is_none();
        self.plan.run.extend((0..rows).filter(decoding).map(|row| SequenceId(running.id[row])));
        self.plan.tokens.resize(self.plan.run.len(), 1);
        Some(prompts)
    }

    /// Computes the prompts of these rows, most worth first, each at least its share. Their least blocks
    /// are set aside.
    fn go_on_with_prompts<K: Ord>(&mut self, mut prompts: Vec<usize>, worth: impl Fn(Sequence<'_>) -> K) {
        let running = &self.step.running;
        prompts.sort_by_key(|row| Reverse(worth(running.get(*row))));
        let share = self.least_share(prompts.len());
        let mut behind = share.saturating_mul(u32::try_from(prompts.len()).unwrap_or(u32::MAX));
        for row in prompts {
            behind = behind.saturating_sub(share);
            self.go_on_with(running.get(row), self.prompt_tokens_left().saturating_sub(behind).max(1));
        }
    }

    /// Preempts some of the running rows `stay`, and removes them, until the blocks suffice for the rest.
    /// Returns how many blocks the rest needs at least.
    fn make_room<K: Ord>(&mut self, stay: &mut Vec<usize>, worth: impl Fn(Sequence<'_>) -> K) -> u64 {
        let running = &self.step.running;
        let mut needed: u64 = stay.iter().map(|row| u64::from(self.least_blocks(running.get(*row)))).sum();
        if needed <= u64::from(self.blocks) {
            return needed;
        }
        let mut victims = stay.clone();
        victims.sort_by_cached_key(|row| (worth(running.get(*row)), Reverse(*row)));
        victims.pop();
        for row in victims {
            if needed <= u64::from(self.blocks) {
                break;
            }
            needed -= u64::from(self.least_blocks(running.get(row)));
            self.preempt(running.get(row));
        }
        stay.retain(|row| !self.gives_way(*row));
        needed
    }

    /// Whether a running sequence computes in the plan or gives way.
    fn names(&self, running: Sequence<'_>) -> bool {
        self.plan.run.contains(&running.id()) || self.plan.preempt.contains(&running.id())
    }

    fn gives_way(&self, running_row: usize) -> bool {
        self.plan.preempt.contains(&SequenceId(self.step.running.id[running_row]))
    }

    /// Runs a sequence for which its least blocks were set aside.
    fn go_on_with(&mut self, running: Sequence<'_>, most: u32) {
        self.blocks = self.blocks.saturating_add(self.least_blocks(running));
        self.run(running, most);
    }

    /// Lets one running sequence compute at most `most` tokens, as far as limits and blocks allow. Returns
    /// how many; with `None` the sequence isn't in the plan and pauses. Must not be called for a sequence
    /// that the plan has already, nor after a call that lets all continue.
    pub fn run(&mut self, running: Sequence<'_>, most: u32) -> Option<u32> {
        debug_assert!(!self.names(running), "a plan names a sequence once: {:?}", running.id());
        let block_size = self.step.memory.block_size;
        let room = tokens_in(running.blocks().saturating_add(self.blocks), block_size)
            .saturating_sub(running.computed_tokens());
        let mut tokens = self.within_limits(running, most, running.is_decoding()).min(room);
        if tokens == 0 && running.remaining_tokens() > 0 {
            // The host knows its memory best: a lone sequence is listed even if it seems not to fit.
            if self.step.running.len() > 1 || self.tokens == 0 {
                return None;
            }
            tokens = 1;
        }
        let taken = blocks_to_run(running, tokens, block_size);
        self.take(running, tokens, running.is_decoding(), taken);
        if !running.is_decoding() {
            self.promise(running, running.blocks().saturating_add(taken));
        }
        Some(tokens)
    }

    /// Starts a waiting sequence with at most `most` tokens, as far as limits allow. Its first chunk
    /// must fit in memory. Returns how many tokens it computes. Once for each.
    pub fn start(&mut self, waiting: Sequence<'_>, most: u32) -> Result<u32, Short> {
        debug_assert!(!self.started.contains(&waiting.id()), "it starts once: {:?}", waiting.id());
        let block_size = self.step.memory.block_size;
        if self.slots_left() == 0 {
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
        self.running = self.running.saturating_add(1);
        self.started.push(waiting.id());
        self.take(waiting, tokens, false, taken);
        self.promise(waiting, blocks_for(waiting.computed_tokens().saturating_add(tokens), block_size));
        Ok(tokens)
    }

    /// Preempts a running sequence, which frees its blocks and its slot; it waits again. It must not be in
    /// the plan.
    pub fn preempt(&mut self, running: Sequence<'_>) {
        debug_assert!(!self.names(running), "a plan names a sequence once: {:?}", running.id());
        self.blocks = self.blocks.saturating_add(running.freeable_blocks());
        self.running = self.running.saturating_sub(1);
        self.plan.preempt.push(running.id());
    }

    /// Asks to be called again at `at`, even if nothing happens until then.
    pub fn wake_at(&mut self, at: Micros) {
        self.plan.wake = self.plan.wake.min(at);
    }

    /// The plan.
    pub fn finish(self) -> Plan {
        self.plan
    }

    /// Whether no sequence computes in it so far.
    pub fn is_empty(&self) -> bool {
        self.plan.run.is_empty()
    }

    /// How many compute in it so far.
    pub fn sequences(&self) -> u32 {
        u32::try_from(self.plan.run.len()).unwrap_or(u32::MAX)
    }

    /// Blocks that no sequence of the plan has taken.
    pub fn blocks_left(&self) -> u32 {
        self.blocks
    }

    /// Blocks that those in the plan will still need for the rest of their prompts and the first token after;
    /// what generates already is not in it.
    pub fn promised_blocks(&self) -> u32 {
        self.promised_blocks
    }

    /// Sequences that may still start.
    pub fn slots_left(&self) -> u32 {
        self.places.saturating_sub(self.running)
    }

    /// Waiting sequences that start in it so far.
    pub fn started(&self) -> &[SequenceId] {
        &self.started
    }

    /// Running sequences that it preempts so far.
    pub fn preempted(&self) -> &[SequenceId] {
        &self.plan.preempt
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

    /// The minimum for each of `prompts` running prompts, so that none holds blocks and stands still.
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

#[cfg(test)]
mod tests;
