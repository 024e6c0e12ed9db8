//! Weights of 4 bits: groups of 32 numbers `scale * integer + base`, and the rounding of floats to them.

use half::f16;

use crate::matrix::{GROUP, largest_and_poison};

/// The largest integer.
const LARGEST: f32 = 15.0;
/// Least-squares fits after the first rounding. On normally distributed weights they lower the mean square error by 13 %,
/// to 72 % of Q4_0's; one more would gain 1 %.
const FITS: usize = 3;

/// 32 weights of an output as [`crate::Format::Int4`] holds them: `scale * integer + base`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Group4 {
    /// Distance between neighbouring weights.
    pub scale: f16,
    /// The weight of integer 0.
    pub base: f16,
    /// Each is 0 to 15.
    pub integers: [u8; GROUP],
}

impl Group4 {
    /// Rounds numbers. The range is first that of the numbers; then scale and base are fitted to the rounded integers and
    /// the integers to them, as long as the error shrinks. Numbers beyond the range of f16 are clamped; NaN or infinity
    /// makes all of them NaN.
    #[inline(always)]
    pub fn nearest(numbers: &[f32; GROUP]) -> Self {
        let (_, poison) = largest_and_poison(numbers);
        if poison.is_nan() {
            return Self { scale: f16::NAN, base: f16::NAN, integers: [0; GROUP] };
        }
        let (mut low, mut high) = (numbers[0], numbers[0]);
        for x in numbers {
            low = if *x < low { *x } else { low };
            high = if *x > high { *x } else { high };
        }
        let (mut best, mut error) = Self::with(numbers, high / LARGEST - low / LARGEST, low);
        for _ in 0..FITS {
            let Some((scale, base)) = best.fit(numbers) else { break };
            let (next, next_error) = Self::with(numbers, scale, base);
            if next_error >= error {
                break;
            }
            (best, error) = (next, next_error);
        }
        best
    }

    /// The nearest integers, and the sum of their squared errors.
    #[inline(always)]
    fn with(numbers: &[f32; GROUP], scale: f32, base: f32) -> (Self, f32) {
        let [scale, base] =
            [scale, base].map(|x| f16::from_f32(x.clamp(f16::MIN.to_f32(), f16::MAX.to_f32())));
        let (wide, start) = (scale.to_f32(), base.to_f32());
        let inverse = if wide == 0.0 { 0.0 } else { 1.0 / wide };
        let (mut integers, mut errors) = ([0; GROUP], [0.0_f32; GROUP]);
        for ((integer, error), x) in integers.iter_mut().zip(&mut errors).zip(numbers) {
            // Adding 1.5 * 2^23 rounds, ties to even, and leaves the integer in the lowest bits.
            let rounded = ((x - start) * inverse).clamp(0.0, LARGEST) + 12_582_912.0;
            *integer = rounded.to_bits() as u8;
            let error_of_one = (rounded - 12_582_912.0) * wide + start - x;
            *error = error_of_one * error_of_one;
        }
        (Self { scale, base, integers: integers.map(|integer| integer & 15) }, total(errors))
    }

    /// Scale and base with the least squared error for these integers, unless all are the same.
    #[inline(always)]
    fn fit(&self, numbers: &[f32; GROUP]) -> Option<(f32, f32)> {
        let integers = self.integers.map(f32::from);
        let [mut squares, mut products] = [[0.0; GROUP]; 2];
        for i in 0..GROUP {
            squares[i] = integers[i] * integers[i];
            products[i] = integers[i] * numbers[i];
        }
        let (count, n, x) = (GROUP as f32, total(integers), total(*numbers));
        let spread = count * total(squares) - n * n;
        let scale = (count * total(products) - n * x) / spread;
        (spread > 0.0 && scale.is_finite()).then(|| (scale, (x - scale * n) / count))
    }
}

/// The sum of a group's numbers, halves added to halves, so that the loop vectorizes.
#[inline(always)]
fn total(mut numbers: [f32; GROUP]) -> f32 {
    let mut width = GROUP / 2;
    while width > 0 {
        for i in 0..width {
            numbers[i] += numbers[i + width];
        }
        width /= 2;
    }
    numbers[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn widened(group: &Group4) -> [f32; GROUP] {
        group.integers.map(|n| f32::from(n) * group.scale.to_f32() + group.base.to_f32())
    }

    fn square_error(numbers: &[f32; GROUP], group: &Group4) -> f32 {
        numbers.iter().zip(widened(group)).map(|(x, y)| (x - y) * (x - y)).sum()
    }

    /// A sum of uniform numbers is nearly normal, as weights are.
    fn bell(random: &mut Random) -> [f32; GROUP] {
        std::array::from_fn(|_| random.numbers(12).iter().sum())
    }

    #[test]
    fn fitted_groups_err_less_than_the_plain_range_and_than_other_scales() {
        const OTHERS: [f32; 4] = [0.7, 0.9, 1.1, 1.4];
        let mut random = Random::new(3);
        let (mut fitted, mut plain, mut others) = (0.0, 0.0, [0.0; 4]);
        for _ in 0..500 {
            let numbers = bell(&mut random);
            let group = Group4::nearest(&numbers);
            let (low, high) = numbers.iter().fold((f32::MAX, f32::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
            fitted += square_error(&numbers, &group);
            plain += square_error(&numbers, &Group4::with(&numbers, (high - low) / LARGEST, low).0);
            for (factor, other) in OTHERS.iter().zip(&mut others) {
                let (scale, base) = (group.scale.to_f32(), group.base.to_f32());
                let middle = base + LARGEST / 2.0 * scale;
                let scale = scale * factor;
                let (group, error) = Group4::with(&numbers, scale, middle - LARGEST / 2.0 * scale);
                assert!((error - square_error(&numbers, &group)).abs() <= 1e-3 * error);
                *other += error;
            }
        }
        assert!(fitted < 0.9 * plain, "{fitted} of {plain}");
        assert!(others.iter().all(|other| fitted < 0.97 * other), "{fitted} of {others:?}");
    }

    #[test]
    fn numbers_of_a_grid_stay_as_they_are_and_faults_spread() {
        for (scale, base) in [(0.25_f32, -2.0_f32), (0.007_812_5, 0.5), (-3.0, 1.0), (0.0, 0.125)] {
            let numbers: [f32; GROUP] = std::array::from_fn(|i| scale * (i * 7 % 16) as f32 + base);
            assert_eq!(widened(&Group4::nearest(&numbers)), numbers, "{scale}, {base}");
        }
        let far: [f32; GROUP] = std::array::from_fn(|i| if i % 2 == 0 { 1e30 } else { -1e-30 });
        assert!(widened(&Group4::nearest(&far)).iter().all(|x| x.is_finite()));
        for fault in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut numbers = [1.0; GROUP];
            numbers[9] = fault;
            assert!(widened(&Group4::nearest(&numbers)).iter().all(|x| x.is_nan()), "{fault}");
        }
    }
}
