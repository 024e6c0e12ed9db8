//! The handle by which everything else reaches the engine thread: submits, reports, swaps.
//!
//! Sending never waits: the command channel holds more than all live requests can have under way. What
//! is kept here besides is what the engine doesn't need: places in the queue, and what operators see.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use infer_core::kv_events::KvBlock;
use infer_core::policy::{AnyPolicy, CacheEvents, PolicyKind};
use infer_core::request::RefusalReason;
use infer_core::snapshot::BlockSnapshot;
use infer_core::{Engine, FinishReason, Micros, Refusal, Request, SequenceId, TenantId, TenantTerms};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::clock::Clock;
use super::command::{Command, EngineReport, KvListener, OtherOnTrial, Seat, Submission, SwapMode, Swapped};
use super::gate::StepGate;
use super::mailbox::Mail;
use super::observer::Observer;
use super::stream::{LiveRequest, NewRequest, RequestMeta, SubmitError};
use crate::trace::{Happening, Tap};

/// Between two attempts to leave a question in a full mailbox.
const FULL: Duration = Duration::from_millis(5);

/// The engine thread is gone: the host can only be restarted.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the engine has stopped; restart the host")]
pub struct EngineStopped;

/// Reaches the engine. Cheap to clone.
#[derive(Clone)]
pub struct EngineHandle {
    pub(super) shared: Arc<Shared>,
}

/// What handles and the engine thread share.
pub(super) struct Shared {
    pub(super) mail: Mail<Command>,
    pub(super) clock: Clock,
    pub(super) tickets: Arc<Semaphore>,
    pub(super) max_waiting: u32,
    /// When it may be worth asking again, once all places of the queue are taken.
    pub(super) retry_after_ms: AtomicU32,
    pub(super) stream_events: usize,
    pub(super) refused_here: AtomicU64,
    pub(super) requests: Mutex<HashMap<u64, Arc<RequestMeta>>>,
    pub(super) live: watch::Sender<usize>,
    pub(super) alive: watch::Sender<bool>,
    /// The thread lets go of all requests, and will not be alive.
    pub(super) ending: AtomicBool,
    /// It ended without having been told to.
    pub(super) failed: AtomicBool,
    pub(super) gate: StepGate,
    /// Since when the executor has had the step that it is at, in the clock's microseconds; the largest while it has none.
    pub(super) computing_since: AtomicU64,
    pub(super) observer: Observer,
    pub(super) tap: Tap,
}

impl EngineHandle {
    /// The host's clock.
    pub fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// Faults, changes of policy and the like.
    pub fn observer(&self) -> &Observer {
        &self.shared.observer
    }

    /// Where a recording hears what happens.
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

