//! The most that any call of a loader's policies has taken so far, for reports about a policy.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The largest amounts since the loader was made. Self-tests count too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Fuel of one call; 0 where a deadline limits calls instead.
    pub fuel_per_call: u64,
    /// Memory of one instance, in bytes.
    pub memory_bytes: usize,
}

/// Shared by the stores of one runtime.
#[derive(Debug, Default)]
pub(crate) struct Peaks {
    fuel_per_call: AtomicU64,
    memory_bytes: AtomicUsize,
}

impl Peaks {
    pub(crate) fn saw_fuel(&self, units: u64) {
        self.fuel_per_call.fetch_max(units, Ordering::Relaxed);
    }

    pub(crate) fn saw_memory(&self, bytes: usize) {
        self.memory_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            fuel_per_call: self.fuel_per_call.load(Ordering::Relaxed),
            memory_bytes: self.memory_bytes.load(Ordering::Relaxed),
        }
    }
}
