//! `admit` and `measure`: plain records in, a verdict or a measure out.

use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, FaultKind, Load, PolicyFault, Pressure, Verdict,
};
use infer_core::request::{Refusal, RefusalReason};

use crate::bindings::admission as world;
use crate::bindings::admission::exports::infer::policy::admission as wit;
use crate::instance::Instance;
use crate::text::clip;

/// What `wit/admission.wit` promises clients.
const MAX_REFUSAL_BYTES: usize = 256;
const FULL_PERMILLE: u32 = 1_000;

impl AdmissionPolicy for Instance<world::AdmissionPolicy> {
    fn admit(&mut self, request: &AdmissionRequest, load: &Load) -> Result<Verdict, PolicyFault> {
        let (request, load) = (wit_request(request), wit_load(load));
        let verdict = self.decide("admit", |exports, store| {
            exports.infer_policy_admission().call_admit(store, request, load)
        })?;
        Ok(match verdict {
            wit::Verdict::Admit => Verdict::Admit,
            wit::Verdict::Wait => Verdict::Wait,
            wit::Verdict::WaitTenant => Verdict::WaitTenant,
            wit::Verdict::Refuse(refusal) => Verdict::Refuse(Refusal {
                reason: reason(refusal.reason),
                message: clip(&refusal.message, MAX_REFUSAL_BYTES),
                retry_after_ms: refusal.retry_after_ms,
            }),
        })
    }

    fn measure(&mut self, load: &Load) -> Result<Pressure, PolicyFault> {
        let load = wit_load(load);
        let pressure = self
            .decide("measure", |exports, store| exports.infer_policy_admission().call_measure(store, load))?;
        if pressure.level_permille > FULL_PERMILLE {
            let message = format!("measure() answered {} permille of 1000", pressure.level_permille);
            return Err(PolicyFault::new(FaultKind::InvalidDecision, message));
        }
        Ok(Pressure {
            level_permille: pressure.level_permille,
            backpressure: pressure.backpressure,
            reserved_blocks: pressure.reserved_blocks,
            available_blocks: pressure.available_blocks,
            max_sequence_tokens: pressure.max_sequence_tokens,
        })
    }
}

fn reason(reason: wit::Reason) -> RefusalReason {
    match reason {
        wit::Reason::QueueFull => RefusalReason::QueueFull,
        wit::Reason::Memory => RefusalReason::Memory,
        wit::Reason::Rate => RefusalReason::Rate,
        wit::Reason::TooLong => RefusalReason::TooLong,
        wit::Reason::Backpressure => RefusalReason::Backpressure,
        wit::Reason::Other => RefusalReason::Other,
    }
}

fn wit_request(request: &AdmissionRequest) -> wit::Request {
    wit::Request {
        id: request.id.0,
        tenant: request.tenant.0,
        session: request.session.0,
        priority: request.priority,
        arrived: request.arrived.0,
        deadline: request.deadline.0,
        prompt_tokens: request.prompt_tokens,
        cached_tokens: request.cached_tokens,
        idle_blocks: request.idle_blocks,
        max_new_tokens: request.max_new_tokens,
        expected_tokens: request.expected_tokens,
    }
}

fn wit_load(load: &Load) -> wit::Load {
    wit::Load {
        now: load.now.0,
        memory: super::memory(&load.memory),
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
