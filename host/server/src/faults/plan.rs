//! Checks a plan against the scheduler interface's rules, as the engine does.
//!
//! The engine checks the sequences themselves; a fault file has only their columns.

use std::collections::HashSet;

use infer_core::policy::{FaultKind, Plan, PolicyFault, SequenceColumns, StepView};

/// Returns the fault that the engine would find in a plan.
pub(super) fn check(step: &StepView, plan: &Plan) -> Result<(), PolicyFault> {
    let invalid = |message: String| Err(PolicyFault::new(FaultKind::InvalidDecision, message));
    if plan.run.len() != plan.tokens.len() {
        return invalid(format!("{} ids, but {} token counts", plan.run.len(), plan.tokens.len()));
    }
    let mut named = HashSet::new();
    if let Some(id) = plan.preempt.iter().chain(&plan.run).find(|id| !named.insert(**id)) {
        return invalid(format!("sequence {} is named twice", id.0));
    }
    let place = |rows: &SequenceColumns, id: u64| rows.id.iter().position(|&known| known == id);
    if let Some(id) = plan.preempt.iter().find(|id| place(&step.running, id.0).is_none()) {
        return invalid(format!("sequence {} is to be preempted, but is not running", id.0));
    }
    let limits = &step.limits;
    let (mut tokens, mut prefill_tokens, mut prefills, mut starts) = (0u64, 0u64, 0u32, 0u32);
    for (id, &grant) in plan.run.iter().zip(&plan.tokens) {
        let (rows, at, waits) = match (place(&step.running, id.0), place(&step.waiting, id.0)) {
            (Some(at), _) => (&step.running, at, false),
            (None, Some(at)) => (&step.waiting, at, true),
            (None, None) => return invalid(format!("sequence {} is not in the view", id.0)),
        };
        let cell = |column: &[u32]| column.get(at).copied().unwrap_or(0);
        let generated = cell(&rows.generated_tokens);
        let all = cell(&rows.prompt_tokens).saturating_add(generated);
        let remaining = all.saturating_sub(cell(&rows.computed_tokens));
        if !waits && remaining == 0 && generated.saturating_add(1) >= cell(&rows.max_new_tokens) {
            // Its last token is being sampled: the engine ignores what it is given.
            continue;
        }
        if grant > remaining || (grant == 0 && remaining > 0) {
            return invalid(format!("sequence {} is given {grant} tokens, but has {remaining} left", id.0));
        }
        tokens += u64::from(grant);
        starts += u32::from(waits);
        if grant > 0 && (remaining > 1 || generated == 0) {
            prefills += 1;
            prefill_tokens += u64::from(grant);
            if grant > limits.prefill_chunk {
                return invalid(format!("sequence {} is given a chunk of {grant} tokens", id.0));
            }
        }
    }
    let running = (step.running.len() + starts as usize).saturating_sub(plan.preempt.len());
    for (what, value, most) in [
        ("tokens", tokens, limits.max_batch_tokens),
        ("prompt tokens", prefill_tokens, limits.max_prefill_tokens),
        ("prompts", u64::from(prefills), limits.max_prefill_sequences),
        ("running sequences", running as u64, limits.max_running),
    ] {
        if value > u64::from(most) {
            return invalid(format!("the plan has {value} {what}, over {most}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use infer_core::policy::{Memory, TenantColumns};
    use infer_core::{Limits, Micros, SequenceId};

    use super::*;

    /// A running sequence with a prompt of 8 tokens.
    fn running(computed: u32, generated: u32, max_new: u32) -> StepView {
        let running = SequenceColumns {
            id: vec![1],
            prompt_tokens: vec![8],
            computed_tokens: vec![computed],
            generated_tokens: vec![generated],
            max_new_tokens: vec![max_new],
            ..SequenceColumns::default()
        };
        StepView {
            now: Micros(1),
            number: 1,
            last_step: Micros(0),
            last_prefill_tokens: 0,
            last_decodes: 0,
            idle_since: Micros::NEVER,
            starvation_bound: Micros(1),
            limits: Limits {
                max_batch_tokens: 64,
                max_running: 4,
                prefill_chunk: 64,
                max_prefill_sequences: 4,
                max_prefill_tokens: 64,
            },
            memory: Memory { block_size: 16, total_blocks: 8, free_blocks: 4, cached_blocks: 0 },
            running,
            waiting: SequenceColumns::default(),
            tenants: TenantColumns::default(),
        }
    }

    #[test]
    fn grants_are_judged_as_the_engine_judges_them() {
        for (what, view, tokens, passes) in [
            ("a decode", running(9, 2, 4), 1, true),
            ("more than a decode", running(9, 2, 4), 2, false),
            ("nothing for a decode", running(9, 2, 4), 0, false),
            ("one more while the last token is sampled", running(11, 3, 4), 1, true),
            ("nothing while the last token is sampled", running(11, 3, 4), 0, true),
            ("one more while the only token is sampled", running(8, 0, 1), 1, true),
            ("one more than there is", running(10, 2, 4), 1, false),
        ] {
            let plan = Plan { run: vec![SequenceId(1)], tokens: vec![tokens], ..Plan::default() };
            assert_eq!(check(&view, &plan).is_ok(), passes, "{what}");
        }
    }
}
