//! The vectorized implementation: an instruction set, and threads for what is worth waking them.
//!
//! Work is handed out through one counter; the calling thread takes its share, so a helper that wakes late
//! costs nothing but its own help. Which thread computes an element never changes its bits.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::simd::Isa;

pub mod activation;
pub mod attention;
pub mod contiguous;
mod math;
pub mod matmul;
pub mod norm;
pub mod rope;
mod tile;

/// Multiply-adds below which waking another thread costs more than it brings.
const PARALLEL_COST: usize = 2 << 20;

/// Runs kernels. One per executor: it owns its threads.
pub struct Cpu {
    isa: Isa,
    helpers: Option<ThreadPool>,
}

impl Cpu {
    /// With the widest instruction set and `threads` threads, the caller's included.
    ///
    /// # Errors
    /// Where the system gives no threads.
    pub fn new(threads: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        Self::with_isa(Isa::detect(), threads)
    }

    /// With a given instruction set.
    ///
    /// # Errors
    /// Where the system gives no threads.
    ///
    /// # Panics
    /// Where this CPU lacks the instruction set.
    pub fn with_isa(isa: Isa, threads: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        assert!(Isa::available().contains(&isa), "this CPU has no {isa:?}");
        let helpers = match threads.saturating_sub(1) {
            0 => None,
            count => Some(
                ThreadPoolBuilder::new()
                    .num_threads(count)
                    .thread_name(|i| format!("infer-kernel-{i}"))
                    .build()?,
            ),
        };
        Ok(Self { isa, helpers })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads that work on one operation, the caller's included.
    pub fn threads(&self) -> usize {
        1 + self.helpers.as_ref().map_or(0, ThreadPool::current_num_threads)
    }

    /// Calls `work` once for each of `0..items`, on several threads where `cost` multiply-adds are worth it.
    fn for_each(&self, items: usize, cost: usize, work: impl Fn(usize) + Sync) {
        let helpers = match &self.helpers {
            Some(helpers) if items > 1 && cost >= PARALLEL_COST => helpers,
            _ => return (0..items).for_each(work),
        };
        let next = AtomicUsize::new(0);
        let drain = || {
            loop {
                let item = next.fetch_add(1, Ordering::Relaxed);
                if item >= items {
                    break;
                }
                work(item);
            }
        };
        helpers.in_place_scope(|scope| {
            for _ in 0..helpers.current_num_threads().min(items - 1) {
                scope.spawn(|_| drain());
            }
            drain();
        });
    }
}

/// A pointer into a buffer whose parts are written by different threads, never the same part by two.
#[derive(Clone, Copy)]
struct Shared(*mut f32);

impl Shared {
    /// By value, so that closures capture the wrapper and not the pointer inside.
    fn get(self) -> *mut f32 {
        self.0
    }
}

// SAFETY: users write disjoint parts of a buffer that outlives the scope of the threads.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}
