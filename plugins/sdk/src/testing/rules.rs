//! The rules of the scheduler interface, as the host checks them.

use std::collections::BTreeSet;

use crate::{Plan, Sequence, Step, blocks_to_run, blocks_to_start};

/// Returns the rule that a plan breaks.
pub fn check_plan(step: &Step, plan: &Plan) -> Result<(), String> {
    if plan.run.len() != plan.tokens.len() {
        return Err(format!("{} ids and {} token counts", plan.run.len(), plan.tokens.len()));
    }
    let mut seen = BTreeSet::new();
    for id in plan.run.iter().chain(&plan.preempt) {
        if !seen.insert(*id) {
            return Err(format!("{id:?} is named twice"));
        }
    }
    for id in &plan.preempt {
        if find(step, id.0).is_none_or(|(_, running)| !running) {
            return Err(format!("{id:?} is preempted but doesn't run"));
        }
    }
    let limits = step.limits;
    let (mut batch, mut prefill, mut prefills, mut starts) = (0u64, 0u64, 0u64, 0u64);
    for (id, &tokens) in plan.run.iter().zip(&plan.tokens) {
        let Some((sequence, running)) = find(step, id.0) else {
            return Err(format!("{id:?} is unknown"));
        };
        if tokens > sequence.remaining_tokens() || (tokens == 0 && sequence.remaining_tokens() > 0) {
            return Err(format!("{id:?} gets {tokens} of {} tokens", sequence.remaining_tokens()));
        }
        batch += u64::from(tokens);
        starts += u64::from(!running);
        if tokens > 0 && !(running && sequence.is_decoding()) {
            prefill += u64::from(tokens);
            prefills += 1;
            if tokens > limits.prefill_chunk {
                return Err(format!("{id:?} gets a chunk of {tokens} tokens"));
            }
        }
    }
    let run = step.running.len() as u64 - plan.preempt.len() as u64 + starts;
    for (what, value, limit) in [
        ("tokens", batch, limits.max_batch_tokens),
        ("prompt tokens", prefill, limits.max_prefill_tokens),
        ("prompts", prefills, limits.max_prefill_sequences),
        ("running sequences", run, limits.max_running),
    ] {
        // More may run already than a host allows now; what counts is that none is added.
        let kept = what == "running sequences" && starts == 0;
        if value > u64::from(limit) && !kept {
            return Err(format!("{value} {what}, the limit is {limit}"));
        }
    }
    Ok(())
}

/// Returns whether the host would have to cut the plan because it doesn't fit in memory.
pub fn check_fit(step: &Step, plan: &Plan) -> Result<(), String> {
    let block_size = step.memory.block_size;
    let given: u64 = plan
        .preempt
        .iter()
        .filter_map(|id| find(step, id.0))
        .map(|(sequence, _)| u64::from(sequence.freeable_blocks()))
        .sum();
    let left = u64::from(step.memory.allocatable_blocks()) + given;
    let taken: u64 = plan
        .run
        .iter()
        .zip(&plan.tokens)
        .filter_map(|(id, &tokens)| {
            let (sequence, running) = find(step, id.0)?;
            let cost = if running { blocks_to_run } else { blocks_to_start };
            Some(u64::from(cost(sequence, tokens, block_size)))
        })
        .sum();
    if taken > left { Err(format!("the plan takes {taken} blocks, but {left} are left")) } else { Ok(()) }
}

fn find(step: &Step, id: u64) -> Option<(Sequence<'_>, bool)> {
    let row = |ids: &[u64]| ids.iter().position(|other| *other == id);
    if let Some(row) = row(&step.running.id) {
        return Some((step.running.get(row), true));
    }
    row(&step.waiting.id).map(|row| (step.waiting.get(row), false))
}
