//! Matrices of a few bits a weight with scales in tensors of their own, as quantized checkpoints in safetensors store them:
//! what their numbers are.

use half::{bf16, f16};
use safetensors::tensor::Dtype;

/// How a matrix's codes are read: everything about it but the codes.
#[derive(Clone, Copy)]
pub(crate) struct Codes<'a> {
    /// The first of the matrix's rows in the tensors, which may be of several matrices, and all rows there.
    pub rows: (usize, usize),
    pub scales: Scales<'a>,
}

/// Numbers that several weights share.
#[derive(Clone, Copy)]
pub(crate) struct Scales<'a> {
    pub float: Float,
    pub bytes: &'a [u8],
    /// Rows and inputs that share one.
    pub block: [usize; 2],
    /// Of a row.
    pub count: usize,
}

/// How scales are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Float {
    F32,
    F16,
    Bf16,
    /// A power of two.
    Exponent,
}

impl Codes<'_> {
    /// Widens a row, of which the codes are in these bytes.
    pub(super) fn widen(&self, row: usize, bytes: &[u8], out: &mut [f32]) {
        let row = self.rows.0 + row;
        let codes = &bytes[row * out.len()..][..out.len()];
        for (number, code) in out.iter_mut().zip(codes) {
            *number = FLOATS[usize::from(*code)];
        }
        let scales = self.scales.of_row(row);
        for (numbers, scale) in out.chunks_mut(self.scales.block[1]).zip(scales) {
            numbers.iter_mut().for_each(|number| *number *= scale);
        }
    }

    /// Of bytes that all rows share, as many as are those of `count` rows from the matrix's first on.
    pub(super) fn share<'b>(&self, bytes: &'b [u8], count: usize) -> &'b [u8] {
        let (first, all) = self.rows;
        let place = |row: usize| (bytes.len() as u128 * row as u128 / all as u128) as usize;
        &bytes[place(first)..place(first + count)]
    }
}

impl Scales<'_> {
    /// Those of a row.
    fn of_row(&self, row: usize) -> impl Iterator<Item = f32> {
        let first = row / self.block[0] * self.count;
        (first..first + self.count).map(|at| self.float.get(self.bytes, at))
    }
}

impl Float {
    pub(super) const fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::F32),
            Dtype::F16 => Some(Self::F16),
            Dtype::BF16 => Some(Self::Bf16),
            Dtype::F8_E8M0 => Some(Self::Exponent),
            _ => None,
        }
    }

    /// Number `at` of those in `bytes`.
    fn get(self, bytes: &[u8], at: usize) -> f32 {
        let half = || u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]);
        match self {
            Self::F32 => {
                let bytes = &bytes[4 * at..][..4];
                f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
            }
            Self::F16 => f16::from_bits(half()).to_f32(),
            Self::Bf16 => bf16::from_bits(half()).to_f32(),
            Self::Exponent => match bytes[at] {
                u8::MAX => f32::NAN,
                // 2^-127 has no exponent of its own among floats of 32 bits.
                0 => f32::from_bits(1 << 22),
                exponent => f32::from_bits(u32::from(exponent) << 23),
            },
        }
    }
}

/// The floats of 8 bits with 4 for the exponent, whose bias is 7: no infinities, and two NaNs.
const FLOATS: [f32; 256] = {
    let mut floats = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (sign, exponent, fraction) = ((code as u32 >> 7) << 31, code as u32 >> 3 & 15, code as u32 & 7);
        floats[code] = match (exponent, fraction) {
            (15, 7) => f32::NAN,
            // Multiples of 2^-9.
            (0, _) => f32::from_bits(sign | 0x3b00_0000) * fraction as f32,
            _ => f32::from_bits(sign | (exponent + 120) << 23 | fraction << 20),
        };
        code += 1;
    }
    floats
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_of_8_bits_are_those_of_the_format() {
        for (code, number) in [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x07, 7.0 / 512.0),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x39, 1.125),
            (0x7e, 448.0),
            (0xb8, -1.0),
            (0xfe, -448.0),
            (0x81, -0.001_953_125),
        ] {
            assert_eq!(FLOATS[code], number, "{code:#x}");
        }
        assert!(FLOATS[0x80] == 0.0 && FLOATS[0x80].is_sign_negative());
        assert!(FLOATS.iter().enumerate().all(|(code, float)| float.is_nan() == (code & 0x7f == 0x7f)));
        assert!(FLOATS[..0x7f].is_sorted_by(|a, b| a < b), "as their codes are");
    }

    #[test]
    fn scales_are_read_in_each_of_their_types() {
        let read = |float: Float, bytes: &[u8]| float.get(bytes, 1);
        assert_eq!(read(Float::F32, &[[9; 4], 0.3_f32.to_le_bytes()].concat()), 0.3);
        assert_eq!(read(Float::F16, &[[9; 2], f16::from_f32(0.5).to_le_bytes()].concat()), 0.5);
        assert_eq!(read(Float::Bf16, &[[9; 2], bf16::from_f32(0.5).to_le_bytes()].concat()), 0.5);
        for (exponent, number) in
            [(127, 1.0), (120, 0.007_812_5), (0, 2.0_f32.powi(-127)), (254, 2.0_f32.powi(127))]
        {
            assert_eq!(read(Float::Exponent, &[9, exponent]), number);
        }
        assert!(read(Float::Exponent, &[9, 255]).is_nan());
    }

    #[test]
    fn shares_of_the_matrices_in_a_tensor_are_all_of_it() {
        let bytes: Vec<u8> = (0..50).collect();
        let scales = Scales { float: Float::F32, bytes: &[], block: [1, 1], count: 0 };
        let shares = [(0, 3), (3, 4), (7, 1)]
            .map(|(first, count)| Codes { rows: (first, 8), scales }.share(&bytes, count).to_vec());
        assert_eq!(shares.concat(), bytes);
    }
}
