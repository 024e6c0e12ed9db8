//! Distributions of durations: histograms with three significant digits, whose memory doesn't depend on the values, and
//! beside each what it doesn't know exactly: the mean and the extremes.

use hdrhistogram::Histogram;
use infer_core::ids::Micros;
use serde::{Serialize, Serializer};

use super::count;

/// A distribution of durations in milliseconds. Each is at least a microsecond; 0, `null` in JSON, stands for a
/// value of no durations. Mean, maximum and minimum are exact. Percentiles are those of a histogram, at most a
/// thousandth too high, and are rounded to four significant digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Durations {
    #[serde(serialize_with = "or_null")]
    pub mean: f64,
    #[serde(serialize_with = "or_null")]
    pub p50: f64,
    #[serde(serialize_with = "or_null")]
    pub p90: f64,
    #[serde(serialize_with = "or_null")]
    pub p95: f64,
    #[serde(serialize_with = "or_null")]
    pub p99: f64,
    /// The 99.9th percentile; none of fewer than [`Self::TAIL`] durations.
    #[serde(serialize_with = "or_null")]
    pub p999: f64,
    #[serde(serialize_with = "or_null")]
    pub max: f64,
    #[serde(serialize_with = "or_null")]
    pub min: f64,
}

impl Durations {
    /// The fewest durations of which the 99.9th percentile is told, so that ten lie beyond it. Of 1,000 it would be the
    /// maximum, which says more of a single request than of the tail.
    pub const TAIL: u64 = 10_000;
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
pub struct Measured {
    all: Histogram<u64>,
    exact: Exact,
}

impl Default for Measured {
    fn default() -> Self {
        Self { all: histogram(), exact: Exact::default() }
    }
}

impl Measured {
    /// Adds a duration.
    pub fn add(&mut self, duration: Micros) {
        record(&mut self.all, duration);
        self.exact.add(duration);
    }

    /// Summarizes them.
    pub fn durations(&self) -> Durations {
        self.exact.durations(Some(&self.all))
    }

    /// Milliseconds at 0, 1, .. 100 percent; nothing without durations.
    pub(super) fn quantiles(&self) -> Vec<f64> {
        if self.exact.number == 0 {
            return Vec::new();
        }
        (0..=100).map(|percent| self.exact.at(&self.all, f64::from(percent) / 100.0)).collect()
    }
}

/// Number, sum and extremes: a histogram has the first alone exactly.
#[derive(Clone, Copy, Debug, Default)]
struct Exact {
    number: u64,
    sum_us: u64,
    least_us: u64,
    most_us: u64,
}

impl Exact {
    fn add(&mut self, duration: Micros) {
        let us = duration.0.max(1);
        self.least_us = if self.number == 0 { us } else { self.least_us.min(us) };
        self.most_us = self.most_us.max(us);
        self.sum_us = self.sum_us.saturating_add(us);
        self.number += 1;
    }

    /// The percentiles are those of `all`; without it they have no value.
    fn durations(&self, all: Option<&Histogram<u64>>) -> Durations {
        if self.number == 0 {
            return Durations::default();
        }
        let at = |quantile| all.map_or(0.0, |all| self.at(all, quantile));
        Durations {
            mean: count(self.sum_us) / count(self.number) / 1_000.0,
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p999: if self.number < Durations::TAIL { 0.0 } else { at(0.999) },
            max: millis(Micros(self.most_us)),
            min: millis(Micros(self.least_us)),
        }
    }

    /// Milliseconds at a quantile. A histogram knows the upper end of the range that a value is in.
    fn at(&self, all: &Histogram<u64>, quantile: f64) -> f64 {
        let us = rounded(all.value_at_quantile(quantile));
        millis(Micros(us.clamp(self.least_us, self.most_us)))
    }
}

/// Four significant digits: ranges are up to a thousandth wide.
fn rounded(us: u64) -> u64 {
    let step = 10_u64.pow(us.max(1).ilog10().saturating_sub(3));
    (us + step / 2) / step * step
}

/// Durations of one tenant of many: kept as a list while they are few, because that is smaller than a histogram.
#[derive(Debug, Default)]
pub(super) struct Few {
    /// In microseconds, if all are shorter than 71 minutes.
    first: Vec<u32>,
    all: Option<Box<Histogram<u64>>>,
    exact: Exact,
}

impl Few {
    /// Longest list, of 64 KB; a histogram takes 230 KB.
    const MOST: usize = 16_384;

