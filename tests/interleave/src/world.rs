//! loom's threads and atomics under the names of std's. Deliberately absent: time.

use std::time::Duration;

pub use crate::channel::{Receiver, SyncSender, sync_channel};
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
pub use loom::sync::{Arc, Condvar, Mutex};
pub use loom::thread::{Thread, current, park, yield_now};

/// Runs `run` in every interleaving with at most `switches` preemptions.
pub fn check(switches: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(switches);
    model.max_branches = 10_000;
    model.check(run);
}

/// Checks once instead of spinning: loom also tries the interleavings in which the check comes later.
pub fn spin(_limit: Duration, found: impl Fn() -> bool) -> bool {
    found()
}

/// Same interface as std's.
#[derive(Debug, Default)]
pub struct Builder;

impl Builder {
    /// A builder.
    pub fn new() -> Self {
        Self
    }

    /// Names don't matter here.
    #[must_use]
    pub fn name(self, _name: String) -> Self {
        self
    }

    /// Starts a thread. Never fails.
    pub fn spawn(self, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        Ok(spawn(work))
    }
}

/// Starts a thread.
pub fn spawn(work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let (ended, parent) = (Arc::new(AtomicBool::new(false)), current());
    let ends = Arc::clone(&ended);
    let thread = loom::thread::spawn(move || {
        work();
        ends.store(true, Ordering::Release);
        parent.unpark();
    });
    JoinHandle { thread, ended }
}

/// Handle of a thread. Only the thread that started it may join it: it waits by parking, because loom's own `join`
/// mistakes a late unpark for the end of the thread.
#[derive(Debug)]
pub struct JoinHandle<T> {
    thread: loom::thread::JoinHandle<T>,
    ended: Arc<AtomicBool>,
}

impl<T> JoinHandle<T> {
    /// The thread, for unparking it.
    pub fn thread(&self) -> &Thread {
        self.thread.thread()
    }

    /// Waits for its end.
    pub fn join(self) -> std::thread::Result<()> {
        while !self.ended.load(Ordering::Acquire) {
            park();
        }
        Ok(())
    }
}
