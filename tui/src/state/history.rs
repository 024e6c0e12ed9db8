//! Rates and latencies second by second, for the graphs. A second without a snapshot (the host was away)
//! stays a gap: a graph must not invent values.

use std::collections::VecDeque;

use infer_api::admin::State;

use super::Millis;

/// Seconds that are kept.
pub const CAPACITY: usize = 600;

/// One second's values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "named as in the snapshot")]
pub struct Sample {
    pub generated: f64,
    pub prompt: f64,
    pub ttft_p50_ms: f64,
    pub ttft_p99_ms: f64,
    pub itl_p50_ms: f64,
    pub itl_p99_ms: f64,
    pub running: f64,
    pub waiting: f64,
    pub used_blocks: f64,
}

impl Sample {
    /// What is kept of a snapshot.
    #[must_use]
    pub fn of(state: &State) -> Self {
        Self {
            generated: state.rates.generated_tokens,
            prompt: state.rates.prompt_tokens,
            ttft_p50_ms: state.latencies.ttft_p50_ms,
            ttft_p99_ms: state.latencies.ttft_p99_ms,
            itl_p50_ms: state.latencies.itl_p50_ms,
            itl_p99_ms: state.latencies.itl_p99_ms,
            running: f64::from(state.queue.running),
            waiting: f64::from(state.queue.waiting + state.queue.held + state.queue.preempted),
            used_blocks: f64::from(state.memory.used),
        }
    }
}

/// The last [`CAPACITY`] seconds.
#[derive(Clone, Debug, Default)]
pub struct History {
    seconds: VecDeque<Option<Sample>>,
    /// The second that the last entry stands for.
    last: u64,
}

impl History {
    /// Takes a sample; the last one of a second counts.
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

    /// The last `count` seconds up to `now`, oldest first, gaps included.
    #[must_use]
    pub fn series(&self, now: Millis, count: usize, value: impl Fn(&Sample) -> f64) -> Vec<Option<f64>> {
        // A second that has only begun is not yet a gap.
        let silent = match (now / 1_000).saturating_sub(self.last) {
            1 => 0,
            seconds => usize::try_from(seconds).unwrap_or(usize::MAX),
        };
        (0..count)
            .rev()
            .map(|back| {
                let index = (self.seconds.len().checked_sub(1)? + silent).checked_sub(back)?;
                self.seconds.get(index)?.as_ref().map(&value)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(generated: f64) -> Sample {
        Sample { generated, ..Sample::default() }
    }

    #[test]
    fn a_second_without_a_snapshot_stays_a_gap() {
        let mut history = History::default();
        for (now, value) in [(1_000, 1.0), (1_900, 2.0), (2_100, 3.0), (5_000, 4.0)] {
            history.push(now, sample(value));
        }
        let series = |now| history.series(now, 6, |s| s.generated);
        assert_eq!(series(5_500), [None, Some(2.0), Some(3.0), None, None, Some(4.0)]);
        assert_eq!(series(7_000), [Some(3.0), None, None, Some(4.0), None, None]);
        assert_eq!(History::default().series(0, 2, |s| s.generated), [None, None]);
    }

    #[test]
    fn it_is_bounded() {
        let mut history = History::default();
        for second in 0..2_000 {
            history.push(second * 1_000, sample(1.0));
        }
        history.push(90_000_000, sample(2.0));
        assert_eq!(history.seconds.len(), CAPACITY);
        assert_eq!(history.series(90_000_000, 2, |s| s.generated), [None, Some(2.0)]);
    }
}
