//! Conversions between the engine's types and the SDK's, which mirror the same interface.

use infer_core::config::Limits;
use infer_core::ids::Micros;
use infer_core::policy::{
    AdmissionRequest, CacheEvents, Ended, Hit, Load, Memory, SequenceColumns, StepView, TenantColumns,
    Verdict,
};
use infer_core::request::{Refusal, RefusalReason};
use infer_policy_sdk as sdk;

/// Converts columns from one side to the other; the names are the same.
macro_rules! columns {
    ($from:expr, $to:ident: $($column:ident)*) => { $to { $($column: $from.$column.clone(),)* } };
}

macro_rules! sequences {
    ($from:expr, $to:ident) => {
        columns!($from, $to: id tenant session priority arrived deadline prompt_tokens computed_tokens
            pending_tokens idle_blocks generated_tokens max_new_tokens
            expected_tokens blocks freeable_blocks preemptions)
    };
}

macro_rules! tenants {
    ($from:expr, $to:ident) => {
        columns!($from, $to: id weight_permille running waiting prompt_tokens_served output_tokens_served)
    };
}

macro_rules! numbers {
    ($from:expr, $to:ident: $($field:ident)*) => { $to { $($field: $from.$field,)* } };
}

macro_rules! limits {
    ($from:expr, $to:ident) => {
        numbers!($from, $to: max_batch_tokens max_running prefill_chunk max_prefill_sequences max_prefill_tokens)
    };
}

macro_rules! memory {
    ($from:expr, $to:ident) => { numbers!($from, $to: block_size total_blocks free_blocks cached_blocks) };
}

/// A view of the engine as a policy sees it.
pub fn to_step(view: &StepView) -> sdk::Step {
    use sdk::{Limits, Memory, Sequences, Tenants};
    sdk::Step {
        now: sdk::Micros(view.now.0),
        number: view.number,
        last_step: sdk::Micros(view.last_step.0),
        last_prefill_tokens: view.last_prefill_tokens,
        last_decodes: view.last_decodes,
        idle_since: sdk::Micros(view.idle_since.0),
        starvation_bound: sdk::Micros(view.starvation_bound.0),
        limits: limits!(view.limits, Limits),
        memory: memory!(view.memory, Memory),
        running: sequences!(view.running, Sequences),
        waiting: sequences!(view.waiting, Sequences),
        tenants: tenants!(view.tenants, Tenants),
    }
}

/// The engine's view for an SDK step that a test made.
pub fn step_view(step: &sdk::Step) -> StepView {
    StepView {
        now: Micros(step.now.0),
        number: step.number,
        last_step: Micros(step.last_step.0),
        last_prefill_tokens: step.last_prefill_tokens,
        last_decodes: step.last_decodes,
        idle_since: Micros(step.idle_since.0),
        starvation_bound: Micros(step.starvation_bound.0),
        limits: limits!(step.limits, Limits),
        memory: memory!(step.memory, Memory),
        running: sequences!(step.running, SequenceColumns),
        waiting: sequences!(step.waiting, SequenceColumns),
        tenants: tenants!(step.tenants, TenantColumns),
    }
}

pub(crate) fn request(request: &AdmissionRequest) -> sdk::Request {
    sdk::Request {
        id: sdk::SequenceId(request.id.0),
        tenant: sdk::TenantId(request.tenant.0),
        session: sdk::SessionId(request.session.0),
        priority: request.priority,
        arrived: sdk::Micros(request.arrived.0),
        deadline: sdk::Micros(request.deadline.0),
        prompt_tokens: request.prompt_tokens,
        cached_tokens: request.cached_tokens,
        idle_blocks: request.idle_blocks,
        max_new_tokens: request.max_new_tokens,
        expected_tokens: request.expected_tokens,
    }
}

pub(crate) fn load(load: &Load) -> sdk::Load {
    use sdk::{Load as To, Memory};
    To {
        now: sdk::Micros(load.now.0),
        memory: memory!(load.memory, Memory),
        max_running: load.max_running,
        running: load.running,
        admitted: load.admitted,
        preempted: load.preempted,
        max_waiting: load.max_waiting,
        waiting: load.waiting,
        waiting_tokens: load.waiting_tokens,
        waiting_prompt_tokens: load.waiting_prompt_tokens,
        started_prompt_tokens: load.started_prompt_tokens,
        expected_output_tokens: load.expected_output_tokens,
        prefill_tokens_per_second: load.prefill_tokens_per_second,
        output_tokens_per_second: load.output_tokens_per_second,
        promised_blocks: load.promised_blocks,
        expected_blocks: load.expected_blocks,
        tenant_running: load.tenant_running,
        tenant_waiting: load.tenant_waiting,
        tenant_in_flight: load.tenant_in_flight,
        tenant_weight_permille: load.tenant_weight_permille,
        tenant_rate_per_minute: load.tenant_rate_per_minute,
        tenant_burst: load.tenant_burst,
        tenant_prompt_tokens_served: load.tenant_prompt_tokens_served,
        tenant_output_tokens_served: load.tenant_output_tokens_served,
    }
}

pub(crate) fn verdict(verdict: sdk::Verdict) -> Verdict {
    let refusal = match verdict {
        sdk::Verdict::Admit => return Verdict::Admit,
        sdk::Verdict::Wait => return Verdict::Wait,
        sdk::Verdict::WaitTenant => return Verdict::WaitTenant,
        sdk::Verdict::Refuse(refusal) => refusal,
    };
    let reason = match refusal.reason {
        sdk::Reason::QueueFull => RefusalReason::QueueFull,
        sdk::Reason::Memory => RefusalReason::Memory,
        sdk::Reason::Rate => RefusalReason::Rate,
        sdk::Reason::TooLong => RefusalReason::TooLong,
        sdk::Reason::Backpressure => RefusalReason::Backpressure,
        sdk::Reason::Other => RefusalReason::Other,
    };
    Verdict::Refuse(Refusal { reason, message: refusal.message, retry_after_ms: refusal.retry_after_ms })
}

pub(crate) fn hit(hit: &Hit) -> sdk::Hit {
    sdk::Hit {
        now: sdk::Micros(hit.now.0),
        id: sdk::SequenceId(hit.id.0),
        tenant: sdk::TenantId(hit.tenant.0),
        session: sdk::SessionId(hit.session.0),
        prompt_tokens: hit.prompt_tokens,
        cached_tokens: hit.cached_tokens,
        same_session: hit.same_session,
    }
}

pub(crate) fn ended(ended: &Ended) -> sdk::Ended {
    use sdk::Memory;
    sdk::Ended {
        now: sdk::Micros(ended.now.0),
        id: sdk::SequenceId(ended.id.0),
        tenant: sdk::TenantId(ended.tenant.0),
        session: sdk::SessionId(ended.session.0),
        prompt_tokens: ended.prompt_tokens,
        generated_tokens: ended.generated_tokens,
        reused_tokens: ended.reused_tokens,
        memory: memory!(ended.memory, Memory),
    }
}

pub(crate) fn events(events: &CacheEvents) -> sdk::Events {
    use sdk::Memory;
    sdk::Events {
        memory: memory!(events.memory, Memory),
        at: events.at.clone(),
        kind: events.kind.clone(),
        block: events.block.clone(),
        parent: events.parent.clone(),
        depth: events.depth.clone(),
        tenant: events.tenant.clone(),
        session: events.session.clone(),
    }
}