    /// Whether it ended without having been told to: it failed an internal check, or the device is lost.
    pub fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Acquire)
    }

    /// How long the executor has been at its step; zero while it has none.
    pub fn computing_for(&self) -> Duration {
        let since = Micros(self.shared.computing_since.load(Ordering::Relaxed));
        Duration::from_micros(self.shared.clock.now().since(since).0)
    }

    /// Completes when the engine thread has ended.
    pub async fn stopped(&self) {
        let mut alive = self.shared.alive.subscribe();
        let _ = alive.wait_for(|alive| !alive).await;
    }

    /// Requests whose clients still hold them, or wait for the engine to take them.
    pub fn live(&self) -> usize {
        *self.shared.live.borrow()
    }

    /// Completes when no client holds a request.
    pub async fn idle(&self) {
        let mut live = self.shared.live.subscribe();
        let _ = live.wait_for(|&live| live == 0).await;
    }

    /// Requests turned away here because the queue was full, which the engine never saw.
    pub fn refused_at_the_door(&self) -> u64 {
        self.shared.refused_here.load(Ordering::Relaxed)
    }

    /// Hands a request to the engine.
    pub async fn submit(&self, new: NewRequest) -> Result<LiveRequest, SubmitError> {
        let mut taken = self.submit_all(vec![new.request], new.meta).await?;
        Ok(taken.pop().expect("every request that was taken is answered with"))
    }

    /// Hands requests that come as one to the engine, which takes all of them or none.
    pub async fn submit_all(
        &self,
        requests: Vec<Request>,
        meta: RequestMeta,
    ) -> Result<Vec<LiveRequest>, SubmitError> {
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
        // A client that goes away while it waits for the answer leaves requests that nobody can take back by their
        // ids. What is declared first is dropped last: the engine is told to look when the readers have gone.
        let mut orphan = Orphan { engine: None };
        let (seats, readers): (Vec<_>, Vec<_>) = (0..requests.len())
            .map(|_| {
                let (events, reader) = mpsc::channel(stream_events + 1);
                (Seat { ticket: tickets.split(1).expect("there is one for each"), events }, reader)
            })
            .unzip();
        let (reply, answer) = oneshot::channel();
        let submission = Submission { requests, seats, sent, reply };
        self.send(Command::Submit(Box::new(submission))).map_err(|_| SubmitError::Stopped)?;
        orphan.engine = Some(self);
        let answer = answer.await;
        orphan.engine = None;
        let ids = answer.map_err(|_| SubmitError::Stopped)?.map_err(SubmitError::Refused)?;
        coming.came();
        let meta = Arc::new(meta);
        lock(&self.shared.requests).extend(ids.iter().map(|id| (id.0, Arc::clone(&meta))));
        let live = ids.into_iter().zip(readers);
        Ok(live
            .map(|(id, reader)| LiveRequest::new(id, sent, Arc::clone(&meta), reader, self.clone()))
            .collect())
    }

    /// What operators see of a live request.
    pub fn request_meta(&self, id: u64) -> Option<Arc<RequestMeta>> {
        lock(&self.shared.requests).get(&id).cloned()
    }

    /// Names of the conversations that live requests belong to.
    pub fn session_names(&self) -> BTreeSet<String> {
        let all = lock(&self.shared.requests);
        all.values().filter(|meta| !meta.session.is_empty()).map(|meta| meta.session.clone()).collect()
    }

    /// The live sequences with this `x-request-id`: all choices of a request, oldest first.
    pub fn find_requests(&self, request_id: &str) -> Vec<SequenceId> {
        let all = lock(&self.shared.requests);
        let own = all.iter().filter(|(_, meta)| meta.request_id == request_id);
        let mut ids: Vec<_> = own.map(|(&id, _)| SequenceId(id)).collect();
        ids.sort_unstable();
        ids
    }

    /// The engine and its thread as they are after the step that runs now.
    pub async fn report(&self) -> Result<Box<EngineReport>, EngineStopped> {
        self.ask(Command::Report).await
    }

    /// Every block.
    pub async fn blocks(&self) -> Result<Vec<BlockSnapshot>, EngineStopped> {
        self.ask(Command::Blocks).await
    }

    /// What `look` sees of the engine after the step that runs now.
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

    /// Takes a request back on an operator's word; false if it was not alive.
    pub async fn cancel(&self, id: SequenceId) -> Result<bool, EngineStopped> {
        self.ask(|reply| Command::Cancel(id, reply)).await
    }

    /// Fails requests whose time is over, all of them before the next step. A report that is asked for later knows of it.
    pub fn expire(&self, overdue: Vec<(SequenceId, String)>) -> Result<(), EngineStopped> {
        self.send(Command::Expire(overdue))
    }

    /// Fails everything that waits; returns how many.
    pub async fn clear_queue(&self, message: String) -> Result<usize, EngineStopped> {
        self.ask(|reply| Command::ClearQueue(message, reply)).await
    }

    /// Everything a new prefix-cache policy must be told before it is swapped in.
    pub async fn prime(&self) -> Result<CacheEvents, EngineStopped> {
        self.ask(Command::Prime).await
    }

    /// Forgets what `prime` began. Should it not be heard, what is kept stays bounded until the next swap.
    pub fn end_priming(&self) {
        let _ = self.send(Command::EndPriming);
    }

    /// Puts a policy in force, or beside the one that is.
    pub async fn swap(
        &self,
        policy: AnyPolicy,
        mode: SwapMode,
    ) -> Result<Result<Swapped, OtherOnTrial>, EngineStopped> {
        self.ask(|reply| Command::Swap(policy, mode, reply)).await
    }

    /// Makes a slot's shadow the live policy, or ends a trial well, where there is either.
    pub async fn promote(&self, kind: PolicyKind) -> Result<Option<Swapped>, EngineStopped> {
        self.ask(|reply| Command::Promote(kind, reply)).await
    }

    /// Ends a slot's shadow, where there is one, and answers with it.
    pub async fn stop_shadow(&self, kind: PolicyKind) -> Result<Option<AnyPolicy>, EngineStopped> {
        self.ask(|reply| Command::StopShadow(kind, reply)).await
    }

    /// Brings the previous policy of a slot back, where there is one.
    pub async fn rollback(&self, kind: PolicyKind) -> Result<Option<Swapped>, EngineStopped> {
        self.ask(|reply| Command::Rollback(kind, reply)).await
    }

    /// Brings a policy back that was in force before the previous one.
    pub async fn rollback_to(&self, policy: AnyPolicy) -> Result<Swapped, EngineStopped> {
        self.ask(|reply| Command::RollbackTo(policy, reply)).await
    }

    /// What tenants are granted from now on; who isn't named has the default terms.
    pub fn set_tenants(&self, terms: Vec<(TenantId, TenantTerms)>) -> Result<(), EngineStopped> {
        self.send(Command::Tenants(terms))
    }

    /// From now on `listener` hears of every change in the pool's content index.
    pub fn watch_kv(&self, listener: KvListener) -> Result<(), EngineStopped> {
        self.send(Command::WatchKv(listener))
    }

    /// Every block that can be found by content, parents before children.
    pub async fn kv_snapshot(&self) -> Result<Vec<KvBlock>, EngineStopped> {
        self.ask(Command::KvSnapshot).await
    }

    /// From now on the engine refuses new requests.
    pub fn drain(&self) {
        let _ = self.send(Command::Drain);
    }

    /// Holds steps back until `release_steps`; commands are still applied. For tests.
    pub fn hold_steps(&self) {
        self.shared.gate.set(true);
        let _ = self.send(Command::Wake);
    }

    /// Lets steps begin again.
    pub fn release_steps(&self) {
        self.shared.gate.set(false);
        let _ = self.send(Command::Wake);
    }

    pub(super) fn finish(&self, id: SequenceId, reason: FinishReason) {
        // The channel holds more than all live requests can send. Should it be full all the same,
        // the engine looks for requests without a reader by itself.
        if self.shared.mail.say(Command::Finish(id, reason)).is_err() {
            self.shared.mail.look_around(Command::Wake);
        }
    }

    pub(super) fn forget(&self, id: SequenceId) {
        lock(&self.shared.requests).remove(&id.0);
        self.shared.live.send_modify(|live| *live -= 1);
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, EngineStopped> {
        let (reply, answer) = oneshot::channel();
        let mut command = command(reply);
        // During a long step the box may be full of others' questions: that is no reason to take the engine for dead.
        while let Err(unsaid) = self.shared.mail.say(command) {
            if !self.is_alive() {
                return Err(EngineStopped);
            }
            command = unsaid;
            tokio::time::sleep(FULL).await;
        }
        answer.await.map_err(|_| EngineStopped)
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
        self.shared.mail.say(command).map_err(|_| EngineStopped)
    }
}

/// Requests on their way to the engine. They count as live: whoever waits until none is must not overlook them.
struct Coming<'a> {
    live: &'a watch::Sender<usize>,
    count: usize,
}

impl<'a> Coming<'a> {
    fn count(live: &'a watch::Sender<usize>, count: usize) -> Self {
        live.send_modify(|live| *live += count);
        Self { live, count }
    }

    /// The engine has them. They count until their clients let go of them.
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

/// Makes the engine look for requests without a reader, unless it is defused.
struct Orphan<'a> {
    engine: Option<&'a EngineHandle>,
}

impl Drop for Orphan<'_> {
    fn drop(&mut self) {
        if let Some(engine) = self.engine {
            engine.shared.mail.look_around(Command::Wake);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
