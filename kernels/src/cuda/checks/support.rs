//! Random inputs and comparisons.

use std::sync::Arc;

use crate::Random;
use crate::cuda::{Buffer, CudaError, Device, Type};

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

/// Indexes on the device.
pub(super) fn indexes(device: &Arc<dyn Device>, indexes: &[u32]) -> Result<Buffer, String> {
    Buffer::from_indexes(device, indexes).map_err(said)
}

pub(super) fn said(error: CudaError) -> String {
    error.message
}

/// Compares rows of `width`: the relative distance of each must be within `tolerance`, and none may contain NaN.
pub(super) fn close(
    got: &[f32],
    want: &[f32],
    width: usize,
    tolerance: f64,
    what: &str,
) -> Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("{what}: {} numbers instead of {}", got.len(), want.len()));
    }
    for (row, (got, want)) in got.chunks(width).zip(want.chunks(width)).enumerate() {
        let square = |x: f64| x * x;
        let error: f64 = got.iter().zip(want).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
        let size: f64 = want.iter().map(|x| square(f64::from(*x))).sum();
        let error = error.sqrt() / size.sqrt().max(1e-6);
        if error.is_nan() || error > tolerance {
            let first =
                got.iter().zip(want).position(|(a, b)| a.is_nan() || (a - b).abs() > tolerance as f32);
            let place = first.map_or(String::new(), |i| format!(", e.g. {} for {} at {i}", got[i], want[i]));
            return Err(format!("{what}, row {row}: relative error {error:.2e}{place}"));
        }
    }
    Ok(())
}
