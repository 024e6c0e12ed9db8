//! Seeded randomness of a training run.
//!
//! candle's CPU generator can't be seeded, so initial weights come from here as well.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// A seeded generator with the few distributions that training needs.
pub struct Random(ChaCha8Rng);

impl Random {
    /// A generator whose values depend only on `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number in `0 .. bound`; the modulo bias is negligible for training.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "the range is empty");
        usize::try_from(self.0.next_u64() % bound as u64).expect("below a usize")
    }

    /// True with the probability `percent` / 100.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of `items`.
    pub fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.below(items.len())]
    }

    /// Puts `items` in a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// `count` values from a normal distribution around 0 (Box and Muller).
    pub fn normal(&mut self, count: usize, deviation: f64) -> Vec<f32> {
        (0..count)
            .map(|_| {
                let (a, b) = (self.unit(), self.unit());
                let radius = (-2.0 * a.ln()).sqrt();
                #[expect(clippy::cast_possible_truncation, reason = "weights are f32")]
                let value = (radius * (std::f64::consts::TAU * b).cos() * deviation) as f32;
                value
            })
            .collect()
    }

    /// Uniform in (0, 1], so that its logarithm is finite.
    fn unit(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit a f64 exactly")]
        let value = ((self.0.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        value
    }
}
