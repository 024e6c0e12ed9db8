//! The engine thread: applies commands, turns the engine step by step, hands tokens out.
//!
//! It never waits for a client. It waits for the device, and, where nothing can run, for a command or
//! the engine's next wake. Deliberately absent: sockets, text, JSON, locks that a client could hold.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use infer_api::admin::HistoryEntry;
use infer_api::trace::Step;
use infer_core::sharing::SharedContext;
use infer_core::{
    Batch, Change, DeviceFault, DeviceFaultKind, Engine, Event, Executor, FinishReason, Micros, SequenceId,
    StepOutput,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::clock::Clock;
use super::command::{Command, EngineReport, KvListener, OtherOnTrial, Submission, SwapMode, Swapped};
use super::gate::StepGate;
use super::handle::{EngineHandle, Shared};
use super::observer::Observer;
use super::stream::{End, StreamEvent};
use crate::trace::{Happening, Tap};

/// Commands applied before the next step begins: bounds how long a flood of them can hold up a step.
const COMMANDS_PER_STEP: usize = 4_096;
/// Device times kept for percentiles.
const STEP_TIMES: usize = 512;
/// Shortest park: a wake that has just passed must not spin the thread.
const MIN_PARK: Duration = Duration::from_micros(50);

/// The engine thread's fate and its handle.
pub struct EngineThread {
    /// Reaches the engine.
    pub handle: EngineHandle,
    thread: std::thread::JoinHandle<()>,
}

/// What bounds the channels around an engine.
#[derive(Clone, Copy, Debug)]
pub struct ChannelBounds {
    /// Requests that may wait.
    pub max_waiting: u32,
    /// Sequences that run at once.
    pub max_running: u32,
    /// Events that a stream's reader may lag behind.
    pub stream_events: usize,
}

/// Starts the engine thread.
pub fn spawn(
    engine: Engine,
    executor: Box<dyn Executor + Send>,
    clock: Clock,
    bounds: ChannelBounds,
) -> std::io::Result<EngineThread> {
    let ChannelBounds { max_waiting, max_running, stream_events } = bounds;
    // Each live request can have a submission and an end under way; the rest is for operators.
    let capacity = 4 * (max_waiting as usize + max_running as usize) + 1_024;
    let (commands, inbox) = sync_channel(capacity);
    let shared = Arc::new(Shared {
        commands,
        clock,
        tickets: Arc::new(Semaphore::new(max_waiting as usize)),
        max_waiting,
        stream_events,
        refused_here: AtomicU64::new(0),
        requests: Mutex::default(),
        live: watch::Sender::new(0),
        lost_command: AtomicBool::new(false),
        alive: watch::Sender::new(true),
        gate: StepGate::default(),
        observer: Observer::default(),
        tap: Tap::default(),
    });
    let mut driver = Driver::new(engine, executor, inbox, Arc::clone(&shared));
    let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| driver.run()));
        if let Err(panic) = outcome {
            tracing::error!("the engine failed an internal check and stopped: {}", panic_text(&*panic));
        }
        // Streams must end before anybody can learn that the engine is gone, not after.
        driver.live.clear();
        driver.shared.alive.send_replace(false);
    })?;
    Ok(EngineThread { handle: EngineHandle { shared }, thread })
}

impl EngineThread {
    /// Ends the thread and waits for it. Blocks; streams that are still open are cut.
    pub fn stop(self) {
        if self.handle.shared.commands.send(Command::Stop).is_ok() {
            let _ = self.thread.join();
        }
    }
}

/// What the engine thread keeps for a live request.
struct Live {
    events: mpsc::Sender<StreamEvent>,
    /// Its place in the waiting queue, until it starts.
    ticket: Option<OwnedSemaphorePermit>,
}

struct Driver {
    engine: Engine,
    executor: Box<dyn Executor + Send>,
    inbox: Receiver<Command>,
    shared: Arc<Shared>,
    live: HashMap<SequenceId, Live>,
    events: Vec<Event>,
    lagging: Vec<SequenceId>,
    output: StepOutput,
    step_us: Vec<u32>,
    steps: usize,
    /// The thread waited for something to do since the last step.
    waited: bool,
    /// For recordings.
    sharing: SharedContext,
    /// The engine keeps its decisions for a recording.
    keeps_decisions: bool,
    kv_listener: Option<KvListener>,
}

#[derive(PartialEq, Eq)]
enum Flow {
    Continue,
    Stop,
}

