//! Makes plans that keep every limit and never promise a block twice.
//!
//! A scheduler says whom it wants; this counts tokens, prefills, slots and blocks while it does. What
//! is here is bookkeeping that every scheduler needs. Whom to start, and when, is left to the policy.

use std::cmp::Reverse;

use crate::blocks::{blocks_for, blocks_to_run, blocks_to_start, tokens_in};
use crate::scheduler::{Plan, Sequence, Step};
use crate::types::{Micros, SequenceId};

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
    places: u32,
    /// How many run once the plan is carried out.
    running: u32,
    started: Vec<SequenceId>,
    promised_blocks: u32,
}

impl<'a> Planner<'a> {
    /// A plan in which nobody runs yet.
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

    /// Lets the step compute at most `most` prompt tokens, where its limits allow more.
    pub fn limit_prompt_tokens(&mut self, most: u32) {
        self.prefill_tokens = self.prefill_tokens.min(most);
    }

    /// Lets everything that runs go on: decodes first, then prompts in chunks, in the order in which
    /// they started. Where memory is short, the latest started give their blocks back until everybody
    /// who stays can compute at least one token, so the earliest always goes on and nothing locks up.
    /// Returns how many were preempted.
    pub fn go_on(&mut self) -> usize {
        self.go_on_by(|_| ())
    }

    /// Like [`Self::go_on`] where some are worth more than others: prompts are computed most worth
    /// first, and where memory is short, those of least worth give way, of equal ones the latest
    /// started. Who is worth most always goes on. A policy whose worth of a sequence doesn't grow with
    /// its age can starve one like this. Whom the plan preempts already stays out.
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
        // What everybody needs at least is set aside, so that a long chunk can't take it.
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
    /// one token. Returns the rows of the prompts, for which their least blocks are set aside; `None`, and
    /// nothing done, where it isn't as usual.
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

    /// Preempts of the running rows `stay` until the blocks suffice for the rest, and takes them out.
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

    fn gives_way(&self, running_row: usize) -> bool {
        self.plan.preempt.contains(&SequenceId(self.step.running.id[running_row]))
    }

    /// Runs a sequence for which its least blocks were set aside.
    fn go_on_with(&mut self, running: Sequence<'_>, most: u32) {
        self.blocks = self.blocks.saturating_add(self.least_blocks(running));
        self.run(running, most);
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
        if !running.is_decoding() {
            self.promise(running, running.blocks().saturating_add(taken));
        }
        Some(tokens)
    }

