//! Arrival processes.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// An arrival process of a given mean rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Arrivals {
    /// A Poisson process.
    Poisson,
    /// Independent gaps with a gamma distribution.
    Gamma {
        /// Its shape, within [`Arrivals::BURSTINESS`]: with 1 it is a Poisson process, less is more bursty, more is more
        /// regular. The coefficient of variation of the gaps is 1 / sqrt(burstiness).
        burstiness: f64,
    },
    /// Bursts that form a Poisson process.
    Bursty {
        /// Mean number of requests per burst.
        size: u32,
    },
    /// A Poisson process whose rate oscillates around its mean.
    Diurnal {
        /// Oscillations per run.
        swings: u32,
        /// Amplitude as a fraction of the mean, 0 to 1.
        depth: f64,
    },
}

impl Arrivals {
    /// Shapes of a gamma distribution: coefficients of variation from 10 down to 0.01.
    pub const BURSTINESS: RangeInclusive<f64> = 0.01..=10_000.0;

    /// That of a process of independent gaps, of which Poisson processes are one; `None` for others.
    pub fn burstiness(self) -> Option<f64> {
        match self {
            Self::Poisson => Some(1.0),
            Self::Gamma { burstiness } => Some(burstiness),
            Self::Bursty { .. } | Self::Diurnal { .. } => None,
        }
    }
}

/// Upper limit of the mean gap within a burst, in seconds.
const WITHIN_BURST_S: f64 = 0.002;
/// The same relative to the mean gap of all requests, so that bursts stay bursts at any rate.
const WITHIN_BURST: f64 = 0.1;

/// A running arrival process.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    arrivals: Arrivals,
    /// Mean arrivals per second.
    rate: f64,
    /// Approximate duration of the run.
    run_s: f64,
    now_s: f64,
    /// Requests left in the current burst.
    burst: u64,
}

impl Clock {
    pub fn new(arrivals: Arrivals, rate: f64, run_s: f64) -> Self {
        Self { arrivals, rate, run_s, now_s: 0.0, burst: 0 }
    }

    /// Time of the next arrival in microseconds.
    pub fn next(&mut self, random: &mut Random) -> u64 {
        match self.arrivals {
            Arrivals::Poisson => self.now_s += random.exponential(1.0 / self.rate),
            Arrivals::Gamma { burstiness } => {
                let (least, most) = Arrivals::BURSTINESS.into_inner();
                self.now_s += random.gamma(burstiness.clamp(least, most), 1.0 / self.rate);
            }
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
        // The pause excludes the duration of a burst, which keeps the mean rate.
        self.now_s += random.exponential(size / self.rate - (size - 1.0) * within_s);
        // Geometric with mean `size`, including the first request.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and small")]
        let more =
            if size > 1.0 { (libm::log(random.unit()) / libm::log(1.0 - 1.0 / size)) as u64 } else { 0 };
        self.burst = more;
    }

    /// Thins a Poisson process at the peak rate to the current rate (Lewis and Shedler 1979).
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
    fn every_process_has_its_mean_rate() {
        for (arrivals, rate) in [
            (Arrivals::Poisson, 50.0),
            (Arrivals::Gamma { burstiness: 0.25 }, 50.0),
            (Arrivals::Gamma { burstiness: 9.0 }, 5_000.0),
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
            assert!((0.98..1.02).contains(&kept), "{arrivals:?} at {rate}: off by a factor of {kept}");
        }
    }

    #[test]
    fn burstiness_of_1_is_a_poisson_process_to_the_microsecond() {
        let times = |arrivals| {
            let (mut clock, mut random) = (Clock::new(arrivals, 37.0, 1.0), Random::new(5, 1));
            [(); 2_000].map(|()| clock.next(&mut random))
        };
        let of = |burstiness| times(Arrivals::Gamma { burstiness });
        assert_eq!(of(1.0), times(Arrivals::Poisson));
        assert_eq!(of(0.25), of(0.25));
        assert_ne!(of(0.25), of(1.0));
    }

    #[test]
    fn less_burstiness_is_more_bursty() {
        // Windows have 1,000 arrivals in the mean; the variance of their number is about 1 / burstiness times that.
        for (burstiness, expected) in [(0.062_5, 16.0), (1.0, 1.0), (16.0, 0.062_5)] {
            let mut clock = Clock::new(Arrivals::Gamma { burstiness }, 50.0, 1.0);
            let (mut random, mut windows) = (Random::new(3, 1), [0_u32; 2_000]);
            while let Some(window) = windows.get_mut((clock.next(&mut random) / 20_000_000) as usize) {
                *window += 1;
            }
            let mean = windows.iter().map(|&number| f64::from(number)).sum::<f64>() / 2_000.0;
            let squares = windows.iter().map(|&number| (f64::from(number) - mean).powi(2)).sum::<f64>();
            let dispersion = squares / 2_000.0 / mean;
            assert!((0.8..1.2).contains(&(dispersion / expected)), "{burstiness}: {dispersion}");
        }
    }

    #[test]
    fn oscillations_divide_the_run_at_any_rate() {
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
            // The mean of 1 + 0.8 sin is 1.51 over the first half of a period, and 0.49 over the second.
            for swing in eighths.chunks(2) {
                let ratio = f64::from(swing[0]) / f64::from(swing[1]);
                assert!((2.8..3.4).contains(&ratio), "{rate}: {eighths:?}");
            }
        }
    }
}
