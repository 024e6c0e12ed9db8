//! Applies commands, between two steps.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use infer_core::engine::Emptied;
use infer_core::{AdapterId, DeviceFault, DeviceFaultKind, Engine, FinishReason, Micros, SequenceId};

use super::events::drop_elsewhere;
use super::steps::caught;
use super::{Driver, Live};
use crate::engine::change::{By, NotChanged, Provided, SlotChange, Swapped};
use crate::engine::command::{
    Command, EngineReport, KvSnapshot, NewAdapter, RequestReport, Seat, Submission, Wanted,
};
use crate::engine::stream::RequestMeta;
use crate::trace::Happening;

impl Driver {
    pub(super) fn apply(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Submit(submission) => self.submit(*submission, now),
            Command::Finish(id, reason) => {
                self.engine.finish(id, reason, now);
            }
            Command::Cancel(wanted, reply) => {
                let mut ended = self.find(&wanted);
                ended.retain(|&id| self.engine.finish(id, FinishReason::Cancelled, now));
                let _ = reply.send(ended);
            }
            Command::Expire(overdue) => {
                for (id, message) in overdue {
                    self.engine.expire(id, message, now);
                }
            }
            Command::Report(reply) if reply.is_closed() => {}
            Command::Report(reply) => {
                let snapshot = self.engine.snapshot(now);
                let report = EngineReport {
                    metas: snapshot.requests.iter().map(|row| self.meta(row.id)).collect(),
                    snapshot,
                    step_us: self.times.recent().to_vec(),
                    steps: self.times.all(),
                    prefix_hits: self.prefix_hits,
                    at: now,
                };
                let _ = reply.send(Box::new(report));
            }
            Command::Detail(wanted, reply) => {
                let _ = reply.send(self.detail(&wanted, now));
            }
            Command::Inspect(look) => look(&self.engine, now),
            Command::ClearQueue(message, reply) => {
                let _ = reply.send(self.engine.clear_queue(&message, now));
            }
            Command::EmptyCache(reply) => {
                let emptied = self.engine.empty_cache(now);
                self.tell_kv();
                let _ = reply.send((emptied, self.engine.snapshot(now).memory.used));
            }
            Command::Tenants(terms) => self.engine.set_tenants(&terms),
            Command::NameAdapters(names) => self.adapters = Arc::new(names),
            Command::LoadAdapter(adapter, reply) => {
                let _ = reply.send(self.load_adapter(*adapter));
            }
            Command::UnloadAdapter(adapter, reply) => {
                let _ = reply.send(self.unload_adapter(adapter, now));
            }
            Command::WatchKv(listener) => {
                self.engine.watch_kv();
                self.kv_listener = Some(listener);
            }
            Command::KvSnapshot(reply) => {
                self.tell_kv();
                let (blocks, adapters) = (self.engine.kv_snapshot(), Arc::clone(&self.adapters));
                let _ = reply.send(KvSnapshot { blocks, next: self.kv_told, adapters });
            }
            Command::EndPriming => self.engine.end_priming(),
            Command::Prime(reply) => {
                self.take_all_back();
                let _ = reply.send(self.engine.begin_priming());
            }
            Command::Change(change, provided, by, reply) => {
                retire(reply.send(self.change(change, &provided, by, now)));
            }
            Command::StopShadow(kind, by, reply) => {
                self.take_all_back();
                // What these steps led to is nobody's doing.
                self.dispatch();
                let (stopped, _) = self.timed(by, |engine| engine.stop_shadow(kind, now));
                retire(reply.send(stopped));
            }
            Command::Wake | Command::Stop => {}
        }
        self.dispatch();
    }

    /// Gives the executor an adapter between two steps. Returns the time that this took.
    fn load_adapter(&mut self, adapter: NewAdapter) -> Result<Duration, DeviceFault> {
        let NewAdapter { id, name, weights } = adapter;
        self.take_all_back();
        let begun = Instant::now();
        let executor = &mut self.executor;
        let loaded = caught(|| executor.load_adapter(id, weights));
        let pause = begun.elapsed();
        match loaded {
            Ok(()) => {
                Arc::make_mut(&mut self.adapters).insert(id, name);
                Ok(pause)
            }
            Err(fault) => {
                self.device_lost |= fault.kind == DeviceFaultKind::Lost;
                Err(fault)
            }
        }
    }

    /// Takes an adapter from the executor between two steps. Its blocks go first, so that no mirror of the index has one
    /// whose adapter it doesn't know.
    fn unload_adapter(&mut self, adapter: AdapterId, now: Micros) -> Emptied {
        self.take_all_back();
        self.dispatch();
        let forgotten = self.engine.forget_adapter(adapter, now);
        self.tell_kv();
        let executor = &mut self.executor;
        match caught(|| Ok(executor.unload_adapter(adapter))) {
            Ok(weights) => drop_elsewhere(weights),
            Err(fault) => tracing::error!("an adapter could not be unloaded: {}", fault.message),
        }
        Arc::make_mut(&mut self.adapters).remove(&adapter);
        forgotten
    }

    /// Changes a slot if what is `provided` holds after the steps in flight.
    fn change(
        &mut self,
        change: SlotChange,
        provided: &Provided,
        by: Option<By>,
        now: Micros,
    ) -> Result<Swapped, NotChanged> {
        self.take_all_back();
        // What these steps found wrong with a policy is reported before it is looked for.
        self.dispatch();
        let slot = self.engine.slot(change.kind());
        if let Err(why) = provided.check(slot, self.shared.observer.quarantine()) {
            drop_elsewhere(change);
            return Err(why);
        }
        let (made, pause) = self.timed(by, |engine| change.make(engine, now));
        match made {
            Ok(Some(report)) => Ok(Swapped { report, pause }),
            Ok(None) => Err(NotChanged::Nothing),
            Err((policy, other)) => {
                drop_elsewhere(policy);
                Err(NotChanged::OtherOnTrial(other))
            }
        }
    }

    /// Changes a slot between two steps and measures the pause. Dispatches before the reply, so that the caller finds
    /// the change in the history, under the name of who wanted it.
    fn timed<T>(&mut self, by: Option<By>, change: impl FnOnce(&mut Engine) -> T) -> (T, Duration) {
        let begun = Instant::now();
        let outcome = change(&mut self.engine);
        let pause = begun.elapsed();
        self.by = by;
        self.dispatch();
        self.by = None;
        (outcome, pause)
    }

    /// Returns the live sequences that an operator means, oldest first.
    fn find(&self, wanted: &Wanted) -> Vec<SequenceId> {
        match wanted {
            Wanted::Id(id) => vec![*id],
            Wanted::Name(name) => self.all_of(|meta| meta.request_id == *name),
            Wanted::Whole(first) => self.all_of(|meta| meta.first.get() == Some(first)),
        }
    }

    fn all_of(&self, is_own: impl Fn(&RequestMeta) -> bool) -> Vec<SequenceId> {
        let own = self.live.iter().filter(|(_, live)| is_own(&live.meta));
        let mut ids: Vec<_> = own.map(|(&id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    fn detail(&self, wanted: &Wanted, now: Micros) -> Option<Box<RequestReport>> {
        let id = *self.find(wanted).first()?;
        let (row, detail) = self.engine.sequence_detail(id)?;
        Some(Box::new(RequestReport { row, detail, meta: self.meta(id), at: now }))
    }

    /// Returns what operators see of a sequence. Nothing if its stream was dropped and its end is yet to come.
    fn meta(&self, id: SequenceId) -> Arc<RequestMeta> {
        self.live.get(&id).map(|live| Arc::clone(&live.meta)).unwrap_or_default()
    }

    fn submit(&mut self, submission: Submission, now: Micros) {
        let Submission { requests, seats, meta, sent, reply } = submission;
        match self.shared.draining.load(Ordering::Acquire) {
            true => self.engine.drain(),
            false => self.engine.undrain(),
        }
        let copies = if self.shared.tap.is_on() { requests.clone() } else { Vec::new() };
        // One that is refused at once has no events.
        self.copies.note();
        match self.engine.submit_all(requests, now) {
            Err(refusal) => {
                for request in &copies {
                    self.shared.tap.tell(|| Happening::refused(now, request, &refusal));
                }
                let _ = reply.send(Err(refusal));
            }
            Ok(ids) => {
                if let Some(&first) = ids.first() {
                    let _ = meta.first.set(first);
                }
                for (&id, request) in ids.iter().zip(copies) {
                    let request = Box::new(request);
                    self.shared.tap.tell(|| Happening::Taken { id, sent, at: now, request });
                }
                for (&id, Seat { ticket, events, marks }) in ids.iter().zip(seats) {
                    let meta = Arc::clone(&meta);
                    self.live.insert(id, Live { events, ticket: Some(ticket), marks, meta });
                }
                if let Err(Ok(ids)) = reply.send(Ok(ids)) {
                    for id in ids {
                        self.live.remove(&id);
                        self.engine.finish(id, FinishReason::Cancelled, now);
                    }
                }
            }
        }
    }
}

/// Drops a reply that was not received, and the policy that it may hold, on another thread.
fn retire<T: Send + 'static>(unsent: Result<(), T>) {
    if let Err(unsent) = unsent {
        drop_elsewhere(unsent);
    }
}