impl Driver {
    fn new(
        engine: Engine,
        executor: Box<dyn Executor + Send>,
        inbox: Receiver<Command>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            engine,
            executor,
            inbox,
            shared,
            live: HashMap::new(),
            events: Vec::new(),
            lagging: Vec::new(),
            output: StepOutput::default(),
            step_us: Vec::with_capacity(STEP_TIMES),
            steps: 0,
            waited: true,
            sharing: SharedContext::default(),
            keeps_decisions: false,
            kv_listener: None,
        }
    }

    fn run(&mut self) {
        self.note_initial_policies();
        loop {
            if self.receive() == Flow::Stop {
                return;
            }
            let stepped = !self.shared.gate.is_held() && self.step();
            if !stepped && self.park() == Flow::Stop {
                return;
            }
        }
    }

    fn now(&self) -> Micros {
        self.shared.clock.now()
    }

    fn receive(&mut self) -> Flow {
        for _ in 0..COMMANDS_PER_STEP {
            match self.inbox.try_recv() {
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Flow::Stop,
                Ok(command) => self.apply(command),
                Err(TryRecvError::Empty) => break,
            }
        }
        if self.shared.lost_command.swap(false, Ordering::AcqRel) {
            self.drop_readerless();
        }
        Flow::Continue
    }

    /// One step, if anything can run.
    fn step(&mut self) -> bool {
        let wanted = self.shared.tap.wants_decisions();
        if wanted != self.keeps_decisions {
            self.engine.record_decisions(wanted);
            self.keeps_decisions = wanted;
        }
        let at = self.now();
        let batch = self.engine.begin_step(at);
        if self.keeps_decisions {
            self.tell_decisions();
        }
        let Some(batch) = batch else {
            self.dispatch();
            return false;
        };
        let record = self.shared.tap.is_on().then(|| self.record(&batch, at));
        self.waited = false;
        let begun = Instant::now();
        let submitted = catch_unwind(AssertUnwindSafe(|| self.executor.submit(&batch)));
        // While a device works on this step, the tokens of the last one go out.
        self.dispatch();
        let executor = &mut self.executor;
        let output = &mut self.output;
        let on_device = matches!(submitted, Ok(Ok(true)));
        let outcome = submitted.and_then(|submitted| {
            catch_unwind(AssertUnwindSafe(|| match submitted? {
                true => executor.collect(&batch, output),
                false => executor.execute(&batch, output),
            }))
        });
        let took = begun.elapsed();
        self.note_step(took);
        let result = outcome.unwrap_or_else(|panic| {
            Err(DeviceFault {
                kind: DeviceFaultKind::Failed,
                message: format!("the model failed an internal check: {}", panic_text(&*panic)),
                rows: None,
            })
        });
        let now = self.now();
        if let Some(mut step) = record {
            (step.end, step.device) = (now.0, u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
            self.shared.tap.tell(|| Happening::Step(step));
        }
        match result {
            Ok(()) => self.engine.finish_step(batch, Ok(&self.output), now),
            Err(fault) => {
                tracing::error!(step = batch.step, rows = ?fault.rows, "device fault: {}", fault.message);
                self.engine.finish_step(batch, Err(fault), now);
            }
        }
        if !on_device {
            self.dispatch();
        }
        true
    }

    /// What a recording says of a step, before it is computed.
    fn record(&mut self, batch: &Batch, at: Micros) -> Box<Step> {
        let rows = || batch.rows.iter();
        Box::new(Step {
            step: batch.step,
            at: at.0,
            end: 0,
            device: 0,
            waited: self.waited,
            ids: rows().map(|row| row.sequence.0).collect(),
            tokens: rows().map(|row| row.token_len).collect(),
            context: rows().map(|row| row.context_len).collect(),
            drew: rows().map(|row| u8::from(row.sample)).collect(),
            repeated: self.sharing.repeated(batch),
        })
    }

    fn tell_decisions(&mut self) {
        for decision in self.engine.take_decisions() {
            self.shared.tap.tell(|| Happening::Decision(Box::new(decision)));
        }
    }

    /// Waits for a command or the engine's next wake.
    fn park(&mut self) -> Flow {
        self.dispatch();
        self.waited = true;
        let wake = if self.shared.gate.is_held() { None } else { self.engine.next_wake() };
        let received = match wake {
            None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(wake) => {
                let wait = Duration::from_micros(wake.since(self.now()).0).max(MIN_PARK);
                self.inbox.recv_timeout(wait)
            }
        };
        match received {
            Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => Flow::Stop,
            Ok(command) => {
                self.apply(command);
                Flow::Continue
            }
            Err(RecvTimeoutError::Timeout) => Flow::Continue,
        }
    }

    fn apply(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Submit(submission) => self.submit(*submission, now),
            Command::Finish(id, reason) => {
                self.engine.finish(id, reason, now);
            }
            Command::Cancel(id, reply) => {
                let _ = reply.send(self.engine.finish(id, FinishReason::Cancelled, now));
            }
            Command::Expire(id, message, reply) => {
                let _ = reply.send(self.engine.expire(id, message, now));
            }
            Command::Report(reply) => {
                let report = EngineReport {
                    snapshot: self.engine.snapshot(now),
                    step_us: self.step_us.clone(),
                    at: now,
                };
                let _ = reply.send(Box::new(report));
            }
            Command::Blocks(reply) => {
                let _ = reply.send(self.engine.blocks());
            }
            Command::Inspect(look) => look(&self.engine, now),
            Command::ClearQueue(message, reply) => {
                let _ = reply.send(self.engine.clear_queue(&message, now));
            }
            Command::Tenants(terms) => self.engine.set_tenants(&terms),
            Command::WatchKv(listener) => {
                self.engine.watch_kv();
                self.kv_listener = Some(listener);
            }
            Command::KvSnapshot(reply) => {
                self.tell_kv();
                let _ = reply.send(self.engine.kv_snapshot());
            }
            Command::Drain => self.engine.drain(),
            Command::Prime(reply) => {
                let _ = reply.send(self.engine.begin_priming());
            }
            Command::Swap(policy, mode, reply) => {
                let swapped = self.timed(|engine| match mode {
                    SwapMode::Now => Ok(engine.swap(policy, now)),
                    SwapMode::Shadow => Ok(engine.shadow(policy, now)),
                    SwapMode::Canary(window) => engine.canary(policy, window, now),
                });
                let (report, pause) = swapped;
                let answer = report.map(|report| Swapped { report, pause });
                retire(reply.send(answer.map_err(|(policy, kind)| OtherOnTrial { kind, policy })));
            }
            Command::Promote(kind, reply) => {
                let (report, pause) = self.timed(|engine| engine.promote(kind, now));
                retire(reply.send(report.map(|report| Swapped { report, pause })));
            }
            Command::Rollback(kind, reply) => {
                let (report, pause) = self.timed(|engine| engine.rollback(kind, now));
                retire(reply.send(report.map(|report| Swapped { report, pause })));
            }
            Command::StopShadow(kind, reply) => {
                let (stopped, _) = self.timed(|engine| engine.stop_shadow(kind, now));
                retire(reply.send(stopped));
            }
            Command::Wake | Command::Stop => {}
        }
        self.dispatch();
    }

    /// Changes a slot. Who hears of it finds it in the history.
    fn timed<T>(&mut self, change: impl FnOnce(&mut Engine) -> T) -> (T, Duration) {
        let begun = Instant::now();
        let outcome = change(&mut self.engine);
        let pause = begun.elapsed();
        self.dispatch();
        (outcome, pause)
    }

    fn submit(&mut self, submission: Submission, now: Micros) {
        let Submission { request, sent, ticket, events, reply } = submission;
        let copy = self.shared.tap.is_on().then(|| Box::new(request.clone()));
        match self.engine.submit(request, now) {
            Err(refusal) => {
                if let Some(request) = copy {
                    self.shared.tap.tell(|| Happening::refused(now, &request, &refusal));
                }
                let _ = reply.send(Err(refusal));
            }
            Ok(id) => {
                if let Some(request) = copy {
                    self.shared.tap.tell(|| Happening::Taken { id, sent, at: now, request });
                }
                self.live.insert(id, Live { events, ticket: Some(ticket) });
                if reply.send(Ok(id)).is_err() {
                    self.live.remove(&id);
                    self.engine.finish(id, FinishReason::Cancelled, now);
                }
            }
        }
    }

    /// Tells the listener what changed in the content index.
    fn tell_kv(&mut self) {
        let Some(listener) = &self.kv_listener else { return };
        let mut happened = Vec::new();
        self.engine.drain_kv_events(&mut happened);
        if !happened.is_empty() {
            listener(happened);
        }
    }

    /// Hands out what the engine has to tell, until it has nothing more.
    fn dispatch(&mut self) {
        self.tell_kv();
        loop {
            let mut events = std::mem::take(&mut self.events);
            self.engine.drain_events(&mut events);
            if events.is_empty() {
                self.events = events;
                return;
            }
            let now = self.now();
            for event in events.drain(..) {
                self.hand_out(event, now);
            }
            self.events = events;
            let retired = self.engine.take_retired();
            if !retired.is_empty() {
                drop_elsewhere(retired);
            }
            while let Some(id) = self.lagging.pop() {
                self.live.remove(&id);
                self.engine.finish(id, FinishReason::Cancelled, now);
            }
        }
    }

    fn hand_out(&mut self, event: Event, now: Micros) {
        self.shared.tap.tell(|| Happening::Event { event: Box::new(event.clone()), at: now });
        match event {
            Event::Token { id, token, logprobs } => {
                self.tell(id, StreamEvent::Token { token, at: now, logprobs });
            }
            Event::Prompt { id, logprobs } => self.tell(id, StreamEvent::Prompt(logprobs)),
            Event::Finished { id, reason, usage } => self.end(id, End::Finished { reason, usage }),
            Event::Failed { id, cause, message, usage } => {
                self.end(id, End::Failed { cause, message, usage });
            }
            Event::Refused { id, refusal } => self.end(id, End::Refused(refusal)),
            Event::Started { id, .. } => {
                if let Some(live) = self.live.get_mut(&id) {
                    live.ticket = None;
                }
            }
            Event::Preempted { id } => self.shared.observer.preempted(id),
            Event::PolicyFault(fault) => self.shared.observer.fault(&fault),
            Event::PolicyChanged { kind, from, to, left, policy, at, step, change, reason } => {
                let observer = &self.shared.observer;
                if matches!(change, Change::Fault | Change::Verdict) {
                    observer.quarantine().add(kind, &left, &reason, at);
                }
                let (sha256, mode) = (policy.digest.clone(), change.name().to_owned());
                observer
                    .note(kind, HistoryEntry { at_ms: at.0 / 1_000, step, from, to, sha256, reason, mode });
            }
            Event::Shadow { kind, live, report } => {
                self.shared.observer.shadow(kind, live, &report, self.engine.next_step());
            }
            Event::Canary(report) => self.shared.observer.canary(&report, self.engine.next_step()),
        }
    }

    fn tell(&mut self, id: SequenceId, event: StreamEvent) {
        let Some(live) = self.live.get(&id) else { return };
        // The last place is kept for the end.
        let fits = live.events.capacity() > 1;
        if !fits || live.events.try_send(event).is_err() {
            self.lagging.push(id);
        }
    }

    fn end(&mut self, id: SequenceId, end: End) {
        if let Some(live) = self.live.remove(&id) {
            let _ = live.events.try_send(StreamEvent::End(Box::new(end)));
        }
    }

    fn drop_readerless(&mut self) {
        let gone: Vec<_> =
            self.live.iter().filter(|(_, l)| l.events.is_closed()).map(|(&id, _)| id).collect();
        let now = self.now();
        for id in gone {
            self.live.remove(&id);
            self.engine.finish(id, FinishReason::Cancelled, now);
        }
        self.dispatch();
    }

    fn note_step(&mut self, took: Duration) {
        let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        if self.step_us.len() < STEP_TIMES {
            self.step_us.push(took);
        } else {
            self.step_us[self.steps % STEP_TIMES] = took;
        }
        self.steps += 1;
    }

    fn note_initial_policies(&mut self) {
        let snapshot = self.engine.snapshot(self.now());
        for slot in snapshot.policies {
            let entry = HistoryEntry {
                at_ms: slot.since.0 / 1_000,
                step: snapshot.step,
                from: String::new(),
                to: slot.policy.name.clone(),
                sha256: slot.policy.digest.clone(),
                reason: "start".to_owned(),
                mode: "start".to_owned(),
            };
            self.shared.observer.note(slot.kind, entry);
        }
    }
}

/// An answer that nobody waits for any more may hold a policy.
fn retire<T: Send + 'static>(unsent: Result<(), T>) {
    if let Err(unsent) = unsent {
        drop_elsewhere(unsent);
    }
}

/// Tearing a policy down unmaps its memory, which must not hold up the engine.
fn drop_elsewhere<T: Send + 'static>(what: T) {
    let _ = std::thread::Builder::new().name("retire".to_owned()).spawn(move || drop(what));
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
