//! Rates and latencies per second, for the graphs. A second without a snapshot (the host was unreachable)
//! stays a gap: a graph must not invent values.

use std::collections::VecDeque;

use infer_api::admin::State;

use super::Millis;

/// Seconds kept: an hour.
pub const CAPACITY: usize = 3_600;
/// Seconds per column of a graph, from the narrowest window to the widest.
pub const WINDOWS: [usize; 6] = [1, 2, 5, 10, 20, 30];

/// One second's values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "named as in the snapshot")]
pub struct Sample {
    pub generated: f32,
    pub ttft_p50_ms: f32,
    pub ttft_p99_ms: f32,
    pub itl_p50_ms: f32,
    pub itl_p99_ms: f32,
    pub running: f32,
    pub waiting: f32,
    pub used_blocks: f32,
    /// Counters since the host started, as integers, because their differences are shown.
    pub evicted: u64,
    pub prefix_queries: u64,
    pub prefix_hits: u64,
}

impl Sample {
    /// Extracts the values from a snapshot.
    #[must_use]
    pub fn of(state: &State) -> Self {
        let counters = &state.counters;
        Self {
            generated: state.rates.generated_tokens as f32,
            ttft_p50_ms: state.latencies.ttft_p50_ms as f32,
            ttft_p99_ms: state.latencies.ttft_p99_ms as f32,
            itl_p50_ms: state.latencies.itl_p50_ms as f32,
            itl_p99_ms: state.latencies.itl_p99_ms as f32,
            running: state.queue.running as f32,
            waiting: (state.queue.waiting + state.queue.held + state.queue.preempted) as f32,
            used_blocks: state.memory.used as f32,
            evicted: counters.evicted_blocks,
            prefix_queries: counters.prefix_queries,
            prefix_hits: counters.prefix_hits,
        }
    }
}

/// Growth of a counter over some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// The increase.
    pub by: u64,
    /// The time.
    pub seconds: f64,
}

impl Growth {
    /// Returns the growth per second.
    #[must_use]
    pub fn rate(self) -> f64 {
        self.by as f64 / self.seconds
    }
}

/// How the seconds of a column are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Their mean, for rates.
    Mean,
    /// The largest, for latencies and queues: a spike must stay visible.
    Most,
}

/// The last [`CAPACITY`] seconds.
#[derive(Clone, Debug, Default)]
pub struct History {
    seconds: VecDeque<Option<Sample>>,
    /// The second of the last entry.
    last: u64,
}

impl History {
    /// Adds a sample; the last one of a second wins.
    pub fn push(&mut self, now: Millis, sample: Sample) {
        let second = now / 1_000;
        if self.seconds.is_empty() {
            self.last = second;
            self.seconds.push_back(Some(sample));
            return;
        }
        let missing = second.saturating_sub(self.last).min(CAPACITY as u64);
        for _ in 0..missing {
            self.seconds.push_back(None);
        }
        while self.seconds.len() > CAPACITY {
            self.seconds.pop_front();
        }
        self.last = self.last.max(second);
        *self.seconds.back_mut().expect("just filled") = Some(sample);
    }

    /// Returns the last `columns` columns of `width` seconds each, up to `now`, oldest first. A column
    /// without a sample is `None`. Columns end at multiples of `width`, so that past columns don't change.
    #[must_use]
    pub fn series(
        &self,
        now: Millis,
        columns: usize,
        width: usize,
        join: Join,
        value: impl Fn(&Sample) -> f32,
    ) -> Vec<Option<f64>> {
        let width = width.max(1);
        let last_column = self.end(now) as usize / width;
        (0..columns)
            .rev()
            .map(|back| {
                let first = last_column.checked_sub(back)? * width;
                let values = (first..first + width).filter_map(|second| {
                    let back = (self.last as usize).checked_sub(second)?;
                    let at = self.seconds.len().checked_sub(back + 1)?;
                    self.seconds[at].as_ref().map(|sample| f64::from(value(sample)))
                });
                match join {
                    Join::Most => values.reduce(f64::max),
                    Join::Mean => {
                        let (sum, count) = values.fold((0.0, 0_u32), |(sum, n), value| (sum + value, n + 1));
                        (count > 0).then(|| sum / f64::from(count))
                    }
                }
            })
            .collect()
    }

