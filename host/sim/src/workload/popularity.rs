//! Which of several texts a request uses.

use std::sync::Arc;

use crate::random::Random;

/// Draws texts by Zipf's law: the k-th most popular one with a probability proportional to 1 / k^exponent.
///
/// Exact by inversion of the running sums. A draw takes one number of the generator whatever the exponent, so that
/// another one leaves everything else as it was.
#[derive(Clone, Debug)]
pub(super) struct Popularity {
    texts: u32,
    /// Sum of the weights up to each text; empty if all are equally likely.
    sums: Arc<[f64]>,
}

impl Popularity {
    /// Of `texts` texts, at least one; with exponent 0, all are equally likely.
    pub fn zipf(texts: u32, exponent: f64) -> Self {
        let texts = texts.max(1);
        let ranks = 1..if exponent > 0.0 { u64::from(texts) + 1 } else { 1 };
        #[expect(clippy::cast_precision_loss, reason = "32 bits fit")]
        let weights = ranks.map(|rank| libm::pow(rank as f64, -exponent));
        let sums = weights.scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Self { texts, sums: sums.collect() }
    }

    /// A number below that of the texts; 0 is the most popular.
    pub fn draw(&self, random: &mut Random) -> u64 {
        match self.sums.last() {
            None => random.below(u64::from(self.texts)),
            Some(total) => {
                // At most the total, so there always is one.
                let at = random.unit() * total;
                self.sums.partition_point(|&sum| sum < at) as u64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_as_popular_as_zipfs_law_says() {
        const DRAWS: u32 = 200_000;
        for (texts, exponent) in [(1_u32, 1.0), (2, 0.3), (50, 0.7), (50, 1.0), (400, 1.3), (1_000_000, 5.0)]
        {
            let popularity = Popularity::zipf(texts, exponent);
            let mut random = Random::new(5, 0);
            let mut counts = vec![0_u32; texts as usize];
            (0..DRAWS).for_each(|_| counts[popularity.draw(&mut random) as usize] += 1);
            let weight = |at: usize| (at as f64 + 1.0).powf(-exponent);
            let total: f64 = (0..counts.len()).map(weight).sum();
            for (at, &count) in counts.iter().enumerate() {
                let share = weight(at) / total;
                let expected = f64::from(DRAWS) * share;
                let deviation = (expected * (1.0 - share)).sqrt();
                let off = (f64::from(count) - expected).abs();
                assert!(off <= 5.0 * deviation + 1.0, "{texts} {exponent} {at}: {count} for {expected:.1}");
            }
        }
    }

    #[test]
    fn exponent_of_0_draws_like_a_uniform_choice() {
        for texts in [0, 1, 7, 1_000_000] {
            let popularity = Popularity::zipf(texts, 0.0);
            let (mut one, mut other) = (Random::new(9, 4), Random::new(9, 4));
            for _ in 0..1_000 {
                assert_eq!(popularity.draw(&mut one), other.below(u64::from(texts.max(1))));
            }
        }
    }

    #[test]
    fn draws_are_the_same_on_every_machine_and_take_one_number_each() {
        for (exponent, drawn) in [
            (0.0, [15, 50, 0, 26, 32, 23, 49, 21, 70, 42, 96, 4]),
            (0.9, [32, 16, 19, 41, 42, 18, 89, 58, 5, 29, 0, 2]),
            (1.2, [13, 5, 7, 20, 20, 6, 78, 34, 1, 12, 0, 0]),
        ] {
            let popularity = Popularity::zipf(100, exponent);
            let (mut random, mut plain) = (Random::new(3, 0), Random::new(3, 0));
            assert_eq!([(); 12].map(|()| popularity.draw(&mut random)), drawn, "{exponent}");
            (0..12).for_each(|_| _ = plain.bits());
            assert_eq!(random.bits(), plain.bits());
        }
    }
}
