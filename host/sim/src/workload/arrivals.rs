//! When requests begin.

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// An arrival process of a given mean rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Independent of each other.
    Poisson,
    /// In bursts of this mean size that arrive independently of each other.
    Bursty {
        /// Mean requests in a burst.
        size: u32,
    },
    /// The rate swings around its mean.
    Diurnal {
        /// How often it does so in a run.
        swings: u32,
        /// Part of the mean by which the rate swings, 0 to 1.
        depth: f64,
    },
}

/// Seconds between the requests of a burst, on average and at most.
const WITHIN_BURST_S: f64 = 0.002;
/// The same as a part of what is between requests on average: a burst is a burst at any rate.
const WITHIN_BURST: f64 = 0.1;

/// The process under way.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    arrivals: Arrivals,
    /// Mean begins per second.
    rate: f64,
    /// How long it goes on, about.
    run_s: f64,
    now_s: f64,
    /// Requests of the present burst that are still to come.
    burst: u64,
}

impl Clock {
    pub fn new(arrivals: Arrivals, rate: f64, run_s: f64) -> Self {
        Self { arrivals, rate, run_s, now_s: 0.0, burst: 0 }
    }

    /// Microseconds at which the next one begins.
    pub fn next(&mut self, random: &mut Random) -> u64 {
        match self.arrivals {
            Arrivals::Poisson => self.now_s += random.exponential(1.0 / self.rate),
            Arrivals::Bursty { size } => self.burst(f64::from(size.max(1)), random),
            Arrivals::Diurnal { swings, depth } => {
                let period_s = self.run_s / f64::from(swings.max(1));
                self.thin(period_s, depth.clamp(0.0, 1.0), random);
            }
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive")]
        let us = (self.now_s * 1e6) as u64;
        us
    }

    fn burst(&mut self, size: f64, random: &mut Random) {
        let within_s = WITHIN_BURST_S.min(WITHIN_BURST / self.rate);
        if self.burst > 0 {
            self.burst -= 1;
            self.now_s += random.exponential(within_s);
            return;
        }
        // What a burst takes itself is no part of the pause before it.
        self.now_s += random.exponential(size / self.rate - (size - 1.0) * within_s);
        // Geometric with this mean, the first request included.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and small")]
        let more =
            if size > 1.0 { (libm::log(random.unit()) / libm::log(1.0 - 1.0 / size)) as u64 } else { 0 };
        self.burst = more;
    }

    /// A Poisson process at the peak's rate of which the present rate's part is kept (Lewis and Shedler 1979).
    fn thin(&mut self, period_s: f64, depth: f64, random: &mut Random) {
        let peak = self.rate * (1.0 + depth);
        loop {
            self.now_s += random.exponential(1.0 / peak);
            let phase = std::f64::consts::TAU * self.now_s / period_s;
            if random.unit() * (1.0 + depth) <= 1.0 + depth * libm::sin(phase) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: u32 = 1_000_000;

    #[test]
    fn every_process_keeps_its_mean_rate() {
        for (arrivals, rate) in [
            (Arrivals::Poisson, 50.0),
            (Arrivals::Bursty { size: 8 }, 5.0),
            (Arrivals::Bursty { size: 8 }, 5_000.0),
            (Arrivals::Bursty { size: 32 }, 200.0),
            (Arrivals::Diurnal { swings: 4, depth: 0.9 }, 50.0),
        ] {
            let mut clock = Clock::new(arrivals, rate, f64::from(RUN) / rate);
            let mut random = Random::new(3, 3);
            let mut last = 0;
            for _ in 0..RUN {
                let at = clock.next(&mut random);
                assert!(at >= last);
                last = at;
            }
            let kept = f64::from(RUN) / (last as f64 / 1e6) / rate;
            assert!((0.98..1.02).contains(&kept), "{arrivals:?} at {rate}: {kept} of it");
        }
    }

    #[test]
    fn a_swing_is_a_part_of_the_run_however_long_that_takes() {
        for rate in [0.5, 5_000.0] {
            let run_s = 100_000.0 / rate;
            let mut clock = Clock::new(Arrivals::Diurnal { swings: 4, depth: 0.8 }, rate, run_s);
            let mut random = Random::new(3, 3);
            let mut eighths = [0_u32; 8];
            while let Some(eighth) =
                eighths.get_mut((clock.next(&mut random) as f64 / 1e6 / run_s * 8.0) as usize)
            {
                *eighth += 1;
            }
            // The mean of 1 + 0.8 sin over its first half is 1.51, over its second 0.49.
            for swing in eighths.chunks(2) {
                let ratio = f64::from(swing[0]) / f64::from(swing[1]);
                assert!((2.8..3.4).contains(&ratio), "{rate}: {eighths:?}");
            }
        }
    }
}
