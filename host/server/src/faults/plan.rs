//! Whether a plan keeps the interface's rules, as far as the view shows them.
//!
//! The engine's own check stands on the sequences themselves; a file has only their columns.

use std::collections::HashSet;

use infer_core::policy::{FaultKind, Plan, PolicyFault, SequenceColumns, StepView};

/// What the engine would say to a plan.
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
        return invalid(format!("sequence {} is to be preempted, but does not run", id.0));
    }
    let limits = &step.limits;
    let (mut tokens, mut prefill_tokens, mut prefills, mut starts) = (0u64, 0u64, 0u32, 0u32);
    for (id, &grant) in plan.run.iter().zip(&plan.tokens) {
        let (rows, at, waits) = match (place(&step.running, id.0), place(&step.waiting, id.0)) {
            (Some(at), _) => (&step.running, at, false),
            (None, Some(at)) => (&step.waiting, at, true),
            (None, None) => return invalid(format!("no sequence {} is shown", id.0)),
        };
        let cell = |column: &[u32]| column.get(at).copied().unwrap_or(0);
        let generated = cell(&rows.generated_tokens);
        let all = cell(&rows.prompt_tokens).saturating_add(generated);
        let remaining = all.saturating_sub(cell(&rows.computed_tokens));
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