    pub fn add(&mut self, duration: Micros) {
        self.exact.add(duration);
        match &mut self.all {
            Some(all) => record(all, duration),
            None => match u32::try_from(duration.0) {
                Ok(us) if self.first.len() < Self::MOST => self.first.push(us),
                _ => {
                    let mut all = Box::new(self.histogram());
                    record(&mut all, duration);
                    self.all = Some(all);
                    self.first = Vec::new();
                }
            },
        }
    }

    /// Adds a duration, without `has_percentiles` to the mean and the extremes alone.
    pub fn take(&mut self, duration: Micros, has_percentiles: bool) {
        match has_percentiles {
            true => self.add(duration),
            false => self.exact.add(duration),
        }
    }

    pub fn durations(&self) -> Durations {
        match &self.all {
            Some(all) => self.exact.durations(Some(all)),
            None if self.first.is_empty() => self.exact.durations(None),
            None => self.exact.durations(Some(&self.histogram())),
        }
    }

    fn histogram(&self) -> Histogram<u64> {
        let mut all = histogram();
        self.first.iter().for_each(|&us| record(&mut all, Micros(u64::from(us))));
        all
    }
}

fn histogram() -> Histogram<u64> {
    // Up to a day.
    Histogram::new_with_bounds(1, 86_400_000_000, 3).expect("the bounds are valid")
}

fn record(histogram: &mut Histogram<u64>, duration: Micros) {
    histogram.saturating_record(duration.0.max(1));
}

pub(super) fn millis(duration: Micros) -> f64 {
    count(duration.0) / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_extremes_are_exact_and_percentiles_have_four_digits() {
        let mut all = Measured::default();
        let us = [3_217_911, 9_924_643, 1_234_567, 4_999_999];
        us.into_iter().for_each(|us| all.add(Micros(us)));
        let durations = all.durations();
        assert_eq!((durations.min, durations.max), (1_234.567, 9_924.643));
        assert_eq!(durations.mean, 19_377_120.0 / 4.0 / 1_000.0);
        // Its range ends at 3,219,455.
        assert_eq!((durations.p50, durations.p99), (3_219.0, durations.max));
        let quantiles = all.quantiles();
        assert_eq!((quantiles.len(), quantiles[0], quantiles[100]), (101, durations.min, durations.max));
        assert!(quantiles.is_sorted(), "{quantiles:?}");
        for (us, says) in [(7, 7), (9_999, 9_999), (12_345, 12_350), (99_996, 100_000), (123_449, 123_400)] {
            assert_eq!(rounded(us), says);
        }
        assert_eq!(
            (Measured::default().durations(), Measured::default().quantiles()),
            <(Durations, Vec<f64>)>::default()
        );
    }

    #[test]
    fn tail_is_told_of_enough_durations_that_ten_lie_beyond_it() {
        let of = |number: u64| {
            let mut all = Measured::default();
            (1..=number).for_each(|n| all.add(Micros(1_000 * n)));
            all.durations()
        };
        let few = of(Durations::TAIL - 1);
        assert_eq!((few.p999, present(few.p999)), (0.0, None));
        assert!(serde_json::to_value(few).expect("JSON")["p999"].is_null());
        let enough = of(Durations::TAIL);
        for (value, exact) in [(enough.p90, 9_000.0), (enough.p99, 9_900.0), (enough.p999, 9_990.0)] {
            assert!((exact..1.001 * exact).contains(&value), "{value} for {exact}");
        }
    }

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

    #[test]
    fn duration_of_hours_is_kept_like_others() {
        let (mut few, mut all) = (Few::default(), Measured::default());
        for us in [7_000_000, 20_000_000_000, 900] {
            few.add(Micros(us));
            all.add(Micros(us));
            assert_eq!(few.durations(), all.durations(), "with {us}");
        }
        assert_eq!(few.durations().max, 20_000_000.0);
    }

    #[test]
    fn without_percentiles_mean_and_extremes_are_left() {
        let mut few = Few::default();
        [3_000, 5_000].into_iter().for_each(|us| few.take(Micros(us), false));
        assert_eq!(few.durations(), Durations { mean: 4.0, max: 5.0, min: 3.0, ..Durations::default() });
    }
}
