//! The engine thread: applies commands, drives the engine step by step, sends tokens to the streams.
//!
//! It never waits for a client, only for the device and, when nothing can run, for a command or the engine's next
//! wake-up. With planning ahead, the device gets the next step before this one is collected. Deliberately absent:
//! sockets, text, JSON, locks that a client could hold.

mod carry;
mod commands;
mod events;
mod steps;

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::time::Duration;

use infer_core::policy::PolicyKind;
use infer_core::sharing::SharedContext;
use infer_core::{Engine, Event, Executor, Micros, SequenceId, StepOutput};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::change::By;
use super::clock::Clock;
use super::command::{AdapterNames, Command, KvListener};
use super::gate::StepGate;
use super::handle::{EngineHandle, Shared};
use super::hits::PrefixHits;
use super::lasting::Standing;
use super::mailbox::{Inbox, mailbox};
use super::observer::{Noted, Observer};
use super::stream::{Marks, RequestMeta, StreamEvent};
use crate::trace::Tap;
use carry::Copies;
use steps::{Out, StepTimes};

/// Weight of the commands (`Command::weight`) applied before the next step: bounds how long a flood can delay a step.
const WEIGHT_PER_STEP: usize = 4_096;
/// `Retry-After` of requests refused while nothing waits.
const RETRY_AFTER_MS: u32 = 1_000;
/// Shortest sleep: a wake-up time that has just passed must not make the thread spin.
const MIN_PARK: Duration = Duration::from_micros(50);

/// A running engine thread.
pub struct EngineThread {
    /// The handle to it.
    pub handle: EngineHandle,
    thread: std::thread::JoinHandle<()>,
}

/// Bounds of the channels around an engine.
#[derive(Clone, Copy, Debug)]
pub struct ChannelBounds {
    /// Requests that may wait.
    pub max_waiting: u32,
    /// Sequences that run at once.
    pub max_running: u32,
    /// Events that a stream's reader may lag behind.
    pub stream_events: usize,
}

/// Called with the engine and its device when the thread was stopped, no stream is left, and no step is in flight. Not
/// if the device is lost.
pub type AtEnd = Box<dyn FnOnce(&Engine, &mut dyn Executor) + Send>;

/// Starts the engine thread.
pub fn spawn(
    engine: Engine,
    executor: Box<dyn Executor + Send>,
    clock: Clock,
    bounds: ChannelBounds,
    at_end: Option<AtEnd>,
) -> std::io::Result<EngineThread> {
    let ChannelBounds { max_waiting, max_running, stream_events } = bounds;
    // Each live request can have a submission and an end pending; the rest is for operators.
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
        refused_busy: AtomicU64::new(0),
        draining: AtomicBool::new(false),
        live: watch::Sender::new(0),
        alive: watch::Sender::new(true),
        ending: AtomicBool::new(false),
        failed: AtomicBool::new(false),
        gate: StepGate::default(),
        computing_since: AtomicU64::new(u64::MAX),
        observer: Observer::new(clock),
        tap: Tap::default(),
    });
    // Before the thread can change anything: what it notes must not be replaced by what was before.
    for kind in PolicyKind::ALL {
        shared.observer.lasting().stand(kind, Standing::of(&engine.slot(kind)));
    }
    let mut driver = Driver::new(engine, executor, inbox, Arc::clone(&shared));
    let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| driver.run()));
        let sound = outcome.is_ok();
        let stopped = outcome.unwrap_or_else(|panic| {
            tracing::error!("the engine failed an internal check and stopped: {}", panic_text(&*panic));
            false
        });
        driver.shared.failed.store(!stopped, Ordering::Release);
        // Streams must end, and know why, before `alive` says that the engine has ended.
        driver.shared.ending.store(true, Ordering::Release);
        driver.live.clear();
        driver.shared.alive.send_replace(false);
        if sound {
            // What goes wrong here takes only the copy with it.
            let _ = catch_unwind(AssertUnwindSafe(|| driver.leave_last_copy()));
        }
        if stopped && let Some(at_end) = at_end {
            // A device that computes ahead still has a step, and its blocks are only copied between two.
            let collected = catch_unwind(AssertUnwindSafe(|| driver.take_all_back()));
            if collected.is_ok() && !driver.device_lost {
                at_end(&driver.engine, driver.executor.as_mut());
            }
        }
    })?;
    Ok(EngineThread { handle: EngineHandle { shared }, thread })
}

