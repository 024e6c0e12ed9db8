//! The engine thread: applies commands, turns the engine step by step, hands tokens out.
//!
//! It never waits for a client. It waits for the device, and, where nothing can run, for a command or
//! the engine's next wake. Where the engine plans ahead, the device has the next step before this one is
//! taken back. Deliberately absent: sockets, text, JSON, locks that a client could hold.

mod commands;
mod events;
mod steps;

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use infer_api::admin::HistoryEntry;
use infer_core::sharing::SharedContext;
use infer_core::{Engine, Event, Executor, Micros, SequenceId, StepOutput};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::clock::Clock;
use super::command::{Command, KvListener};
use super::gate::StepGate;
use super::handle::{EngineHandle, Shared};
use super::mailbox::{Inbox, mailbox};
use super::observer::Observer;
use super::stream::StreamEvent;
use crate::trace::Tap;
use steps::{Out, StepTimes};

/// Work applied before the next step begins (see `Command::weight`): bounds how long a flood of commands can delay a
/// step.
const WEIGHT_PER_STEP: usize = 4_096;
/// Suggested to clients that the door turns away while nothing waits in the engine.
const RETRY_AFTER_MS: u32 = 1_000;
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
        retry_after_ms: AtomicU32::new(RETRY_AFTER_MS),
        stream_events,
        refused_here: AtomicU64::new(0),
        requests: Mutex::default(),
        live: watch::Sender::new(0),
        alive: watch::Sender::new(true),
        ending: AtomicBool::new(false),
        failed: AtomicBool::new(false),
        gate: StepGate::default(),
        computing_since: AtomicU64::new(u64::MAX),
        observer: Observer::default(),
        tap: Tap::default(),
    });
    let mut driver = Driver::new(engine, executor, inbox, Arc::clone(&shared));
    let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| driver.run()));
        let told = outcome.unwrap_or_else(|panic| {
            tracing::error!("the engine failed an internal check and stopped: {}", panic_text(&*panic));
            false
        });
        driver.shared.failed.store(!told, Ordering::Release);
        // Streams must end before anybody can learn that the engine is gone, not after, and must know why.
        driver.shared.ending.store(true, Ordering::Release);
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
    /// Steps that the executor has, oldest first.
    out: VecDeque<Out>,
    times: StepTimes,
    /// The thread waited for something to do since the last step.
    waited: bool,
    /// For recordings.
    sharing: SharedContext,
    /// The engine keeps its decisions for a recording, from this beginning on.
    keeps_decisions: Option<u64>,
    kv_listener: Option<KvListener>,
    /// Nothing will be computed any more.
    device_lost: bool,
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
            out: VecDeque::new(),
            times: StepTimes::default(),
            waited: true,
            sharing: SharedContext::default(),
            keeps_decisions: None,
            kv_listener: None,
            device_lost: false,
        }
    }

    /// Whether it ended because it was told to.
    fn run(&mut self) -> bool {
        self.note_initial_policies();
        loop {
            if self.receive() == Flow::Stop {
                return true;
            }
            self.note_pace();
            let stepped = if self.shared.gate.is_held() { self.take_back() } else { self.step() };
            if self.device_lost {
                // Who was hit is told why; the others' streams end with the thread.
                self.dispatch();
                tracing::error!("the device computes nothing more in this process: the engine stops");
                return false;
            }
            if !stepped && self.park() == Flow::Stop {
                return true;
            }
        }
    }

    fn now(&self) -> Micros {
        self.shared.clock.now()
    }

    /// Updates how soon a slot of the queue may come free, which handles tell clients that they turn away.
    fn note_pace(&self) {
        let waits = self.shared.tickets.available_permits() < self.shared.max_waiting as usize;
        let ms = if waits { self.engine.retry_after_ms(self.now()) } else { RETRY_AFTER_MS };
        self.shared.retry_after_ms.store(ms, Ordering::Relaxed);
    }

    fn receive(&mut self) -> Flow {
        let mut applied = 0;
        while applied < WEIGHT_PER_STEP {
            match self.inbox.try_next() {
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Flow::Stop,
                Ok(command) => {
                    applied += command.weight();
                    self.apply(command);
                }
                Err(TryRecvError::Empty) => break,
            }
        }
        if self.inbox.must_look() {
            self.drop_readerless();
        }
        Flow::Continue
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
