//! Matrices that stay integers on a device (`cuda/quantized.cuh`): their layout, and what is done with them beside products of
//! few rows, which read them as they are ([`super::product`]).

use std::ops::Range;

use super::device::{Device, Launch, Type};
use super::error::CudaError;
use super::params::{EmbedParams, FillIntegersParams, Params, WidenParams};
use crate::{Format, GROUP, Group, Matrix};

/// Outputs and inputs of a tile.
pub(super) const OUTPUTS: usize = 8;
const INPUTS: usize = 64;
/// Lanes of a warp that share an output.
const LANES: usize = 4;
/// Consecutive inputs of a lane.
const NUMBERS: usize = GROUP / LANES;
/// Warps of a block.
const WARPS: u64 = 8;

/// How a matrix of integers is stored on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantized {
    /// [`Format::Int8`].
    Int8,
    /// [`Format::Int4`].
    Int4,
}

/// What a product multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factors {
    /// The type of inputs, of outputs, and of weights that aren't integers.
    pub ty: Type,
    /// How weights are stored if they are.
    pub weights: Option<Quantized>,
    /// Where such weights can be widened for many rows: memory for as many numbers of the type. 0 if nowhere.
    pub scratch: u64,
}

impl From<Type> for Factors {
    fn from(ty: Type) -> Self {
        Self { ty, weights: None, scratch: 0 }
    }
}

impl Quantized {
    /// How products in this type take a matrix as it is. `None` if it must be widened first: because it has no integers or its
    /// rows are not whole groups, because the halves of a gated layer are not whole tiles, or because tensor cores, which
    /// multiply whole numbers as floats of 16 bits, don't compute in this type.
    pub fn of(matrix: &Matrix, ty: Type) -> Option<Self> {
        match matrix.format() {
            _ if !Self::fits([matrix.outputs(), matrix.inputs()], matrix.is_gated(), ty) => None,
            Format::F32 | Format::Bf16 | Format::Mxfp4 => None,
            Format::Int8 => Some(Self::Int8),
            Format::Int4 => Some(Self::Int4),
        }
    }

    /// Whether products in this type take matrices of integers of this shape, see [`Quantized::of`].
    pub fn fits([outputs, inputs]: [usize; 2], gated: bool, ty: Type) -> bool {
        let halves_fit = !gated || (outputs / 2).is_multiple_of(OUTPUTS);
        ty != Type::F32 && inputs.is_multiple_of(GROUP) && halves_fit
    }

    /// Bytes of a lane's integers of a group.
    fn lane_bytes(self) -> usize {
        match self {
            Self::Int8 => NUMBERS,
            Self::Int4 => NUMBERS / 2,
        }
    }

    /// Bytes of an output's scales and bases of a tile.
    fn unit_bytes(self) -> usize {
        match self {
            Self::Int8 => 2 * (INPUTS / GROUP),
            Self::Int4 => 4 * (INPUTS / GROUP),
        }
    }

    /// Bytes of a tile.
    pub(super) fn tile_bytes(self) -> usize {
        self.places(OUTPUTS - 1)[1].end
    }

    /// Where an output's integers and its units are in a tile.
    pub(super) fn places(self, output: usize) -> [Range<usize>; 2] {
        let (integers, units) = (LANES * (INPUTS / GROUP) * self.lane_bytes(), self.unit_bytes());
        let behind = OUTPUTS * integers;
        [output * integers..(output + 1) * integers, behind + output * units..behind + (output + 1) * units]
    }

    /// Stripes of a matrix: eight outputs each, the last one padded.
    pub fn stripes(outputs: usize) -> usize {
        outputs.div_ceil(OUTPUTS)
    }

    /// Bytes of a stripe of so many inputs.
    pub fn stripe_bytes(self, inputs: usize) -> usize {
        inputs.div_ceil(INPUTS) * self.tile_bytes()
    }

