//! The vectorized implementation: an instruction set, and threads for operations large enough to be worth it.
//!
//! The calling thread takes part in the work, so a helper that wakes late costs only its own contribution. Which thread
//! computes an element never changes its bits.

use std::ops::Range;
use std::sync::{Mutex, TryLockError};

use crate::simd::Isa;
use pool::Pool;

pub mod activation;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
pub mod attention;
pub(crate) mod block;
pub mod contiguous;
pub mod experts;
mod math;
pub mod matmul;
pub mod norm;
mod piece;
mod pool;
mod probe;
mod product;
pub mod rope;
pub(crate) mod split;
mod tile;
mod vectors;

/// Multiply-adds below which involving another thread costs more than it saves: about a microsecond.
const PARALLEL_COST: usize = 1 << 15;

/// Runs kernels. One per executor: it owns its threads.
pub struct Cpu {
    isa: Isa,
    threads: usize,
    pool: Option<Mutex<Pool>>,
}

impl Cpu {
    /// Uses the fastest instruction set and `threads` threads, including the caller's.
    ///
    /// # Errors
    /// If threads can't be started.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        Self::with_isa(Isa::detect(), threads)
    }

    /// Uses a given instruction set.
    ///
    /// # Errors
    /// If threads can't be started.
    ///
    /// # Panics
    /// If this CPU lacks the instruction set.
    pub fn with_isa(isa: Isa, threads: usize) -> std::io::Result<Self> {
        assert!(Isa::available().contains(&isa), "this CPU has no {isa:?}");
        let pool = match threads.saturating_sub(1) {
            0 => None,
            helpers => Some(Pool::new(helpers)?),
        };
        let threads = pool.as_ref().map_or(1, Pool::threads);
        Ok(Self { isa, threads, pool: pool.map(Mutex::new) })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads that work on one operation, the caller's included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `work` once for each of `0..items`, on several threads if `cost` multiply-adds make it worthwhile. A call from
    /// within `work`, or while another thread's call runs, uses the calling thread alone.
    pub(crate) fn for_each(&self, items: usize, cost: usize, work: impl Fn(usize) + Sync) {
        let all = |range: Range<usize>| range.for_each(&work);
        let pool = self.pool.as_ref().filter(|_| items > 1 && cost >= PARALLEL_COST);
        match pool.map(Mutex::try_lock) {
            Some(Ok(mut pool)) => pool.run(items, &all),
            Some(Err(TryLockError::Poisoned(poisoned))) => poisoned.into_inner().run(items, &all),
            Some(Err(TryLockError::WouldBlock)) | None => all(0..items),
        }
    }
}

/// A pointer into a buffer of which threads write disjoint parts.
pub(crate) struct Shared<T>(pub *mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

impl<T> Shared<T> {
    /// By value, so that closures capture the wrapper and not the pointer inside.
    pub(crate) fn get(self) -> *mut T {
        self.0
    }
}

// SAFETY: users write disjoint parts of a buffer that outlives the scope of the threads.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}
