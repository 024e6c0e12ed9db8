//! What surrounds the products of a step with few rows, computed by these products: sums into the residual stream, norms,
//! gates, and rope with the writes of keys and values (`product_few.cu`). The order of operations is the decoder's, which also
//! has a way without each of these.
#![allow(unsafe_code, reason = "kernel launches; see the SAFETY lines")]

use infer_kernels::cuda::{
    AdapterRows, Buffer, CudaError, Factors, FewParams, KvWriteParams, fuses, fuses_norms, fuses_rope, gated,
    kv_write, kv_write_whole, product_add, product_gated, product_rope, product_scaled,
};

use super::adapters::{DeviceDelta, LayerDeltas};
use super::decoder::DeviceDecoder;
use super::plan::Plan;
use super::weights::{DeviceLayer, DeviceLinear, DeviceMatrix, address};
use crate::config::{ModelConfig, QkNorm};

/// What the products of a step do beside multiplying.
#[derive(Clone, Copy)]
pub(super) struct Fusion {
    /// Activations.
    pub gates: bool,
    /// Sums into the residual stream, and norms.
    pub norms: bool,
    /// Bias, rope, and the writes of keys and values.
    pub rope: bool,
    /// Rows to whose products adapters add. Then products include nothing, since what they include comes after that.
    pub adapted: Option<AdapterRows>,
}

impl DeviceDecoder {
    /// What the products of a step include.
    pub(super) fn fusion(&self, plan: &Plan) -> Fusion {
        let (rows, adapted) = (plan.tokens, plan.adapted);
        if adapted.is_some() {
            return Fusion { gates: false, norms: false, rope: false, adapted };
        }
        let ModelConfig { hidden, intermediate, input_norms, output_norms, qk_norm, head_dim, .. } =
            self.config;
        let factors = Factors { weights: self.weights.integers(), ..self.ty.into() };
        let fuses = |inputs: usize| fuses(self.device.as_ref(), factors, self.kind(), [rows, inputs as u32]);
        let gates = fuses(hidden);
        let back = fuses(self.config.q_width()) && fuses(intermediate);
        let norms = gates && back && input_norms && !output_norms && fuses_norms(self.ty);
        let rope = gates && qk_norm == QkNorm::None && fuses_rope(head_dim as u32);
        Fusion { gates, norms, rope, adapted }
    }

    /// Queries, keys and values of normed inputs. `scaled`: these lack the scale of their norm.
    pub(super) fn project(
        &self,
        (layer, deltas): (&DeviceLayer, &LayerDeltas),
        write: &KvWriteParams,
        fusion: Fusion,
        scaled: bool,
    ) -> Result<(), CudaError> {
        let (device, rows) = (self.device.as_ref(), write.tokens);
        let places = [self.buffers.normed.at(), write.qkv];
        let few = self.few(&layer.qkv.matrix, places, rows, scaled);
        let factors = self.factors(&layer.qkv.matrix);
        if fusion.rope {
            // SAFETY: as for `product`; slots and positions come from the engine and were checked; no kernel writes them.
            return unsafe { product_rope(device, factors, &few, write) };
        }
        if scaled {
            // SAFETY: as for `product`.
            unsafe { product_scaled(device, factors, &few) }?;
        } else {
            self.product(&layer.qkv.matrix, places, rows, false)?;
        }
        self.adapt(&deltas.qkv, places, fusion)?;
        let kv_write = match self.config.qk_norm {
            QkNorm::None | QkNorm::Heads => kv_write,
            QkNorm::Whole => kv_write_whole,
        };
        // SAFETY: slots and positions come from the engine and were checked; buffers have room for `max_tokens`.
        unsafe { kv_write(device, self.ty, write) }
    }

    /// A product into the residual stream, whose norm the next product completes.
    pub(super) fn add(
        &self,
        linear: &DeviceLinear,
        x: &Buffer,
        norm: Option<&Buffer>,
        rows: u32,
    ) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        let params = FewParams {
            bias: address(&linear.bias),
            residual: buffers.residual.at(),
            norm: norm.map_or(0, Buffer::at),
            shares_out: buffers.squares.at(),
            factor: self.config.branch_scale.unwrap_or(1.0),
            ..self.few(&linear.matrix, [x.at(), buffers.normed.at()], rows, false)
        };
        // SAFETY: as for `product`; there is room for the shares of as many rows as are fused.
        unsafe { product_add(self.device.as_ref(), self.factors(&linear.matrix), &params) }
    }

    /// The feed-forward layer up to its activations.
    pub(super) fn gates(
        &self,
        gate_up: &DeviceLinear,
        delta: &Option<DeviceDelta>,
        rows: u32,
        fusion: Fusion,
    ) -> Result<(), CudaError> {
        let (config, buffers) = (&self.config, &self.buffers);
        let device = self.device.as_ref();
        let bias = address(&gate_up.bias);
        if fusion.gates {
            let places = [buffers.normed.at(), buffers.gated.at()];
            let params = FewParams { bias, ..self.few(&gate_up.matrix, places, rows, fusion.norms) };
            let factors = self.factors(&gate_up.matrix);
            // SAFETY: as for `product`; the output is half as wide.
            return unsafe { product_gated(device, factors, config.activation, &params) };
        }
        let places = [buffers.normed.at(), buffers.gate_up.at()];
        self.product(&gate_up.matrix, places, rows, false)?;
        self.adapt(delta, places, fusion)?;
        let places = [buffers.gate_up.at(), bias, buffers.gated.at()];
        // SAFETY: both buffers have room for `max_tokens`.
        unsafe { gated(device, self.ty, config.activation, places, config.intermediate as u32, rows) }
    }

    /// `scaled`: the inputs are of the residual stream and lack the scale of their norm.
    fn few(&self, matrix: &DeviceMatrix, [x, y]: [u64; 2], rows: u32, scaled: bool) -> FewParams {
        FewParams {
            x,
            w: matrix.data.at(),
            y,
            squares: if scaled { self.buffers.squares.at() } else { 0 },
            epsilon: self.config.norm_epsilon,
            rows,
            inputs: matrix.inputs as u32,
            outputs: matrix.outputs as u32,
            ..FewParams::default()
        }
    }
}
