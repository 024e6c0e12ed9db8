//! Tokens per second over the last seconds, as admission sees them: measured while the device was busy, so
//! that an idle spell doesn't look like a slow device.

use crate::ids::Micros;

const SECOND_US: u64 = 1_000_000;
const SECONDS: u64 = 5;

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    second: u64,
    prefill: u64,
    output: u64,
    /// Time of the steps that computed prompt tokens, and of all.
    prefill_us: u64,
    busy_us: u64,
}

/// Counts tokens in buckets of a second.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    buckets: [Bucket; SECONDS as usize],
}

impl Rates {
    /// A step of `took` that ended at `now`.
    pub fn add(&mut self, now: Micros, took: Micros, prefill: u64, output: u64) {
        let second = now.0 / SECOND_US;
        let bucket = &mut self.buckets[(second % SECONDS) as usize];
        if bucket.second != second {
            *bucket = Bucket { second, ..Bucket::default() };
        }
        bucket.prefill += prefill;
        bucket.output += output;
        bucket.prefill_us += if prefill > 0 { took.0 } else { 0 };
        bucket.busy_us += took.0;
    }

    /// Prefill tokens per second of the steps that had any, and output tokens per second of all steps; 0
    /// until known.
    pub fn per_second(&self, now: Micros) -> (u32, u32) {
        let second = now.0 / SECOND_US;
        let recent = || self.buckets.iter().filter(|b| b.second + SECONDS > second);
        let rate = |tokens: u64, us: u64| match tokens {
            0 => 0,
            _ => u32::try_from(tokens.saturating_mul(SECOND_US) / us.max(1)).unwrap_or(u32::MAX),
        };
        (
            rate(recent().map(|b| b.prefill).sum(), recent().map(|b| b.prefill_us).sum()),
            rate(recent().map(|b| b.output).sum(), recent().map(|b| b.busy_us).sum()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_cover_the_last_seconds_and_only_busy_time() {
        let mut rates = Rates::default();
        assert_eq!(rates.per_second(Micros(0)), (0, 0));
        for second in 10..14 {
            rates.add(Micros(second * SECOND_US), Micros(100_000), 100, 2);
            rates.add(Micros(second * SECOND_US), Micros(50_000), 0, 4);
        }
        assert_eq!(rates.per_second(Micros(14 * SECOND_US)), (1_000, 40));
        assert_eq!(rates.per_second(Micros(60 * SECOND_US)), (0, 0));
    }
}
