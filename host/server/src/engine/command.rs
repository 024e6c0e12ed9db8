//! What the engine thread can be asked to do. Applied between steps, in the order of arrival.

use std::time::Duration;

use infer_core::engine::SwapReport;
use infer_core::policy::{AnyPolicy, CacheEvents, PolicyKind};
use infer_core::snapshot::{BlockSnapshot, Snapshot};
use infer_core::{FinishReason, Micros, Refusal, Request, SequenceId};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::stream::StreamEvent;

/// One command.
pub enum Command {
    /// Take a request.
    Submit(Box<Submission>),
    /// End a request from outside.
    Finish(SequenceId, FinishReason),
    /// End a request on an operator's word; answers whether it was alive.
    Cancel(SequenceId, oneshot::Sender<bool>),
    /// Report.
    Report(oneshot::Sender<Box<EngineReport>>),
    /// Report on every block.
    Blocks(oneshot::Sender<Vec<BlockSnapshot>>),
    /// Fail everything that waits; answers how many.
    ClearQueue(String, oneshot::Sender<usize>),
    /// Take nothing new from now on.
    Drain,
    /// Everything a new prefix-cache policy must be told.
    Prime(oneshot::Sender<CacheEvents>),
    /// Put a policy in force.
    Swap(AnyPolicy, oneshot::Sender<Swapped>),
    /// Bring the previous policy back.
    Rollback(PolicyKind, oneshot::Sender<Option<Swapped>>),
    /// Look at the gate again.
    Wake,
    /// End the thread; streams that are still open are cut.
    Stop,
}

/// A request on its way to the engine.
pub struct Submission {
    /// The request; its `deadline` is already on the engine's clock.
    pub request: Request,
    /// Its place in the waiting queue, given back when it starts or ends.
    pub ticket: OwnedSemaphorePermit,
    /// Where its tokens go.
    pub events: mpsc::Sender<StreamEvent>,
    /// Whether it was taken.
    pub reply: oneshot::Sender<Result<SequenceId, Refusal>>,
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
