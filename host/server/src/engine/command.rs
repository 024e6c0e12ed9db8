//! Commands to the engine thread. It applies them between steps, in the order of arrival.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use infer_core::Engine;
use infer_core::engine::Emptied;
use infer_core::inspect::SequenceDetail;
use infer_core::kv_events::{KvBlock, KvEvent};
use infer_core::policy::{AnyPolicy, CacheEvents, PolicyKind};
use infer_core::snapshot::{RequestSnapshot, Snapshot};
use infer_core::{
    AdapterId, AdapterWeights, DeviceFault, Durations, FinishReason, Micros, Refusal, Request, SequenceId,
    TenantId, TenantTerms,
};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::change::{By, NotChanged, Provided, SlotChange, Swapped};
use super::hits::PrefixHits;
use super::stream::{Marks, RequestMeta, StreamEvent};

/// A command.
pub enum Command {
    /// Submit requests that are taken all or none.
    Submit(Box<Submission>),
    /// End a request.
    Finish(SequenceId, FinishReason),
    /// Cancel what an operator means; replies with those that were alive.
    Cancel(Wanted, oneshot::Sender<Vec<SequenceId>>),
    /// Fail requests that are overdue, each with a message for its client.
    Expire(Vec<(SequenceId, String)>),
    /// Report the state.
    Report(oneshot::Sender<Box<EngineReport>>),
    /// Report one sequence, of several the oldest; replies with `None` if there is none.
    Detail(Wanted, oneshot::Sender<Option<Box<RequestReport>>>),
    /// Run a closure on the engine; it sends its own reply.
    Inspect(Look),
    /// Fail everything that waits; replies with the count.
    ClearQueue(String, oneshot::Sender<usize>),
    /// Drop all cached blocks without holders; replies with the counts and the blocks in use.
    EmptyCache(oneshot::Sender<(Emptied, u32)>),
    /// Replace the tenants' terms.
    Tenants(Vec<(TenantId, TenantTerms)>),
    /// Take the names of the adapters that the executor has.
    NameAdapters(AdapterNames),
    /// Give the executor an adapter; replies with the time that the engine was held up.
    LoadAdapter(Box<NewAdapter>, oneshot::Sender<Result<Duration, DeviceFault>>),
    /// Take an adapter from the executor that no request has any more, and drop what is cached of it; replies with the
    /// counts.
    UnloadAdapter(AdapterId, oneshot::Sender<Emptied>),
    /// Report changes of the pool's content index from now on.
    WatchKv(KvListener),
    /// Report the whole content index.
    KvSnapshot(oneshot::Sender<KvSnapshot>),
    /// Report what a new prefix-cache policy must be told, and keep what happens until it is swapped in.
    Prime(oneshot::Sender<CacheEvents>),
    /// Drop what `Prime` keeps: the policy does not come.
    EndPriming,
    /// Change a slot, provided that something still holds, for an operator or for the host itself.
    Change(SlotChange, Provided, Option<By>, oneshot::Sender<Result<Swapped, NotChanged>>),
    /// Stop a shadow, for an operator or for the host itself; replies with it.
    StopShadow(PolicyKind, Option<By>, oneshot::Sender<Option<AnyPolicy>>),
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

/// An adapter for the executor.
pub struct NewAdapter {
    /// Its number, which no other has had.
    pub id: AdapterId,
    /// Its name in requests.
    pub name: String,
    /// Its weights, ready for the executor.
    pub weights: AdapterWeights,
}

/// What adapters are called in requests.
pub type AdapterNames = BTreeMap<AdapterId, String>;

/// Receives changes of the pool's content index. Must not block.
pub type KvListener = Box<dyn Fn(KvBatch) + Send>;

/// Changes of the content index that a listener receives together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvBatch {
    /// One more than that of the batch before it.
    pub number: u64,
    /// The changes, oldest first; at least one.
    pub events: Vec<KvEvent>,
    /// The adapters that blocks were of when they happened.
    pub adapters: Arc<AdapterNames>,
}

/// The whole content index between two batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvSnapshot {
    /// Parents before children.
    pub blocks: Vec<KvBlock>,
    /// Number of the first batch that happens after it. It contains what those before it tell, even if their
    /// listener has yet to look at them.
    pub next: u64,
    /// The adapters that blocks may be of.
    pub adapters: Arc<AdapterNames>,
}

/// Reads the engine between two steps. Must be short: the next step waits for it.
pub type Look = Box<dyn FnOnce(&Engine, Micros) + Send>;

/// The live sequences that an operator means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The one with the engine's id.
    Id(SequenceId),
    /// All choices of the requests with this `x-request-id`.
    Name(String),
    /// All choices of the request whose first one has, or had, the engine's id.
    Whole(SequenceId),
}

impl Wanted {
    /// Returns what a text means: a number is always the engine's id, anything else a name.
    pub fn of(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Name(text.to_owned()), |id| Self::Id(SequenceId(id)))
    }
}

/// Requests on their way to the engine, which takes all or none.
pub struct Submission {
    /// At least one. Each `deadline` is in the engine's time.
    pub requests: Vec<Request>,
    /// One for each request.
    pub seats: Vec<Seat>,
    /// What operators see of all of them.
    pub meta: Arc<RequestMeta>,
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
    /// What it shares with its client.
    pub marks: Arc<Marks>,
}

/// The state of the engine and its thread at one instant.
#[derive(Clone, Debug)]
pub struct EngineReport {
    /// The engine.
    pub snapshot: Snapshot,
    /// What operators see of each of the snapshot's requests, in their order.
    pub metas: Vec<Arc<RequestMeta>>,
    /// Device times of the last steps, in microseconds, in no particular order.
    pub step_us: Vec<u32>,
    /// Device times of all steps.
    pub steps: Durations,
    /// What the prefix cache served.
    pub prefix_hits: PrefixHits,
    /// The time of the report.
    pub at: Micros,
}

/// One sequence at one instant.
#[derive(Clone, Debug)]
pub struct RequestReport {
    /// As in a snapshot.
    pub row: RequestSnapshot,
    /// The rest.
    pub detail: SequenceDetail,
    /// What operators see of its request.
    pub meta: Arc<RequestMeta>,
    /// The time of the report.
    pub at: Micros,
}