impl EngineThread {
    /// Ends the thread, and with it all open streams. Blocks until it has ended.
    pub fn stop(self) {
        let mut stop = Command::Stop;
        while let Err(unsent) = self.handle.shared.mail.send(stop) {
            if self.thread.is_finished() {
                return;
            }
            stop = unsent;
            std::thread::sleep(MIN_PARK);
        }
        let _ = self.thread.join();
    }
}

/// What the engine thread keeps for a live request.
struct Live {
    events: mpsc::Sender<StreamEvent>,
    /// Its slot in the waiting queue, until it starts.
    ticket: Option<OwnedSemaphorePermit>,
    marks: Arc<Marks>,
    meta: Arc<RequestMeta>,
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
    /// Steps in flight, oldest first.
    out: VecDeque<Out>,
    times: StepTimes,
    prefix_hits: PrefixHits,
    /// Whether the thread was idle since the last step. For recordings.
    waited: bool,
    /// Measures shared context. For recordings.
    sharing: SharedContext,
    /// The tap's beginning since which the engine keeps its decisions for a recording.
    keeps_decisions: Option<u64>,
    /// What the executor's adapters are called.
    adapters: Arc<AdapterNames>,
    kv_listener: Option<KvListener>,
    /// Batches that a listener was told.
    kv_told: u64,
    /// The device can compute nothing more.
    device_lost: bool,
    /// Who wanted the change whose events are being dispatched.
    by: Option<By>,
    /// What was left for the next host.
    copies: Copies,
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
            prefix_hits: PrefixHits::default(),
            waited: true,
            sharing: SharedContext::default(),
            keeps_decisions: None,
            adapters: Arc::default(),
            kv_listener: None,
            kv_told: 0,
            device_lost: false,
            by: None,
            copies: Copies::default(),
        }
    }

    /// Runs until it is stopped (true) or the device is lost (false).
    fn run(&mut self) -> bool {
        self.note_initial_policies();
        loop {
            if self.receive() == Flow::Stop {
                return true;
            }
            self.note_pace();
            self.leave_copy_if_due();
            let stepped = if self.shared.gate.is_held() { self.take_back() } else { self.step() };
            if self.device_lost {
                // Requests in the lost step receive the error; the other streams end with the thread.
                self.dispatch();
                tracing::error!("the device is lost; the engine stops");
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

    /// Updates the `Retry-After` of requests that find the queue full.
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
        if self.inbox.must_scan() {
            self.scan();
        }
        Flow::Continue
    }

    /// Waits for a command, the engine's next wake-up, or the time for a copy.
    fn park(&mut self) -> Flow {
        self.dispatch();
        self.waited = true;
        let wake = if self.shared.gate.is_held() { None } else { self.engine.next_wake() };
        let wake = wake.into_iter().chain(self.copy_due()).min();
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
            let reason = match (&slot.previous, slot.fallback) {
                (Some(previous), _) => {
                    format!("start: swapped in before the restart, in place of {}", previous.name)
                }
                (None, true) => "start: the configured policy is in quarantine".to_owned(),
                (None, false) => "start".to_owned(),
            };
            let noted = Noted {
                at: slot.since,
                step: snapshot.step,
                from: String::new(),
                to: &slot.policy,
                reason,
                mode: "start",
                by: None,
            };
            self.shared.observer.note(slot.kind, noted);
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
