//! Random inputs and comparisons.

use std::sync::Arc;

use crate::cuda::{Buffer, CudaError, Device, Type};

/// How large shapes may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// What an emulated device does in a second.
    Quick,
    /// What a GPU does.
    Thorough,
}

impl Effort {
    /// One of two sizes.
    pub(super) fn pick(self, quick: usize, thorough: usize) -> usize {
        match self {
            Self::Quick => quick,
            Self::Thorough => thorough,
        }
    }
}

/// A small generator (splitmix64), so that a seed means the same everywhere.
pub struct Random(u64);

impl Random {
    /// A stream of numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, both included.
    pub fn size(&mut self, low: usize, high: usize) -> usize {
        low + (self.bits() % (high - low + 1) as u64) as usize
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.size(0, choices.len() - 1)]
    }

    /// A number in 0..1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }

    /// Numbers in -1..1, rounded to a type.
    pub fn numbers(&mut self, ty: Type, count: usize) -> Vec<f32> {
        (0..count).map(|_| rounded(ty, 2.0 * self.unit() - 1.0)).collect()
    }
}

/// A number as the device stores it.
pub(super) fn rounded(ty: Type, number: f32) -> f32 {
    match ty {
        Type::F32 => number,
        Type::Bf16 => half::bf16::from_f32(number).to_f32(),
        Type::F16 => half::f16::from_f32(number).to_f32(),
    }
}

/// Relative error that rounding inputs and outputs of a few sums leaves.
pub(super) fn tolerance(ty: Type) -> f64 {
    match ty {
        Type::F32 => 2e-5,
        Type::Bf16 => 1e-2,
        Type::F16 => 2e-3,
    }
}

/// Memory full of NaN, as a kernel's output before it runs.
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

/// Rows of `width`: the relative distance of each must be small, and no number may be missing.
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