    /// Starts a waiting sequence with at most `most` tokens, as far as limits allow. Its first chunk
    /// must fit in memory. Returns how many tokens it computes.
    pub fn start(&mut self, waiting: Sequence<'_>, most: u32) -> Result<u32, Short> {
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

    /// Takes the blocks and the place of a running sequence back; it waits again. It must not be in the
    /// plan.
    pub fn preempt(&mut self, running: Sequence<'_>) {
        debug_assert!(!self.plan.run.contains(&running.id()), "a sequence can't run and be preempted");
        self.blocks = self.blocks.saturating_add(running.freeable_blocks());
        self.running = self.running.saturating_sub(1);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_fit, check_plan, for_seeds, hostile_step, limits, random_step};
    use crate::{Limits, Memory, Row, Sequences};

    fn step(running: &[Row], waiting: &[Row], free_blocks: u32) -> Step {
        let held: u32 = running.iter().map(|row| row.blocks).sum();
        Step {
            limits: limits(),
            memory: Memory {
                block_size: 16,
                total_blocks: held + free_blocks,
                free_blocks,
                cached_blocks: 0,
            },
            running: running.iter().copied().collect::<Sequences>(),
            waiting: waiting.iter().copied().collect::<Sequences>(),
            ..Step::default()
        }
    }

    fn decode(id: u64, computed_tokens: u32) -> Row {
        let blocks = computed_tokens.div_ceil(16);
        Row {
            id,
            prompt_tokens: computed_tokens,
            computed_tokens,
            generated_tokens: 1,
            max_new_tokens: 100,
            blocks,
            freeable_blocks: blocks,
            ..Row::default()
        }
    }

    fn prompt(id: u64, prompt_tokens: u32, computed_tokens: u32) -> Row {
        let blocks = computed_tokens.div_ceil(16);
        Row {
            id,
            prompt_tokens,
            computed_tokens,
            max_new_tokens: 100,
            blocks,
            freeable_blocks: blocks,
            ..Row::default()
        }
    }

    fn ids(ids: &[crate::SequenceId]) -> Vec<u64> {
        ids.iter().map(|id| id.0).collect()
    }

    #[test]
    fn decodes_go_before_prompts_and_prompts_in_chunks() {
        let step = step(&[prompt(1, 1_000, 0), decode(2, 20), prompt(3, 40, 32)], &[], 1_000);
        let mut planner = Planner::new(&step);
        assert_eq!(planner.go_on(), 0);
        let plan = planner.finish();
        assert_eq!((ids(&plan.run), plan.tokens), (vec![2, 1, 3], vec![1, 512, 8]));
    }

    #[test]
    fn the_latest_started_gives_way_until_the_others_can_go_on() {
        let step = step(&[decode(1, 32), decode(2, 32), decode(3, 32)], &[], 0);
        let mut planner = Planner::new(&step);
        assert_eq!(planner.go_on(), 1);
        let plan = planner.finish();
        assert_eq!((ids(&plan.run), ids(&plan.preempt)), (vec![1, 2], vec![3]));
    }

    #[test]
    fn nobody_gives_way_while_there_is_room_in_the_last_blocks() {
        let step = step(&[decode(1, 31), decode(2, 17)], &[], 0);
        let mut planner = Planner::new(&step);
        assert_eq!(planner.go_on(), 0);
        assert_eq!(planner.finish().tokens, [1, 1]);
    }

    #[test]
    fn a_lone_sequence_goes_on_whatever_memory_says() {
        let step = step(&[decode(1, 32)], &[], 0);
        let mut planner = Planner::new(&step);
        assert_eq!(planner.go_on(), 0);
        assert_eq!(ids(&planner.finish().run), [1]);
    }

    #[test]
    fn a_long_prompt_leaves_the_others_their_share() {
        let mut step = step(&[prompt(1, 1_000, 0), prompt(2, 1_000, 0), prompt(3, 1_000, 0)], &[], 1_000);
        step.limits = Limits { max_batch_tokens: 100, ..limits() };
        let mut planner = Planner::new(&step);
        planner.go_on();
        assert_eq!(planner.finish().tokens, [68, 16, 16]);
    }

    #[test]
    fn who_is_worth_least_gives_way_and_the_worthiest_prompt_is_computed_first() {
        let of_worth = |row: Row, priority| Row { priority, ..row };
        let step = step(&[of_worth(decode(1, 32), 1), decode(2, 32), of_worth(decode(3, 32), 1)], &[], 0);
        let mut planner = Planner::new(&step);
        assert_eq!(planner.go_on_by(|s| s.priority()), 1);
        assert_eq!(planner.slots_left(), limits().max_running - 2, "its place is free");
        let plan = planner.finish();
        assert_eq!((ids(&plan.run), ids(&plan.preempt)), (vec![1, 3], vec![2]));

        let prompts = [prompt(1, 1_000, 0), of_worth(prompt(2, 1_000, 0), 1)];
        let step =
            Step { limits: Limits { max_batch_tokens: 100, ..limits() }, ..self::step(&prompts, &[], 99) };
        let mut planner = Planner::new(&step);
        planner.go_on_by(|s| s.priority());
        let plan = planner.finish();
        assert_eq!((ids(&plan.run), plan.tokens), (vec![2, 1], vec![84, 16]));
    }

    #[test]
    fn who_was_preempted_before_does_not_go_on() {
        let step = step(&[decode(1, 32), decode(2, 32)], &[prompt(3, 20, 0)], 0);
        let mut planner = Planner::new(&step);
        planner.preempt(step.running.get(0));
        assert_eq!(planner.go_on(), 0, "what it gave back is enough for the other");
        let plan = planner.finish();
        assert_eq!((ids(&plan.run), ids(&plan.preempt)), (vec![2], vec![1]));
    }

    #[test]
    fn prompt_tokens_can_be_limited_below_the_limit() {
        let step = step(&[prompt(1, 1_000, 0), prompt(2, 1_000, 0)], &[], 100);
        let mut planner = Planner::new(&step);
        planner.limit_prompt_tokens(40);
        planner.go_on();
        assert_eq!(planner.finish().tokens, [24, 16]);
    }

    #[test]
    fn a_start_says_what_is_short() {
        let mut step = step(&[decode(1, 20)], &[prompt(2, 100, 0)], 6);
        let start = |step: &Step| Planner::new(step).start(step.waiting.get(0), u32::MAX);
        assert_eq!(start(&step), Err(Short::Memory));
        step.memory.free_blocks = 7;
        assert_eq!(start(&step), Ok(100));
        step.limits.max_prefill_sequences = 0;
        assert_eq!(start(&step), Err(Short::Compute));
        step.limits.max_running = 1;
        assert_eq!(start(&step), Err(Short::Slots));
    }

    #[test]
    fn what_is_cached_as_a_whole_starts_without_tokens() {
        let mut full = prompt(2, 40, 40);
        (full.blocks, full.idle_blocks) = (0, 2);
        let mut step = step(&[], &[full], 2);
        assert_eq!(
            Planner::new(&step).start(step.waiting.get(0), 8),
            Err(Short::Memory),
            "the last block is copied"
        );
        step.memory.free_blocks = 3;
        step.limits.max_prefill_sequences = 0;
        assert_eq!(Planner::new(&step).start(step.waiting.get(0), 8), Ok(0));
    }

    #[test]
    fn the_usual_step_is_planned_as_one_by_one() {
        let mut usual = 0;
        for_seeds(0..3_000, |rng| {
            let step = random_step(rng);
            let worth = |sequence: Sequence<'_>| sequence.priority();
            let (mut at_once, mut one_by_one) = (Planner::new(&step), Planner::new(&step));
            usual += u32::from(Planner::new(&step).go_on_with_decodes().is_some());
            assert_eq!(at_once.go_on_by(worth), one_by_one.go_on_one_by_one(worth));
            assert_eq!(
                (at_once.blocks, at_once.tokens, at_once.promised_blocks),
                (one_by_one.blocks, one_by_one.tokens, one_by_one.promised_blocks)
            );
            assert_eq!(at_once.finish(), one_by_one.finish());
        });
        assert!(usual > 1_000, "{usual}");
    }

    #[test]
    fn any_view_gives_a_plan_that_keeps_the_rules() {
        for_seeds(0..3_000, |rng| {
            let step = random_step(rng);
            let mut planner = Planner::new(&step);
            planner.go_on();
            for sequence in step.waiting.iter() {
                let _ = planner.start(sequence, rng.between(1, 100));
            }
            let plan = planner.finish();
            check_plan(&step, &plan).unwrap();
            if step.running.len() - plan.preempt.len() != 1 {
                check_fit(&step, &plan).unwrap();
            }
        });
    }

    #[test]
    fn a_hostile_view_gets_an_answer() {
        for_seeds(0..3_000, |rng| {
            let step = hostile_step(rng);
            let mut planner = Planner::new(&step);
            planner.go_on();
            for sequence in step.waiting.iter() {
                let _ = planner.start(sequence, u32::MAX);
            }
            let plan = planner.finish();
            assert_eq!(plan.run.len(), plan.tokens.len());
        });
    }
}
