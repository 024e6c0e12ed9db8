//! Threads for the operations of a step. A step has hundreds of operations of a few microseconds, so waking a
//! thread for each would eat what it brings: helpers look for the next job for a while before they sleep.
//!
//! Work is claimed in pieces, by whoever is there. A helper that another process keeps from running holds up
//! only the piece that it claimed; the caller does the rest, then waits a bounded time and sleeps, which gives
//! the helper this core. Nothing spins without a bound, between requests everybody sleeps.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a helper looks for the next job before it sleeps: longer than what lies between two operations
/// of a step and between the steps of one request.
const HELPER_SPIN: Duration = Duration::from_micros(60);
/// How long the caller waits for the last pieces before it sleeps.
const CALLER_SPIN: Duration = Duration::from_micros(30);

/// Helper threads. One caller at a time; a caller's job ends before the next begins.
pub(super) struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

/// On a cache line of its own.
#[repr(align(128))]
struct Line<T>(T);

struct Shared {
    /// The job's number above, the items that nobody claimed below. Only claims take from it, and a new job is
    /// only made when the last is done: whoever takes items of a job has read that job's fields.
    ticket: Line<AtomicU64>,
    /// Items of the job that are done.
    done: Line<AtomicUsize>,
    items: AtomicUsize,
    /// Runs a range of items of the job; a `unsafe fn(*const (), Range<usize>)`.
    run: AtomicPtr<()>,
    data: AtomicPtr<()>,
    /// Helpers that sleep, or are about to.
    asleep: AtomicUsize,
    caller_asleep: AtomicBool,
    caller: Mutex<Option<Thread>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    threads: usize,
}

type Run = unsafe fn(*const (), Range<usize>);

impl Pool {
    /// With `helpers` threads beside the caller's.
    pub(super) fn new(helpers: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            ticket: Line(AtomicU64::new(0)),
            done: Line(AtomicUsize::new(0)),
            items: AtomicUsize::new(0),
            run: AtomicPtr::new(std::ptr::null_mut()),
            data: AtomicPtr::new(std::ptr::null_mut()),
            asleep: AtomicUsize::new(0),
            caller_asleep: AtomicBool::new(false),
            caller: Mutex::new(None),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
            threads: helpers + 1,
        });
        let mut pool = Self { shared, helpers: Vec::with_capacity(helpers) };
        for i in 0..helpers {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("infer-kernel-{i}"));
            pool.helpers.push(thread.spawn(move || shared.help())?);
        }
        Ok(pool)
    }

    /// Threads, the caller's included.
    pub(super) fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Calls `work` with ranges that together are `0..items`, and returns when all are done. A panic of any
    /// range goes on here, after the others. Must not be called by two threads at once, nor from `work`.
    pub(super) fn run<F: Fn(Range<usize>) + Sync>(&mut self, items: usize, work: &F) {
        unsafe fn call<F: Fn(Range<usize>)>(work: *const (), range: Range<usize>) {
            // SAFETY: `data` is the `work` of `run`, which outlives the job.
            unsafe { (*work.cast::<F>())(range) }
        }
        assert!(u32::try_from(items).is_ok(), "too many pieces of work");
        if items == 0 {
            return;
        }
        let shared = &*self.shared;
        shared.items.store(items, Ordering::Relaxed);
        shared.run.store(call::<F> as Run as *mut (), Ordering::Relaxed);
        shared.data.store(std::ptr::from_ref(work).cast_mut().cast(), Ordering::Relaxed);
        shared.done.0.store(0, Ordering::Relaxed);
        let job = (shared.ticket.0.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        shared.ticket.0.store(job << 32 | items as u64, Ordering::SeqCst);
        if shared.asleep.load(Ordering::SeqCst) > 0 {
            self.helpers.iter().for_each(|helper| helper.thread().unpark());
        }
        shared.drain();
        shared.wait(items);
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for helper in self.helpers.drain(..) {
            helper.thread().unpark();
            // A helper catches what its work throws; it has nothing to say.
            let _ = helper.join();
        }
    }
}

