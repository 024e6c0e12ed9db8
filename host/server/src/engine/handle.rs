//! The handle through which everything else reaches the engine thread: submits, reports, swaps.
//!
//! Sending a command never blocks: the channel holds more than all live requests can have pending. The handle also
//! keeps the slots of the queue, which the engine does not need.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use infer_core::engine::Emptied;
use infer_core::policy::{AnyPolicy, CacheEvents, PolicyKind};
use infer_core::request::RefusalReason;
use infer_core::{
    AdapterId, DeviceFault, Engine, FinishReason, Micros, Refusal, Request, SequenceId, TenantId, TenantTerms,
};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::change::{By, NotChanged, Provided, SlotChange, Swapped};
use super::clock::Clock;
use super::command::{
    AdapterNames, Command, EngineReport, KvListener, KvSnapshot, NewAdapter, RequestReport, Seat, Submission,
    Wanted,
};
use super::gate::StepGate;
use super::mailbox::MailSender;
use super::observer::Observer;
use super::stream::{LiveRequest, Marks, NewRequest, RequestMeta, SubmitError};
use crate::trace::{Happening, Tap};

/// Events of a stream by which its reader doesn't lag: the start and the end.
const OWN_EVENTS: usize = 2;
/// Time between two attempts to send to a full mailbox.
const FULL: Duration = Duration::from_millis(5);

/// The engine thread has ended; only a restart of the host helps.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the engine has stopped; restart the host")]
pub struct EngineStopped;

/// A handle to the engine thread. Cheap to clone.
#[derive(Clone)]
pub struct EngineHandle {
    pub(super) shared: Arc<Shared>,
}

/// State shared by the handles and the engine thread.
pub(super) struct Shared {
    pub(super) mail: MailSender<Command>,
    pub(super) clock: Clock,
    pub(super) tickets: Arc<Semaphore>,
    pub(super) max_waiting: u32,
    /// The `Retry-After` of requests that find the queue full.
    pub(super) retry_after_ms: AtomicU32,
    pub(super) stream_events: usize,
    pub(super) refused_here: AtomicU64,
    /// Requests that found the mailbox full.
    pub(super) refused_busy: AtomicU64,
    /// New requests are refused. No command, because it must not be lost where the mailbox is full.
    pub(super) draining: AtomicBool,
    pub(super) live: watch::Sender<usize>,
    pub(super) alive: watch::Sender<bool>,
    /// The thread is about to end: it drops all requests.
    pub(super) ending: AtomicBool,
    /// The thread ended without `Command::Stop`.
    pub(super) failed: AtomicBool,
    pub(super) gate: StepGate,
    /// When the executor began its current step, in microseconds; `u64::MAX` while it has none.
    pub(super) computing_since: AtomicU64,
    pub(super) observer: Observer,
    pub(super) tap: Tap,
}

impl EngineHandle {
    /// Returns the host's clock.
    pub fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// Returns the observer of faults and policy changes.
    pub fn observer(&self) -> &Observer {
        &self.shared.observer
    }

    /// Returns the tap that feeds recordings.
    pub fn tap(&self) -> &Tap {
        &self.shared.tap
    }

    /// Whether the engine thread runs.
    pub fn is_alive(&self) -> bool {
        *self.shared.alive.borrow()
    }

    /// Whether the engine thread is about to end.
    pub(super) fn is_ending(&self) -> bool {
        self.shared.ending.load(Ordering::Acquire)
    }

