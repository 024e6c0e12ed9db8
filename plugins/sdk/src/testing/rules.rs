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
            return Err(format!("sequence {} is named twice", id.0));
        }
    }
    for id in &plan.preempt {
        if find(step, id.0).is_none_or(|(_, running)| !running) {
            return Err(format!("sequence {} is preempted but doesn't run", id.0));
        }
    }
    let limits = step.limits;
    let (mut batch, mut prefill, mut prefills, mut starts) = (0u64, 0u64, 0u64, 0u64);
    for (id, &tokens) in plan.run.iter().zip(&plan.tokens) {
        let Some((sequence, running)) = find(step, id.0) else {
            return Err(format!("sequence {} is unknown", id.0));
        };
        if tokens > sequence.remaining_tokens() || (tokens == 0 && sequence.remaining_tokens() > 0) {
            return Err(format!("sequence {} gets {tokens} of {} tokens", id.0, sequence.remaining_tokens()));
        }
        batch += u64::from(tokens);
        starts += u64::from(!running);
        if tokens > 0 && !(running && sequence.is_decoding()) {
            prefill += u64::from(tokens);
            prefills += 1;
            if tokens > limits.prefill_chunk {
                return Err(format!("sequence {} gets a chunk of {tokens} tokens", id.0));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Memory, Row, SequenceId};

    /// So a message of a test and one of a host can be found by the same words.
    #[test]
    fn sequences_are_named_as_a_host_names_them() {
        let row = Row { id: 7, prompt_tokens: 8, max_new_tokens: 4, ..Row::default() };
        let step = Step {
            limits: Limits {
                max_batch_tokens: 64,
                max_running: 4,
                prefill_chunk: 4,
                max_prefill_sequences: 4,
                max_prefill_tokens: 64,
            },
            memory: Memory { block_size: 16, total_blocks: 8, free_blocks: 8, cached_blocks: 0 },
            waiting: [row].into_iter().collect(),
            ..Step::default()
        };
        let plan = |run: &[u64], tokens: &[u32], preempt: &[u64]| Plan {
            run: run.iter().map(|id| SequenceId(*id)).collect(),
            tokens: tokens.to_vec(),
            preempt: preempt.iter().map(|id| SequenceId(*id)).collect(),
            ..Plan::default()
        };
        for (plan, rule) in [
            (plan(&[7, 7], &[1, 1], &[]), "sequence 7 is named twice"),
            (plan(&[], &[], &[7]), "sequence 7 is preempted but doesn't run"),
            (plan(&[9], &[1], &[]), "sequence 9 is unknown"),
            (plan(&[7], &[9], &[]), "sequence 7 gets 9 of 8 tokens"),
            (plan(&[7], &[5], &[]), "sequence 7 gets a chunk of 5 tokens"),
        ] {
            assert_eq!(check_plan(&step, &plan), Err(rule.to_owned()));
        }
        assert_eq!(check_plan(&step, &plan(&[7], &[4], &[])), Ok(()));
    }
}
