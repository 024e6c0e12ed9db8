//! Occupancy of the block pool, weighted by time.

use infer_core::ids::Micros;
use infer_core::snapshot::MemoryCounts;

use super::{PoolOutcome, count};

/// Sums of what the pool held.
#[derive(Debug, Default)]
pub(crate) struct Occupancy {
    time_us: f64,
    /// Blocks times microseconds.
    used: f64,
    cached: f64,
    peak_used: u32,
    peak_cached: u32,
    total: u32,
}

impl Occupancy {
    /// Adds a time during which the pool held the same.
    pub fn add(&mut self, memory: &MemoryCounts, time: Micros) {
        let us = count(time.0);
        self.time_us += us;
        self.used += f64::from(memory.used) * us;
        self.cached += f64::from(memory.cached) * us;
        self.peak_used = self.peak_used.max(memory.used);
        self.peak_cached = self.peak_cached.max(memory.cached);
        self.total = memory.total;
    }

    /// The same as shares of the pool.
    pub fn shares(&self) -> PoolOutcome {
        let blocks = f64::from(self.total.max(1));
        let mean = |sum: f64| sum / blocks / self.time_us.max(1.0);
        PoolOutcome {
            used_mean: mean(self.used),
            used_peak: f64::from(self.peak_used) / blocks,
            cached_mean: mean(self.cached),
            cached_peak: f64::from(self.peak_cached) / blocks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_weighted_by_time() {
        let mut occupancy = Occupancy::default();
        let memory = |used, cached| MemoryCounts { total: 100, used, cached, ..MemoryCounts::default() };
        occupancy.add(&memory(80, 0), Micros(1_000));
        occupancy.add(&memory(0, 60), Micros(3_000));
        let pool = PoolOutcome { used_mean: 0.2, used_peak: 0.8, cached_mean: 0.45, cached_peak: 0.6 };
        assert_eq!(occupancy.shares(), pool);
        assert_eq!(Occupancy::default().shares(), PoolOutcome::default());
    }
}
