//! Products of few rows with what surrounds them in a layer, as separate kernels and as one: what fusing is worth.

use std::sync::Arc;

use super::products::Weights;
use super::small::Slots;
use super::{ModelShape, Table, random, time_us};
use crate::Activation;
use crate::cuda::{
    Buffer, CudaError, Device, FewParams, NormParams, ProductKind, ProductParams, Type, add_norm, gated,
    kv_write, product, product_add, product_gated, product_rope, product_scaled, shares,
};

pub(super) static FUSED: Table = Table {
    title: "products with what surrounds them",
    columns: &[
        ("model", "model"),
        ("rows", "rows"),
        ("with", "with"),
        ("outputs", "outputs"),
        ("inputs", "inputs"),
        ("apart_us", "us apart"),
        ("fused_us", "us fused"),
    ],
};

const TY: Type = Type::Bf16;
const EPSILON: f32 = 1e-5;

/// A pair of measurements.
pub(super) struct Pair {
    /// What surrounds the product.
    pub with: &'static str,
    pub outputs: u32,
    pub inputs: u32,
    pub apart_us: f64,
    pub fused_us: f64,
}

/// Products of a layer for this many rows, in their order. The first comes twice: models with norms of heads (Qwen3, Gemma 3)
/// have the former, the others the latter.
pub(super) fn pairs(
    device: &Arc<dyn Device>,
    shape: &ModelShape,
    rows: u32,
    cycle_bytes: usize,
) -> Result<[Pair; 5], CudaError> {
    let layer = Layer { device, shape, rows, cycle_bytes };
    let [qkv, output, gate_up, down] = shape.products();
    Ok([
        layer.scaled(qkv)?,
        layer.rope(qkv)?,
        layer.sum("residual sum, next norm (attention)", output)?,
        layer.gates(gate_up)?,
        layer.sum("residual sum, next norm (feed-forward)", down)?,
    ])
}

struct Layer<'a> {
    device: &'a Arc<dyn Device>,
    shape: &'a ModelShape,
    rows: u32,
    cycle_bytes: usize,
}

impl Layer<'_> {
    fn scaled(&self, sides: (u32, u32)) -> Result<Pair, CudaError> {
        let work = self.work(sides)?;
        let fused = |few: &FewParams| {
            let few = FewParams { squares: work.squares.at(), epsilon: EPSILON, ..*few };
            // SAFETY: shapes as allocated.
            unsafe { product_scaled(self.device.as_ref(), TY, &few) }
        };
        work.pair("scale of its norm", &|_| Ok(()), &fused)
    }

    fn rope(&self, sides: (u32, u32)) -> Result<Pair, CudaError> {
        let work = self.work(sides)?;
        let slots = Slots::new(self.device, self.shape, self.rows)?;
        let write = slots.write(self.shape, work.y.at(), self.rows);
        // SAFETY: shapes as allocated.
        let apart = |_: u64| unsafe { kv_write(self.device.as_ref(), TY, &write) };
        let fused = |few: &FewParams| {
            let few = FewParams { squares: work.squares.at(), epsilon: EPSILON, ..*few };
            // SAFETY: shapes as allocated.
            unsafe { product_rope(self.device.as_ref(), TY, &few, &write) }
        };
        work.pair("rope, KV writes, scale of its norm", &apart, &fused)
    }

    fn sum(&self, with: &'static str, sides: (u32, u32)) -> Result<Pair, CudaError> {
        let work = self.work(sides)?;
        let norm = random(self.device, Type::F32, self.shape.hidden as usize)?;
        let params = NormParams {
            residual: work.residual.at(),
            delta: work.y.at(),
            weight: norm.at(),
            out: work.next.at(),
            width: self.shape.hidden,
            epsilon: EPSILON,
            delta_factor: 1.0,
            ..NormParams::default()
        };
        // SAFETY: shapes as allocated.
        let apart = |_: u64| unsafe { add_norm(self.device.as_ref(), TY, &params, self.rows) };
        let fused = |few: &FewParams| {
            let few = FewParams {
                y: work.next.at(),
                residual: work.residual.at(),
                norm: norm.at(),
                shares_out: work.squares.at(),
                factor: 1.0,
                ..*few
            };
            // SAFETY: shapes as allocated.
            unsafe { product_add(self.device.as_ref(), TY, &few) }
        };
        work.pair(with, &apart, &fused)
    }

    fn gates(&self, sides: (u32, u32)) -> Result<Pair, CudaError> {
        let work = self.work(sides)?;
        let (device, width) = (self.device.as_ref(), self.shape.intermediate);
        let apart = |y: u64| {
            // SAFETY: shapes as allocated.
            unsafe { gated(device, TY, Activation::Silu, [y, 0, work.next.at()], width, self.rows) }
        };
        let fused = |few: &FewParams| {
            let few = FewParams { y: work.next.at(), squares: work.squares.at(), epsilon: EPSILON, ..*few };
            // SAFETY: shapes as allocated.
            unsafe { product_gated(device, TY, Activation::Silu, &few) }
        };
        work.pair("gate, scale of its norm", &apart, &fused)
    }

    fn work(&self, (outputs, inputs): (u32, u32)) -> Result<Work<'_>, CudaError> {
        let (device, rows, hidden) = (self.device, self.rows as usize, self.shape.hidden);
        let bytes = |numbers: u32| rows * numbers as usize * TY.bytes();
        Ok(Work {
            device,
            sides: [self.rows, inputs, outputs],
            weights: Weights::new(device, TY, [outputs, inputs], self.cycle_bytes)?,
            x: random(device, TY, rows * inputs as usize)?,
            y: Buffer::new(device, bytes(outputs))?,
            next: Buffer::new(device, bytes(hidden.max(self.shape.intermediate)))?,
            residual: random(device, Type::F32, rows * hidden as usize)?,
            squares: random(device, Type::F32, rows * shares(hidden) as usize)?,
        })
    }
}

/// A product and its memory.
struct Work<'a> {
    device: &'a Arc<dyn Device>,
    /// Rows, inputs, outputs.
    sides: [u32; 3],
    weights: Weights,
    x: Buffer,
    y: Buffer,
    /// What the next product reads.
    next: Buffer,
    residual: Buffer,
    squares: Buffer,
}

impl Work<'_> {
    /// Times the product followed by `apart`, which gets the address of its outputs, and `fused`.
    fn pair(
        &self,
        with: &'static str,
        apart: &dyn Fn(u64) -> Result<(), CudaError>,
        fused: &dyn Fn(&FewParams) -> Result<(), CudaError>,
    ) -> Result<Pair, CudaError> {
        let device = self.device.as_ref();
        let [rows, inputs, outputs] = self.sides;
        let (x, y) = (self.x.at(), self.y.at());
        let apart_us = time_us(device, &mut || {
            let params = ProductParams { x, w: self.weights.next(), y, rows, inputs, outputs, out_f32: 0 };
            // SAFETY: shapes as allocated.
            unsafe { product(device, TY, ProductKind::Own, &params) }?;
            apart(y)
        })?;
        let fused_us = time_us(device, &mut || {
            let w = self.weights.next();
            fused(&FewParams { x, w, y, rows, inputs, outputs, ..FewParams::default() })
        })?;
        Ok(Pair { with, outputs, inputs, apart_us, fused_us })
    }
}
