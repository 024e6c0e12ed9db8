//! First come, first served: running sequences continue in the order in which they started, then waiting ones
//! start in order of arrival, as far as limits and memory allow.
//!
//! If memory is short for the running ones, the latest to start is preempted.

use std::sync::Arc;

use crate::ids::{Micros, SequenceId};
use crate::policy::{Plan, Policy, PolicyFault, PolicyInfo, SchedulerPolicy, StepView};

/// The built-in scheduler.
pub struct FirstComeFirstServed {
    info: Arc<PolicyInfo>,
}

impl Default for FirstComeFirstServed {
    fn default() -> Self {
        Self {
            info: super::info("builtin-fcfs", "First come, first served. Stands in when a scheduler fails."),
        }
    }
}

impl Policy for FirstComeFirstServed {
    fn info(&self) -> Arc<PolicyInfo> {
        self.info.clone()
    }
}

/// What is left of a step's limits.
struct Budget {
    tokens: u32,
    prefills: u32,
    prefill_tokens: u32,
    blocks: u32,
}

impl Budget {
    /// How many of `remaining` tokens may be computed now.
    fn grant(&self, step: &StepView, remaining: u32, prefill: bool) -> u32 {
        if !prefill {
            return remaining.min(self.tokens);
        }
        if self.prefills == 0 {
            return 0;
        }
        remaining.min(step.limits.prefill_chunk).min(self.prefill_tokens).min(self.tokens)
    }

    fn spend(&mut self, tokens: u32, prefill: bool, blocks: u32) {
        self.tokens -= tokens;
        self.blocks -= blocks;
        if prefill {
            self.prefills -= 1;
            self.prefill_tokens -= tokens;
        }
    }
}

impl SchedulerPolicy for FirstComeFirstServed {
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        let mut budget = Budget {
            tokens: step.limits.max_batch_tokens,
            prefills: step.limits.max_prefill_sequences,
            prefill_tokens: step.limits.max_prefill_tokens,
            blocks: step.memory.free_blocks + step.memory.cached_blocks,
        };
        let mut plan = Plan { wake: Micros::NEVER, ..Plan::default() };
        plan.run.reserve(step.running.len());
        plan.tokens.reserve(step.running.len());
        let staying = run(step, &mut budget, &mut plan);
        if plan.preempt.is_empty() {
            start(step, &mut budget, &mut plan, staying);
        }
        Ok(plan)
    }
}

/// Plans the running sequences; preempts from the end if blocks are missing. Returns how many stay.
fn run(step: &StepView, budget: &mut Budget, plan: &mut Plan) -> usize {
    let rows = &step.running;
    let mut staying = rows.len();
    let mut at = 0;
    while at < staying {
        let held = rows.blocks[at];
        let computed = rows.computed_tokens[at];
        let remaining = rows.prompt_tokens[at] + rows.generated_tokens[at] - computed;
        let prefill = remaining > 1 || rows.generated_tokens[at] == 0;
        let tokens = budget.grant(step, remaining, prefill);
        let need = (computed + tokens).div_ceil(step.memory.block_size).saturating_sub(held);
        while need > budget.blocks && staying > at + 1 {
            staying -= 1;
            budget.blocks += rows.freeable_blocks[staying];
            plan.preempt.push(SequenceId(rows.id[staying]));
        }
        if tokens > 0 && need <= budget.blocks {
            budget.spend(tokens, prefill, need);
            plan.run.push(SequenceId(rows.id[at]));
            plan.tokens.push(tokens);
        }
        at += 1;
    }
    staying
}

/// Starts waiting sequences, in order, until one doesn't fit.
fn start(step: &StepView, budget: &mut Budget, plan: &mut Plan, running: usize) {
    let rows = &step.waiting;
    // Every running sequence must get a token in each step.
    let most = step.limits.max_running.min(step.limits.max_batch_tokens) as usize;
    let places = most.saturating_sub(running);
    for at in 0..rows.len().min(places) {
        let computed = rows.computed_tokens[at];
        let remaining = rows.prompt_tokens[at] + rows.generated_tokens[at] - computed;
        let prefill = remaining > 0;
        let tokens = if prefill { budget.grant(step, remaining, true) } else { 0 };
        let size = step.memory.block_size;
        // The whole input must fit, or it would be preempted again at once.
        let all = (computed + remaining).div_ceil(size) - computed / size + rows.idle_blocks[at];
        if (prefill && tokens == 0) || all > budget.blocks {
            break;
        }
        let now = (computed + tokens).div_ceil(size) - computed / size + rows.idle_blocks[at];
        budget.spend(tokens, prefill, now);
        plan.run.push(SequenceId(rows.id[at]));
        plan.tokens.push(tokens);
    }
}
