//! Percentiles by nearest rank: every reported percentile is a measured value, never an interpolation.

use infer_core::nearest_rank;
use serde::{Deserialize, Serialize};

/// The values of one metric.
#[derive(Clone, Debug, Default)]
pub struct Distribution(Vec<f64>);

impl FromIterator<f64> for Distribution {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }
}

/// Summary of a metric; all zeros if nothing was measured, which `count` tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the usual names")]
pub struct Summary {
    pub count: usize,
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

impl Distribution {
    /// The smallest value that at least `percent` % of the values don't exceed; 0 without values.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> f64 {
        nearest_rank(self.0.len(), percent).map_or(0.0, |at| self.0[at])
    }

    /// Summarizes the values.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let count = self.0.len();
        Summary {
            count,
            mean: if count == 0 { 0.0 } else { self.0.iter().sum::<f64>() / count as f64 },
            p50: self.percentile(50),
            p95: self.percentile(95),
            p99: self.percentile(99),
            max: self.0.last().copied().unwrap_or(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let hundred: Distribution = (1..=100).rev().map(f64::from).collect();
        assert_eq!([50, 95, 99, 100].map(|p| hundred.percentile(p)), [50.0, 95.0, 99.0, 100.0]);
        let three: Distribution = [3.0, 1.0, 2.0].into_iter().collect();
        assert_eq!([0, 50, 99].map(|p| three.percentile(p)), [1.0, 2.0, 3.0]);
        assert_eq!(three.summary().mean, 2.0);
    }

    #[test]
    fn empty_distribution_has_a_zero_summary() {
        assert_eq!(Distribution::default().summary(), Summary::default());
    }
}