impl Shared {
    fn help(&self) {
        loop {
            self.drain();
            if !spin(HELPER_SPIN, || self.wanted()) {
                self.asleep.fetch_add(1, Ordering::SeqCst);
                while !self.wanted() {
                    std::thread::park();
                }
                self.asleep.fetch_sub(1, Ordering::SeqCst);
            }
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    fn wanted(&self) -> bool {
        self.ticket.0.load(Ordering::SeqCst) as u32 > 0 || self.stop.load(Ordering::SeqCst)
    }

    /// Claims and runs pieces until none are left.
    fn drain(&self) {
        loop {
            let ticket = self.ticket.0.load(Ordering::Acquire);
            let left = ticket as u32 as usize;
            if left == 0 {
                return;
            }
            let (items, run, data) = (
                self.items.load(Ordering::Relaxed),
                self.run.load(Ordering::Relaxed),
                self.data.load(Ordering::Relaxed),
            );
            // Large pieces first, single items at the end, so that threads end together.
            let piece = (left / (4 * self.threads)).max(1);
            let taken = self.ticket.0.compare_exchange_weak(
                ticket,
                ticket - piece as u64,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if taken.is_err() {
                continue;
            }
            let first = items - left;
            // SAFETY: the claim succeeded, so the job is not done and its fields, read before, are its own;
            // `run` was stored from a function of this type.
            let work = || unsafe {
                let run: Run = std::mem::transmute::<*mut (), Run>(run);
                run(data, first..first + piece);
            };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
            let done = self.done.0.fetch_add(piece, Ordering::SeqCst) + piece;
            if done == items && self.caller_asleep.load(Ordering::SeqCst) {
                let caller = self.caller.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(caller) = &*caller {
                    caller.unpark();
                }
            }
        }
    }

    fn wait(&self, items: usize) {
        let done = || self.done.0.load(Ordering::SeqCst) == items;
        if spin(CALLER_SPIN, done) {
            return;
        }
        let me = std::thread::current();
        *self.caller.lock().unwrap_or_else(PoisonError::into_inner) = Some(me);
        self.caller_asleep.store(true, Ordering::SeqCst);
        while !done() {
            std::thread::park();
        }
        self.caller_asleep.store(false, Ordering::SeqCst);
    }
}

/// Looks until `found`, but not much longer than `limit`. Returns whether it was found.
fn spin(limit: Duration, found: impl Fn() -> bool) -> bool {
    let mut end = None;
    loop {
        for _ in 0..32 {
            if found() {
                return true;
            }
            std::hint::spin_loop();
        }
        let now = Instant::now();
        if now > *end.get_or_insert(now + limit) {
            return found();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_done_exactly_once_in_job_after_job() {
        for helpers in [0, 1, 3] {
            let mut pool = Pool::new(helpers).unwrap();
            for items in (0..200).chain([5_000, 1]) {
                let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                pool.run(items, &|range: Range<usize>| {
                    range.for_each(|i| _ = counts[i].fetch_add(1, Ordering::Relaxed));
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{items} items");
            }
        }
    }

    #[test]
    fn helpers_that_slept_and_callers_that_wait_are_woken() {
        let mut pool = Pool::new(1).unwrap();
        let barrier = std::sync::Barrier::new(2);
        for _ in 0..20 {
            while pool.shared.asleep.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            // Two items that only two threads can finish.
            pool.run(2, &|range: Range<usize>| range.for_each(|_| _ = barrier.wait()));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_after_all_other_items_and_the_pool_lives_on() {
        let mut pool = Pool::new(2).unwrap();
        let done = AtomicUsize::new(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(100, &|range: Range<usize>| {
                for i in range {
                    assert_ne!(i, 99, "the last item");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }));
        assert!(outcome.is_err());
        assert_eq!(done.load(Ordering::Relaxed), 99);
        pool.run(1, &|_: Range<usize>| _ = done.fetch_add(1, Ordering::Relaxed));
        assert_eq!(done.load(Ordering::Relaxed), 100);
    }
}
