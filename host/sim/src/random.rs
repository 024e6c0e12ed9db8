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

    #[test]
    fn seed_repeats_and_streams_differ() {
        let draw = |seed, stream| Random::new(seed, stream).bits();
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }
}
