//! A tensor as stored in a checkpoint: bytes of some type, read row by row as f32. candle widens the blocks of GGUF's
//! quantized types.

use candle_core::Device;
use candle_core::quantized::{GgmlDType, ggml_file::qtensor_from_ggml};
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use infer_kernels::{GROUP, Group4, Mx4};

use super::codes::Codes;
use super::{four, mxfp4};
use crate::config::ModelConfig;
use crate::error::ModelError;

/// Storage type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredType {
    F32,
    F16,
    Bf16,
    /// One of GGUF's types with fewer than 16 bits.
    Blocks(GgmlDType),
    /// Blocks of 4-bit floats.
    Mxfp4(Mxfp4),
    /// Codes with scales in other tensors: a matrix of a quantized checkpoint in safetensors.
    Codes,
}

/// Where the exponents of such blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mxfp4 {
    /// In bytes of their own.
    Apart,
    /// Before the codes of each block, as in GGUF files.
    Inside,
}

/// The order of a matrix's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOrder {
    Plain,
    /// The rows of the two halves that rope rotates together alternate within each head, as in GGUF files of llama. Reading
    /// puts one half after the other.
    Interleaved {
        head_dim: usize,
    },
    /// Only the first `rotated` rows of a head are rotated, half of them with the other half. Reading puts half of the others
    /// behind each of these halves, so that the two halves of a head are rotated together as usual.
    Partly {
        head_dim: usize,
        rotated: usize,
    },
    /// Every second of the rows, from row `half` on, 0 or 1.
    Alternating {
        half: usize,
    },
    /// Inputs are stored before rows: of each input every `step`-th number, from number `first` on.
    Transposed {
        first: usize,
        step: usize,
    },
}

impl RowOrder {
    /// The order of queries and keys in checkpoints of this configuration.
    pub(crate) fn of(config: &ModelConfig) -> Self {
        let head_dim = config.head_dim;
        match config.ropes[0].rotated(head_dim) {
            rotated if rotated < head_dim => Self::Partly { head_dim, rotated },
            _ => Self::Plain,
        }
    }

    /// Where row `row` is among the rows that are stored.
    pub(crate) fn stored(self, row: usize) -> usize {
        match self {
            Self::Plain | Self::Transposed { .. } => row,
            Self::Alternating { half } => 2 * row + half,
            Self::Interleaved { head_dim } => {
                let (head, at, half) = (row / head_dim, row % head_dim, head_dim / 2);
                head * head_dim + 2 * (at % half) + at / half
            }
            Self::Partly { head_dim, rotated } => {
                let (head, half, turned) = (row / head_dim, head_dim / 2, rotated / 2);
                let (which, at) = (row % head_dim / half, row % half);
                let before = head * head_dim;
                match at < turned {
                    true => before + which * turned + at,
                    false => before + rotated + which * (half - turned) + at - turned,
                }
            }
        }
    }

    /// The tensor's bytes. Two that take turns share bytes, and each has a half of them, of `len` bytes.
    fn own(self, bytes: &[u8], len: usize) -> &[u8] {
        match self {
            Self::Plain | Self::Interleaved { .. } | Self::Partly { .. } => bytes,
            Self::Alternating { half: nth } | Self::Transposed { first: nth, .. } => {
                &bytes[nth * len..][..len]
            }
        }
    }
}

/// A tensor in a file, with its size checked.
pub(crate) struct Stored<'a> {
    pub name: String,
    pub kind: StoredType,
    /// `[rows, inputs]`, or `[numbers]`.
    pub shape: Vec<usize>,
    pub order: RowOrder,
    pub bytes: &'a [u8],
    /// The exponents of blocks, if they are apart.
    pub scales: &'a [u8],
    /// What the bytes are, if they are codes.
    pub codes: Option<Codes<'a>>,
}

impl StoredType {
    pub(crate) const fn of_ggml(kind: GgmlDType) -> Self {
        match kind {
            GgmlDType::F32 => Self::F32,
            GgmlDType::F16 => Self::F16,
            GgmlDType::BF16 => Self::Bf16,
            blocks => Self::Blocks(blocks),
        }
    }

