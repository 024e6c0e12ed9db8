//! Durations in buckets of an eighth of an octave: a percentile is right to within six percent.

/// Shorter durations count as one.
const LOWEST: u32 = 4;
const OCTAVES: u32 = 25;
const PARTS: u32 = 8;
const BUCKETS: usize = (OCTAVES * PARTS) as usize;

/// Counts of durations from 16 us to nine minutes.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    counts: [u32; BUCKETS],
    total: u32,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], total: 0 }
    }
}

impl Histogram {
    pub fn add(&mut self, us: u64, times: u32) {
        self.counts[bucket(us)] += times;
        self.total += times;
    }

    pub fn total(&self) -> u32 {
        self.total
    }

    pub fn clear(&mut self) {
        if self.total > 0 {
            *self = Self::default();
        }
    }

    /// The duration that `percent` per cent don't exceed; 0 if there is none.
    pub fn percentile(&self, percent: u64) -> u64 {
        let rank = (u64::from(self.total) * percent).div_ceil(100);
        let mut seen = 0;
        for (at, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if count > 0 && seen >= rank {
                return middle(at as u32);
            }
        }
        0
    }
}

fn bucket(us: u64) -> usize {
    let us = us.max(1 << LOWEST);
    let octave = us.ilog2();
    let part = (us >> (octave - 3)) as u32 & (PARTS - 1);
    (((octave - LOWEST) * PARTS + part) as usize).min(BUCKETS - 1)
}

fn middle(bucket: u32) -> u64 {
    let octave = LOWEST + bucket / PARTS;
    let part = 1u64 << (octave - 3);
    (1 << octave) + part * u64::from(bucket % PARTS) + part / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_an_eighth_of_an_octave() {
        for us in [17, 100, 999, 12_345, 1_000_000, 59_000_000] {
            let mut all = Histogram::default();
            all.add(us, 60);
            all.add(us * 3, 40);
            for (percent, want) in [(50, us), (60, us), (61, us * 3), (95, us * 3)] {
                let got = all.percentile(percent) as f64 / want as f64;
                assert!((0.93..1.07).contains(&got), "{us} us: p{percent} is off by {got}");
            }
        }
        assert_eq!(Histogram::default().percentile(50), 0);
    }

    #[test]
    fn any_duration_can_be_added() {
        let mut all = Histogram::default();
        all.add(0, 1);
        all.add(u64::MAX, 1);
        assert!(all.percentile(50) < 20 && all.percentile(100) > 400_000_000);
    }
}
