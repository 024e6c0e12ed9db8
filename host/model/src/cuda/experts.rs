//! Layers of experts on a device: a product for the router's logits, the choice of each row's experts, two products of all
//! experts, and the sum of what they make of a row (`infer_kernels::cuda::ExpertShape`). Which experts compute which rows is
//! known on the device only, and all launches depend on the number of rows alone, so they are recorded as others are.
//!
//! The router's weights are rounded to the device's type as all are, which changes nothing if the checkpoint has it; its logits
//! and the weights of outputs are f32, as on the CPU. Experts are added in ascending order there and here.
#![allow(unsafe_code, reason = "kernel launches; see the SAFETY lines")]

use infer_kernels::cuda::{
    Buffer, CombineParams, CudaError, ExpertProduct, ExpertShape, ExpertsParams, RouteParams, Type, combine,
    combine_add, product_experts, route,
};

use super::decoder::DeviceDecoder;
use super::fused::Fusion;
use super::weights::{DeviceExperts, DeviceLinear, address};
use crate::config::{ExpertsConfig, ModelConfig};

/// What passes between the kernels of such a layer.
pub(super) struct ExpertBuffers {
    /// `[row][expert]`
    logits: Buffer,
    /// The experts of a row, and the weights of their outputs: `[row][place]`.
    chosen: Buffer,
    weights: Buffer,
    /// Pairs of a row and a place by expert, and their tiles.
    pairs: Buffer,
    tiles: Buffer,
    /// Activations of each pair.
    gated: Buffer,
    /// What an expert adds to a row, for each pair.
    parts: Buffer,
    /// Scales of the norms that rows lack.
    scales: Buffer,
}

impl ExpertBuffers {
    /// Buffers of these sizes; see [`bytes`].
    pub(super) fn new(
        sizes: [usize; 8],
        buffer: impl Fn(usize) -> Result<Buffer, CudaError>,
    ) -> Result<Self, CudaError> {
        let [logits, chosen, weights, pairs, tiles, gated, parts, scales] = sizes;
        Ok(Self {
            logits: buffer(logits)?,
            chosen: buffer(chosen)?,
            weights: buffer(weights)?,
            pairs: buffer(pairs)?,
            tiles: buffer(tiles)?,
            gated: buffer(gated)?,
            parts: buffer(parts)?,
            scales: buffer(scales)?,
        })
    }
}

fn shape(config: &ExpertsConfig, ty: Type, hidden: usize) -> ExpertShape {
    ExpertShape {
        ty,
        experts: config.count as u32,
        per_row: config.per_token as u32,
        hidden: hidden as u32,
        intermediate: config.intermediate as u32,
    }
}

/// Bytes of each of [`ExpertBuffers`] for so many tokens; zeros without layers of experts.
pub(super) fn bytes(config: &ModelConfig, ty: Type, tokens: usize) -> [usize; 8] {
    let mut most = [0; 8];
    for experts in config.layers.iter().filter_map(|layer| layer.experts) {
        let [chosen, weights, pairs, tiles] = shape(&experts, ty, config.hidden).list_bytes(tokens as u32);
        let outputs = tokens * experts.per_token * ty.bytes();
        let logits = 4 * tokens * experts.count;
        let (gated, parts) = (outputs * experts.intermediate, outputs * config.hidden);
        let own = [logits, chosen, weights, pairs, tiles, gated, parts, 4 * tokens];
        most.iter_mut().zip(own).for_each(|(most, own)| *most = (*most).max(own));
    }
    most
}

impl DeviceDecoder {
    /// A layer of experts, from normed inputs to its projection. If norms are fused, inputs lack the scale of theirs, and the
    /// projection is added to the residual stream and handed on with the next norm's weights.
    pub(super) fn experts(
        &self,
        experts: &DeviceExperts,
        fusion: Fusion,
        next: Option<&Buffer>,
        rows: u32,
    ) -> Result<(), CudaError> {
        let device = self.device.as_ref();
        let buffers = self.buffers.experts.as_ref().expect("models with experts have buffers for them");
        let config = &experts.config;
        let shape = shape(config, self.ty, self.config.hidden);
        let form = shape.form(self.kind(), rows);
        let places = [self.buffers.normed.at(), buffers.logits.at()];
        self.product(&experts.router.matrix, places, rows, true)?;
        let params = RouteParams {
            logits: buffers.logits.at(),
            bias: address(&experts.router.bias),
            tokens: self.word(self.buffers.layout.tokens),
            chosen: buffers.chosen.at(),
            weights: buffers.weights.at(),
            pairs: buffers.pairs.at(),
            squares: if fusion.norms { self.buffers.squares.at() } else { 0 },
            scales: buffers.scales.at(),
            tiles: buffers.tiles.at(),
            rows,
            normalized: u32::from(config.normalized),
            epsilon: self.config.norm_epsilon,
            ..RouteParams::default()
        };
        // SAFETY: all buffers have room for `max_tokens` rows, here and below.
        unsafe { route(device, &shape, form, &params) }?;
        let gated = ExpertProduct::Gated(self.config.activation);
        let scales = if fusion.norms { buffers.scales.at() } else { 0 };
        for (product, linear, x, scales, y) in [
            (gated, &experts.gate_up, &self.buffers.normed, scales, &buffers.gated),
            (ExpertProduct::Down, &experts.down, &buffers.gated, 0, &buffers.parts),
        ] {
            let DeviceLinear { matrix, bias } = linear;
            let params = ExpertsParams {
                x: x.at(),
                w: matrix.data.at(),
                bias: address(bias),
                y: y.at(),
                scales,
                pairs: buffers.pairs.at(),
                tiles: buffers.tiles.at(),
                ..ExpertsParams::default()
            };
            // SAFETY: as above; the lists are those of these rows.
            unsafe { product_experts(device, &shape, form, product, &params, rows) }?;
        }
        let params = CombineParams {
            x: buffers.parts.at(),
            chosen: buffers.chosen.at(),
            weights: buffers.weights.at(),
            out: self.buffers.projected.at(),
            width: self.config.hidden as u32,
            per_row: shape.per_row,
            ..CombineParams::default()
        };
        if !fusion.norms {
            // SAFETY: as above.
            return unsafe { combine(device, self.ty, &params, rows) };
        }
        let params = CombineParams {
            out: self.buffers.normed.at(),
            residual: self.buffers.residual.at(),
            norm: next.map_or(0, Buffer::at),
            shares_out: self.buffers.squares.at(),
            factor: self.config.branch_scale.unwrap_or(1.0),
            ..params
        };
        // SAFETY: as above; there is room for the shares of as many rows as are fused.
        unsafe { combine_add(device, self.ty, &params, rows) }
    }
}
