//! How threads claim pieces of a job and wake each other. Threads, atomics and waiting come from the parent module.
//!
//! In two places one thread writes `a` and reads `b` while another writes `b` and reads `a`: a new job and the count of
//! sleepers; the last piece and whether the caller sleeps. There, both sides put a sequentially consistent fence between
//! write and read, so that at least one sees the other's write. They use fences instead of sequentially consistent accesses
//! because the model checker (`tests/interleave`) models fences exactly.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;
use std::time::Duration;

use super::world::{
    Arc, AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Builder, JoinHandle, Mutex, Ordering, Thread,
    current, fence, park, spin,
};

/// How long a helper spins for the next job before it sleeps: longer than the time between two operations of a step and
/// between two steps of one request.
const HELPER_SPIN: Duration = Duration::from_micros(60);
/// How long the caller spins for the last pieces before it sleeps.
const CALLER_SPIN: Duration = Duration::from_micros(30);

/// Helper threads. One caller at a time; a caller's job ends before the next begins.
pub(in super::super) struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

/// Aligned so that it shares no cache line.
#[repr(align(128))]
struct Line<T>(T);

struct Shared {
    /// Upper half: the job's number; lower half: its unclaimed items. Only claims decrease it, and a new job starts only when
    /// the last one is done, so a thread that claims items has read the fields of that job.
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
    /// Starts `helpers` threads in addition to the caller's.
    pub(in super::super) fn new(helpers: usize) -> std::io::Result<Self> {
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
            let thread = Builder::new().name(format!("infer-kernel-{i}"));
            pool.helpers.push(thread.spawn(move || shared.help())?);
        }
        Ok(pool)
    }

    /// Number of threads, including the caller's.
    pub(in super::super) fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Helpers that sleep, or are about to.
    #[cfg(test)]
    pub(in super::super) fn sleepers(&self) -> usize {
        self.shared.asleep.load(Ordering::Relaxed)
    }

    /// Calls `work` with disjoint ranges that cover `0..items`, and returns when all are done. If a range panics, the panic
    /// resumes here after all others are done. Must not be called by two threads at once, nor from `work`.
    pub(in super::super) fn run<F: Fn(Range<usize>) + Sync>(&mut self, items: usize, work: &F) {
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
        shared.ticket.0.store(job << 32 | items as u64, Ordering::Release);
        // A helper that is not counted as asleep will see the job.
        fence(Ordering::SeqCst);
        if shared.asleep.load(Ordering::Relaxed) > 0 {
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
        self.shared.stop.store(true, Ordering::Release);
        for helper in self.helpers.drain(..) {
            helper.thread().unpark();
            // A helper catches the panics of its work, so there is nothing to report.
            let _ = helper.join();
        }
    }
}

impl Shared {
    fn help(&self) {
        loop {
            self.drain();
            if !spin(HELPER_SPIN, || self.wanted()) {
                self.asleep.fetch_add(1, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                while !self.wanted() {
                    park();
                }
                self.asleep.fetch_sub(1, Ordering::Relaxed);
            }
            if self.stop.load(Ordering::Acquire) {
                return;
            }
        }
    }

    fn wanted(&self) -> bool {
        self.ticket.0.load(Ordering::Relaxed) as u32 > 0 || self.stop.load(Ordering::Relaxed)
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
            // Large pieces first, single items at the end, so that threads finish together.
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
            let done = self.done.0.fetch_add(piece, Ordering::AcqRel) + piece;
            if done < items {
                continue;
            }
            // A caller that is not seen asleep will see that all items are done.
            fence(Ordering::SeqCst);
            if self.caller_asleep.load(Ordering::Relaxed) {
                let caller = self.caller.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(caller) = &*caller {
                    caller.unpark();
                }
            }
        }
    }

    fn wait(&self, items: usize) {
        let done = || self.done.0.load(Ordering::Acquire) == items;
        if spin(CALLER_SPIN, done) {
            return;
        }
        *self.caller.lock().unwrap_or_else(PoisonError::into_inner) = Some(current());
        self.caller_asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while !done() {
            park();
        }
        self.caller_asleep.store(false, Ordering::Relaxed);
    }
}
