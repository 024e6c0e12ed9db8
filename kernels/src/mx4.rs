//! Weights of 4-bit floats: blocks of 32 numbers with a shared power of two, the MXFP4 of the OCP Microscaling Formats
//! specification (1.0, section 5.2), and the rounding of floats to them. Twice such a number is a whole one, so products are
//! those of integers.

use half::bf16;

use crate::matrix::{GROUP, largest_and_poison};

/// Twice the number of each code, which is a sign, two bits of exponent and one of mantissa.
pub(crate) const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// Added to [`DOUBLED`] where an instruction needs bytes without signs.
pub(crate) const BIAS: i8 = 12;
/// [`DOUBLED`] so raised.
pub(crate) const RAISED: [u8; 16] = {
    let mut raised = [0; 16];
    let mut code = 0;
    while code < 16 {
        raised[code] = (DOUBLED[code] + BIAS).cast_unsigned();
        code += 1;
    }
    raised
};
/// The exponent of 1.
const ONE: i32 = 127;
/// The exponent that stands for NaN.
const NAN: u8 = 255;

/// 32 weights of an output as [`crate::Format::Mxfp4`] holds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mx4 {
    /// The weights are times two to this, less 127.
    pub exponent: u8,
    /// Each is 0 to 15.
    pub codes: [u8; GROUP],
}

impl Mx4 {
    /// The largest exponent of weights that every product computes alike. Beyond it the sum of a block's products with 8-bit
    /// inputs, of codes that are raised on some instruction sets, exceeds f32 before the inputs' scale makes it smaller;
    /// from 253 on the weights do so themselves, and 255 stands for NaN.
    pub const LARGEST_EXPONENT: u8 = 239;

    /// Rounds numbers: the exponent is that of the largest, less two (section 6.3), and a number beyond the range becomes the
    /// largest there. NaN or infinity makes all of them NaN.
    pub fn nearest(numbers: &[f32; GROUP]) -> Self {
        let (largest, poison) = largest_and_poison(numbers);
        if poison.is_nan() {
            return Self { exponent: NAN, codes: [0; GROUP] };
        }
        if largest == 0.0 {
            return Self::default();
        }
        // Subnormal numbers have the exponent of the smallest normal one.
        let exponent = ((largest.to_bits() >> 23).cast_signed() - 2).max(0);
        let unit = (f64::from(exponent - ONE)).exp2() as f32;
        let code = |x: &f32| {
            let (size, sign) = (x.abs() / unit, u8::from(x.is_sign_negative()) << 3);
            // Steps of a half up to 2, of 1 up to 4, of 2 up to 6; ties go to the even mantissa.
            let code = match size {
                ..2.0 => (size * 2.0).round_ties_even() as u8,
                2.0..4.0 => size.round_ties_even() as u8 + 2,
                _ => (size / 2.0).min(3.0).round_ties_even() as u8 + 4,
            };
            sign | code
        };
        Self { exponent: exponent as u8, codes: numbers.each_ref().map(code) }
    }

    /// The weights. An exponent of 255 makes them NaN.
    pub fn numbers(&self) -> [f32; GROUP] {
        let unit = self.unit().to_f32();
        self.codes.map(|code| f32::from(DOUBLED[usize::from(code & 15)]) * unit)
    }

    /// What a doubled code is multiplied by. A power of two from 2^-128 on, which takes a subnormal bf16.
    #[inline(always)]
    pub(crate) fn unit(&self) -> bf16 {
        match self.exponent {
            0 => bf16::from_bits(1 << 5),
            1 => bf16::from_bits(1 << 6),
            NAN => bf16::NAN,
            exponent => bf16::from_bits(u16::from(exponent - 1) << 7),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn numbers_are_those_of_the_specification_at_every_exponent() {
        let sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0_f64];
        for exponent in 0..=255_u8 {
            let numbers = Mx4 { exponent, codes: std::array::from_fn(|i| i as u8 % 16) }.numbers();
            for (code, got) in numbers.into_iter().take(16).enumerate() {
                let size = sizes[code % 8] * f64::from(i32::from(exponent) - 127).exp2();
                let want = (if code < 8 { size } else { -size }) as f32;
                assert!(
                    if exponent == 255 { got.is_nan() } else { got == want },
                    "{exponent}, {code}: {got}"
                );
            }
        }
    }

    #[test]
    fn sums_of_a_block_stay_within_f32_up_to_the_largest_exponent() {
        let raised = f64::from(RAISED.into_iter().max().unwrap());
        let sum = |exponent: u8| {
            let unit = Mx4 { exponent, ..Mx4::default() }.unit();
            GROUP as f64 * 127.0 * raised * f64::from(unit.to_f32())
        };
        assert!(sum(Mx4::LARGEST_EXPONENT) <= f64::from(f32::MAX));
        assert!(sum(Mx4::LARGEST_EXPONENT + 1) > f64::from(f32::MAX));
        assert!((0..=Mx4::LARGEST_EXPONENT).all(|exponent| {
            let block = Mx4 { exponent, codes: [7; GROUP] };
            block.numbers().iter().all(|number| number.is_finite())
        }));
    }

    #[test]
    fn rounded_numbers_are_the_nearest_and_those_of_a_block_stay() {
        let mut random = Random::new(5);
        for step in 0..400 {
            let size = f32::exp2((step % 200) as f32 - 100.0);
            let numbers: [f32; GROUP] = std::array::from_fn(|_| random.numbers(1)[0] * size);
            let block = Mx4::nearest(&numbers);
            let rounded = block.numbers();
            let all = Mx4 { codes: std::array::from_fn(|i| i as u8 % 16), ..block }.numbers();
            for (x, y) in numbers.into_iter().zip(rounded) {
                let nearest = all.iter().map(|z| (x - z).abs()).fold(f32::INFINITY, f32::min);
                assert!((x - y).abs() == nearest, "step {step}: {x} became {y}");
            }
            assert_eq!(Mx4::nearest(&rounded).numbers(), rounded, "step {step}");
        }
        assert_eq!(Mx4::nearest(&[0.0; GROUP]).numbers(), [0.0; GROUP]);
        assert_eq!(Mx4::nearest(&[1e-45; GROUP]).exponent, 0);
        assert!(Mx4::nearest(&[f32::MAX; GROUP]).numbers().iter().all(|x| x.is_finite()));
        for fault in [f32::NAN, f32::INFINITY] {
            let mut numbers = [1.0; GROUP];
            numbers[9] = fault;
            assert!(Mx4::nearest(&numbers).numbers().iter().all(|x| x.is_nan()), "{fault}");
        }
    }
}
