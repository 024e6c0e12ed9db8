//! Time of products whose weights come from memory: random matrices take turns.

use std::cell::Cell;
use std::sync::Arc;

use super::{Table, random, time_us};
use crate::cuda::{
    Buffer, CudaError, Device, Factors, ProductKind, ProductParams, Quantized, Type, fill_integers, product,
};

pub(super) static PRODUCTS: Table = Table {
    title: "products",
    columns: &[
        ("model", "model"),
        ("rows", "rows"),
        ("outputs", "outputs"),
        ("inputs", "inputs"),
        ("by", "by"),
        ("us", "us"),
        ("gb_per_s", "GB/s of weights"),
        ("share_of_copies", "of the copy rate"),
        ("tflop_per_s", "TFLOP/s"),
    ],
};
pub(super) static INTEGERS: Table = Table {
    title: "products of integers",
    columns: &[
        ("model", "model"),
        ("rows", "rows"),
        ("outputs", "outputs"),
        ("inputs", "inputs"),
        ("weights", "weights"),
        ("us", "us"),
        ("gb_per_s", "GB/s of weights"),
        ("share_of_copies", "of the copy rate"),
        ("tflop_per_s", "TFLOP/s"),
    ],
};

/// Storage of inputs and outputs, and of weights that aren't integers.
const TY: Type = Type::Bf16;

/// A way of measuring work in microseconds.
pub(super) type Timer = fn(&dyn Device, &mut dyn FnMut() -> Result<(), CudaError>) -> Result<f64, CudaError>;

/// A product and its memory.
pub(super) struct Product<'a> {
    device: &'a Arc<dyn Device>,
    /// Rows, inputs, outputs.
    sides: [u32; 3],
    weights: Weights,
    x: Buffer,
    y: Buffer,
}

impl<'a> Product<'a> {
    /// Of so many rows, inputs and outputs. See [`Weights`] for `cycle_bytes`.
    pub(super) fn new(
        device: &'a Arc<dyn Device>,
        sides: [u32; 3],
        cycle_bytes: usize,
    ) -> Result<Self, CudaError> {
        let [_, inputs, outputs] = sides;
        Self::with(device, sides, Weights::new(device, TY, [outputs, inputs], cycle_bytes)?)
    }

    fn with(device: &'a Arc<dyn Device>, sides: [u32; 3], weights: Weights) -> Result<Self, CudaError> {
        let [rows, inputs, outputs] = sides;
        let x = random(device, TY, (rows * inputs) as usize)?;
        let y = Buffer::new(device, rows as usize * outputs as usize * TY.bytes())?;
        Ok(Self { device, sides, weights, x, y })
    }

    /// Of the next matrix.
    fn params(&self) -> ProductParams {
        let [rows, inputs, outputs] = self.sides;
        let (x, y) = (self.x.at(), self.y.at());
        ProductParams { x, w: self.weights.next(), y, rows, inputs, outputs, out_f32: 0 }
    }

    /// Its time; `None` if the vendor's library is to compute it and refuses.
    pub(super) fn us(&self, kind: ProductKind, timer: Timer) -> Result<Option<f64>, CudaError> {
        let device: &dyn Device = self.device.as_ref();
        let run = || {
            let params = self.params();
            match kind {
                // Not by `product`, which would take our own kernel instead.
                // SAFETY: shapes as allocated.
                ProductKind::Vendor => unsafe { device.vendor_product(TY, &params) },
                // SAFETY: shapes as allocated.
                _ => unsafe { product(device, TY, kind, &params) }.map(|()| true),
            }
        };
        if !run()? {
            return Ok(None);
        }
        let mut refused = false;
        let us = timer(device, &mut || {
            refused |= !run()?;
            Ok(())
        })?;
        Ok((!refused).then_some(us))
    }
}

/// Time of a product of integers. See [`Weights`] for `cycle_bytes`.
pub(super) fn integers_us(
    device: &Arc<dyn Device>,
    stored: Quantized,
    sides: [u32; 3],
    cycle_bytes: usize,
) -> Result<f64, CudaError> {
    let [_, inputs, outputs] = sides.map(|side| side as usize);
    let own =
        Product::with(device, sides, Weights::integers(device, stored, [outputs, inputs], cycle_bytes)?)?;
    let scratch = Buffer::new(device, outputs * inputs * TY.bytes())?;
    let factors = Factors { ty: TY, weights: Some(stored), scratch: scratch.at() };
    time_us(device.as_ref(), &mut || {
        // SAFETY: shapes as allocated.
        unsafe { product(device.as_ref(), factors, ProductKind::Fastest, &own.params()) }
    })
}

/// Matrices of random weights that take turns, so that they come from memory: as many as have `cycle_bytes` in total, at
/// least one.
pub(super) struct Weights {
    data: Buffer,
    matrix_bytes: usize,
    matrices: usize,
    turn: Cell<usize>,
}

impl Weights {
    pub(super) fn new(
        device: &Arc<dyn Device>,
        ty: Type,
        [outputs, inputs]: [u32; 2],
        cycle_bytes: usize,
    ) -> Result<Self, CudaError> {
        let numbers = outputs as usize * inputs as usize;
        let matrix_bytes = numbers * ty.bytes();
        let matrices = cycle_bytes.div_ceil(matrix_bytes).max(1);
        let data = random(device, ty, matrices * numbers)?;
        Ok(Self { data, matrix_bytes, matrices, turn: Cell::new(0) })
    }

    fn integers(
        device: &Arc<dyn Device>,
        stored: Quantized,
        sides: [usize; 2],
        cycle_bytes: usize,
    ) -> Result<Self, CudaError> {
        let matrix_bytes = stored.bytes(sides);
        let matrices = cycle_bytes.div_ceil(matrix_bytes).max(1);
        let data = Buffer::new(device, matrices * matrix_bytes)?;
        for matrix in 0..matrices {
            let at = data.at() + (matrix * matrix_bytes) as u64;
            // SAFETY: allocated for these matrices.
            unsafe { fill_integers(device.as_ref(), stored, at, sides, (matrix as u64, 1.0)) }?;
        }
        // Products may read weights before the fills are done.
        device.wait()?;
        Ok(Self { data, matrix_bytes, matrices, turn: Cell::new(0) })
    }

    /// The address of the next matrix.
    pub(super) fn next(&self) -> u64 {
        self.turn.set((self.turn.get() + 1) % self.matrices);
        self.data.at() + (self.turn.get() * self.matrix_bytes) as u64
    }
}
