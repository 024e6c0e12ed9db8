//! Percentiles of the last minute and rates of the last seconds, in bounded memory.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use infer_core::nearest_rank;

/// Maximum age of a sample, and of a rate's beginning.
const AGE: Duration = Duration::from_secs(60);
/// Time span of rates.
const RATE_AGE: Duration = Duration::from_secs(5);

/// Recent samples of one latency, in milliseconds; at most so many, of which the oldest are dropped first.
#[derive(Debug, Default)]
pub struct Window<const SAMPLES: usize = 8_192> {
    samples: Mutex<VecDeque<(Instant, f32)>>,
}

impl<const SAMPLES: usize> Window<SAMPLES> {
    /// Adds a sample.
    pub fn add(&self, ms: f64) {
        let now = Instant::now();
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back((now, ms as f32));
        drop_old(&mut samples, now);
    }

    /// Median and 99th percentile of the last minute; zeros without samples.
    pub fn p50_p99(&self) -> (f64, f64) {
        let recent: Vec<f32> = {
            let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
            drop_old(&mut samples, Instant::now());
            samples.iter().map(|&(_, ms)| ms).collect()
        };
        percentiles(recent)
    }
}

fn drop_old(samples: &mut VecDeque<(Instant, f32)>, now: Instant) {
    while samples.front().is_some_and(|(at, _)| now.duration_since(*at) > AGE) {
        samples.pop_front();
    }
}

/// Selects instead of sorting, because consoles ask several times a second.
fn percentiles(mut samples: Vec<f32>) -> (f64, f64) {
    let mut nearest = |percent: usize| {
        let Some(at) = nearest_rank(samples.len(), percent) else { return 0.0 };
        f64::from(*samples.select_nth_unstable_by(at, f32::total_cmp).1)
    };
    (nearest(50), nearest(99))
}

/// The nearest-rank percentile of sorted samples; zero without samples.
pub fn percentile(sorted: &[f32], percent: usize) -> f64 {
    nearest_rank(sorted.len(), percent).map_or(0.0, |at| f64::from(sorted[at]))
}

/// Counters at recent instants, to compute rates.
#[derive(Debug, Default)]
pub struct Rates<const COUNTERS: usize> {
    points: Mutex<VecDeque<(Instant, [u64; COUNTERS])>>,
}

impl<const COUNTERS: usize> Rates<COUNTERS> {
    /// Samples the counters and returns their growth per second.
    pub fn note(&self, counters: [u64; COUNTERS]) -> [f64; COUNTERS] {
        let mut points = self.points.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // Nobody has looked for long.
        if points.back().is_some_and(|(at, _)| now.duration_since(*at) > AGE) {
            points.clear();
        }
        // The newest point that is old enough stays as the start of the time span.
        while points.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= RATE_AGE) {
            points.pop_front();
        }
        let last_is_fresh =
            points.back().is_some_and(|(at, _)| now.duration_since(*at) < Duration::from_millis(100));
        if !last_is_fresh {
            points.push_back((now, counters));
        }
        let Some((at, before)) = points.front() else { return [0.0; COUNTERS] };
        let seconds = now.duration_since(*at).as_secs_f64();
        if seconds < 0.1 {
            return [0.0; COUNTERS];
        }
        std::array::from_fn(|i| counters[i].saturating_sub(before[i]) as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let samples: Vec<f32> = (1..=100).map(|i| i as f32).collect();
        assert_eq!(percentile(&samples, 50), 50.0);
        assert_eq!(percentile(&samples, 99), 99.0);
        assert_eq!(percentile(&[], 50), 0.0);
        assert_eq!(percentile(&[3.0], 99), 3.0);
    }

    #[test]
    fn window_is_bounded() {
        let window = Window::<100>::default();
        for i in 0..200 {
            window.add(f64::from(i));
        }
        assert_eq!(window.p50_p99(), (149.0, 198.0));
    }
}
