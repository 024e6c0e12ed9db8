//! The pool, the queue and the policies' gauges over time, from the first reported arrival on, at equal distances that
//! grow with the run, so that the number of samples is bounded for a run of any length. Distances are in virtual time and
//! not in steps: a pause has as many samples as work that takes as long.

use infer_core::ids::Micros;

use super::{Sample, count};

/// At this number, every other sample is dropped.
const MOST: usize = 480;

/// Samples of a run.
#[derive(Debug)]
pub(crate) struct Samples {
    kept: Vec<Sample>,
    /// When the next one is due.
    due: Micros,
    every: Micros,
}

impl Default for Samples {
    fn default() -> Self {
        Self { kept: Vec::new(), due: Micros::ZERO, every: Micros(1) }
    }
}

impl Samples {
    /// Takes the samples that are due from `begin` to `end`, during which the state doesn't change.
    pub fn between(&mut self, begin: Micros, end: Micros, state: impl FnOnce() -> Sample) {
        if self.kept.is_empty() {
            self.due = begin;
        }
        if self.due >= end {
            return;
        }
        let state = state();
        while self.due < end {
            self.kept.push(Sample { at_s: count(self.due.0) / 1e6, ..state.clone() });
            self.due = self.due.plus(self.every);
            if self.kept.len() >= MOST {
                self.thin();
            }
        }
    }

    /// All samples, the last one at the end of the run.
    pub fn end(mut self, last: Sample) -> Vec<Sample> {
        self.kept.push(last);
        self.kept
    }

    /// The first sample stays, so that the distance doubles.
    fn thin(&mut self) {
        let mut keep = false;
        self.kept.retain(|_| {
            keep = !keep;
            keep
        });
        self.every = self.every.plus(self.every);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of periods, each with a number of running requests and its seconds.
    fn samples(periods: impl IntoIterator<Item = (u32, u64)>) -> Vec<Sample> {
        let sample = |at_s, running| Sample { at_s, running, ..Sample::default() };
        let (mut samples, mut now) = (Samples::default(), Micros::ZERO);
        for (running, seconds) in periods {
            let begin = now;
            now = now.plus(Micros(1_000_000 * seconds));
            samples.between(begin, now, || sample(0.0, running));
        }
        samples.end(sample(count(now.0) / 1e6, 0))
    }

    #[test]
    fn number_is_bounded_and_the_run_is_covered_evenly() {
        for steps in [1, 700, 100_000] {
            let samples = samples((0..steps).map(|_| (1, 1)));
            assert!((MOST / 2..=MOST).contains(&samples.len()), "{steps} steps: {} samples", samples.len());
            let last = samples.len() - 1;
            assert_eq!((samples[0].at_s, samples[last].at_s), (0.0, f64::from(steps)));
            let distance = samples[1].at_s;
            for pair in samples[..last].windows(2) {
                assert!((pair[1].at_s - pair[0].at_s - distance).abs() < 1e-6, "{steps} steps: {pair:?}");
            }
            assert!(f64::from(steps) - samples[last - 1].at_s <= distance, "{steps} steps");
        }
    }

    #[test]
    fn pause_is_sampled_like_work() {
        // Three of five hours nothing runs, in two pauses of 90 minutes.
        let work = || (0..3_600).map(|_| (4, 1));
        let samples = samples(work().chain([(0, 5_400)]).chain(work()).chain([(0, 5_400)]));
        let idle = samples.iter().filter(|sample| sample.running == 0).count();
        let part = count(idle as u64) / count(samples.len() as u64);
        assert!((0.58..0.62).contains(&part), "{part}");
    }
}
