//! `schedule`: the columns are lent to the bindings, which copy them once, into the guest.

use infer_core::config::Limits;
use infer_core::ids::{Micros, SequenceId};
use infer_core::policy::{Plan, PolicyFault, SchedulerPolicy, SequenceColumns, StepView, TenantColumns};

use crate::bindings::scheduler as world;
use crate::bindings::scheduler::exports::infer::policy::scheduler as wit;
use crate::instance::Instance;

impl SchedulerPolicy for Instance<world::SchedulerPolicy> {
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        let step = wit::Step {
            now: step.now.0,
            number: step.number,
            last_step: step.last_step.0,
            last_prefill_tokens: step.last_prefill_tokens,
            last_decodes: step.last_decodes,
            idle_since: step.idle_since.0,
            starvation_bound: step.starvation_bound.0,
            limits: limits(&step.limits),
            memory: super::memory(&step.memory),
            running: sequences(&step.running),
            waiting: sequences(&step.waiting),
            tenants: tenants(&step.tenants),
        };
        let plan = self.decide("schedule", |exports, store| {
            exports.infer_policy_scheduler().call_schedule(store, step)
        })?;
        Ok(Plan {
            run: plan.run.into_iter().map(SequenceId).collect(),
            tokens: plan.tokens,
            preempt: plan.preempt.into_iter().map(SequenceId).collect(),
            wake: Micros(plan.wake),
        })
    }
}

fn limits(limits: &Limits) -> wit::Limits {
    wit::Limits {
        max_batch_tokens: limits.max_batch_tokens,
        max_running: limits.max_running,
        prefill_chunk: limits.prefill_chunk,
        max_prefill_sequences: limits.max_prefill_sequences,
        max_prefill_tokens: limits.max_prefill_tokens,
    }
}

fn sequences(columns: &SequenceColumns) -> wit::Sequences<'_> {
    wit::Sequences {
        id: &columns.id,
        tenant: &columns.tenant,
        session: &columns.session,
        priority: &columns.priority,
        arrived: &columns.arrived,
        deadline: &columns.deadline,
        prompt_tokens: &columns.prompt_tokens,
        computed_tokens: &columns.computed_tokens,
        pending_tokens: &columns.pending_tokens,
        idle_blocks: &columns.idle_blocks,
        generated_tokens: &columns.generated_tokens,
        max_new_tokens: &columns.max_new_tokens,
        expected_tokens: &columns.expected_tokens,
        blocks: &columns.blocks,
        freeable_blocks: &columns.freeable_blocks,
        preemptions: &columns.preemptions,
    }
}

fn tenants(columns: &TenantColumns) -> wit::Tenants<'_> {
    wit::Tenants {
        id: &columns.id,
        weight_permille: &columns.weight_permille,
        running: &columns.running,
        waiting: &columns.waiting,
        prompt_tokens_served: &columns.prompt_tokens_served,
        output_tokens_served: &columns.output_tokens_served,
    }
}
