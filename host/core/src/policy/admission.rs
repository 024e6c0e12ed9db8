//! The admission policy's types.

use crate::ids::{Micros, SequenceId, SessionId, TenantId};
use crate::policy::{Memory, Policy, PolicyFault};
use crate::request::Refusal;

/// Decides whether the host admits a request. See `wit/admission.wit` for when it is called.
pub trait AdmissionPolicy: Policy {
    /// Decides about one request.
    fn admit(&mut self, request: &AdmissionRequest, load: &Load) -> Result<Verdict, PolicyFault>;

    /// What consoles, metrics and load balancers read.
    fn measure(&mut self, load: &Load) -> Result<Pressure, PolicyFault>;
}

/// A request as admission sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the WIT documents each field")]
pub struct AdmissionRequest {
    pub id: SequenceId,
    pub tenant: TenantId,
    pub session: SessionId,
    pub priority: i32,
    pub arrived: Micros,
    pub deadline: Micros,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub idle_blocks: u32,
    pub max_new_tokens: u32,
    pub expected_tokens: u32,
}

/// The host's load as admission sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the WIT documents each field")]
pub struct Load {
    pub now: Micros,
    pub memory: Memory,
    pub max_running: u32,
    pub running: u32,
    pub admitted: u32,
    pub preempted: u32,
    pub max_waiting: u32,
    pub waiting: u32,
    pub waiting_tokens: u64,
    pub waiting_prompt_tokens: u64,
    pub started_prompt_tokens: u64,
    pub expected_output_tokens: u64,
    pub prefill_tokens_per_second: u32,
    pub output_tokens_per_second: u32,
    pub promised_blocks: u32,
    pub expected_blocks: u32,
    pub tenant_running: u32,
    pub tenant_waiting: u32,
    pub tenant_in_flight: u32,
    pub tenant_weight_permille: u32,
    pub tenant_rate_per_minute: u32,
    pub tenant_burst: u32,
    pub tenant_prompt_tokens_served: u64,
    pub tenant_output_tokens_served: u64,
}

/// The decision about one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The scheduler may start it from now on.
    Admit,
    /// It is held: it stays in the queue, and the scheduler doesn't see it. So do all requests behind it.
    Wait,
    /// It is held, and so are its tenant's requests behind it. Those of others pass. No watchdog ends this while anything
    /// runs.
    WaitTenant,
    /// It is refused.
    Refuse(Refusal),
}

/// Memory pressure and what follows from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// 0 (idle) to 1000 (nothing more fits).
    pub level_permille: u32,
    /// Whether more requests would only wait. Operators and load balancers see it; clients aren't told.
    pub backpressure: bool,
    /// Blocks kept back.
    pub reserved_blocks: u32,
    /// Blocks that new requests may use.
    pub available_blocks: u32,
    /// Longest prompt plus output that would be admitted now.
    pub max_sequence_tokens: u32,
}
