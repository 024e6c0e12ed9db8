//! Lets waiting sequences start, in an order of the policy's choice.
//!
//! What makes a start a good one is the same in any order: room for the whole prompt, a short wait for a
//! prefix that is being computed, and no more new prompts in a step than one chunk's worth. No sequence
//! passes the first that doesn't fit, or a large one would wait for as long as small ones arrive.

use crate::blocks::blocks_to_start;
use crate::planner::{Planner, Short};
use crate::scheduler::{Sequence, Step};
use crate::types::{Micros, SequenceId};

/// Sequences that may wait for a prefix at once; the scan of the queue ends there.
const MAX_DEFERRED: usize = 64;

/// Starts waiting sequences, or lets them wait for a prefix.
#[derive(Clone, Debug)]
pub struct Starts {
    watermark_permyriad: i64,
    prefix_wait: Micros,
    /// Sequences that wait for a prefix, and since when. Kept until they start, because a step that doesn't
    /// reach them would restart their time. When it is full, only those are kept whose prefix is still
    /// coming.
    deferred: Vec<(SequenceId, Micros)>,
}

/// The first that couldn't start, for a policy that would make room for it.
#[derive(Clone, Copy, Debug)]
pub struct Blocked<'a> {
    /// The sequence.
    pub sequence: Sequence<'a>,
    /// What is short.
    pub short: Short,
    /// Blocks that it lacks; below zero if some would be left.
    pub lacking_blocks: i64,
}

impl Default for Starts {
    fn default() -> Self {
        Self::new(Self::WATERMARK, Self::PREFIX_WAIT_MS).expect("the defaults are valid")
    }
}

impl Starts {
    /// Share of the pool that starts leave alone unless configured otherwise.
    pub const WATERMARK: f64 = 0.01;
    /// How long a sequence waits for a prefix unless configured otherwise.
    pub const PREFIX_WAIT_MS: u64 = 3_000;

    /// `watermark`: share of the pool that a start leaves free, so that it doesn't cause a preemption right
    /// away. `prefix_wait_ms`: how long a sequence waits for a prefix that another one is computing. The
    /// error names the configuration key.
    pub fn new(watermark: f64, prefix_wait_ms: u64) -> Result<Self, String> {
        if !(0.0..=0.5).contains(&watermark) {
            return Err(format!("`watermark` must be from 0 to 0.5, not {watermark}"));
        }
        Ok(Self {
            watermark_permyriad: (watermark * 10_000.0) as i64,
            prefix_wait: Micros::from_millis(prefix_wait_ms),
            deferred: Vec::new(),
        })
    }

    /// Starts as many of `order` as possible, after the running sequences. Call it only if none of them was
    /// preempted: memory of a sequence that was just preempted must not start another one.
    pub fn start<'a>(
        &mut self,
        order: impl IntoIterator<Item = Sequence<'a>>,
        step: &Step,
        planner: &mut Planner<'_>,
    ) -> Option<Blocked<'a>> {
        self.deferred.retain(|(id, _)| in_queue(step, *id).is_some());
        // Prompts that start together each compute what they have in common; those that start a step later
        // find it. So a step starts about one chunk's worth of them, however wide it is.
        let (mut fresh, mut deferred) = (0, 0);
        for sequence in order {
            let lacking_blocks = self.lacking_blocks(sequence, step, planner);
            let blocked = |short| Some(Blocked { sequence, short, lacking_blocks });
            if planner.slots_left() == 0 {
                return blocked(Short::Slots);
            }
            if deferred == MAX_DEFERRED || fresh >= step.limits.prefill_chunk {
                return blocked(Short::Compute);
            }
            if let Some(until) = self.waits_for_prefix(sequence, step) {
                deferred += 1;
                planner.wake_at(until);
                continue;
            }
            if lacking_blocks > 0 {
                return blocked(Short::Memory);
            }
            match planner.start(sequence, u32::MAX) {
                Ok(tokens) => fresh += tokens,
                Err(short) => return blocked(short),
            }
        }
        None
    }

    /// Until when it waits, because a running sequence is computing at least one more block of its prompt.
    /// Bounded from the first time on: what is worth a short wait isn't worth being overtaken for ever.
    fn waits_for_prefix(&mut self, waiting: Sequence<'_>, step: &Step) -> Option<Micros> {
        if !has_prefix_coming(waiting, step) {
            return None;
        }
        let known = self.deferred.iter().find(|(id, _)| *id == waiting.id());
        let (began, is_new) = known.map_or((step.now, true), |(_, began)| (*began, false));
        if is_new && self.deferred.len() == MAX_DEFERRED {
            let waits_now = |id| in_queue(step, id).is_some_and(|other| has_prefix_coming(other, step));
            self.deferred.retain(|(id, _)| waits_now(*id));
        }
        if step.now.since(began) >= self.prefix_wait || (is_new && self.deferred.len() == MAX_DEFERRED) {
            return None;
        }
        if is_new {
            self.deferred.push((waiting.id(), began));
        }
        Some(began.plus(self.prefix_wait))
    }

    /// Blocks missing for its whole prompt beside what the others' prompts will still need, one more block
    /// for each of them, and the watermark. With nothing else in the pool, it may have all of it.
    fn lacking_blocks(&self, waiting: Sequence<'_>, step: &Step, planner: &Planner<'_>) -> i64 {
        if planner.is_empty() {
            return 0;
        }
        let whole = waiting.remaining_tokens().saturating_add(1);
        let needed = blocks_to_start(waiting, whole, step.memory.block_size);
        let watermark = i64::from(step.memory.total_blocks) * self.watermark_permyriad / 10_000;
        let kept = i64::from(planner.promised_blocks()) + i64::from(planner.sequences()) + watermark;
        i64::from(needed) + kept - i64::from(planner.blocks_left())
    }
}

