//! The most that any call of a loader's policies has used so far, for reports about a policy.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The largest amounts since the loader was made. Self-tests count too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Fuel of one call; 0 if a deadline limits calls instead.
    pub fuel_per_call: u64,
    /// Fuel of all calls; 0 if a deadline limits calls instead.
    pub fuel: u64,
    /// Processor time of one call with fuel counted; zero if a deadline limits calls instead.
    pub time_per_call: Duration,
    /// Memory of one instance, in bytes.
    pub memory_bytes: usize,
}

/// Shared by the stores of one runtime.
#[derive(Debug, Default)]
pub(crate) struct Peaks {
    fuel_per_call: AtomicU64,
    fuel: AtomicU64,
    time_per_call_ns: AtomicU64,
    memory_bytes: AtomicUsize,
}

impl Peaks {
    /// A call under fuel ended.
    pub(crate) fn saw_call(&self, units: u64, time: Duration) {
        self.fuel_per_call.fetch_max(units, Ordering::Relaxed);
        self.fuel.fetch_add(units, Ordering::Relaxed);
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.time_per_call_ns.fetch_max(ns, Ordering::Relaxed);
    }

    pub(crate) fn saw_memory(&self, bytes: usize) {
        self.memory_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            fuel_per_call: self.fuel_per_call.load(Ordering::Relaxed),
            fuel: self.fuel.load(Ordering::Relaxed),
            time_per_call: Duration::from_nanos(self.time_per_call_ns.load(Ordering::Relaxed)),
            memory_bytes: self.memory_bytes.load(Ordering::Relaxed),
        }
    }
}
