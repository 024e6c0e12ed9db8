//! Schedulers of every temper.

use infer_core::policy::{Plan, PolicyFault, SchedulerPolicy, SequenceColumns, StepView};
use infer_core::{Micros, SequenceId};

use super::Temper;
use crate::fuzz::case::Style;

pub(super) struct Planner(pub Temper);

impl SchedulerPolicy for Planner {
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        check(step);
        if self.0.sins() {
            return self.sin(step);
        }
        Ok(self.plan(step))
    }
}

/// What is left of a step.
struct Room {
    tokens: u32,
    prefills: u32,
    prefill_tokens: u32,
    blocks: u32,
    running: u32,
}

impl Planner {
    fn plan(&mut self, step: &StepView) -> Plan {
        let style = self.0.style;
        let dice = &mut self.0.dice;
        let wake = match dice.below(4) {
            0 => Micros(step.now.0 + dice.below(3_000)),
            1 => Micros(dice.next_u64() >> dice.below(64)),
            _ => Micros::NEVER,
        };
        let mut plan = Plan { wake, ..Plan::default() };
        if style == Style::Stall || (style == Style::Random && dice.chance(5)) {
            return plan;
        }
        let limits = step.limits;
        let mut room = Room {
            tokens: limits.max_batch_tokens,
            prefills: limits.max_prefill_sequences,
            prefill_tokens: limits.max_prefill_tokens,
            blocks: step.memory.free_blocks + step.memory.cached_blocks,
            running: step.running.len() as u32,
        };
        self.preempt(step, &mut plan, &mut room);
        for (rows, starts) in [(&step.running, false), (&step.waiting, true)] {
            let skip = usize::from(style == Style::Starve && rows.len() > 1);
            for at in self.order(rows).into_iter().skip(skip) {
                if plan.preempt.contains(&SequenceId(rows.id[at])) {
                    continue;
                }
                let leave = if starts { 40 } else { 10 };
                if style == Style::Random && self.0.dice.chance(leave) {
                    continue;
                }
                if starts && room.running >= limits.max_running {
                    break;
                }
                if let Some(tokens) = self.grant(step, rows, at, starts, &mut room) {
                    plan.run.push(SequenceId(rows.id[at]));
                    plan.tokens.push(tokens);
                    room.running += u32::from(starts);
                }
            }
        }
        plan
    }

    fn preempt(&mut self, step: &StepView, plan: &mut Plan, room: &mut Room) {
        let running = step.running.len();
        let often = match self.0.style {
            Style::Thrash => 100,
            Style::Random => 4,
            Style::Backwards | Style::Plain | Style::Crumbs => {
                // If a decode of all would not fit, one is preempted.
                let short = (running as u32) > room.blocks && running > 1;
                let at = if self.0.style == Style::Backwards { 0 } else { running.wrapping_sub(1) };
                if short && self.0.dice.chance(80) {
                    plan.preempt.push(SequenceId(step.running.id[at]));
                    room.running -= 1;
                }
                return;
            }
            _ => return,
        };
        for &id in &step.running.id {
            if self.0.dice.chance(often) {
                plan.preempt.push(SequenceId(id));
                room.running -= 1;
            }
        }
    }

    fn grant(
        &mut self,
        step: &StepView,
        rows: &SequenceColumns,
        at: usize,
        starts: bool,
        room: &mut Room,
    ) -> Option<u32> {
        let computed = rows.computed_tokens[at];
        let remaining = rows.prompt_tokens[at] + rows.generated_tokens[at] - computed;
        let prefill = remaining > 1 || (remaining == 1 && rows.generated_tokens[at] == 0);
        let mut tokens = remaining.min(room.tokens);
        if prefill {
            if room.prefills == 0 {
                return None;
            }
            tokens = tokens.min(step.limits.prefill_chunk).min(room.prefill_tokens);
            match self.0.style {
                Style::Crumbs => tokens = tokens.min(1),
                Style::Random if self.0.dice.chance(50) => {
                    tokens = tokens.min(self.0.dice.between(1, 9) as u32);
                }
                _ => {}
            }
        }
        if tokens == 0 && remaining > 0 {
            return None;
        }
        let held = if starts { computed / step.memory.block_size } else { rows.blocks[at] };
        let need = (computed + tokens).div_ceil(step.memory.block_size).saturating_sub(held)
            + if starts { rows.idle_blocks[at] } else { 0 };
        if need > room.blocks {
            if self.0.style == Style::Timid {
                return None;
            }
            // The engine cuts what doesn't fit in memory; such a plan is unwise, not invalid.
            room.blocks = need;
        }
        room.blocks -= need;
        room.tokens -= tokens;
        if prefill {
            room.prefills -= 1;
            room.prefill_tokens -= tokens;
        }
        Some(tokens)
    }

