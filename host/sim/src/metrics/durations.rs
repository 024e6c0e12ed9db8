//! Distributions of durations: histograms with three significant digits, whose memory doesn't depend on the values.

use hdrhistogram::Histogram;
use infer_core::ids::Micros;
use serde::{Serialize, Serializer};

use super::count;

/// A distribution of durations in milliseconds. Each is at least a microsecond; 0, `null` in JSON, stands for a
/// value of no durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Durations {
    #[serde(serialize_with = "or_null")]
    pub mean: f64,
    #[serde(serialize_with = "or_null")]
    pub p50: f64,
    #[serde(serialize_with = "or_null")]
    pub p95: f64,
    #[serde(serialize_with = "or_null")]
    pub p99: f64,
    #[serde(serialize_with = "or_null")]
    pub max: f64,
}

/// A value of [`Durations`]; `None` if there were none.
pub(crate) fn present(ms: f64) -> Option<f64> {
    (ms > 0.0).then_some(ms)
}

fn or_null<S: Serializer>(ms: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    present(*ms).serialize(serializer)
}

/// Measured durations, summarized like those of a run.
#[derive(Debug)]
pub struct Measured(Histogram<u64>);

impl Default for Measured {
    fn default() -> Self {
        Self(histogram())
    }
}

impl Measured {
    /// Adds a duration.
    pub fn add(&mut self, duration: Micros) {
        record(&mut self.0, duration);
    }

    /// Summarizes them.
    pub fn durations(&self) -> Durations {
        durations(&self.0)
    }
}

/// Durations of one tenant of many: kept as a list while they are few, because that is smaller than a histogram.
#[derive(Debug, Default)]
pub(super) struct Few {
    first: Vec<u64>,
    all: Option<Box<Histogram<u64>>>,
}

impl Few {
    /// Length beyond which a histogram, at 230 KB, is smaller.
    const MOST: usize = 16_384;

    pub fn add(&mut self, duration: Micros) {
        match &mut self.all {
            Some(all) => record(all, duration),
            None => {
                self.first.push(duration.0);
                if self.first.len() > Self::MOST {
                    self.all = Some(Box::new(self.histogram()));
                    self.first = Vec::new();
                }
            }
        }
    }

    pub fn durations(&self) -> Durations {
        self.all.as_ref().map_or_else(|| durations(&self.histogram()), |all| durations(all))
    }

    fn histogram(&self) -> Histogram<u64> {
        let mut all = histogram();
        self.first.iter().for_each(|&us| record(&mut all, Micros(us)));
        all
    }
}

pub(super) fn histogram() -> Histogram<u64> {
    // Up to a day.
    Histogram::new_with_bounds(1, 86_400_000_000, 3).expect("the bounds are valid")
}

pub(super) fn record(histogram: &mut Histogram<u64>, duration: Micros) {
    histogram.saturating_record(duration.0.max(1));
}

pub(super) fn durations(histogram: &Histogram<u64>) -> Durations {
    if histogram.is_empty() {
        return Durations::default();
    }
    let at = |quantile| millis(Micros(histogram.value_at_quantile(quantile)));
    Durations {
        mean: histogram.mean() / 1_000.0,
        p50: at(0.5),
        p95: at(0.95),
        p99: at(0.99),
        max: millis(Micros(histogram.max())),
    }
}

/// Milliseconds at 0, 1, .. 100 percent; nothing without durations.
pub(super) fn quantiles(histogram: &Histogram<u64>) -> Vec<f64> {
    if histogram.is_empty() {
        return Vec::new();
    }
    let at = |percent| millis(Micros(histogram.value_at_quantile(f64::from(percent) / 100.0)));
    (0..=100).map(at).collect()
}

pub(super) fn millis(duration: Micros) -> f64 {
    count(duration.0) / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_histograms_give_the_same_summary() {
        let (mut few, mut all) = (Few::default(), Measured::default());
        for n in 0..2 * Few::MOST as u64 {
            let duration = Micros(n * n % 9_999_991);
            few.add(duration);
            all.add(duration);
            assert_eq!(few.all.is_some(), n as usize >= Few::MOST);
            if n.is_power_of_two() || n as usize == Few::MOST {
                assert_eq!(few.durations(), all.durations(), "of {n}");
            }
        }
        assert_eq!(few.durations(), all.durations());
        assert_eq!(few.first.capacity(), 0);
    }
}
