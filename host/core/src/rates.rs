//! Tokens per second over the last seconds, as admission sees them.

use crate::ids::Micros;

const SECOND_US: u64 = 1_000_000;
const SECONDS: u64 = 5;

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    second: u64,
    prefill: u64,
    output: u64,
}

/// Counts tokens in buckets of a second.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    buckets: [Bucket; SECONDS as usize],
}

impl Rates {
    pub fn add(&mut self, now: Micros, prefill: u64, output: u64) {
        let second = now.0 / SECOND_US;
        let bucket = &mut self.buckets[(second % SECONDS) as usize];
        if bucket.second != second {
            *bucket = Bucket { second, ..Bucket::default() };
        }
        bucket.prefill += prefill;
        bucket.output += output;
    }

    /// Prefill and output tokens per second; 0 until known.
    pub fn per_second(&self, now: Micros) -> (u32, u32) {
        let second = now.0 / SECOND_US;
        let recent =
            || self.buckets.iter().filter(|b| b.second + SECONDS > second && b.prefill + b.output > 0);
        let Some(first) = recent().map(|b| b.second).min() else { return (0, 0) };
        let span_us = (now.0.saturating_sub(first * SECOND_US)).max(SECOND_US);
        let rate = |tokens: u64| u32::try_from(tokens * SECOND_US / span_us).unwrap_or(u32::MAX);
        (rate(recent().map(|b| b.prefill).sum()), rate(recent().map(|b| b.output).sum()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_cover_the_last_seconds_only() {
        let mut rates = Rates::default();
        assert_eq!(rates.per_second(Micros(0)), (0, 0));
        for second in 10..14 {
            rates.add(Micros(second * SECOND_US), 100, 10);
        }
        assert_eq!(rates.per_second(Micros(14 * SECOND_US)), (100, 10));
        assert_eq!(rates.per_second(Micros(60 * SECOND_US)), (0, 0));
    }
}
