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
        /// Seconds from peak to peak.
        period_s: f64,
        /// Part of the mean by which the rate swings, 0 to 1.
        depth: f64,
    },
}

/// Seconds between the requests of a burst, on average.
const WITHIN_BURST_S: f64 = 0.002;

/// The process under way.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    arrivals: Arrivals,
    /// Mean begins per second.
    rate: f64,
    now_s: f64,
    /// Requests of the present burst that are still to come.
    burst: u64,
}

impl Clock {
    pub fn new(arrivals: Arrivals, rate: f64) -> Self {
        Self { arrivals, rate, now_s: 0.0, burst: 0 }
    }

    /// Microseconds at which the next one begins.
    pub fn next(&mut self, random: &mut Random) -> u64 {
        match self.arrivals {
            Arrivals::Poisson => self.now_s += random.exponential(1.0 / self.rate),
            Arrivals::Bursty { size } => self.burst(f64::from(size.max(1)), random),
            Arrivals::Diurnal { period_s, depth } => self.thin(period_s, depth.clamp(0.0, 1.0), random),
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive")]
        let us = (self.now_s * 1e6) as u64;
        us
    }

    fn burst(&mut self, size: f64, random: &mut Random) {
        if self.burst > 0 {
            self.burst -= 1;
            self.now_s += random.exponential(WITHIN_BURST_S);
            return;
        }
        self.now_s += random.exponential(size / self.rate);
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
            let phase = std::f64::consts::TAU * self.now_s / period_s.max(1e-3);
            if random.unit() * (1.0 + depth) <= 1.0 + depth * libm::sin(phase) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_keeps_its_mean_rate() {
        for arrivals in [
            Arrivals::Poisson,
            Arrivals::Bursty { size: 8 },
            Arrivals::Diurnal { period_s: 10.0, depth: 0.9 },
        ] {
            let (mut clock, mut random) = (Clock::new(arrivals, 50.0), Random::new(3, 3));
            let mut last = 0;
            for _ in 0..40_000 {
                let at = clock.next(&mut random);
                assert!(at >= last);
                last = at;
            }
            let rate = 40_000.0 / (last as f64 / 1e6);
            assert!((46.0..54.0).contains(&rate), "{arrivals:?}: {rate}");
        }
    }
}
