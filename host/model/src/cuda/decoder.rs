//! One forward pass as launches: the same operations as the CPU's decoder, ordered so that neighbouring ones can be fused.
//!
//! With many rows, a norm adds the projection before it to the residual stream. With few, where the time of a step is that
//! of reading weights plus starting kernels, products do what surrounds them if they can (`fused.rs`).
#![allow(unsafe_code, reason = "kernel launches; see the SAFETY lines")]

use std::sync::Arc;

use infer_core::AdapterId;
use infer_kernels::cuda::{
    AttentionParams, AttentionShape, Buffer, CopyParams, CudaError, Device, Factors, KvWriteParams,
    NormParams, ProductKind, ProductParams, Type, add_norm, copy_blocks, decode, embed, embed_integers,
    fill_random, follow_draws, prefill, product,
};

use super::adapters::{self, DeviceAdapters, PackedAdapter, PlacedAdapter};
use super::buffers::Buffers;
use super::layout::partition;
use super::plan::Plan;
use super::weights::{DeviceGated, DeviceLayer, DeviceMatrix, DeviceMlp, DeviceWeights, address};
use super::{DeviceModel, DeviceOptions, shape};
use crate::config::ModelConfig;

/// Launches the kernels of forward passes.
pub(super) struct DeviceDecoder {
    pub config: ModelConfig,
    pub device: Arc<dyn Device>,
    pub buffers: Buffers,
    pub ty: Type,
    pub weights: Arc<DeviceWeights>,
    pub adapters: DeviceAdapters,
    shape: AttentionShape,
    options: DeviceOptions,
}

impl DeviceDecoder {
    pub(super) fn new(model: &DeviceModel, options: DeviceOptions) -> Result<Self, CudaError> {
        Ok(Self {
            config: model.config.clone(),
            device: Arc::clone(&model.device),
            buffers: Buffers::new(model, &options)?,
            ty: model.ty,
            weights: Arc::clone(&model.weights),
            adapters: DeviceAdapters::new(model)?,
            shape: shape(&model.config, model.ty),
            options,
        })
    }

    /// Takes an adapter, for which there must be room in the list, under a number that none has. Nothing is in flight, and
    /// after an error the others are as they were.
    pub(super) fn load_adapter(&mut self, id: AdapterId, packed: &PackedAdapter) -> Result<(), CudaError> {
        let placed = Arc::new(PlacedAdapter::new(&self.device, packed)?);
        let all = self.adapters.with(&placed);
        let properties = self.device.properties();
        let narrow = adapters::narrow_bytes(self.ty, &self.config, &all, properties, &self.options);
        if narrow > self.buffers.narrow.bytes() {
            self.buffers.narrow = Buffer::new(&self.device, narrow)?;
        }
        self.adapters.insert((id, placed), self.ty, &self.config)
    }

    /// Drops an adapter. Returns whether it was there. Nothing is in flight.
    pub(super) fn unload_adapter(&mut self, id: AdapterId) -> bool {
        self.adapters.remove(id, self.ty, &self.config)
    }

    pub(super) fn shape(&self) -> &AttentionShape {
        &self.shape
    }

    /// Overwrites the pool with random numbers.
    pub(super) fn fill_pool(&self) -> Result<(), CudaError> {
        let pool = &self.buffers.pool.data;
        let numbers = pool.bytes() / self.ty.bytes();
        // SAFETY: the pool stores this many keys and values as `ty`.
        unsafe { fill_random(self.device.as_ref(), self.ty, pool.at(), numbers, 1, 1.0) }
    }

    /// Copies blocks in all layers. The pairs are words of the step, starting at pair `first`.
    pub(super) fn copy(&self, first: usize, count: usize) -> Result<(), CudaError> {
        let pool = &self.buffers.pool;
        let params = CopyParams {
            from: pool.data.at(),
            to: pool.data.at(),
            pairs: self.word(self.buffers.layout.copies + 2 * first),
            from_stride: pool.stride as u64,
            to_stride: pool.stride as u64,
            block_bytes: pool.block_bytes as u32,
            parts: 2 * self.config.layers.len() as u32,
        };
        // SAFETY: the engine names blocks of the pool; the plan separates copies that depend on each other.
        unsafe { copy_blocks(self.device.as_ref(), &params, count as u32) }
    }

    /// Sets tokens from the samples of the previous step; the pairs are words of the step.
    pub(super) fn follow(&self, count: u32) -> Result<(), CudaError> {
        let layout = &self.buffers.layout;
        let places = [self.word(layout.tokens), self.buffers.drawn.at(), self.word(layout.follows)];
        // SAFETY: the pairs refer to tokens of this step and existing samples.
        unsafe { follow_draws(self.device.as_ref(), places, count) }
    }

