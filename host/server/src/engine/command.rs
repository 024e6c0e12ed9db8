//! Commands to the engine thread. It applies them between steps, in the order of arrival.

use std::time::Duration;

use infer_core::Engine;
use infer_core::engine::SwapReport;
use infer_core::kv_events::{KvBlock, KvEvent};
use infer_core::policy::{AnyPolicy, CacheEvents, PolicyKind};
use infer_core::snapshot::Snapshot;
use infer_core::{FinishReason, Micros, Refusal, Request, SequenceId, TenantId, TenantTerms};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::stream::StreamEvent;

/// A command.
pub enum Command {
    /// Submit requests that are taken all or none.
    Submit(Box<Submission>),
    /// End a request.
    Finish(SequenceId, FinishReason),
    /// Cancel a request for an operator; replies whether it was alive.
    Cancel(SequenceId, oneshot::Sender<bool>),
    /// Fail requests that are overdue, each with a message for its client.
    Expire(Vec<(SequenceId, String)>),
    /// Report the state.
    Report(oneshot::Sender<Box<EngineReport>>),
    /// Run a closure on the engine; it sends its own reply.
    Inspect(Look),
    /// Fail everything that waits; replies with the count.
    ClearQueue(String, oneshot::Sender<usize>),
    /// Replace the tenants' terms.
    Tenants(Vec<(TenantId, TenantTerms)>),
    /// Report changes of the pool's content index from now on.
    WatchKv(KvListener),
    /// Report the whole content index.
    KvSnapshot(oneshot::Sender<Vec<KvBlock>>),
    /// Refuse new requests from now on.
    Drain,
    /// Report what a new prefix-cache policy must be told, and keep what happens until it is swapped in.
    Prime(oneshot::Sender<CacheEvents>),
    /// Drop what `Prime` keeps: the policy does not come.
    EndPriming,
    /// Bring a policy into its slot.
    Swap(AnyPolicy, SwapMode, oneshot::Sender<Result<Swapped, OtherOnTrial>>),
    /// Promote the shadow to live, or accept the canary early.
    Promote(PolicyKind, oneshot::Sender<Option<Swapped>>),
    /// Stop a shadow; replies with it.
    StopShadow(PolicyKind, oneshot::Sender<Option<AnyPolicy>>),
    /// Bring the previous policy back.
    Rollback(PolicyKind, oneshot::Sender<Option<Swapped>>),
    /// Bring back a policy that was live before the previous one.
    RollbackTo(AnyPolicy, oneshot::Sender<Swapped>),
    /// Do nothing, but wake the thread: the gate or the scan flag changed.
    Wake,
    /// End the thread, and with it all open streams.
    Stop,
}

impl Command {
    /// Returns what applying the command costs, in sequences; at least 1.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Submit(submission) => submission.requests.len(),
            Self::Expire(overdue) => overdue.len().max(1),
            _ => 1,
        }
    }
}

/// Receives changes of the pool's content index. Must not block.
pub type KvListener = Box<dyn Fn(Vec<KvEvent>) + Send>;

/// Reads the engine between two steps. Must be short: the next step waits for it.
pub type Look = Box<dyn FnOnce(&Engine, Micros) + Send>;

/// How a policy comes into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapMode {
    /// Live at once.
    Now,
    /// Compared with the live policy, without effect.
    Shadow,
    /// Live, and judged over this much busy time.
    Canary(Micros),
}

/// The error of a canary that can't start because one runs in another slot.
#[derive(Debug)]
pub struct OtherOnTrial {
    /// The slot of the running canary.
    pub kind: PolicyKind,
    /// The policy that did not start. Drop it off the engine thread.
    pub policy: AnyPolicy,
}

/// Requests on their way to the engine, which takes all or none.
pub struct Submission {
    /// At least one. Each `deadline` is in the engine's time.
    pub requests: Vec<Request>,
    /// One for each request.
    pub seats: Vec<Seat>,
    /// When they were sent, possibly during a step.
    pub sent: Micros,
    /// Receives the ids in the order of the requests.
    pub reply: oneshot::Sender<Result<Vec<SequenceId>, Refusal>>,
}

/// A request's resources outside the engine.
pub struct Seat {
    /// Its slot in the waiting queue, released when it starts or ends.
    pub ticket: OwnedSemaphorePermit,
    /// Where its tokens go.
    pub events: mpsc::Sender<StreamEvent>,
}

/// A completed swap.
#[derive(Debug)]
pub struct Swapped {
    /// The engine's report. Drop its retired policy off the engine thread.
    pub report: SwapReport,
    /// How long it held up the engine thread.
    pub pause: Duration,
}

/// The state of the engine and its thread at one instant.
#[derive(Clone, Debug)]
pub struct EngineReport {
    /// The engine.
    pub snapshot: Snapshot,
    /// Device times of the last steps, in microseconds, in no particular order.
    pub step_us: Vec<u32>,
    /// The time of the report.
    pub at: Micros,
}
