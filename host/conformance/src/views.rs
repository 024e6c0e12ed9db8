//! Steps made up for checks, as the engine would show them: made by the SDK, which knows the rules, so an
//! author's own tests and this check can't disagree.

use infer_core::policy::{Memory, Plan, SequenceColumns, StepView, TenantColumns};
use infer_core::{Limits, Micros};
use infer_policy_sdk as sdk;
use infer_policy_sdk::testing::Rng;

/// A step that a host could show, with everything in it that a policy may look at.
pub(crate) fn consistent(rng: &mut Rng) -> sdk::Step {
    let mut step = sdk::testing::random_step(rng);
    step.starvation_bound = sdk::Micros::from_millis(5_000);
    let now = step.now.0;
    for rows in [&mut step.running, &mut step.waiting] {
        for row in 0..rows.len() {
            rows.tenant[row] = rng.between(0, 3);
            rows.session[row] = u64::from(rng.between(0, 5));
            rows.priority[row] = if rng.one_in(3) { 1 } else { 0 };
            rows.deadline[row] =
                if rng.one_in(4) { now + u64::from(rng.between(0, 500_000)) } else { u64::MAX };
            let most = rows.max_new_tokens[row].max(rows.generated_tokens[row] + 1);
            rows.max_new_tokens[row] = most;
            rows.expected_tokens[row] = rng.between(rows.generated_tokens[row] + 1, most);
        }
    }
    let count = |rows: &sdk::Sequences, id| rows.tenant.iter().filter(|tenant| **tenant == id).count() as u32;
    for id in 0..4 {
        let (running, waiting) = (count(&step.running, id), count(&step.waiting, id));
        step.tenants.push(sdk::Tenant {
            id: sdk::TenantId(id),
            weight_permille: 1_000 * (1 + id % 2),
            running,
            waiting,
            prompt_tokens_served: u64::from(rng.between(0, 100_000)),
            output_tokens_served: u64::from(rng.between(0, 100_000)),
        });
    }
    step
}

/// A full host: every running sequence generates, the queue is long. No row blocks another.
pub(crate) fn full_house(running: u32, waiting: u32) -> sdk::Step {
    let tokens = 520;
    let rows = |count: u32, first: u64, computed_tokens: u32, generated_tokens: u32| -> sdk::Sequences {
        (0..u64::from(count))
            .map(|row| sdk::Row {
                id: first + row,
                arrived: row,
                deadline: u64::MAX,
                prompt_tokens: tokens - 20,
                computed_tokens,
                generated_tokens,
                max_new_tokens: 256,
                expected_tokens: 100,
                blocks: computed_tokens.div_ceil(16),
                freeable_blocks: computed_tokens.div_ceil(16),
                ..sdk::Row::default()
            })
            .collect()
    };
    let used = running * tokens.div_ceil(16);
    let mut step = sdk::Step {
        now: sdk::Micros(1_000_000_000),
        number: 1_000,
        last_step: sdk::Micros(5_000),
        last_decodes: running,
        idle_since: sdk::Micros::NEVER,
        starvation_bound: sdk::Micros::from_millis(5_000),
        limits: sdk::Limits { max_batch_tokens: 8_192, max_running: running, ..sdk::testing::limits() },
        memory: sdk::Memory {
            block_size: 16,
            total_blocks: used + 20_000,
            free_blocks: 16_000,
            cached_blocks: 4_000,
        },
        running: rows(running, 1, tokens, 21),
        waiting: rows(waiting, 1 + u64::from(running), 0, 0),
        ..sdk::Step::default()
    };
    step.tenants.push(sdk::Tenant {
        id: sdk::TenantId(0),
        weight_permille: 1_000,
        running,
        waiting,
        prompt_tokens_served: 1_000_000,
        output_tokens_served: 1_000_000,
    });
    step
}

/// The SDK's plan, for its rules.
pub(crate) fn sdk_plan(plan: &Plan) -> sdk::Plan {
    let ids = |ids: &[infer_core::SequenceId]| ids.iter().map(|id| sdk::SequenceId(id.0)).collect();
    sdk::Plan {
        run: ids(&plan.run),
        tokens: plan.tokens.clone(),
        preempt: ids(&plan.preempt),
        wake: sdk::Micros(plan.wake.0),
    }
}

/// The step as the engine has it.
pub(crate) fn step_view(step: sdk::Step) -> StepView {
    StepView {
        now: Micros(step.now.0),
        number: step.number,
        last_step: Micros(step.last_step.0),
        last_prefill_tokens: step.last_prefill_tokens,
        last_decodes: step.last_decodes,
        idle_since: Micros(step.idle_since.0),
        starvation_bound: Micros(step.starvation_bound.0),
        limits: Limits {
            max_batch_tokens: step.limits.max_batch_tokens,
            max_running: step.limits.max_running,
            prefill_chunk: step.limits.prefill_chunk,
            max_prefill_sequences: step.limits.max_prefill_sequences,
            max_prefill_tokens: step.limits.max_prefill_tokens,
        },
        memory: Memory {
            block_size: step.memory.block_size,
            total_blocks: step.memory.total_blocks,
            free_blocks: step.memory.free_blocks,
            cached_blocks: step.memory.cached_blocks,
        },
        running: columns(step.running),
        waiting: columns(step.waiting),
        tenants: TenantColumns {
            id: step.tenants.id,
            weight_permille: step.tenants.weight_permille,
            running: step.tenants.running,
            waiting: step.tenants.waiting,
            prompt_tokens_served: step.tenants.prompt_tokens_served,
            output_tokens_served: step.tenants.output_tokens_served,
        },
    }
}

fn columns(rows: sdk::Sequences) -> SequenceColumns {
    SequenceColumns {
        id: rows.id,
        tenant: rows.tenant,
        session: rows.session,
        priority: rows.priority,
        arrived: rows.arrived,
        deadline: rows.deadline,
        prompt_tokens: rows.prompt_tokens,
        computed_tokens: rows.computed_tokens,
        pending_tokens: rows.pending_tokens,
        idle_blocks: rows.idle_blocks,
        generated_tokens: rows.generated_tokens,
        max_new_tokens: rows.max_new_tokens,
        expected_tokens: rows.expected_tokens,
        blocks: rows.blocks,
        freeable_blocks: rows.freeable_blocks,
        preemptions: rows.preemptions,
    }
}