    /// Numbers of a block, and its bytes.
    ///
    /// # Panics
    /// Of codes.
    pub(crate) fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Blocks(kind) => (kind.block_size(), kind.type_size()),
            Self::Mxfp4(Mxfp4::Apart) => (GROUP, GROUP / 2),
            Self::Mxfp4(Mxfp4::Inside) => (GROUP, 1 + GROUP / 2),
            Self::Codes => unreachable!("codes of a row may be anywhere"),
        }
    }

    /// Bytes of `count` numbers that are whole blocks.
    fn bytes(self, count: usize) -> usize {
        let (numbers, bytes) = self.block();
        count / numbers * bytes
    }

    /// Whether rows are blocks of 4-bit floats, as [`Stored::blocks`] reads them.
    pub(crate) fn is_mxfp4(self) -> bool {
        matches!(self, Self::Mxfp4(_))
    }

    /// Widens the numbers in `bytes`, which aren't MXFP4, to `out`, which has the same length.
    fn widen(self, bytes: &[u8], out: &mut [f32]) -> Result<(), candle_core::Error> {
        assert_eq!(bytes.len(), self.bytes(out.len()), "as many bytes as numbers");
        match self {
            Self::F32 => {
                for (out, bytes) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                    *out = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
            }
            Self::F16 => match bytemuck::try_cast_slice::<u8, u16>(bytes) {
                Ok(bits) if cfg!(target_endian = "little") => {
                    bits.reinterpret_cast::<f16>().convert_to_f32_slice(out);
                }
                _ => halves(bytes, out, |bits| f16::from_bits(bits).to_f32()),
            },
            Self::Bf16 => match bytemuck::try_cast_slice::<u8, u16>(bytes) {
                // Loops over aligned numbers vectorize; loops that assemble numbers from bytes don't.
                Ok(bits) if cfg!(target_endian = "little") => {
                    for (out, bits) in out.iter_mut().zip(bits) {
                        *out = f32::from_bits(u32::from(*bits) << 16);
                    }
                }
                _ => halves(bytes, out, |bits| bf16::from_bits(bits).to_f32()),
            },
            Self::Mxfp4(_) | Self::Codes => unreachable!("their scales may be elsewhere"),
            Self::Blocks(kind) => {
                // candle doesn't check the length and alignment of the bytes.
                assert!(bytes.as_ptr().addr().is_multiple_of(2), "blocks hold 16-bit scales");
                let blocks = qtensor_from_ggml(kind, bytes, vec![1, out.len()], &Device::Cpu)?;
                out.copy_from_slice(&blocks.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?);
            }
        }
        Ok(())
    }
}

fn halves(bytes: &[u8], out: &mut [f32], widen: impl Fn(u16) -> f32) {
    for (out, bytes) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *out = widen(u16::from_le_bytes([bytes[0], bytes[1]]));
    }
}

