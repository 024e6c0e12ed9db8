//! Seeded samples of the distributions that traffic follows.

use infer_core::testing::SplitMix;

/// A generator whose values depend only on its seed, on every machine.
#[derive(Clone, Debug)]
pub struct Random(SplitMix);

impl Random {
    /// The stream `stream` of `seed`; the streams of a seed are independent.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut mixer = SplitMix(seed ^ stream.wrapping_mul(0xA24B_AED4_963E_E407));
        Self(SplitMix(mixer.next_u64()))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `0 .. n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }

    /// A number in `(0, 1]`, so that its logarithm is finite.
    pub fn unit(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let fraction = ((self.0.next_u64() >> 11) + 1) as f64;
        fraction / 9_007_199_254_740_992.0
    }

    /// Time to the next event of a Poisson process with mean gap `mean`.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log(self.unit())
    }

    /// A gap of mean `mean` between events, gamma-distributed with `shape` above 0, so that its standard deviation is
    /// `mean` / sqrt(shape). With a shape of 1, [`Self::exponential`] to the bit.
    ///
    /// # Panics
    /// If the shape is 0 or less, infinite or NaN: of NaN, no sample would ever be accepted.
    pub fn gamma(&mut self, shape: f64, mean: f64) -> f64 {
        assert!(shape > 0.0 && shape.is_finite(), "{shape} is no shape of a gamma distribution");
        if shape == 1.0 {
            return self.exponential(mean);
        }
        mean / shape * self.standard_gamma(shape)
    }

    /// Gamma-distributed with scale 1 (Marsaglia and Tsang 2000; section 6 for shapes below 1).
    fn standard_gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let part = libm::pow(self.unit(), 1.0 / shape);
            return part * self.standard_gamma(shape + 1.0);
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / libm::sqrt(9.0 * d);
        loop {
            let normal = self.normal();
            let root = 1.0 + c * normal;
            if root <= 0.0 {
                continue;
            }
            let cube = root * root * root;
            let bound = normal * normal / 2.0 + d * (1.0 - cube + libm::log(cube));
            if libm::log(self.unit()) < bound {
                return d * cube;
            }
        }
    }

    /// Standard normal (Box and Muller 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(self.unit()));
        radius * libm::cos(std::f64::consts::TAU * self.unit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_the_requested_means() {
        let mut random = Random::new(7, 1);
        let n = 20_000;
        let mean = (0..n).map(|_| random.exponential(3.0)).sum::<f64>() / f64::from(n);
        assert!((2.9..3.1).contains(&mean), "{mean}");
        let normal = (0..n).map(|_| random.normal()).sum::<f64>() / f64::from(n);
        assert!(normal.abs() < 0.03, "{normal}");
    }

    const DRAWS: u32 = 100_000;

    #[test]
    fn gamma_gaps_have_their_mean_and_their_coefficient_of_variation() {
        for shape in [0.01_f64, 0.062_5, 0.25, 0.9, 1.0, 1.5, 4.0, 100.0, 10_000.0] {
            for seed in 1..4 {
                let mut random = Random::new(seed, 0);
                let gaps: Vec<f64> = (0..DRAWS).map(|_| random.gamma(shape, 20.0)).collect();
                let number = f64::from(DRAWS);
                let mean = gaps.iter().sum::<f64>() / number;
                let variance = gaps.iter().map(|gap| (gap - mean) * (gap - mean)).sum::<f64>() / number;
                let (variation, expected) = (variance.sqrt() / mean, 1.0 / shape.sqrt());
                // Four standard errors; the kurtosis of the distribution is 3 + 6 / shape.
                let mean_error = 4.0 * expected / number.sqrt();
                let variation_error = 2.0 * ((6.0 / shape + 2.0) / number).sqrt();
                assert!((mean / 20.0 - 1.0).abs() < mean_error, "shape {shape}, seed {seed}: mean {mean}");
                assert!(
                    (variation / expected - 1.0).abs() < variation_error,
                    "shape {shape}, seed {seed}: {variation} for {expected}"
                );
            }
        }
    }

    #[test]
    fn gamma_gaps_are_distributed_as_those_of_shapes_with_a_known_distribution() {
        let of_two = |gap: f64| 1.0 - (-2.0 * gap).exp() * (1.0 + 2.0 * gap);
        let of_half = |gap: f64| libm::erf((0.5 * gap).sqrt());
        let known: [(f64, &dyn Fn(f64) -> f64); 2] = [(2.0, &of_two), (0.5, &of_half)];
        for (shape, share_below) in known {
            let mut random = Random::new(7, 0);
            let mut gaps: Vec<f64> = (0..DRAWS).map(|_| random.gamma(shape, 1.0)).collect();
            gaps.sort_by(f64::total_cmp);
            let middles = (0..DRAWS).map(|nth| (f64::from(nth) + 0.5) / f64::from(DRAWS));
            let off = gaps.iter().zip(middles).map(|(&gap, middle)| (share_below(gap) - middle).abs());
            // Kolmogorov and Smirnov's bound for one case in a hundred.
            let (most, bound) = (off.fold(0.0, f64::max), 1.63 / f64::from(DRAWS).sqrt());
            assert!(most < bound, "shape {shape}: {most} of {bound}");
        }
    }

    #[test]
    #[should_panic(expected = "NaN is no shape")]
    fn gamma_gap_without_a_shape_does_not_take_forever() {
        Random::new(1, 0).gamma(f64::NAN, 1.0);
    }

    #[test]
    fn gamma_gap_of_shape_1_is_exponential_to_the_bit() {
        let (mut one, mut other) = (Random::new(9, 1), Random::new(9, 1));
        for _ in 0..1_000 {
            assert_eq!(one.gamma(1.0, 0.37).to_bits(), other.exponential(0.37).to_bits());
        }
    }

    #[test]
    fn seed_repeats_and_streams_differ() {
        let draw = |seed, stream| Random::new(seed, stream).bits();
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }
}