/// Whether a running sequence is computing at least one more block of its prompt.
fn has_prefix_coming(waiting: Sequence<'_>, step: &Step) -> bool {
    let block_size = step.memory.block_size.max(1);
    waiting.pending_tokens() / block_size > waiting.computed_tokens() / block_size
}

/// Its key in the queue, whose two parts, the preempted sequences and the others, are each sorted.
fn in_queue(step: &Step, id: SequenceId) -> Option<Sequence<'_>> {
    let first = step.waiting.preemptions.partition_point(|times| *times > 0).min(step.waiting.len());
    let (again, others) = step.waiting.id.split_at(first);
    let row = again.binary_search(&id.0).or_else(|_| others.binary_search(&id.0).map(|row| first + row));
    row.ok().map(|row| step.waiting.get(row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::limits;
    use crate::{Limits, Memory, Row};

    #[test]
    fn the_first_blocked_sequence_is_reported_with_what_it_lacks() {
        let row = |id, prompt_tokens| Row { id, prompt_tokens, max_new_tokens: 9, ..Row::default() };
        let mut step = Step {
            limits: limits(),
            memory: Memory { block_size: 16, total_blocks: 10, free_blocks: 10, cached_blocks: 0 },
            waiting: [row(1, 31), row(2, 159), row(3, 1)].into_iter().collect(),
            ..Step::default()
        };
        let blocked = |step: &Step| {
            let mut planner = Planner::new(step);
            let blocked = Starts::default().start(step.waiting.iter(), step, &mut planner)?;
            Some((blocked.sequence.id().0, blocked.short, blocked.lacking_blocks))
        };
        // Eight blocks are left, one is the first's next, ten are needed.
        assert_eq!(blocked(&step), Some((2, Short::Memory, 3)));
        step.limits = Limits { max_running: 1, ..limits() };
        assert_eq!(blocked(&step), Some((2, Short::Slots, 3)));
        step.memory.free_blocks = 40;
        step.limits = Limits { prefill_chunk: 31, ..limits() };
        assert_eq!(blocked(&step), Some((2, Short::Compute, -27)));
        step.limits = limits();
        assert_eq!(blocked(&step), None);
    }

    /// A full second of waiting for a prefix, then a sequence that is blocked each time for another reason.
    #[test]
    fn the_wait_for_a_prefix_counts_from_its_start_whatever_blocks_meanwhile() {
        let sharing =
            Row { id: 2, prompt_tokens: 64, max_new_tokens: 9, pending_tokens: 32, ..Row::default() };
        let computing = Row { id: 1, computed_tokens: 16, blocks: 1, prompt_tokens: 900, ..sharing };
        let at = |millis: u64, slots: u32, free_blocks: u32| Step {
            now: Micros::from_millis(millis),
            limits: Limits { max_running: slots, ..limits() },
            memory: Memory { block_size: 16, total_blocks: 900, free_blocks, cached_blocks: 0 },
            running: [computing].into_iter().collect(),
            waiting: [sharing].into_iter().collect(),
            ..Step::default()
        };
        let mut starts = Starts::new(0.0, 1_000).unwrap();
        let mut decide = |step: Step| {
            let mut planner = Planner::new(&step);
            planner.go_on();
            let blocked = starts.start(step.waiting.iter(), &step, &mut planner).map(|blocked| blocked.short);
            (blocked, planner.started().len(), planner.finish().wake)
        };
        let due = Micros::from_millis(1_000);
        assert_eq!(decide(at(0, 2, 500)), (None, 0, due), "it waits");
        assert_eq!(decide(at(400, 1, 500)), (Some(Short::Slots), 0, Micros::NEVER));
        assert_eq!(decide(at(800, 2, 500)), (None, 0, due), "for the rest of its time");
        assert_eq!(decide(at(1_000, 2, 30)), (Some(Short::Memory), 0, Micros::NEVER));
        assert_eq!(decide(at(1_100, 2, 500)), (None, 1, Micros::NEVER), "and no second time");
    }

    #[test]
    fn as_many_wait_for_a_prefix_as_can_be_remembered() {
        let row = |id| Row { id, prompt_tokens: 64, max_new_tokens: 9, pending_tokens: 32, ..Row::default() };
        let mut step = Step {
            limits: Limits {
                max_running: 1_000,
                max_prefill_sequences: 1_000,
                prefill_chunk: 9_999,
                ..limits()
            },
            memory: Memory { block_size: 16, total_blocks: 9_000, free_blocks: 9_000, cached_blocks: 0 },
            waiting: (1..=100).map(row).collect(),
            ..Step::default()
        };
        let mut starts = Starts::new(0.0, 1_000).unwrap();
        let mut started = |step: &Step| {
            let mut planner = Planner::new(step);
            starts.start(step.waiting.iter(), step, &mut planner);
            let started: Vec<u64> = planner.started().iter().map(|id| id.0).collect();
            (started, starts.deferred.len())
        };
        assert_eq!(started(&step), (vec![], MAX_DEFERRED), "the scan ends there");
        step.waiting = (41..=100).map(row).collect();
        assert_eq!(
            started(&step),
            (vec![], 60),
            "sequences that left are forgotten, and the next are remembered"
        );
    }

    #[test]
    fn a_blocked_sequence_whose_prefix_is_cached_takes_no_slot_of_those_that_wait_for_one() {
        let row = |id, pending_tokens| Row {
            id,
            prompt_tokens: 64,
            max_new_tokens: 9,
            pending_tokens,
            ..Row::default()
        };
        let long = |id, pending_tokens| Row { prompt_tokens: 5_000, ..row(id, pending_tokens) };
        let computing = Row { blocks: 1, computed_tokens: 16, prompt_tokens: 900, ..row(999, 0) };
        let mut step = Step {
            limits: Limits { max_running: 1_000, max_prefill_sequences: 1_000, ..limits() },
            memory: Memory { block_size: 16, total_blocks: 9_000, free_blocks: 9_000, cached_blocks: 0 },
            running: [computing].into_iter().collect(),
            waiting: (1..=64).map(|id| long(id, 32)).collect(),
            ..Step::default()
        };
        let mut starts = Starts::new(0.0, 1_000).unwrap();
        let mut decide = |step: &Step| {
            let mut planner = Planner::new(step);
            planner.go_on();
            let blocked = starts.start(step.waiting.iter().rev(), step, &mut planner);
            (blocked.map(|blocked| blocked.short), planner.started().len())
        };
        assert_eq!(decide(&step), (None, 0), "as many wait as can be remembered");
        // Their prefix is there, and memory is short. Others come first in the order and wait for another
        // one.
        step.memory.free_blocks = 200;
        step.waiting = (1..=64).map(|id| long(id, 0)).chain((65..=114).map(|id| row(id, 32))).collect();
        assert_eq!(decide(&step), (Some(Short::Memory), 0), "none of the fifty computes what is coming");
    }
}
