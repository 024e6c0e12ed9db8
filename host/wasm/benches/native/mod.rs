//! The policy `continuous` linked natively, behind the engine's trait: the baseline for Wasm.

use std::sync::Arc;

use infer_core::ids::{Micros, SequenceId};
use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, Load, Plan, Policy, PolicyFault, PolicyInfo, Pressure,
    SchedulerPolicy, SequenceColumns, StepView, Verdict,
};
use infer_policy_sdk as sdk;
use infer_policy_sdk::{Policy as _, Scheduler as _};
use policy_continuous::{Config, Continuous};

/// Copies the columns into the SDK's view, as the Wasm boundary does.
pub struct Native(Continuous);

impl Native {
    pub fn continuous() -> Self {
        Self(Continuous::new(Config::default()).expect("the defaults are good"))
    }
}

impl Policy for Native {
    fn info(&self) -> Arc<PolicyInfo> {
        Arc::new(PolicyInfo { name: "native".into(), ..PolicyInfo::default() })
    }
}

impl SchedulerPolicy for Native {
    fn schedule(&mut self, view: &StepView) -> Result<Plan, PolicyFault> {
        let plan = self.0.schedule(&step(view));
        Ok(Plan {
            run: plan.run.into_iter().map(|id| SequenceId(id.0)).collect(),
            tokens: plan.tokens,
            preempt: plan.preempt.into_iter().map(|id| SequenceId(id.0)).collect(),
            wake: Micros(plan.wake.0),
        })
    }
}

fn step(view: &StepView) -> sdk::Step {
    sdk::Step {
        now: sdk::Micros(view.now.0),
        number: view.number,
        last_step: sdk::Micros(view.last_step.0),
        last_prefill_tokens: view.last_prefill_tokens,
        last_decodes: view.last_decodes,
        idle_since: sdk::Micros(view.idle_since.0),
        starvation_bound: sdk::Micros(view.starvation_bound.0),
        limits: sdk::Limits {
            max_batch_tokens: view.limits.max_batch_tokens,
            max_running: view.limits.max_running,
            prefill_chunk: view.limits.prefill_chunk,
            max_prefill_sequences: view.limits.max_prefill_sequences,
            max_prefill_tokens: view.limits.max_prefill_tokens,
        },
        memory: sdk::Memory {
            block_size: view.memory.block_size,
            total_blocks: view.memory.total_blocks,
            free_blocks: view.memory.free_blocks,
            cached_blocks: view.memory.cached_blocks,
        },
        running: sequences(&view.running),
        waiting: sequences(&view.waiting),
        tenants: sdk::Tenants {
            id: view.tenants.id.clone(),
            weight_permille: view.tenants.weight_permille.clone(),
            running: view.tenants.running.clone(),
            waiting: view.tenants.waiting.clone(),
            prompt_tokens_served: view.tenants.prompt_tokens_served.clone(),
            output_tokens_served: view.tenants.output_tokens_served.clone(),
        },
    }
}

fn sequences(columns: &SequenceColumns) -> sdk::Sequences {
    sdk::Sequences {
        id: columns.id.clone(),
        tenant: columns.tenant.clone(),
        session: columns.session.clone(),
        priority: columns.priority.clone(),
        arrived: columns.arrived.clone(),
        deadline: columns.deadline.clone(),
        prompt_tokens: columns.prompt_tokens.clone(),
        computed_tokens: columns.computed_tokens.clone(),
        pending_tokens: columns.pending_tokens.clone(),
        idle_blocks: columns.idle_blocks.clone(),
        generated_tokens: columns.generated_tokens.clone(),
        max_new_tokens: columns.max_new_tokens.clone(),
        expected_tokens: columns.expected_tokens.clone(),
        blocks: columns.blocks.clone(),
        freeable_blocks: columns.freeable_blocks.clone(),
        preemptions: columns.preemptions.clone(),
    }
}

/// Keeps admission out of the measurement.
pub struct AdmitAll;

impl Policy for AdmitAll {
    fn info(&self) -> Arc<PolicyInfo> {
        Arc::new(PolicyInfo { name: "admit-all".into(), ..PolicyInfo::default() })
    }
}

impl AdmissionPolicy for AdmitAll {
    fn admit(&mut self, _request: &AdmissionRequest, _load: &Load) -> Result<Verdict, PolicyFault> {
        Ok(Verdict::Admit)
    }

    fn measure(&mut self, _load: &Load) -> Result<Pressure, PolicyFault> {
        Ok(Pressure::default())
    }
}