    /// Bytes of a matrix.
    pub fn bytes(self, [outputs, inputs]: [usize; 2]) -> usize {
        Self::stripes(outputs) * self.stripe_bytes(inputs)
    }

    /// Writes a stripe of a matrix, whose numbers pass through unchanged. What pads it is zeros.
    ///
    /// # Panics
    /// If the matrix has no such stripe or other numbers, or the stripe has another size.
    pub fn pack(self, matrix: &Matrix, stripe: usize, out: &mut [u8]) {
        let (outputs, inputs) = (matrix.outputs(), matrix.inputs());
        assert_eq!(out.len(), self.stripe_bytes(inputs), "a stripe of {inputs} inputs");
        out.fill(0);
        for (tile, out) in out.chunks_exact_mut(self.tile_bytes()).enumerate() {
            let first = tile * (INPUTS / GROUP);
            for group in first..(inputs / GROUP).min(first + INPUTS / GROUP) {
                for output in 0..OUTPUTS.min(outputs - stripe * OUTPUTS) {
                    let held = matrix.group(stripe * OUTPUTS + output, group).expect("a matrix of integers");
                    self.place(&held, out, [output, group - first]);
                }
            }
        }
    }

    /// Writes an output's group to its tile.
    fn place(self, held: &Group, tile: &mut [u8], [output, group]: [usize; 2]) {
        let lane_bytes = self.lane_bytes();
        let [integers, units] = self.places(output);
        let lanes = tile[integers].chunks_exact_mut(INPUTS / GROUP * lane_bytes);
        for (lane, numbers) in lanes.zip(held.numbers.as_chunks::<NUMBERS>().0) {
            let to = &mut lane[group * lane_bytes..][..lane_bytes];
            match self {
                Self::Int8 => to.iter_mut().zip(numbers).for_each(|(to, n)| *to = n.cast_unsigned()),
                Self::Int4 => to.copy_from_slice(&nibbles(numbers).to_le_bytes()),
            }
        }
        let (scales, bases) = tile[units].split_at_mut(2 * (INPUTS / GROUP));
        scales[2 * group..][..2].copy_from_slice(&held.scale.to_le_bytes());
        if self == Self::Int4 {
            bases[2 * group..][..2].copy_from_slice(&held.base.to_le_bytes());
        }
    }

    fn pick(self, int8: &'static str, int4: &'static str) -> &'static str {
        match self {
            Self::Int8 => int8,
            Self::Int4 => int4,
        }
    }
}

/// Integers of 4 bits as a word: those at even places are in its low half, the others in its high half.
fn nibbles(numbers: &[i8; NUMBERS]) -> u32 {
    let place = |i: usize| i / 2 * 4 + i % 2 * 16;
    let bits = |(i, n): (usize, &i8)| u32::from(n.cast_unsigned()) << place(i);
    numbers.iter().enumerate().map(bits).sum()
}

