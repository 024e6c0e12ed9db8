//! Durations counted in buckets with fixed bounds: a distribution that only grows, in plain numbers. And the rank by which
//! percentiles of samples are found.

/// Upper bounds of all buckets but the last, in microseconds: calls of policies take some, steps up to seconds, and a
/// tenant beyond its rate waits for an hour.
const BOUNDS_US: [u32; 28] = [
    1,
    2,
    5,
    10,
    20,
    50,
    100,
    200,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    120_000_000,
    300_000_000,
    1_200_000_000,
    3_600_000_000,
];

/// Counts of durations by bucket, and their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    counts: [u64; BOUNDS_US.len() + 1],
    sum_ns: u64,
}

impl Durations {
    /// Counts a duration.
    pub fn add(&mut self, ns: u64) {
        let bucket = BOUNDS_US.partition_point(|&bound_us| u64::from(bound_us) * 1_000 < ns);
        self.counts[bucket] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// Counts those of another distribution, too.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// Those that were added since it was like `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut new = *self;
        for (count, then) in new.counts.iter_mut().zip(earlier.counts) {
            *count = count.saturating_sub(then);
        }
        new.sum_ns = new.sum_ns.saturating_sub(earlier.sum_ns);
        new
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What they add up to, in seconds.
    pub fn sum_s(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// The buckets by their upper bounds in seconds, which belong to them; the last is infinite. Each has the number
    /// of durations in it alone.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds_s = BOUNDS_US.iter().map(|&us| f64::from(us) / 1e6).chain([f64::INFINITY]);
        bounds_s.zip(self.counts)
    }
}

/// Index of the nearest-rank percentile among `len` sorted values: of the smallest that at least `percent` % of them don't
/// exceed. `None` if there are no values.
pub fn nearest_rank(len: usize, percent: usize) -> Option<usize> {
    let rank = (len * percent).div_ceil(100);
    (len > 0).then(|| rank.clamp(1, len) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rank_is_of_a_value_that_was_measured() {
        for (len, percent, expected) in [
            (0, 50, None),
            (1, 0, Some(0)),
            (1, 99, Some(0)),
            (3, 50, Some(1)),
            (100, 50, Some(49)),
            (100, 99, Some(98)),
            (101, 99, Some(99)),
            (200, 99, Some(197)),
            (200, 100, Some(199)),
        ] {
            assert_eq!(nearest_rank(len, percent), expected, "{percent} % of {len}");
        }
    }

    #[test]
    fn durations_are_in_the_first_bucket_that_holds_them() {
        let mut some = Durations::default();
        for ns in [0, 1_000, 1_001, 2_000, 50_000_000_000, 3_600_000_000_001] {
            some.add(ns);
        }
        let filled: Vec<_> = some.buckets().filter(|&(_, count)| count > 0).collect();
        assert_eq!(filled, [(1e-6, 2), (2e-6, 2), (50.0, 1), (f64::INFINITY, 1)]);
        let (mut more, mut last) = (some, Durations::default());
        more.add(7_000);
        last.add(7_000);
        assert_eq!((more.since(&some), some.since(&more)), (last, Durations::default()));
        let mut all = Durations::default();
        all.add(u64::MAX);
        all.merge(&some);
        assert_eq!((all.count(), some.sum_s()), (7, 3_650.000_004_002));
        assert!(all.sum_s() >= some.sum_s(), "the sum stays where it is full");
    }
}
