//! Durations of calls: percentiles of the recent ones on demand, and counts of all.

use std::time::Duration;

use infer_core::policy::CallStats;
use infer_core::{Durations, nearest_rank};

const KEPT: usize = 1_024;

/// A ring of the last 1,024 durations, and the distribution of all.
pub(crate) struct Recorder {
    recent_ns: Box<[u32; KEPT]>,
    calls: u64,
    all: Durations,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self { recent_ns: Box::new([0; KEPT]), calls: 0, all: Durations::default() }
    }

    pub(crate) fn record(&mut self, duration: Duration) {
        let slot = (self.calls % KEPT as u64) as usize;
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.recent_ns[slot] = u32::try_from(ns).unwrap_or(u32::MAX);
        self.calls += 1;
        self.all.add(ns);
    }

    pub(crate) fn stats(&self) -> CallStats {
        let kept = usize::try_from(self.calls).map_or(KEPT, |calls| calls.min(KEPT));
        let mut sorted = self.recent_ns[..kept].to_vec();
        sorted.sort_unstable();
        let percentile_us =
            |percent: usize| nearest_rank(kept, percent).map_or(0.0, |at| f64::from(sorted[at]) / 1_000.0);
        let (p50_us, p99_us) = (percentile_us(50), percentile_us(99));
        CallStats { calls: self.calls, p50_us, p99_us, durations: self.all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_cover_only_recent_calls_and_counts_all() {
        let mut recorder = Recorder::new();
        assert_eq!(recorder.stats(), CallStats::default());
        recorder.record(Duration::from_micros(7));
        let stats = recorder.stats();
        assert_eq!((stats.calls, stats.p50_us, stats.p99_us), (1, 7.0, 7.0));
        for us in 0..2 * KEPT as u64 {
            recorder.record(Duration::from_micros(us));
        }
        let stats = recorder.stats();
        assert_eq!(stats.calls, 1 + 2 * KEPT as u64);
        assert_eq!(stats.durations.count(), stats.calls);
        assert_eq!((stats.p50_us, stats.p99_us), (1_535.0, 2_037.0));
    }
}
