//! Random inputs and comparisons.

use std::sync::Arc;

use crate::cuda::quantized::OUTPUTS as STRIPE;
use crate::cuda::{Buffer, CudaError, Device, Factors, Quantized, Type};
use crate::{Format, Packer, Random};

/// Size of the shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// What an emulated device computes in a second.
    Quick,
    /// For a GPU.
    Thorough,
}

impl Effort {
    /// Picks one of two sizes.
    pub(super) fn pick(self, quick: usize, thorough: usize) -> usize {
        match self {
            Self::Quick => quick,
            Self::Thorough => thorough,
        }
    }
}

impl Random {
    /// Numbers in `-1..1`, rounded to a type.
    pub(super) fn rounded(&mut self, ty: Type, count: usize) -> Vec<f32> {
        self.numbers(count).into_iter().map(|number| rounded(ty, number)).collect()
    }
}

/// Rounds a number as the device stores it.
pub(super) fn rounded(ty: Type, number: f32) -> f32 {
    match ty {
        Type::F32 => number,
        Type::Bf16 => half::bf16::from_f32(number).to_f32(),
        Type::F16 => half::f16::from_f32(number).to_f32(),
    }
}

/// Relative error that rounding the inputs and outputs of a few sums may cause.
pub(super) fn tolerance(ty: Type) -> f64 {
    match ty {
        Type::F32 => 2e-5,
        Type::Bf16 => 1e-2,
        Type::F16 => 2e-3,
    }
}

/// Memory full of NaN, for a kernel's output.
pub(super) fn poisoned(device: &Arc<dyn Device>, ty: Type, count: usize) -> Result<Buffer, String> {
    let buffer = Buffer::new(device, count * ty.bytes()).map_err(said)?;
    buffer.fill(0xff).map_err(said)?;
    Ok(buffer)
}

/// Numbers on the device.
pub(super) fn numbers(device: &Arc<dyn Device>, ty: Type, numbers: &[f32]) -> Result<Buffer, String> {
    Buffer::from_numbers(device, ty, numbers).map_err(said)
}

/// A matrix of weights on the device.
pub(super) struct Weights {
    /// The weights as they are multiplied.
    pub numbers: Vec<f32>,
    pub factors: Factors,
    data: Buffer,
}

impl Weights {
    /// Rows of `inputs` numbers, rounded to the type or to integers; if `gated`, of the two halves of a gated layer. What pads
    /// outputs is NaN.
    pub(super) fn new(
        device: &Arc<dyn Device>,
        (ty, weights): (Type, Option<Quantized>),
        given: &[f32],
        inputs: usize,
        gated: bool,
    ) -> Result<Self, String> {
        let factors = Factors { ty, weights, scratch: 0 };
        let Some(weights) = weights else {
            let rounded = given.iter().map(|number| rounded(ty, *number)).collect();
            return Ok(Self { numbers: rounded, factors, data: numbers(device, ty, given)? });
        };
        let outputs = given.len() / inputs;
        let row = |row: usize, out: &mut [f32]| out.copy_from_slice(&given[row * inputs..][..inputs]);
        let format = match weights {
            Quantized::Int8 => Format::Int8,
            Quantized::Int4 => Format::Int4,
        };
        let mut packer = Packer::new(1).map_err(|error| error.to_string())?;
        let matrix = match gated {
            true => packer.gated(format, outputs / 2, inputs, row),
            false => packer.matrix(format, outputs, inputs, row),
        };
        let matrix = matrix.map_err(|error| error.to_string())?;
        if Quantized::of(&matrix, ty) != Some(weights) {
            return Err(format!("{outputs} x {inputs} would be widened"));
        }
        let mut widened = vec![0.0; outputs * inputs];
        for (row, numbers) in widened.chunks_exact_mut(inputs).enumerate() {
            matrix.unpack_row(row, 1.0, numbers);
        }
        let mut bytes = vec![0; weights.bytes([outputs, inputs])];
        for (stripe, bytes) in bytes.chunks_exact_mut(weights.stripe_bytes(inputs)).enumerate() {
            weights.pack(&matrix, stripe, bytes);
            for tile in bytes.chunks_exact_mut(weights.tile_bytes()) {
                let padding = (0..STRIPE).filter(|output| stripe * STRIPE + output >= outputs);
                padding.flat_map(|output| weights.places(output)).for_each(|place| tile[place].fill(0xff));
            }
        }
        let data = Buffer::from_bytes(device, &bytes).map_err(said)?;
        Ok(Self { numbers: widened, factors, data })
    }

    pub(super) fn at(&self) -> u64 {
        self.data.at()
    }
}

/// Indexes on the device.
pub(super) fn indexes(device: &Arc<dyn Device>, indexes: &[u32]) -> Result<Buffer, String> {
    Buffer::from_indexes(device, indexes).map_err(said)
}

pub(super) fn said(error: CudaError) -> String {
    error.message
}

/// What a kernel wrote, and what it should have written, in rows.
#[derive(Clone, Copy)]
pub(super) struct Compared<'a> {
    got: &'a [f32],
    want: &'a [f32],
    width: usize,
}

/// Compares rows of this width.
pub(super) fn compare<'a>(got: &'a [f32], want: &'a [f32], width: usize) -> Compared<'a> {
    Compared { got, want, width }
}

impl Compared<'_> {
    /// The distance of each row must be within `tolerance` of its size.
    pub(super) fn close(self, tolerance: f64, what: &str) -> Result<(), String> {
        self.within(tolerance, 1e-6, what)
    }

    /// Numbers of a row may cancel, so its distance must be within `tolerance` of at least a typical size.
    pub(super) fn near(self, tolerance: f64, what: &str) -> Result<(), String> {
        self.within(tolerance, 0.2 * (self.width as f64).sqrt(), what)
    }

    /// The distance of each row must be within `tolerance` of its size, or of `least` if that is larger. No row may contain
    /// NaN.
    pub(super) fn within(self, tolerance: f64, least: f64, what: &str) -> Result<(), String> {
        let Self { got, want, width } = self;
        if got.len() != want.len() {
            return Err(format!("{what}: {} numbers instead of {}", got.len(), want.len()));
        }
        for (row, (got, want)) in got.chunks(width).zip(want.chunks(width)).enumerate() {
            let square = |x: f64| x * x;
            let error: f64 = got.iter().zip(want).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
            let size: f64 = want.iter().map(|x| square(f64::from(*x))).sum();
            let error = error.sqrt() / size.sqrt().max(least);
            if error.is_nan() || error > tolerance {
                let first =
                    got.iter().zip(want).position(|(a, b)| a.is_nan() || (a - b).abs() > tolerance as f32);
                let place =
                    first.map_or(String::new(), |i| format!(", e.g. {} for {} at {i}", got[i], want[i]));
                return Err(format!("{what}, row {row}: relative error {error:.2e}{place}"));
            }
        }
        Ok(())
    }
}