    /// Whether the thread ended by itself: an internal check failed, or the device is lost.
    pub fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Acquire)
    }

    /// Returns how long the executor has worked on its current step; zero while it has none.
    pub fn computing_for(&self) -> Duration {
        let since = Micros(self.shared.computing_since.load(Ordering::Relaxed));
        Duration::from_micros(self.shared.clock.now().since(since).0)
    }

    /// Completes when the engine thread has ended.
    pub async fn stopped(&self) {
        let mut alive = self.shared.alive.subscribe();
        let _ = alive.wait_for(|alive| !alive).await;
    }

    /// Returns the number of requests that clients hold, or that are being submitted.
    pub fn live(&self) -> usize {
        *self.shared.live.borrow()
    }

    /// Completes when no request is live.
    pub async fn idle(&self) {
        let mut live = self.shared.live.subscribe();
        let _ = live.wait_for(|&live| live == 0).await;
    }

    /// Returns how many requests were refused here because the queue was full. The engine never saw them.
    pub fn refused_at_the_door(&self) -> u64 {
        self.shared.refused_here.load(Ordering::Relaxed)
    }

    /// Returns how many requests were refused here during a long step, because the mailbox was full.
    pub fn refused_while_busy(&self) -> u64 {
        self.shared.refused_busy.load(Ordering::Relaxed)
    }

    /// Submits a request.
    pub async fn submit(&self, new: NewRequest) -> Result<LiveRequest, SubmitError> {
        let mut taken = self.submit_all(vec![new.request], new.meta).await?;
        Ok(taken.pop().expect("one id is returned for each request"))
    }

    /// Submits requests that the engine takes all or none.
    pub async fn submit_all(
        &self,
        requests: Vec<Request>,
        meta: impl Into<Arc<RequestMeta>>,
    ) -> Result<Vec<LiveRequest>, SubmitError> {
        let meta = meta.into();
        let Shared { tickets, stream_events, clock, .. } = &*self.shared;
        let Ok(mut tickets) = Arc::clone(tickets).try_acquire_many_owned(requests.len() as u32) else {
            self.shared.refused_here.fetch_add(requests.len() as u64, Ordering::Relaxed);
            let refusal = self.queue_full(requests.len());
            for request in &requests {
                self.shared.tap.tell(|| Happening::refused(clock.now(), request, &refusal));
            }
            return Err(SubmitError::Refused(refusal));
        };
        let sent = clock.now();
        let coming = Coming::count(&self.shared.live, requests.len());
        // A client that disconnects before the reply leaves requests whose ids nobody knows. `orphan` then makes the
        // engine scan for closed streams; it is declared first so that it is dropped last, after the readers.
        let mut orphan = Orphan { engine: None };
        let (seats, readers): (Vec<_>, Vec<_>) = (0..requests.len())
            .map(|_| {
                let (events, reader) = mpsc::channel(stream_events + OWN_EVENTS);
                let marks = Arc::<Marks>::default();
                let ticket = tickets.split(1).expect("one was acquired for each");
                (Seat { ticket, events, marks: Arc::clone(&marks) }, (reader, marks))
            })
            .unzip();
        let (reply, taken) = oneshot::channel();
        let submission = Submission { requests, seats, meta, sent, reply };
        if self.send(Command::Submit(Box::new(submission))).is_err() {
            if !self.is_alive() {
                return Err(SubmitError::Stopped);
            }
            self.shared.refused_busy.fetch_add(readers.len() as u64, Ordering::Relaxed);
            return Err(SubmitError::Busy);
        }
        orphan.engine = Some(self);
        let taken = taken.await;
        orphan.engine = None;
        let ids = taken.map_err(|_| SubmitError::Stopped)?.map_err(SubmitError::Refused)?;
        coming.came();
        let live = ids.into_iter().zip(readers).map(|(id, (events, marks))| LiveRequest {
            id,
            submitted: sent,
            events,
            marks,
            engine: self.clone(),
            ended: false,
        });
        Ok(live.collect())
    }

    /// Returns the state of the engine and its thread after the current step.
    pub async fn report(&self) -> Result<Box<EngineReport>, EngineStopped> {
        self.ask(Command::Report).await
    }

    /// Returns one sequence in full; of several choices the oldest. `None` if there is none.
    pub async fn detail(&self, wanted: Wanted) -> Result<Option<Box<RequestReport>>, EngineStopped> {
        self.ask(|reply| Command::Detail(wanted, reply)).await
    }

    /// Runs `look` on the engine after the current step and returns its result.
    pub async fn inspect<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Engine, Micros) -> T + Send + 'static,
    ) -> Result<T, EngineStopped> {
        self.ask(|reply| {
            Command::Inspect(Box::new(move |engine, now| {
                let _ = reply.send(look(engine, now));
            }))
        })
        .await
    }

    /// Cancels what an operator means, all before the next step. Returns those that were alive, oldest first.
    pub async fn cancel(&self, wanted: Wanted) -> Result<Vec<SequenceId>, EngineStopped> {
        self.ask(|reply| Command::Cancel(wanted, reply)).await
    }

    /// Fails overdue requests, all before the next step. Later reports reflect it.
    pub fn expire(&self, overdue: Vec<(SequenceId, String)>) -> Result<(), EngineStopped> {
        self.send(Command::Expire(overdue))
    }

    /// Fails everything that waits. Returns the count.
    pub async fn clear_queue(&self, message: String) -> Result<usize, EngineStopped> {
        self.ask(|reply| Command::ClearQueue(message, reply)).await
    }

    /// Drops all cached blocks that no request uses. Returns their counts, and that of the blocks in use.
    pub async fn empty_cache(&self) -> Result<(Emptied, u32), EngineStopped> {
        self.ask(Command::EmptyCache).await
    }

    /// Returns what a new prefix-cache policy must be told before it is swapped in. The engine keeps what happens from
    /// then on until the swap, or until `end_priming`.
    pub async fn prime(&self) -> Result<CacheEvents, EngineStopped> {
        self.ask(Command::Prime).await
    }

    /// Drops what the engine keeps since `prime`. If the message is lost, that stays bounded until the next swap.
    pub fn end_priming(&self) {
        let _ = self.send(Command::EndPriming);
    }

    /// Changes a slot, provided that something still holds right before the change; `by` is the operator who wants it.
    pub async fn change(
        &self,
        change: SlotChange,
        provided: Provided,
        by: Option<By>,
    ) -> Result<Result<Swapped, NotChanged>, EngineStopped> {
        self.ask(|reply| Command::Change(change, provided, by, reply)).await
    }

    /// Stops a slot's shadow and returns it, if it has one.
    pub async fn stop_shadow(
        &self,
        kind: PolicyKind,
        by: Option<By>,
    ) -> Result<Option<AnyPolicy>, EngineStopped> {
        self.ask(|reply| Command::StopShadow(kind, by, reply)).await
    }

    /// Replaces the tenants' terms. Tenants that are not named get the default terms.
    pub fn set_tenants(&self, terms: Vec<(TenantId, TenantTerms)>) -> Result<(), EngineStopped> {
        self.send(Command::Tenants(terms))
    }

    /// Names the adapters that the executor has from its start.
    pub fn name_adapters(&self, names: AdapterNames) -> Result<(), EngineStopped> {
        self.send(Command::NameAdapters(names))
    }

    /// Gives the executor an adapter, which later requests may have. Returns how long it held up the engine thread, or why
    /// the executor didn't take it.
    pub async fn load_adapter(
        &self,
        adapter: NewAdapter,
    ) -> Result<Result<Duration, DeviceFault>, EngineStopped> {
        self.ask(|reply| Command::LoadAdapter(Box::new(adapter), reply)).await
    }

    /// Takes an adapter from the executor, and drops what is cached of it. No request may have it any more.
    pub async fn unload_adapter(&self, adapter: AdapterId) -> Result<Emptied, EngineStopped> {
        self.ask(|reply| Command::UnloadAdapter(adapter, reply)).await
    }

    /// Reports every later change of the pool's content index to `listener`.
    pub fn watch_kv(&self, listener: KvListener) -> Result<(), EngineStopped> {
        self.send(Command::WatchKv(listener))
    }

    /// Returns every block in the content index, and which batches of a listener's come after that.
    pub async fn kv_snapshot(&self) -> Result<KvSnapshot, EngineStopped> {
        self.ask(Command::KvSnapshot).await
    }

    /// Makes the engine refuse new requests.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
    }

    /// Takes `drain` back.
    pub fn undrain(&self) {
        self.shared.draining.store(false, Ordering::Release);
    }

    /// Starts no step until `release_steps`; commands are still applied. For tests.
    pub fn hold_steps(&self) {
        self.allow_steps(0);
    }

    /// Starts so many steps, and then none until `release_steps`. For tests of what is under way: a request of more tokens
    /// doesn't end before they have looked.
    pub fn allow_steps(&self, steps: u64) {
        self.shared.gate.allow(steps);
        let _ = self.send(Command::Wake);
    }

    /// Lets steps start again.
    pub fn release_steps(&self) {
        self.allow_steps(StepGate::ALL);
    }

    pub(super) fn finish(&self, id: SequenceId, reason: FinishReason) {
        // The channel holds more than all live requests can send. If it is full nevertheless, the engine finds
        // requests that are stopped or have no reader by a scan.
        if self.shared.mail.send(Command::Finish(id, reason)).is_err() {
            self.shared.mail.request_scan(Command::Wake);
        }
    }

    pub(super) fn forget(&self) {
        self.shared.live.send_modify(|live| *live -= 1);
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, EngineStopped> {
        let (reply, response) = oneshot::channel();
        let mut command = command(reply);
        // During a long step the mailbox may be full though the engine is alive.
        while let Err(unsent) = self.shared.mail.send(command) {
            if !self.is_alive() {
                return Err(EngineStopped);
            }
            command = unsent;
            tokio::time::sleep(FULL).await;
        }
        tokio::select! {
            biased;
            answer = response => answer.map_err(|_| EngineStopped),
            // While it saves its cache, the thread neither takes the command nor drops it.
            () = self.stopped() => Err(EngineStopped),
        }
    }

    fn queue_full(&self, wanted: usize) -> Refusal {
        let max_waiting = self.shared.max_waiting;
        let message = match wanted {
            1 => format!("the waiting queue is full ({max_waiting} requests); try again later"),
            _ => format!(
                "the waiting queue ({max_waiting} requests) has no room for {wanted} more; try again later"
            ),
        };
        Refusal {
            reason: RefusalReason::QueueFull,
            message,
            retry_after_ms: self.shared.retry_after_ms.load(Ordering::Relaxed),
        }
    }

    fn send(&self, command: Command) -> Result<(), EngineStopped> {
        self.shared.mail.send(command).map_err(|_| EngineStopped)
    }
}

/// Requests on their way to the engine. They count as live, so that `idle` does not overlook them.
struct Coming<'a> {
    live: &'a watch::Sender<usize>,
    count: usize,
}

impl<'a> Coming<'a> {
    fn count(live: &'a watch::Sender<usize>, count: usize) -> Self {
        live.send_modify(|live| *live += count);
        Self { live, count }
    }

    /// The engine has taken them: they count until their clients drop them.
    fn came(mut self) {
        self.count = 0;
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.live.send_modify(|live| *live -= self.count);
        }
    }
}

/// Makes the engine scan for requests without a reader on drop, unless `engine` is reset.
struct Orphan<'a> {
    engine: Option<&'a EngineHandle>,
}

impl Drop for Orphan<'_> {
    fn drop(&mut self) {
        if let Some(engine) = self.engine {
            engine.shared.mail.request_scan(Command::Wake);
        }
    }
}
