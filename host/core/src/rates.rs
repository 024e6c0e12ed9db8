//! Tokens per second over the last seconds, as admission sees them: measured while the device was busy, so
//! that an idle spell doesn't look like a slow device.
//!
//! Prompts that trickle in say little about how many tokens a step could take: most of a step's time is often
//! the same without them. So a line is fitted to the steps' times by their prompt tokens, and read at a step
//! full of these.

use crate::ids::Micros;

const SECOND_US: u64 = 1_000_000;
const SECONDS: u64 = 5;

/// Sums over steps.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    steps: f64,
    prefill: f64,
    output: f64,
    busy_us: f64,
    /// Time of the steps that computed prompt tokens.
    prefill_us: f64,
    /// Of prompt tokens with themselves, and with time.
    squares: f64,
    products: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    second: u64,
    sums: Sums,
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
        let (tokens, us) = (prefill as f64, took.0 as f64);
        bucket.sums.add(&Sums {
            steps: 1.0,
            prefill: tokens,
            output: output as f64,
            busy_us: us,
            prefill_us: if prefill > 0 { us } else { 0.0 },
            squares: tokens * tokens,
            products: tokens * us,
        });
    }

    /// Prefill tokens per second of steps that have `full` of them, and output tokens per second of all steps;
    /// 0 until known.
    pub fn per_second(&self, now: Micros, full: u32) -> (u32, u32) {
        let second = now.0 / SECOND_US;
        let mut sums = Sums::default();
        for bucket in self.buckets.iter().filter(|bucket| bucket.second + SECONDS > second) {
            sums.add(&bucket.sums);
        }
        (sums.prefill_rate(f64::from(full)), rate(sums.output, sums.busy_us))
    }
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.prefill += other.prefill;
        self.output += other.output;
        self.busy_us += other.busy_us;
        self.prefill_us += other.prefill_us;
        self.squares += other.squares;
        self.products += other.products;
    }

    fn prefill_rate(&self, full: f64) -> u32 {
        let achieved = rate(self.prefill, self.prefill_us);
        let spread = self.steps * self.squares - self.prefill * self.prefill;
        let per_token = (self.steps * self.products - self.prefill * self.busy_us) / spread;
        // Steps that all have as many tokens, or whose times depend on other things, fit no line.
        if !(spread > 0.0 && per_token > 0.0) {
            return achieved;
        }
        let without = ((self.busy_us - per_token * self.prefill) / self.steps).max(0.0);
        achieved.max(rate(full, without + per_token * full))
    }
}

fn rate(tokens: f64, us: f64) -> u32 {
    if tokens > 0.0 { (tokens * SECOND_US as f64 / us.max(1.0)) as u32 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_cover_the_last_seconds_and_only_busy_time() {
        let mut rates = Rates::default();
        assert_eq!(rates.per_second(Micros(0), 100), (0, 0));
        for second in 10..14 {
            rates.add(Micros(second * SECOND_US), Micros(100_000), 100, 2);
            rates.add(Micros(second * SECOND_US), Micros(50_000), 0, 4);
        }
        assert_eq!(rates.per_second(Micros(14 * SECOND_US), 100), (1_000, 40));
        assert_eq!(rates.per_second(Micros(60 * SECOND_US), 100), (0, 0));
    }

    #[test]
    fn few_prompt_tokens_tell_how_many_a_full_step_takes() {
        let mut rates = Rates::default();
        // 6 ms without prompts, and 20 us a token.
        for step in 0..200_u64 {
            let tokens = if step % 4 == 0 { 20 + step % 50 } else { 0 };
            rates.add(Micros(step * 10_000), Micros(6_000 + 20 * tokens), tokens, 1);
        }
        let (prefill, _) = rates.per_second(Micros(2 * SECOND_US), 512);
        assert!((31_500..31_550).contains(&prefill), "512 tokens in 16.24 ms, not {prefill} a second");
    }

    #[test]
    fn what_fits_no_line_is_the_rate_that_was_achieved() {
        let equal = [(100, 10_000), (100, 12_000)];
        let slower_without = [(100, 10_000), (0, 20_000)];
        for (steps, rate) in [(equal, 9_090), (slower_without, 10_000)] {
            let mut rates = Rates::default();
            for (tokens, us) in steps {
                rates.add(Micros(1), Micros(us), tokens, 0);
            }
            assert_eq!(rates.per_second(Micros(1), 4_096).0, rate);
        }
    }
}