impl Stored<'_> {
    /// Whether rows are groups of 4-bit integers, as [`Stored::groups`] reads them.
    pub(crate) fn is_four_bits(&self) -> bool {
        match (self.kind, &self.codes) {
            (StoredType::Blocks(kind), _) => four::is_four_bits(kind),
            (_, Some(codes)) => codes.is_four_bits(self.inputs()),
            _ => false,
        }
    }

    /// Numbers of a row. A vector is one row, or, if rows are reordered, one row per number.
    pub(crate) fn inputs(&self) -> usize {
        match (self.shape.as_slice(), self.order) {
            ([_, inputs], _) => *inputs,
            (_, RowOrder::Interleaved { .. } | RowOrder::Partly { .. } | RowOrder::Alternating { .. }) => 1,
            (shape, RowOrder::Plain | RowOrder::Transposed { .. }) => shape.iter().product(),
        }
    }

    /// Rows.
    pub(crate) fn rows(&self) -> usize {
        self.shape.iter().product::<usize>() / self.inputs()
    }

    /// The bytes, and those that belong to them elsewhere in the files.
    pub(crate) fn parts(&self) -> [&[u8]; 4] {
        match &self.codes {
            None => [self.bytes, self.scales, &[], &[]],
            Some(Codes { scales, zeros, indices, .. }) => [self.bytes, scales.bytes, zeros.bytes(), indices],
        }
    }

    /// As many of the bytes in each part as the tensor's numbers take.
    pub(crate) fn own_parts(&self) -> [&[u8]; 4] {
        if let Some(codes) = &self.codes {
            return self.parts().map(|part| codes.share(part, self.rows()));
        }
        let numbers = self.rows() * self.inputs();
        let blocks = if self.scales.is_empty() { 0 } else { numbers / GROUP };
        [self.order.own(self.bytes, self.kind.bytes(numbers)), self.order.own(self.scales, blocks), &[], &[]]
    }

    /// The number of these bytes.
    pub(crate) fn own_len(&self) -> u64 {
        self.own_parts().iter().map(|part| part.len() as u64).sum()
    }

    /// The bytes of row `row`.
    fn bytes_of(&self, row: usize) -> &[u8] {
        let stored = self.order.stored(row);
        let bytes = self.kind.bytes(self.inputs());
        &self.bytes[stored * bytes..(stored + 1) * bytes]
    }

    /// Writes row `row` of 4-bit integers to `out`.
    ///
    /// # Errors
    /// A scale of codes is infinite, NaN, or too large for 16 bits.
    ///
    /// # Panics
    /// If the type is another.
    pub(crate) fn groups(&self, row: usize, out: &mut [Group4]) -> Result<(), ModelError> {
        let Some(codes) = &self.codes else {
            match self.kind {
                StoredType::Blocks(kind) => four::groups(kind, self.bytes_of(row), out),
                other => panic!("{other:?} has no groups"),
            }
            return Ok(());
        };
        let stored = self.order.stored(row);
        codes.groups(stored, self.bytes, out);
        match out.iter().position(|group| !group.scale.is_finite() || !group.base.is_finite()) {
            None => Ok(()),
            Some(at) => Err(self.not_finite(
                codes.rows.0 + stored,
                at * GROUP,
                "of a group whose scale or zero is no number of 16 bits",
            )),
        }
    }

    /// Writes row `row` of 4-bit floats to `out`.
    ///
    /// # Errors
    /// A block has an exponent that can't be computed with.
    ///
    /// # Panics
    /// If the type is another.
    pub(crate) fn blocks(&self, row: usize, out: &mut [Mx4]) -> Result<(), ModelError> {
        match self.kind {
            StoredType::Mxfp4(Mxfp4::Apart) => {
                let scales = &self.scales[self.order.stored(row) * out.len()..][..out.len()];
                mxfp4::apart(self.bytes_of(row), scales, out);
            }
            StoredType::Mxfp4(Mxfp4::Inside) => mxfp4::inside(self.bytes_of(row), out),
            other => panic!("{other:?} has no blocks of floats"),
        }
        let Some(at) = out.iter().position(|block| block.exponent > Mx4::LARGEST_EXPONENT) else {
            return Ok(());
        };
        let exponent = out[at].exponent;
        Err(ModelError::weights(format!(
            "tensor {}: block {at} of row {} has the exponent {exponent}{}; up to {} can be computed with, and published \
             checkpoints are far below, so the file may be damaged",
            self.name,
            self.order.stored(row),
            if exponent == u8::MAX { ", which makes its numbers NaN" } else { "" },
            Mx4::LARGEST_EXPONENT,
        )))
    }

    /// Writes row `row` to `out`.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) -> Result<(), ModelError> {
        if let Some(codes) = &self.codes {
            return self.decode(codes, row, out);
        }
        let widened = match (self.kind, self.order) {
            (StoredType::Mxfp4(_), _) if !out.len().is_multiple_of(GROUP) => {
                let why = format!("rows of {} numbers are no whole blocks of {GROUP}", out.len());
                return Err(ModelError::weights(format!("tensor {} can't be read: {why}", self.name)));
            }
            (StoredType::Mxfp4(_), _) => {
                let mut blocks = vec![Mx4::default(); out.len() / GROUP];
                self.blocks(row, &mut blocks)?;
                for (out, block) in out.chunks_exact_mut(GROUP).zip(&blocks) {
                    out.copy_from_slice(&block.numbers());
                }
                Ok(())
            }
            (kind, RowOrder::Transposed { first, step }) => self.gather(kind, first + step * row, out),
            (kind, _) => kind.widen(self.bytes_of(row), out),
        };
        widened.map_err(|error| ModelError::weights(format!("tensor {} can't be read: {error}", self.name)))
    }

    /// Writes a row of codes to `out`.
    fn decode(&self, codes: &Codes<'_>, row: usize, out: &mut [f32]) -> Result<(), ModelError> {
        let stored = self.order.stored(row);
        codes.widen(stored, self.bytes, out);
        match out.iter().position(|number| !number.is_finite()) {
            None => Ok(()),
            Some(at) => Err(self.not_finite(codes.rows.0 + stored, at, &out[at].to_string())),
        }
    }

    fn not_finite(&self, row: usize, at: usize, what: &str) -> ModelError {
        let name = &self.name;
        ModelError::weights(format!(
            "tensor {name}: number {at} of row {row} is {what}; the file may be damaged"
        ))
    }

    /// Widens number `at` of each input.
    fn gather(&self, kind: StoredType, at: usize, out: &mut [f32]) -> Result<(), candle_core::Error> {
        const SOME: usize = 64;
        let size = kind.bytes(1);
        let numbers = self.bytes.len() / size / out.len();
        let mut stored = self.bytes.chunks_exact(numbers * size);
        let mut buffer = [0; 4 * SOME];
        for out in out.chunks_mut(SOME) {
            let bytes = &mut buffer[..size * out.len()];
            for (bytes, input) in bytes.chunks_exact_mut(size).zip(&mut stored) {
                bytes.copy_from_slice(&input[at * size..][..size]);
            }
            kind.widen(bytes, out)?;
        }
        Ok(())
    }

    /// All numbers.
    pub(crate) fn numbers(&self) -> Result<Vec<f32>, ModelError> {
        let mut numbers = vec![0.0; self.rows() * self.inputs()];
        for (i, row) in numbers.chunks_exact_mut(self.inputs()).enumerate() {
            self.row(i, row)?;
        }
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(kind: StoredType, order: RowOrder, shape: &[usize], bytes: &[u8]) -> Vec<f32> {
        let shape = shape.to_vec();
        Stored { name: "x".to_owned(), kind, shape, order, bytes, scales: &[], codes: None }
            .numbers()
            .unwrap()
    }

    #[test]
    fn interleaved_heads_are_reordered() {
        // Two heads of four rows, with alternating halves.
        let bytes: Vec<u8> =
            [0_u8, 2, 1, 3, 4, 6, 5, 7].iter().flat_map(|x| f32::from(*x).to_le_bytes()).collect();
        let order = RowOrder::Interleaved { head_dim: 4 };
        assert_eq!(stored(StoredType::F32, order, &[8], &bytes), [0., 1., 2., 3., 4., 5., 6., 7.]);
        assert_eq!(stored(StoredType::F32, RowOrder::Plain, &[8], &bytes)[1], 2.0);
        let pairs = stored(StoredType::F32, RowOrder::Interleaved { head_dim: 4 }, &[4, 2], &bytes);
        assert_eq!(pairs, [0., 2., 4., 6., 1., 3., 5., 7.]);
    }

    #[test]
    fn halves_of_a_part_that_is_rotated_are_moved_apart() {
        // Two heads of six rows, of which four are rotated: numbered as they are read.
        let bytes: Vec<u8> = [0_u8, 1, 3, 4, 2, 5, 6, 7, 9, 10, 8, 11]
            .iter()
            .flat_map(|x| f32::from(*x).to_le_bytes())
            .collect();
        let order = RowOrder::Partly { head_dim: 6, rotated: 4 };
        let read: Vec<f32> = (0..12_u8).map(f32::from).collect();
        assert_eq!(stored(StoredType::F32, order, &[12], &bytes), read);
        assert_eq!(stored(StoredType::F32, order, &[12, 1], &bytes), read);
    }

    #[test]
    fn numbers_of_two_matrices_that_take_turns_are_told_apart() {
        let bytes: Vec<u8> = (0..12_u8).flat_map(|x| f32::from(x).to_le_bytes()).collect();
        let read = |order, shape: &[usize]| stored(StoredType::F32, order, shape, &bytes);
        // Six rows of two inputs.
        assert_eq!(read(RowOrder::Alternating { half: 0 }, &[3, 2]), [0., 1., 4., 5., 8., 9.]);
        assert_eq!(read(RowOrder::Alternating { half: 1 }, &[3, 2]), [2., 3., 6., 7., 10., 11.]);
        assert_eq!(read(RowOrder::Alternating { half: 1 }, &[6]), [1., 3., 5., 7., 9., 11.]);
        // Two inputs of six rows, and three of four.
        let turns = RowOrder::Transposed { first: 1, step: 2 };
        assert_eq!(read(turns, &[3, 2]), [1., 7., 3., 9., 5., 11.]);
        let all = RowOrder::Transposed { first: 0, step: 1 };
        assert_eq!(read(all, &[4, 3]), [0., 4., 8., 1., 5., 9., 2., 6., 10., 3., 7., 11.]);
        // More inputs than are gathered at once.
        let many: Vec<u8> = (0..300_u16).flat_map(|x| f32::from(x).to_le_bytes()).collect();
        let got = stored(StoredType::F32, turns, &[1, 150], &many);
        assert!(got.iter().enumerate().all(|(i, x)| *x == (2 * i + 1) as f32), "{got:?}");
    }

    /// As of a vector that a GGUF file of llama has in 4-bit floats, whose numbers are in another order.
    #[test]
    fn rows_that_are_no_whole_blocks_of_4_bit_floats_are_refused() {
        let (kind, order) = (StoredType::Mxfp4(Mxfp4::Inside), RowOrder::Interleaved { head_dim: 32 });
        let vector = Stored {
            name: "x".to_owned(),
            kind,
            shape: vec![32],
            order,
            bytes: &[127; 17],
            scales: &[],
            codes: None,
        };
        let error = vector.numbers().expect_err("it has 32 rows").to_string();
        assert!(
            error.contains("tensor x can't be read: rows of 1 numbers are no whole blocks of 32"),
            "{error}"
        );
        let plain = Stored { order: RowOrder::Plain, ..vector };
        // Each code of these bytes is 15 or 7: 6 with a sign or without.
        assert!(plain.numbers().unwrap().into_iter().eq((0..32).map(|i| if i < 16 {
            -6.0_f32
        } else {
            6.0
        })));
    }

    #[test]
    fn block_of_4_bit_floats_that_cannot_be_computed_with_is_named() {
        let read = |exponent: u8| {
            // Three rows of two blocks.
            let mut bytes = [127; 17 * 6];
            bytes[17 * 3] = exponent;
            let (kind, order) = (StoredType::Mxfp4(Mxfp4::Inside), RowOrder::Plain);
            Stored {
                name: "x[7]".to_owned(),
                kind,
                shape: vec![3, 64],
                order,
                bytes: &bytes,
                scales: &[],
                codes: None,
            }
            .numbers()
        };
        assert!(read(Mx4::LARGEST_EXPONENT).unwrap().iter().all(|number| number.is_finite()));
        for (exponent, says) in
            [(240, "the exponent 240; up to 239 "), (255, "the exponent 255, which makes its numbers NaN; ")]
        {
            let error = read(exponent).expect_err("it overflows").to_string();
            assert!(error.contains("tensor x[7]: block 1 of row 1 has ") && error.contains(says), "{error}");
        }
    }

    #[test]
    fn every_float_type_widens_exactly_aligned_or_not() {
        let numbers = [1.5_f32, -0.25, 384.0];
        let f32s: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let f16s: Vec<u8> = numbers.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
        let bf16s: Vec<u8> = numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
        for (kind, bytes) in [(StoredType::F32, f32s), (StoredType::F16, f16s), (StoredType::Bf16, bf16s)] {
            for shift in 0..4 {
                let shifted = [vec![0; shift], bytes.clone()].concat();
                assert_eq!(stored(kind, RowOrder::Plain, &[3], &shifted[shift..]), numbers, "{kind:?}");
            }
        }
    }
}