    /// Computes all tokens up to the last layer's projection. Returns whether that was added to the residual stream, too;
    /// otherwise [`DeviceDecoder::logits`] or [`DeviceDecoder::settle`] does.
    pub(super) fn forward(&self, plan: &Plan) -> Result<bool, CudaError> {
        let buffers = &self.buffers;
        self.embed(plan.tokens)?;
        let rows = plan.tokens;
        let fusion = self.fusion(plan);
        let layers = &self.weights.layers;
        for (index, layer) in layers.iter().enumerate() {
            let first = index == 0;
            if first || !fusion.norms {
                let before = (!first).then(|| &layers[index - 1]);
                self.norm(&self.after(before, address(&layer.input_norm)), rows)?;
            }
            let deltas = self.adapters.layer(index);
            let writes = self.writes(index, layer, rows);
            self.project((layer, deltas), &writes, fusion, fusion.norms && !first)?;
            self.attention(index, layer, plan)?;
            if fusion.norms {
                self.add(&layer.output, &buffers.attended, layer.mlp_norm.as_ref(), rows)?;
            } else {
                let back = [buffers.attended.at(), buffers.projected.at()];
                self.product(&layer.output.matrix, back, rows, false)?;
                self.adapt(&deltas.output, back, fusion)?;
                let delta_norm = address(&layer.attention_output_norm);
                let delta_bias = address(&layer.output.bias);
                let delta = buffers.projected.at();
                let norm = self.plain_norm(address(&layer.mlp_norm));
                let norm = NormParams { delta, delta_bias, delta_norm, ..norm };
                self.norm(&norm, rows)?;
            }
            let next = layers.get(index + 1).and_then(|layer| layer.input_norm.as_ref());
            let DeviceGated { gate_up, down } = match &layer.mlp {
                DeviceMlp::Dense(gated) => gated,
                DeviceMlp::Experts(experts) => {
                    self.experts(experts, fusion, next, rows)?;
                    continue;
                }
            };
            self.gates(gate_up, &deltas.gate_up, rows, fusion)?;
            if fusion.norms {
                self.add(down, &buffers.gated, next, rows)?;
            } else {
                let back = [buffers.gated.at(), buffers.projected.at()];
                self.product(&down.matrix, back, rows, false)?;
                self.adapt(&deltas.down, back, fusion)?;
            }
        }
        Ok(fusion.norms)
    }

    /// Rows of the embedding as the residual stream.
    fn embed(&self, tokens: u32) -> Result<(), CudaError> {
        let (device, table) = (self.device.as_ref(), &self.weights.embedding);
        let given = self.word(self.buffers.layout.tokens);
        let places = [table.data.at(), given, self.buffers.residual.at()];
        let (width, scale) = (self.config.hidden as u32, self.config.embedding_scale);
        // SAFETY: tokens were checked against the vocabulary; the residual has room for `max_tokens`.
        unsafe {
            match table.integers {
                None => embed(device, self.ty, places, width, scale, tokens),
                Some(integers) => embed_integers(device, integers, places, (width, scale), tokens),
            }
        }
    }

    /// Adds the last layer's projection for all tokens, so that logits can be computed in parts, or vectors.
    pub(super) fn settle(&self, plan: &Plan) -> Result<(), CudaError> {
        self.norm(&self.after(self.weights.layers.last(), self.weights.final_norm.at()), plan.tokens)
    }

    /// Computes logits of the `count` tokens that the step's words select, into the first rows of `logits`. `settled` means
    /// that the last projection was already added.
    pub(super) fn logits(&self, count: u32, settled: bool) -> Result<(), CudaError> {
        let final_norm = self.weights.logit_norm().at();
        let norm = match settled {
            true => self.plain_norm(final_norm),
            false => self.after(self.weights.layers.last(), final_norm),
        };
        self.norm(&NormParams { select: self.word(self.buffers.layout.select), ..norm }, count)?;
        let head = self.weights.head();
        self.product(head, [self.buffers.normed.at(), self.buffers.logits.at()], count, true)
    }

    /// Norms the `count` tokens that the step's words select, into the first rows of `normed`. The last projection must have
    /// been added.
    pub(super) fn vectors(&self, count: u32) -> Result<(), CudaError> {
        let norm = self.plain_norm(self.weights.final_norm.at());
        self.norm(&NormParams { select: self.word(self.buffers.layout.select), ..norm }, count)
    }

    /// The address of a word of the step.
    pub(super) fn word(&self, at: usize) -> u64 {
        self.buffers.step.at() + 4 * at as u64
    }

