//! When it ticks, and what wakes it. Threads, atomics and the tick come from the parent module.

use super::world::{
    Arc, AtomicBool, AtomicUsize, Builder, Epoch, IDLE_TICKS, JoinHandle, Ordering, fence, park, tick,
};

/// The thread that advances the epoch. Stops when dropped.
pub(in super::super) struct Ticker {
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
pub(in super::super) struct Running<'a>(&'a Shared);

impl Ticker {
    pub(in super::super) fn start(epoch: Epoch) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = Builder::new().name("policy-ticker".into()).spawn(move || of_thread.run(&epoch))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// A call begins; ticks come until the guard is dropped.
    pub(in super::super) fn enter(&self) -> Running<'_> {
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
        // The thread sets `parked` before it looks at `calls` a last time: one of the two sees the other.
        fence(Ordering::SeqCst);
        if self.shared.parked.load(Ordering::Relaxed) {
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
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.unpark();
        if let Some(thread) = self.thread.take() {
            // It can't have panicked: it only counts and sleeps.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, epoch: &Epoch) {
        let mut idle = 0;
        while !self.stop.load(Ordering::Relaxed) {
            tick(epoch);
            idle = if self.calls.load(Ordering::Relaxed) == 0 { idle + 1 } else { 0 };
            if idle >= IDLE_TICKS {
                self.park();
                idle = 0;
            }
        }
    }

    fn park(&self) {
        self.parked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while self.calls.load(Ordering::Relaxed) == 0 && !self.stop.load(Ordering::Relaxed) {
            park();
        }
        self.parked.store(false, Ordering::Relaxed);
    }
}
