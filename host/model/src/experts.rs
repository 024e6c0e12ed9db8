//! Feed-forward layers of experts: a router chooses some for each token, and their outputs, times the router's weights, are
//! added to the residual stream. For each expert, the rows that chose it are gathered, computed and added. Experts are added in
//! ascending order, so what a row gets depends on that row alone.

use infer_kernels::{Activation, Cpu, Inputs, Norm, Router, Routes, Rows, Then};

use crate::weights::{Experts, Gated};

/// Buffers of such layers, reused.
#[derive(Default)]
pub(crate) struct ExpertBuffers {
    /// Normed rows as the router reads them.
    exact: Inputs,
    logits: Vec<f32>,
    routes: Routes,
    /// Normed rows as the experts read them.
    inputs: Inputs,
    /// The rows of one expert.
    gathered: Inputs,
    gated: Inputs,
    outputs: Vec<f32>,
    /// Bytes of the experts that were read.
    pub read_bytes: usize,
}

/// One such layer.
pub(crate) struct ExpertLayer<'a> {
    pub cpu: &'a Cpu,
    pub norm: Norm<'a>,
    pub activation: Activation,
    pub experts: &'a Experts,
}

impl ExpertLayer<'_> {
    /// Adds to each row what its experts make of it.
    pub(crate) fn add(&self, residual: &mut [f32], buffers: &mut ExpertBuffers) {
        let Self { cpu, norm, activation, experts: Experts { config, router, experts } } = *self;
        let ExpertBuffers { exact, logits, routes, inputs, gathered, gated, outputs, read_bytes } = buffers;
        let width = norm.weight.len();
        let count = residual.len() / width;
        let rows = Rows::dense(residual, width);
        cpu.rms_norm_inputs(rows, count, norm, router.matrix.format(), exact);
        logits.resize(count * config.count, 0.0);
        cpu.matmul(exact, &router.matrix, router.bias.as_deref(), Then::Store, logits);
        let choice =
            Router { experts: config.count, per_row: config.per_token, normalized: config.normalized };
        cpu.route(logits, choice, routes);

        // All of a layer have the same formats.
        let Gated { gate_up, down } = &experts[0];
        let (format, between) = (gate_up.matrix.format(), down.matrix.format());
        cpu.rms_norm_inputs(rows, count, norm, format, inputs);
        // An expert may get all rows, and how many it gets changes with every step.
        cpu.reserve(format, count, width, gathered);
        cpu.reserve(between, count, config.intermediate, gated);
        outputs.resize(count * width, 0.0);
        for (expert, shares) in routes.experts() {
            let expert = &experts[expert];
            let Gated { gate_up, down } = expert;
            let chosen = if shares.len() == count {
                // The rows of the batch, as always if there is one.
                &*inputs
            } else {
                cpu.gather(inputs, shares, gathered);
                &*gathered
            };
            cpu.gated(chosen, &gate_up.matrix, gate_up.bias.as_deref(), activation, between, gated);
            let outputs = &mut outputs[..shares.len() * width];
            cpu.matmul(gated, &down.matrix, down.bias.as_deref(), Then::Store, outputs);
            cpu.add_shares(outputs, shares, residual);
            *read_bytes += expert.bytes();
        }
    }
}
