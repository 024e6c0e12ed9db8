//! The engine thread: applies commands, turns the engine step by step, hands tokens out.
//!
//! It never waits for a client. It waits for the device, and, where nothing can run, for a command or
//! the engine's next wake. Deliberately absent: sockets, text, JSON, locks that a client could hold.

mod commands;
mod events;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use infer_api::admin::HistoryEntry;
use infer_api::trace::Step;
use infer_core::sharing::SharedContext;
use infer_core::{
    Batch, DeviceFault, DeviceFaultKind, Engine, Event, Executor, Micros, SequenceId, StepOutput,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::clock::Clock;
use super::command::{Command, KvListener};
use super::gate::StepGate;
use super::handle::{EngineHandle, Shared};
use super::mailbox::{Inbox, mailbox};
use super::observer::Observer;
use super::stream::StreamEvent;
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
    let (mail, inbox) = mailbox(capacity);
    let shared = Arc::new(Shared {
        mail,
        clock,
        tickets: Arc::new(Semaphore::new(max_waiting as usize)),
        max_waiting,
        stream_events,
        refused_here: AtomicU64::new(0),
        requests: Mutex::default(),
        live: watch::Sender::new(0),
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
        let mut stop = Command::Stop;
        while let Err(unsaid) = self.handle.shared.mail.say(stop) {
            if self.thread.is_finished() {
                return;
            }
            stop = unsaid;
            std::thread::sleep(MIN_PARK);
        }
        let _ = self.thread.join();
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
    inbox: Inbox<Command>,
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
        inbox: Inbox<Command>,
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
            match self.inbox.try_next() {
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Flow::Stop,
                Ok(command) => self.apply(command),
                Err(TryRecvError::Empty) => break,
            }
        }
        if self.inbox.must_look() {
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

    /// Waits for a command or the engine's next wake.
    fn park(&mut self) -> Flow {
        self.dispatch();
        self.waited = true;
        let wake = if self.shared.gate.is_held() { None } else { self.engine.next_wake() };
        let limit = wake.map(|wake| Duration::from_micros(wake.since(self.now()).0).max(MIN_PARK));
        match self.inbox.sleep(limit) {
            Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => Flow::Stop,
            Ok(command) => {
                self.apply(command);
                Flow::Continue
            }
            Err(RecvTimeoutError::Timeout) => Flow::Continue,
        }
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

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
