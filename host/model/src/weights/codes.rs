//! Matrices of a few bits a weight with scales in tensors of their own, as quantized checkpoints in safetensors store them:
//! what their numbers are.

use half::{bf16, f16};
use infer_kernels::{GROUP, Group4};
use safetensors::tensor::Dtype;

/// How a matrix's codes are read: everything about it but the codes.
#[derive(Clone, Copy)]
pub(crate) struct Codes<'a> {
    /// The first of the matrix's rows in the tensors, which may be of several matrices, and all rows there.
    pub rows: (usize, usize),
    pub layout: Layout,
    pub scales: Scales<'a>,
    /// What is subtracted from a code before its scale multiplies it.
    pub zeros: Zeros<'a>,
    /// The group of each input, as 32 bits; empty if neighbours are groups anyway.
    pub indices: &'a [u8],
    /// Whether these are not the groups of neighbours.
    pub ordered: bool,
}

/// Where the code of a row's input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Row by row, floats of 8 bits.
    Floats,
    /// In words of 32 bits, the first in the lowest bits: a word has inputs of one row, and the words of the other rows follow.
    Down { bits: usize },
    /// Row by row, signed integers of 8 bits.
    Signed,
    /// Row by row, in words of 32 bits, the first code in the lowest bits.
    Rows { bits: usize },
    /// In words of 4-bit codes of 8 rows, in the order of [`ACROSS`]; the words of an input's other rows follow.
    Across,
}

/// The place of each of eight rows' codes in a word of AWQ, of which the first is in the lowest bits.
const ACROSS: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// What codes mean 0, shared as scales are.
#[derive(Clone, Copy)]
pub(crate) enum Zeros<'a> {
    /// All the same.
    All(f32),
    /// Codes of so many bits in words, one less than meant: those of a group are together.
    Less { bits: usize, bytes: &'a [u8] },
    /// Codes of so many bits in words, each of several outputs.
    Rows { bits: usize, bytes: &'a [u8] },
    /// Signed integers of 8 bits, below the codes by `middle`.
    Bytes { middle: u8, bytes: &'a [u8] },
    /// Words of 4-bit codes as those of [`Layout::Across`].
    Across(&'a [u8]),
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
    /// From one to that of the next rows, and to that of the next inputs.
    pub steps: [usize; 2],
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
        let mut codes = vec![0; out.len()];
        self.read(row, bytes, &mut codes);
        for (number, code) in out.iter_mut().zip(codes) {
            *number = match self.layout {
                Layout::Floats => FLOATS[usize::from(code)],
                Layout::Signed => f32::from(code as i8),
                Layout::Rows { .. } | Layout::Down { .. } | Layout::Across => f32::from(code),
            };
        }
        if !self.ordered {
            for (group, numbers) in out.chunks_mut(self.scales.block[1]).enumerate() {
                let (scale, zero) = self.unit(row, group);
                numbers.iter_mut().for_each(|number| *number = (*number - zero) * scale);
            }
            return;
        }
        let units: Vec<(f32, f32)> = (0..self.scales.count).map(|group| self.unit(row, group)).collect();
        for (number, group) in out.iter_mut().zip(self.indices.as_chunks().0) {
            let (scale, zero) = units[u32::from_le_bytes(*group) as usize];
            *number = (*number - zero) * scale;
        }
    }

    /// Whether rows are groups of 4-bit integers, as [`Codes::groups`] reads them.
    pub(super) fn is_four_bits(&self, inputs: usize) -> bool {
        let of_four =
            matches!(self.layout, Layout::Rows { bits: 4 } | Layout::Down { bits: 4 } | Layout::Across);
        let together = !self.ordered && self.scales.block[1].is_multiple_of(GROUP);
        of_four && (together || !self.ordered && self.scales.count == 1) && inputs.is_multiple_of(GROUP)
    }

    /// Converts a row of such codes. Integers stay as they are; scales, and the number of integer 0, are rounded to f16.
    pub(super) fn groups(&self, row: usize, bytes: &[u8], out: &mut [Group4]) {
        let row = self.rows.0 + row;
        let mut codes = vec![0; out.len() * GROUP];
        self.read(row, bytes, &mut codes);
        for (at, (group, codes)) in out.iter_mut().zip(codes.as_chunks().0).enumerate() {
            let (scale, zero) = self.unit(row, at * GROUP / self.scales.block[1]);
            *group =
                Group4 { scale: f16::from_f32(scale), base: f16::from_f32(-zero * scale), integers: *codes };
        }
    }

    /// The codes of a row of the tensor.
    fn read(&self, row: usize, bytes: &[u8], out: &mut [u8]) {
        match self.layout {
            Layout::Floats | Layout::Signed => out.copy_from_slice(&bytes[row * out.len()..][..out.len()]),
            Layout::Rows { bits } => {
                let (per_word, words) = (32 / bits, (out.len() * bits).div_ceil(32));
                for (at, codes) in out.chunks_mut(per_word).enumerate() {
                    let word = word(bytes, row * words + at);
                    codes.iter_mut().enumerate().for_each(|(at, code)| *code = field(word, bits, at));
                }
            }
            Layout::Down { bits } => {
                for (at, codes) in out.chunks_mut(32 / bits).enumerate() {
                    let word = word(bytes, at * self.rows.1 + row);
                    codes.iter_mut().enumerate().for_each(|(at, code)| *code = field(word, bits, at));
                }
            }
            Layout::Across => {
                let (words, place) = (self.rows.1 / 8, ACROSS[row % 8]);
                for (input, code) in out.iter_mut().enumerate() {
                    *code = field(word(bytes, input * words + row / 8), 4, place);
                }
            }
        }
    }

    /// Scale and zero of a group of a row's inputs.
    fn unit(&self, row: usize, group: usize) -> (f32, f32) {
        let zero = match self.zeros {
            Zeros::All(zero) => zero,
            Zeros::Less { bits, bytes } => {
                let (place, per_word) = (group * (self.rows.1 * bits).div_ceil(32), 32 / bits);
                // As if the words were numbers, as they are where such files are written.
                let ones = u32::MAX / ((1 << bits) - 1);
                let word = word(bytes, place + row / per_word).wrapping_add(ones);
                f32::from(field(word, bits, row % per_word))
            }
            Zeros::Rows { bits, bytes } => {
                let (row, per_word) = (row / self.scales.block[0], 32 / bits);
                let word = word(bytes, row / per_word * self.scales.count + group);
                f32::from(field(word, bits, row % per_word))
            }
            Zeros::Bytes { middle, bytes } => {
                let at = row / self.scales.block[0] * self.scales.count + group;
                f32::from(middle) + f32::from(bytes[at] as i8)
            }
            Zeros::Across(bytes) => {
                let word = word(bytes, group * (self.rows.1 / 8) + row / 8);
                f32::from(field(word, 4, ACROSS[row % 8]))
            }
        };
        (self.scales.get(row, group), zero)
    }

    /// Of bytes that all rows share, as many as are those of `count` rows from the matrix's first on.
    pub(super) fn share<'b>(&self, bytes: &'b [u8], count: usize) -> &'b [u8] {
        let (first, all) = self.rows;
        let place = |row: usize| (bytes.len() as u128 * row as u128 / all as u128) as usize;
        &bytes[place(first)..place(first + count)]
    }
}

