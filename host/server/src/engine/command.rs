//! What the engine thread can be asked to do. Applied between steps, in the order of arrival.

use std::time::Duration;

use infer_core::Engine;
use infer_core::engine::SwapReport;
use infer_core::kv_events::{KvBlock, KvEvent};
use infer_core::policy::{AnyPolicy, CacheEvents, PolicyKind};
use infer_core::snapshot::{BlockSnapshot, Snapshot};
use infer_core::{FinishReason, Micros, Refusal, Request, SequenceId, TenantId, TenantTerms};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::stream::StreamEvent;

/// One command.
pub enum Command {
    /// Take requests that come as one.
    Submit(Box<Submission>),
    /// End a request from outside.
    Finish(SequenceId, FinishReason),
    /// End a request on an operator's word; answers whether it was alive.
    Cancel(SequenceId, oneshot::Sender<bool>),
    /// End requests whose time is over, with what their clients are told.
    Expire(Vec<(SequenceId, String)>),
    /// Report.
    Report(oneshot::Sender<Box<EngineReport>>),
    /// Report on every block.
    Blocks(oneshot::Sender<Vec<BlockSnapshot>>),
    /// Let somebody look at the engine; the answer goes its own way.
    Inspect(Look),
    /// Fail everything that waits; answers how many.
    ClearQueue(String, oneshot::Sender<usize>),
    /// What tenants are granted from now on.
    Tenants(Vec<(TenantId, TenantTerms)>),
    /// From now on tell what can be found in the pool.
    WatchKv(KvListener),
    /// Everything that can be found in the pool.
    KvSnapshot(oneshot::Sender<Vec<KvBlock>>),
    /// Take nothing new from now on.
    Drain,
    /// Everything a new prefix-cache policy must be told.
    Prime(oneshot::Sender<CacheEvents>),
    /// Nobody comes whom that was for.
    EndPriming,
    /// Put a policy in force, or beside the one that is.
    Swap(AnyPolicy, SwapMode, oneshot::Sender<Result<Swapped, OtherOnTrial>>),
    /// Make what runs in shadow the live policy, or end a trial well.
    Promote(PolicyKind, oneshot::Sender<Option<Swapped>>),
    /// End a shadow; answers with it.
    StopShadow(PolicyKind, oneshot::Sender<Option<AnyPolicy>>),
    /// Bring the previous policy back.
    Rollback(PolicyKind, oneshot::Sender<Option<Swapped>>),
    /// Bring one back that was there before that.
    RollbackTo(AnyPolicy, oneshot::Sender<Swapped>),
    /// Look at the gate again.
    Wake,
    /// End the thread; streams that are still open are cut.
    Stop,
}

impl Command {
    /// What applying it costs, in sequences; at least 1.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Submit(submission) => submission.requests.len(),
            Self::Expire(overdue) => overdue.len().max(1),
            _ => 1,
        }
    }
}

/// Hears of changes in the pool's content index. Must not wait.
pub type KvListener = Box<dyn Fn(Vec<KvEvent>) + Send>;

/// Looks at the engine between two steps. Short: the next step waits for it.
pub type Look = Box<dyn FnOnce(&Engine, Micros) + Send>;

/// How a policy comes into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapMode {
    /// In force, for good.
    Now,
    /// Beside the live policy, without effect.
    Shadow,
    /// In force and watched for this much time with work in it.
    Canary(Micros),
}

/// Another slot's policy is on trial; here is the one that can't be meanwhile.
#[derive(Debug)]
pub struct OtherOnTrial {
    /// Which slot.
    pub kind: PolicyKind,
    /// To be dropped off the engine thread.
    pub policy: AnyPolicy,
}

/// Requests on their way to the engine, which takes all of them or none.
pub struct Submission {
    /// At least one; each `deadline` is already on the engine's clock.
    pub requests: Vec<Request>,
    /// What each has with the host.
    pub seats: Vec<Seat>,
    /// When they were sent; a step may have been running then.
    pub sent: Micros,
    /// Whether they were taken.
    pub reply: oneshot::Sender<Result<Vec<SequenceId>, Refusal>>,
}

/// What a request has besides its sequence.
pub struct Seat {
    /// Its place in the waiting queue, given back when it starts or ends.
    pub ticket: OwnedSemaphorePermit,
    /// Where its tokens go.
    pub events: mpsc::Sender<StreamEvent>,
}

/// A swap that is in force.
#[derive(Debug)]
pub struct Swapped {
    /// What the engine says. Its retired policy is to be dropped off the engine thread.
    pub report: SwapReport,
    /// How long the engine thread was held up by it.
    pub pause: Duration,
}

/// The engine and its thread at one instant.
#[derive(Clone, Debug)]
pub struct EngineReport {
    /// The engine.
    pub snapshot: Snapshot,
    /// Device times of the last steps, in microseconds, in no particular order.
    pub step_us: Vec<u32>,
    /// When, on the host's clock.
    pub at: Micros,
}
