//! Who does which piece of a job, and who wakes whom. Threads, atomics and waiting come from the parent module.
//!
//! Where one thread writes `a` and reads `b` while another writes `b` and reads `a` (a job and who sleeps; the
//! last piece and whether the caller sleeps), a sequentially consistent fence stands between the two on either
//! side, so that at least one sees what the other wrote. Fences rather than sequentially consistent accesses,
//! because the model checker (`tests/interleave`) knows these exactly.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;
use std::time::Duration;

use super::world::{
    Arc, AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Builder, JoinHandle, Mutex, Ordering, Thread,
    current, fence, park, spin,
};

/// How long a helper looks for the next job before it sleeps: longer than what lies between two operations
/// of a step and between the steps of one request.
const HELPER_SPIN: Duration = Duration::from_micros(60);
/// How long the caller waits for the last pieces before it sleeps.
const CALLER_SPIN: Duration = Duration::from_micros(30);

/// Helper threads. One caller at a time; a caller's job ends before the next begins.
pub(in super::super) struct Pool {
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

    /// Threads, the caller's included.
    pub(in super::super) fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Helpers that sleep, or are about to.
    #[cfg(test)]
    pub(in super::super) fn sleepers(&self) -> usize {
        self.shared.asleep.load(Ordering::Relaxed)
    }

    /// Calls `work` with ranges that together are `0..items`, and returns when all are done. A panic of any
    /// range goes on here, after the others. Must not be called by two threads at once, nor from `work`.
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
        // Who isn't seen to sleep sees the job.
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
            let done = self.done.0.fetch_add(piece, Ordering::AcqRel) + piece;
            if done < items {
                continue;
            }
            // A caller that isn't seen to sleep sees that all is done.
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
