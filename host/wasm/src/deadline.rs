//! The live time limit of a call. One thread per loader advances the engine's epoch every
//! millisecond while some call is running and sleeps otherwise; what a tick means is decided per
//! store, so one policy's overrun never ends another's call.
//!
//! What is measured is the calling thread's processor time, not the wall: a guest can't block, so on
//! a crowded machine the wall would blame the policy for what others use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use wasmtime::{Engine, UpdateDeadline};

const TICK: Duration = Duration::from_millis(1);
/// Ticks without a call after which the thread sleeps until the next one.
const IDLE_TICKS: u32 = 100;

/// What one store knows about the call it is in.
pub(crate) struct Deadline {
    limit: Duration,
    /// The thread's processor time at the call's first tick. Reading it costs a system call, so a
    /// call that ends before its first tick, as nearly all do, never reads it.
    first_tick: Option<Duration>,
}

impl Deadline {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, first_tick: None }
    }

    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// A call begins.
    pub(crate) fn arm(&mut self) {
        self.first_tick = None;
    }

    /// The epoch callback. A call may so run up to one tick longer than its limit.
    pub(crate) fn on_tick(&mut self) -> UpdateDeadline {
        let now = thread_cpu_time();
        let first = *self.first_tick.get_or_insert(now);
        if now.saturating_sub(first) >= self.limit {
            UpdateDeadline::Interrupt
        } else {
            UpdateDeadline::Continue(1)
        }
    }
}

fn thread_cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// The thread that advances the epoch. Stops when dropped.
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    calls: AtomicUsize,
    parked: AtomicBool,
    stop: AtomicBool,
}

/// Held while a call runs.
pub(crate) struct Running<'a>(&'a Shared);

impl Ticker {
    pub(crate) fn start(engine: Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("policy-ticker".into()).spawn(move || of_thread.run(&engine))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// A call begins; ticks come until the answer is dropped.
    pub(crate) fn enter(&self) -> Running<'_> {
        self.shared.calls.fetch_add(1, SeqCst);
        // The thread sets `parked` before it looks at `calls` a last time: one of the two sees the other.
        if self.shared.parked.load(SeqCst) {
            self.unpark();
        }
        Running(&self.shared)
    }

    fn unpark(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, SeqCst);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.unpark();
        if let Some(thread) = self.thread.take() {
            // It can't have panicked: it only counts and sleeps.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, engine: &Engine) {
        let mut idle = 0;
        while !self.stop.load(SeqCst) {
            thread::sleep(TICK);
            engine.increment_epoch();
            idle = if self.calls.load(SeqCst) == 0 { idle + 1 } else { 0 };
            if idle >= IDLE_TICKS {
                self.park();
                idle = 0;
            }
        }
    }

    fn park(&self) {
        self.parked.store(true, SeqCst);
        while self.calls.load(SeqCst) == 0 && !self.stop.load(SeqCst) {
            thread::park();
        }
        self.parked.store(false, SeqCst);
    }
}