/// Widens a matrix of integers: `out[output][input]` in `ty`, each number rounded once.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// `w` is a matrix of this shape, stored like this, and `out` has room for as many numbers.
pub unsafe fn widen(
    device: &dyn Device,
    (ty, weights): (Type, Quantized),
    [w, out]: [u64; 2],
    [outputs, inputs]: [u32; 2],
) -> Result<(), CudaError> {
    let params = WidenParams { w, out, outputs, inputs };
    let bf16 = weights.pick("widen_int8_bf16", "widen_int4_bf16");
    let f16 = weights.pick("widen_int8_f16", "widen_int4_f16");
    assert!(ty != Type::F32 && inputs.is_multiple_of(GROUP as u32), "{inputs} inputs, {ty:?}");
    let tiles = u64::from(outputs).div_ceil(OUTPUTS as u64) * u64::from(inputs).div_ceil(INPUTS as u64);
    let grid = [u32::try_from(tiles.div_ceil(WARPS)).expect("it fits a device's memory"), 1, 1];
    let launch = Launch {
        kernel: ty.pick("", bf16, f16),
        grid,
        threads: 256,
        shared_bytes: 0,
        params: params.bytes(),
    };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

/// As [`super::embed`], of a table of integers.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// `table` is a matrix of this width, stored like this; `tokens` are `count` of its rows or `NONE`, and `out` has room for them.
pub unsafe fn embed_integers(
    device: &dyn Device,
    weights: Quantized,
    [table, tokens, out]: [u64; 3],
    (width, scale): (u32, f32),
    count: u32,
) -> Result<(), CudaError> {
    assert!(width.is_multiple_of(GROUP as u32), "rows of {width}");
    let params = EmbedParams { table, out, tokens, width, scale };
    let kernel = weights.pick("embed_int8", "embed_int4");
    let grid = [count, width.div_ceil(256 * 8), 1];
    let launch = Launch { kernel, grid, threads: 256, shared_bytes: 0, params: params.bytes() };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

/// Fills a matrix with random integers, with which weights are in `-scale..=scale`.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// `out` has room for a matrix of this shape ([`Quantized::bytes`]).
pub unsafe fn fill_integers(
    device: &dyn Device,
    weights: Quantized,
    out: u64,
    sides: [usize; 2],
    (seed, scale): (u64, f32),
) -> Result<(), CudaError> {
    let tiles = (weights.bytes(sides) / weights.tile_bytes()) as u64;
    let params = FillIntegersParams { out, tiles, seed, scale, unused: 0 };
    let kernel = weights.pick("fill_int8", "fill_int4");
    let grid = [tiles.div_ceil(WARPS).clamp(1, 4_096) as u32, 1, 1];
    let launch = Launch { kernel, grid, threads: 256, shared_bytes: 0, params: params.bytes() };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Packer, Random};

    #[test]
    fn matrices_take_what_their_integers_and_units_take() {
        // Of a weight 8.5 and 5 bits.
        assert_eq!(Quantized::Int8.bytes([16, 128]), 16 * 128 * 17 / 16);
        assert_eq!(Quantized::Int4.bytes([16, 128]), 16 * 128 * 5 / 8);
        assert_eq!(Quantized::Int8.bytes([9, 32]), 2 * 8 * 64 * 17 / 16);
    }

    #[test]
    fn matrices_are_widened_where_no_kernel_reads_them() {
        let mut packer = Packer::new(1).expect("a thread");
        let mut random = Random::new(1);
        let mut matrix = |format, [outputs, inputs]: [usize; 2], gated: bool| {
            let numbers = random.numbers(outputs * inputs);
            let row = |row: usize, out: &mut [f32]| out.copy_from_slice(&numbers[row * inputs..][..inputs]);
            match gated {
                true => packer.gated(format, outputs / 2, inputs, row).expect("it fits"),
                false => packer.matrix(format, outputs, inputs, row).expect("it fits"),
            }
        };
        for (format, sides, gated, ty, stored) in [
            (Format::Int8, [5, 32], false, Type::Bf16, Some(Quantized::Int8)),
            (Format::Int4, [5, 96], false, Type::F16, Some(Quantized::Int4)),
            (Format::Int4, [32, 96], true, Type::Bf16, Some(Quantized::Int4)),
            (Format::Int4, [24, 96], true, Type::Bf16, None),
            (Format::Int8, [5, 33], false, Type::Bf16, None),
            (Format::Int8, [5, 32], false, Type::F32, None),
            (Format::Bf16, [5, 32], false, Type::Bf16, None),
            (Format::Mxfp4, [5, 32], false, Type::Bf16, None),
        ] {
            let matrix = matrix(format, sides, gated);
            assert_eq!(Quantized::of(&matrix, ty), stored, "{format:?}, {sides:?}, {ty:?}");
        }
    }

    #[test]
    fn integers_of_4_bits_at_even_places_are_in_low_halves() {
        assert_eq!(nibbles(&[1, 2, 3, 4, 5, 6, 7, 15]), 0xf642_7531);
    }
}