    fn order(&mut self, rows: &SequenceColumns) -> Vec<usize> {
        let mut order: Vec<usize> = (0..rows.id.len()).collect();
        match self.0.style {
            Style::Backwards => order.reverse(),
            Style::Random if self.0.dice.chance(30) => {
                for at in (1..order.len()).rev() {
                    order.swap(at, self.0.dice.below(at as u64 + 1) as usize);
                }
            }
            _ => {}
        }
        order
    }

    /// A plan that no engine may carry out, or none.
    fn sin(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        let mut plan = self.plan(step);
        let known = step.running.id.first().or(step.waiting.id.first()).copied().map(SequenceId);
        match self.0.dice.below(11) {
            0 | 1 => return Err(self.0.fault()),
            2 => {
                plan.run.push(SequenceId(self.0.dice.next_u64()));
                plan.tokens.push(1);
            }
            3 => plan.tokens.push(1),
            4 => {
                plan.run.extend(known.into_iter().chain(known));
                plan.tokens.extend(known.into_iter().chain(known).map(|_| 1));
            }
            5 => plan.tokens.iter_mut().for_each(|tokens| *tokens = tokens.wrapping_sub(1)),
            6 => plan.tokens.iter_mut().for_each(|tokens| *tokens = u32::MAX),
            7 => plan.preempt.extend(step.waiting.id.first().map(|&id| SequenceId(id))),
            8 => plan.preempt.extend(known.into_iter().chain(known)),
            9 => {
                // All at once, whatever the limits say.
                let rows = [&step.running, &step.waiting];
                plan = Plan { wake: Micros::ZERO, ..Plan::default() };
                for rows in rows {
                    for at in 0..rows.len() {
                        let all = rows.prompt_tokens[at] + rows.generated_tokens[at];
                        plan.run.push(SequenceId(rows.id[at]));
                        plan.tokens.push(all - rows.computed_tokens[at]);
                    }
                }
            }
            _ => {
                plan.run.extend((0..500).map(|n| SequenceId(n << 32)));
                plan.tokens.extend((0..500).map(|_| 1));
            }
        }
        Ok(plan)
    }
}

fn check(step: &StepView) {
    let memory = step.memory;
    assert!(memory.free_blocks + memory.cached_blocks <= memory.total_blocks, "{memory:?}");
    assert!(step.running.len() as u32 <= step.limits.max_running, "more run than may");
    // Two runs of ids, each in order: the preempted ones and the others.
    let turns = step.waiting.id.windows(2).filter(|pair| pair[0] >= pair[1]).count();
    assert!(turns <= 1, "the queue is in no order: {:?}", step.waiting.id);
    for rows in [&step.running, &step.waiting] {
        for at in 0..rows.len() {
            let all = rows.prompt_tokens[at] + rows.generated_tokens[at];
            assert!(
                rows.computed_tokens[at] <= all,
                "sequence {} has more computed than there is",
                rows.id[at]
            );
            assert!(
                rows.generated_tokens[at] < rows.max_new_tokens[at],
                "sequence {} has ended",
                rows.id[at]
            );
            assert!(rows.freeable_blocks[at] <= rows.blocks[at], "sequence {} frees too much", rows.id[at]);
            let held = rows.blocks[at] * memory.block_size;
            assert!(rows.blocks[at] == 0 || held >= rows.computed_tokens[at], "sequence {}", rows.id[at]);
        }
    }
    let used: u32 = memory.total_blocks - memory.free_blocks - memory.cached_blocks;
    for (&idle, &found) in step.waiting.idle_blocks.iter().zip(&step.waiting.computed_tokens) {
        let (found, in_all) = (found / memory.block_size, memory.cached_blocks);
        assert!(idle <= found && idle <= in_all, "{idle} of {found} blocks found are idle, {in_all} of all");
    }
    let sole: u32 = step.running.freeable_blocks.iter().sum();
    assert!(sole <= used, "{sole} blocks have one holder, {used} have any");
}