impl<'a> Zeros<'a> {
    pub(super) fn bytes(&self) -> &'a [u8] {
        match self {
            Self::All(_) => &[],
            Self::Less { bytes, .. }
            | Self::Rows { bytes, .. }
            | Self::Bytes { bytes, .. }
            | Self::Across(bytes) => bytes,
        }
    }
}

impl Scales<'_> {
    fn get(&self, row: usize, group: usize) -> f32 {
        self.float.get(self.bytes, row / self.block[0] * self.steps[0] + group * self.steps[1])
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

/// Word `at` of 32 bits.
fn word(bytes: &[u8], at: usize) -> u32 {
    let bytes = &bytes[4 * at..][..4];
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Code `at` of a word, from the lowest bits on.
fn field(word: u32, bits: usize, at: usize) -> u8 {
    (word >> (bits * at)) as u8 & (u8::MAX >> (8 - bits))
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

    /// GPTQ's tools subtract one from each zero in a word at once, so that a zero of 0 borrows from the next.
    #[test]
    fn zeros_that_are_one_less_are_those_of_the_whole_word() {
        let scales =
            Scales { float: Float::F32, bytes: &[0, 0, 128, 63], block: [8, 1], count: 1, steps: [0, 0] };
        for zeros in [[0; 8], [15; 8], [0, 1, 2, 3, 12, 13, 14, 15], [8, 0, 0, 15, 0, 8, 8, 0]] {
            let word = zeros.iter().rev().fold(0_u32, |word, zero| word << 4 | zero);
            let bytes = word.wrapping_sub(0x1111_1111).to_le_bytes();
            let (layout, zeros_less) = (Layout::Down { bits: 4 }, Zeros::Less { bits: 4, bytes: &bytes });
            let codes =
                Codes { rows: (0, 8), layout, scales, zeros: zeros_less, indices: &[], ordered: false };
            let got: Vec<u32> = (0..8).map(|row| codes.unit(row, 0).1 as u32).collect();
            assert_eq!(got, zeros);
        }
    }

    #[test]
    fn shares_of_the_matrices_in_a_tensor_are_all_of_it() {
        let bytes: Vec<u8> = (0..50).collect();
        let scales = Scales { float: Float::F32, bytes: &[], block: [1, 1], count: 0, steps: [0, 1] };
        let (layout, zeros) = (Layout::Floats, Zeros::All(0.0));
        let shares = [(0, 3), (3, 4), (7, 1)].map(|(first, count)| {
            Codes { rows: (first, 8), layout, scales, zeros, indices: &[], ordered: false }
                .share(&bytes, count)
                .to_vec()
        });
        assert_eq!(shares.concat(), bytes);
    }
}
