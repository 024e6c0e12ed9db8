//! Layers of experts, kernel by kernel and by each form of their products: which form is fastest for how many rows. Rows choose
//! at random, so that a choice is as even as chance makes it. All experts together are larger than the L2 cache, but those that
//! few rows choose may not be.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Table, random, time_us};
use crate::Activation;
use crate::cuda::{
    Buffer, CombineParams, CudaError, Device, ExpertForm, ExpertProduct, ExpertShape, ExpertsParams,
    RouteParams, Type, combine, product_experts, route,
};

pub(super) static EXPERTS: Table = Table {
    title: "layers of experts",
    columns: &[
        ("model", "model"),
        ("rows", "rows"),
        ("tile_rows", "rows of a tile"),
        ("experts", "experts chosen"),
        ("choice_us", "us choice"),
        ("gated_us", "us gated"),
        ("down_us", "us down"),
        ("sum_us", "us sum"),
        ("gb_per_s", "GB/s of chosen weights"),
        ("share_of_copies", "of the copy rate"),
        ("tflop_per_s", "TFLOP/s"),
    ],
};

/// The layers of Qwen3 30B A3B and of Mixtral 8x7B.
pub(super) const LAYERS: &[(&str, ExpertShape)] = &[
    (
        "qwen3-30b-a3b",
        ExpertShape { ty: Type::Bf16, experts: 128, per_row: 8, hidden: 2_048, intermediate: 768 },
    ),
    (
        "mixtral-8x7b",
        ExpertShape { ty: Type::Bf16, experts: 8, per_row: 2, hidden: 4_096, intermediate: 14_336 },
    ),
];

/// A layer small enough for the emulated device.
pub(super) const SMALLEST: &[(&str, ExpertShape)] =
    &[("tiny-experts", ExpertShape { ty: Type::Bf16, experts: 4, per_row: 2, hidden: 64, intermediate: 32 })];

/// Forms of products, each with the mean rows of an expert up to which it is measured.
const FORMS: [(ExpertForm, u32); 3] =
    [(ExpertForm::Few8, 16), (ExpertForm::Few16, 32), (ExpertForm::Tiled, u32::MAX)];

/// Microseconds of each kernel.
pub(super) struct Times {
    pub form: ExpertForm,
    /// Experts that any row chose.
    pub experts: u32,
    pub choice_us: f64,
    pub gated_us: f64,
    pub down_us: f64,
    pub sum_us: f64,
}

impl Times {
    /// Bytes of the chosen experts' weights, and operations of both products, per second.
    pub(super) fn rates(&self, shape: &ExpertShape, rows: u32) -> [f64; 2] {
        let weights = 3.0 * f64::from(shape.hidden) * f64::from(shape.intermediate);
        let per_s = 1e6 / (self.gated_us + self.down_us);
        let bytes = f64::from(self.experts) * weights * shape.ty.bytes() as f64;
        [bytes * per_s, 2.0 * f64::from(rows * shape.per_row) * weights * per_s]
    }
}

/// A layer and its memory.
pub(super) struct Layer<'a> {
    device: &'a Arc<dyn Device>,
    shape: ExpertShape,
    gate_up: Buffer,
    down: Buffer,
}

impl<'a> Layer<'a> {
    pub(super) fn new(device: &'a Arc<dyn Device>, shape: ExpertShape) -> Result<Self, CudaError> {
        let weights = shape.experts as usize * shape.hidden as usize * shape.intermediate as usize;
        let (gate_up, down) = (random(device, shape.ty, 2 * weights)?, random(device, shape.ty, weights)?);
        Ok(Self { device, shape, gate_up, down })
    }

    /// Measures a step of so many rows.
    pub(super) fn times(&self, rows: u32) -> Result<Vec<Times>, CudaError> {
        let shape = &self.shape;
        let mean = (rows * shape.per_row).div_ceil(shape.experts);
        let forms = FORMS.iter().filter(|(_, most)| mean <= *most);
        forms.map(|(form, _)| self.times_of(*form, rows)).collect()
    }

    fn times_of(&self, form: ExpertForm, rows: u32) -> Result<Times, CudaError> {
        let Self { device, shape, gate_up, down } = self;
        let ExpertShape { ty, experts, per_row, hidden, intermediate } = *shape;
        let pairs = rows as usize * per_row as usize;
        let logits = random(device, Type::F32, (rows * experts) as usize)?;
        let x = random(device, ty, (rows * hidden) as usize)?;
        let numbers = |count: usize| Buffer::new(device, count * ty.bytes());
        let (gated, parts) = (numbers(pairs * intermediate as usize)?, numbers(pairs * hidden as usize)?);
        let out = numbers((rows * hidden) as usize)?;
        let [chosen, weights, listed, tiles] = shape.list_bytes(rows).map(|bytes| Buffer::new(device, bytes));
        let (chosen, weights, listed, tiles) = (chosen?, weights?, listed?, tiles?);
        let device = device.as_ref();
        let choice = RouteParams {
            logits: logits.at(),
            chosen: chosen.at(),
            weights: weights.at(),
            pairs: listed.at(),
            tiles: tiles.at(),
            rows,
            normalized: 1,
            ..RouteParams::default()
        };
        // SAFETY: shapes as allocated, here and below; the lists are those of these rows.
        let choice_us = time_us(device, &mut || unsafe { route(device, shape, form, &choice) })?;
        let product_us = |product, [x, w, y]: [&Buffer; 3]| {
            let params = ExpertsParams {
                x: x.at(),
                w: w.at(),
                y: y.at(),
                pairs: listed.at(),
                tiles: tiles.at(),
                ..ExpertsParams::default()
            };
            // SAFETY: as above.
            time_us(device, &mut || unsafe { product_experts(device, shape, form, product, &params, rows) })
        };
        let gated_us = product_us(ExpertProduct::Gated(Activation::Silu), [&x, gate_up, &gated])?;
        let down_us = product_us(ExpertProduct::Down, [&gated, down, &parts])?;
        let sum = CombineParams {
            x: parts.at(),
            chosen: chosen.at(),
            weights: weights.at(),
            out: out.at(),
            width: hidden,
            per_row,
            ..CombineParams::default()
        };
        // SAFETY: as above.
        let sum_us = time_us(device, &mut || unsafe { combine(device, ty, &sum, rows) })?;
        let chosen = chosen.read(4 * pairs)?;
        let experts = chosen.chunks_exact(4).collect::<BTreeSet<_>>().len() as u32;
        Ok(Times { form, experts, choice_us, gated_us, down_us, sum_us })
    }
}