    /// Returns the seconds from the oldest entry up to `now`, gaps included; a single entry is one second.
    #[must_use]
    pub fn reach(&self, now: Millis) -> u64 {
        self.end(now) - self.last + self.seconds.len() as u64
    }

    /// Returns the last second to show.
    fn end(&self, now: Millis) -> u64 {
        // The current second is not a gap yet.
        match (now / 1_000).saturating_sub(self.last) {
            0 | 1 => self.last,
            _ => now / 1_000,
        }
    }

    /// Returns how much a counter grew over the last `seconds`; `None` without two samples.
    #[must_use]
    pub fn growth(&self, seconds: usize, counter: impl Fn(&Sample) -> u64) -> Option<Growth> {
        let last = (*self.seconds.back()?).as_ref()?;
        let first = self.seconds.len().saturating_sub(seconds + 1);
        let (at, earlier) =
            (first..self.seconds.len() - 1).find_map(|at| Some((at, self.seconds[at].as_ref()?)))?;
        let by = counter(last).saturating_sub(counter(earlier));
        Some(Growth { by, seconds: (self.seconds.len() - 1 - at) as f64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(generated: f32) -> Sample {
        Sample { generated, ..Sample::default() }
    }

    #[test]
    fn a_second_without_a_snapshot_stays_a_gap() {
        let mut history = History::default();
        for (now, value) in [(1_000, 1.0), (1_900, 2.0), (2_100, 3.0), (5_000, 4.0)] {
            history.push(now, sample(value));
        }
        let series = |now| history.series(now, 6, 1, Join::Mean, |s| s.generated);
        assert_eq!(series(5_500), [None, Some(2.0), Some(3.0), None, None, Some(4.0)]);
        assert_eq!(series(7_000), [Some(3.0), None, None, Some(4.0), None, None]);
        assert_eq!(History::default().series(0, 2, 1, Join::Mean, |s| s.generated), [None, None]);
    }

    #[test]
    fn a_wider_window_combines_seconds_and_keeps_past_columns() {
        let mut history = History::default();
        for second in 0..10 {
            history.push(second * 1_000, sample(second as f32));
        }
        let series = |join| history.series(9_000, 3, 5, join, |s| s.generated);
        assert_eq!(series(Join::Mean), [None, Some(2.0), Some(7.0)]);
        assert_eq!(series(Join::Most), [None, Some(4.0), Some(9.0)]);
        history.push(11_000, sample(1.0));
        let later = history.series(11_000, 3, 5, Join::Mean, |s| s.generated);
        assert_eq!(later, [Some(2.0), Some(7.0), Some(1.0)]);
    }

    #[test]
    fn it_reaches_back_to_the_oldest_entry() {
        let mut history = History::default();
        history.push(5_000, sample(1.0));
        assert_eq!([5_000, 6_900, 7_000].map(|now| history.reach(now)), [1, 1, 3]);
        history.push(9_000, sample(1.0));
        assert_eq!([9_000, 11_000].map(|now| history.reach(now)), [5, 7]);
        for second in 10..6_000 {
            history.push(second * 1_000, sample(1.0));
        }
        assert_eq!(history.reach(5_999_000), CAPACITY as u64);
    }

    #[test]
    fn a_counters_growth_needs_two_samples() {
        let mut history = History::default();
        let growth = |history: &History| history.growth(10, |s| s.evicted);
        let evicted = |evicted: u64| Sample { evicted, ..Sample::default() };
        // A host with a long uptime: single units still count.
        let before = 4_000_000_000_000;
        history.push(0, evicted(before));
        assert_eq!(growth(&history), None);
        history.push(4_000, evicted(before + 9));
        assert_eq!(growth(&history), Some(Growth { by: 9, seconds: 4.0 }));
        assert!((growth(&history).unwrap().rate() - 2.25).abs() < 1e-9);
        history.push(5_000, evicted(3));
        assert_eq!(growth(&history).unwrap().by, 0, "never negative");
    }

    #[test]
    fn it_is_bounded() {
        let mut history = History::default();
        for second in 0..6_000 {
            history.push(second * 1_000, sample(1.0));
        }
        history.push(90_000_000, sample(2.0));
        assert_eq!(history.seconds.len(), CAPACITY);
        assert_eq!(history.series(90_000_000, 2, 1, Join::Mean, |s| s.generated), [None, Some(2.0)]);
    }
}
