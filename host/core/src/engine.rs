//! The engine: `submit`, `begin_step`, `finish_step`, `finish`, swaps and snapshots.

use crate::batch::Batch;
use crate::config::EngineConfig;
use crate::event::Event;
use crate::executor::{DeviceFault, StepOutput};
use crate::ids::{Micros, SequenceId};
use crate::policy::{
    AdmissionPolicy, AnyPolicy, CacheEvents, PolicyKind, PrefixCachePolicy, SchedulerPolicy,
};
use crate::request::{FinishReason, Refusal, Request};
use crate::snapshot::{BlockSnapshot, Snapshot};

/// The three policies an engine starts with.
pub struct Policies {
    /// Who runs next.
    pub scheduler: Box<dyn SchedulerPolicy>,
    /// Who is let in.
    pub admission: Box<dyn AdmissionPolicy>,
    /// Which prefix is kept.
    pub prefix_cache: Box<dyn PrefixCachePolicy>,
}

impl Policies {
    /// The native built-ins.
    pub fn builtin() -> Self {
        unimplemented!()
    }
}

/// What a swap did.
#[derive(Debug)]
pub struct SwapReport {
    /// Which slot.
    pub kind: PolicyKind,
    /// Name of the policy that left.
    pub from: String,
    /// Name of the policy in force.
    pub to: String,
    /// The step before which it took effect.
    pub at_step: u64,
    /// Whether the outgoing policy's state was taken over.
    pub restored: bool,
    /// A policy that nobody needs any more; drop it off the engine thread.
    pub retired: Option<AnyPolicy>,
}

/// The state machine. See the crate documentation.
pub struct Engine {}

impl Engine {
    /// An engine with nothing in it.
    pub fn new(_config: EngineConfig, _policies: Policies) -> Self {
        unimplemented!()
    }

    /// Takes a request or says why not.
    pub fn submit(&mut self, _request: Request, _now: Micros) -> Result<SequenceId, Refusal> {
        unimplemented!()
    }

    /// Plans the next step. `None` where nothing can run now; see `next_wake`.
    /// At most one batch is out at a time; `finish_step` takes it back.
    pub fn begin_step(&mut self, _now: Micros) -> Option<Batch> {
        unimplemented!()
    }

    /// Takes a batch back with its result.
    pub fn finish_step(&mut self, _batch: Batch, _result: Result<&StepOutput, DeviceFault>, _now: Micros) {
        unimplemented!()
    }

    /// Ends a sequence from outside (cancelled, or a stop string was seen). False if it is unknown.
    pub fn finish(&mut self, _id: SequenceId, _reason: FinishReason, _now: Micros) -> bool {
        unimplemented!()
    }

    /// Fails everything that waits (held, waiting, preempted). Returns how many.
    pub fn clear_queue(&mut self, _message: &str, _now: Micros) -> usize {
        unimplemented!()
    }

    /// From now on `submit` refuses with `Draining`.
    pub fn drain(&mut self) {
        unimplemented!()
    }

    /// Whether any sequence is alive.
    pub fn has_work(&self) -> bool {
        unimplemented!()
    }

    /// When to call `begin_step` again though nothing happens; `None` for never.
    pub fn next_wake(&self) -> Option<Micros> {
        unimplemented!()
    }

    /// Moves what happened since the last call to `out`, oldest first.
    pub fn drain_events(&mut self, _out: &mut Vec<Event>) {
        unimplemented!()
    }

    /// Every cached block, as a prefix-cache policy is told after a swap. Call it, let the new policy
    /// `observe` it off the engine thread, then `swap`: the engine tells it what happened in between.
    pub fn begin_priming(&mut self) -> CacheEvents {
        unimplemented!()
    }

    /// Puts a policy in force. Call it between steps.
    pub fn swap(&mut self, _policy: AnyPolicy, _now: Micros) -> SwapReport {
        unimplemented!()
    }

    /// Brings the previous policy of a slot back. `None` where there is none.
    pub fn rollback(&mut self, _kind: PolicyKind, _now: Micros) -> Option<SwapReport> {
        unimplemented!()
    }

    /// Everything consoles and metrics read.
    pub fn snapshot(&mut self, _now: Micros) -> Snapshot {
        unimplemented!()
    }

    /// Every block of the pool.
    pub fn blocks(&self) -> Vec<BlockSnapshot> {
        unimplemented!()
    }
}