    /// What becomes of a layer's projection to queries, keys and values.
    fn writes(&self, index: usize, layer: &DeviceLayer, tokens: u32) -> KvWriteParams {
        let (config, buffers) = (&self.config, &self.buffers);
        let (keys, values) = buffers.pool.layer(index);
        KvWriteParams {
            qkv: buffers.qkv.at(),
            keys,
            values,
            bias: address(&layer.qkv.bias),
            q_norm: address(&layer.q_norm),
            k_norm: address(&layer.k_norm),
            rope: buffers.ropes[config.layers[index].rope].at(),
            positions: self.word(buffers.layout.positions),
            slots: self.word(buffers.layout.slots),
            heads: config.heads as u32,
            kv_heads: config.kv_heads as u32,
            head_dim: config.head_dim as u32,
            block_size: self.options.block_size,
            epsilon: config.norm_epsilon,
            tokens,
        }
    }

    fn attention(&self, index: usize, layer: &DeviceLayer, plan: &Plan) -> Result<(), CudaError> {
        let (config, buffers) = (&self.config, &self.buffers);
        let device = self.device.as_ref();
        let (keys, values) = buffers.pool.layer(index);
        let positions = self.word(buffers.layout.positions);
        let rules = config.attention(index);
        let params = AttentionParams {
            q: buffers.qkv.at(),
            keys,
            values,
            out: buffers.attended.at(),
            partial: buffers.partial.at(),
            tickets: buffers.tickets.at(),
            positions,
            tables: self.word(buffers.layout.tables),
            blocks: self.word(buffers.layout.blocks),
            sinks: address(&layer.sinks),
            q_stride: (config.q_width() + 2 * config.kv_width()) as u32,
            block_size: self.options.block_size,
            window: rules.window.unwrap_or(0),
            scale: rules.scale,
            soft_cap: rules.soft_cap.unwrap_or(0.0),
            ..AttentionParams::default()
        };
        if plan.tiles > 0 {
            let form = plan.form.expect("tiles have a form");
            let params = AttentionParams { items: self.word(buffers.layout.tiles), ..params };
            // SAFETY: block tables cover the positions of their tokens, as the engine guarantees.
            unsafe { prefill(device, &self.shape, form, params, plan.tiles) }?;
        }
        if plan.items > 0 {
            let partition = partition(&self.shape, device.properties(), &self.options, plan.items);
            let params = AttentionParams { items: self.word(buffers.layout.items), ..params };
            // SAFETY: as above; `partial` and `tickets` were sized for the most items; no kernel writes these words.
            unsafe { decode(device, &self.shape, partition, params, plan.items) }?;
        }
        Ok(())
    }

    /// A norm of the residual stream alone; without weights, its numbers as they are.
    fn plain_norm(&self, weight: u64) -> NormParams {
        NormParams {
            residual: self.buffers.residual.at(),
            weight,
            out: self.buffers.normed.at(),
            width: self.config.hidden as u32,
            epsilon: self.config.norm_epsilon,
            delta_factor: self.config.branch_scale.unwrap_or(1.0),
            ..NormParams::default()
        }
    }

    /// A norm that adds a layer's last projection first.
    fn after(&self, layer: Option<&DeviceLayer>, weight: u64) -> NormParams {
        let norm = self.plain_norm(weight);
        let Some(layer) = layer else { return norm };
        NormParams {
            delta: self.buffers.projected.at(),
            delta_bias: layer.mlp.bias(),
            delta_norm: address(&layer.mlp_output_norm),
            ..norm
        }
    }

    fn norm(&self, norm: &NormParams, rows: u32) -> Result<(), CudaError> {
        // SAFETY: addresses are of buffers with room for `max_tokens` rows; selected tokens are of the batch.
        unsafe { add_norm(self.device.as_ref(), self.ty, norm, rows) }
    }

    pub(super) fn kind(&self) -> ProductKind {
        self.options.kind()
    }

    /// What a product with this matrix multiplies.
    pub(super) fn factors(&self, matrix: &DeviceMatrix) -> Factors {
        matrix.factors(self.ty, &self.buffers.scratch)
    }

    /// The product without the bias, which the next kernel adds.
    pub(super) fn product(
        &self,
        matrix: &DeviceMatrix,
        [x, y]: [u64; 2],
        rows: u32,
        out_f32: bool,
    ) -> Result<(), CudaError> {
        let params = ProductParams {
            x,
            w: matrix.data.at(),
            y,
            rows,
            inputs: matrix.inputs as u32,
            outputs: matrix.outputs as u32,
            out_f32: u32::from(out_f32),
        };
        let factors = self.factors(matrix);
        // SAFETY: `x` and `y` are activation buffers of these widths with room for the rows.
        unsafe { product(self.device.as_ref(), factors, self.kind(), &params) }
    }
}
