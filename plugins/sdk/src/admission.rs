//! Admission policies: which requests are admitted.

use crate::types::{Memory, Micros, SequenceId, SessionId, TenantId};
use crate::{Policy, tokens_in};

/// Decides whether the host admits a request. Called when it arrives and, while it is held, again whenever
/// memory or load has changed: for the first held request, and for the next that it doesn't hold. A client
/// request of several sequences is asked about as a whole first, see `wit/admission.wit`.
pub trait Admission: Policy {
    /// Decides about one request.
    fn admit(&mut self, request: &Request, load: &Load) -> Verdict;

    /// What consoles, metrics and load balancers read.
    fn measure(&mut self, load: &Load) -> Pressure;
}

/// A request to decide about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Its sequence, or the first of them.
    pub id: SequenceId,
    /// The tenant that pays.
    pub tenant: TenantId,
    /// The conversation it continues.
    pub session: SessionId,
    /// Larger is more urgent.
    pub priority: i32,
    /// When it arrived.
    pub arrived: Micros,
    /// When the first token is due; `NEVER` if nothing was promised.
    pub deadline: Micros,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Leading prompt tokens that the pool holds now.
    pub cached_tokens: u32,
    /// Blocks behind `cached_tokens` that no sequence uses now, so that they count in `memory.cached_blocks`;
    /// starting the request takes these as well.
    pub idle_blocks: u32,
    /// Upper bound of what it generates.
    pub max_new_tokens: u32,
    /// Expected output length; at most `max_new_tokens`.
    pub expected_tokens: u32,
}

/// The host's load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Now.
    pub now: Micros,
    /// The pool.
    pub memory: Memory,
    /// Sequences that may run at once.
    pub max_running: u32,
    /// Sequences that run.
    pub running: u32,
    /// Sequences that were admitted and have yet to start, without preempted ones.
    pub admitted: u32,
    /// Preempted sequences, which wait to resume.
    pub preempted: u32,
    /// Requests that may wait.
    pub max_waiting: u32,
    /// Requests in the queue, without preempted sequences. Includes the request that the call is about if it
    /// is already in the queue.
    pub waiting: u32,
    /// Prompt and output tokens that the waiting requests may still need.
    pub waiting_tokens: u64,
    /// Their prompts alone.
    pub waiting_prompt_tokens: u64,
    /// Tokens that sequences which have started must still compute before they generate: the rest of their
    /// prompts and, after a preemption, of their output so far.
    pub started_prompt_tokens: u64,
    /// Output tokens that they and the running ones are still expected to generate.
    pub expected_output_tokens: u64,
    /// Prompt tokens per second in steps full of them, from what the last seconds' steps took; 0 until known.
    pub prefill_tokens_per_second: u32,
    /// Measured over the last seconds, while the device was busy; 0 until known.
    pub output_tokens_per_second: u32,
    /// Blocks that admitted sequences, running or about to start, may still allocate at their longest.
    pub promised_blocks: u32,
    /// The most blocks that they will hold at once beyond those that they hold, if each of them ends at its expected
    /// length; at most `promised_blocks`.
    pub expected_blocks: u32,
    /// Of this request's tenant: sequences that run.
    pub tenant_running: u32,
    /// Of this request's tenant: requests that wait, preempted sequences included.
    pub tenant_waiting: u32,
    /// Of this request's tenant: sequences that run, or will without another call.
    pub tenant_in_flight: u32,
    /// The tenant's weight.
    pub tenant_weight_permille: u32,
    /// Prompt and output tokens; 0 if the tenant has no limit.
    pub tenant_rate_per_minute: u32,
    /// Tokens that may be taken at once.
    pub tenant_burst: u32,
    /// Prompt tokens that the tenant was served.
    pub tenant_prompt_tokens_served: u64,
    /// Output tokens that the tenant was served.
    pub tenant_output_tokens_served: u64,
}

/// The decision about one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The scheduler may start it from now on.
    Admit,
    /// It is held: it stays in the queue, and the scheduler doesn't see it. Held are all requests behind it,
    /// too: for want of something that all of them need, such as memory.
    Wait,
    /// It is held, and so are its tenant's requests behind it: for want of something that is the tenant's own,
    /// such as a share. Other tenants' requests pass. The host doesn't interfere while anything runs.
    WaitTenant,
    /// It is refused.
    Refuse(Refusal),
}

/// Why a request is turned away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For machines.
    pub reason: Reason,
    /// Shown to the client, at most 256 bytes: what is wrong, what is needed, what there is.
    pub message: String,
    /// Becomes `Retry-After`; 0 if retrying can't help.
    pub retry_after_ms: u32,
}

/// Machine-readable reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The queue is at its bound.
    QueueFull,
    /// It can never fit, or memory is short.
    Memory,
    /// The tenant's rate.
    Rate,
    /// Longer than a limit.
    TooLong,
    /// The policy sheds load.
    Backpressure,
    /// The policy's own reason.
    Other,
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

impl Pressure {
    /// The pool's own pressure: used blocks are those that can't be allocated, nothing is reserved, and
    /// clients should slow down once the queue is full. For policies that don't manage memory.
    pub fn of_pool(load: &Load) -> Self {
        let available = load.memory.allocatable_blocks().min(load.memory.total_blocks);
        let total = u64::from(load.memory.total_blocks.max(1));
        let used = u64::from(load.memory.total_blocks - available) * 1_000;
        Self {
            level_permille: u32::try_from(used.div_ceil(total)).unwrap_or(1_000),
            backpressure: load.waiting >= load.max_waiting,
            reserved_blocks: 0,
            available_blocks: available,
            max_sequence_tokens: tokens_in(available, load.memory.block_size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_of_the_pool_follows_from_its_blocks() {
        let cases = [
            // free, cached, waiting; level, backpressure, available
            (100, 0, 0, 0, false, 100),
            (10, 20, 9, 700, false, 30),
            (0, 0, 10, 1_000, true, 0),
            (u32::MAX, u32::MAX, 0, 0, false, 100),
        ];
        for (free_blocks, cached_blocks, waiting, level, backpressure, available) in cases {
            let memory = Memory { block_size: 16, total_blocks: 100, free_blocks, cached_blocks };
            let pressure = Pressure::of_pool(&Load { memory, waiting, max_waiting: 10, ..Load::default() });
            let expected = Pressure {
                level_permille: level,
                backpressure,
                reserved_blocks: 0,
                available_blocks: available,
                max_sequence_tokens: available * 16,
            };
            assert_eq!(pressure, expected, "{free_blocks} free, {cached_blocks} cached, {waiting} waiting");
        }
    }
}
