//! All memory of an executor, allocated at once.

use std::sync::Arc;

use infer_core::BlockId;
use infer_kernels::cuda::{Buffer, CudaError, Device, HostBuffer, Mark, PrefillForm, Type};

use super::adapters::reserved_bytes;
use super::experts::{self, ExpertBuffers};
use super::layout::{StepLayout, activation_bytes, prefill_form, tile_tokens};
use super::{DeviceModel, DeviceOptions, shape};
use crate::config::ModelConfig;

/// Device memory, and the host's staging memory.
pub(super) struct Buffers {
    pub layout: StepLayout,
    /// The form of most rows in which prompts attend.
    pub prefill: Option<PrefillForm>,
    /// The words that the host wrote for the step.
    pub step: Buffer,
    /// Sampled tokens.
    pub drawn: Buffer,
    /// The host's side of both, for the step being built and the one before, which the device may still be running.
    pub staging: [Staging; 2],
    /// Index of the staging memory of the step being built.
    pub turn: usize,
    /// Logits of a row that is sampled on the host, or a vector.
    pub host_logits: HostBuffer,
    pub residual: Buffer,
    pub normed: Buffer,
    pub qkv: Buffer,
    pub attended: Buffer,
    pub projected: Buffer,
    pub gate_up: Buffer,
    pub gated: Buffer,
    /// Where a layer's matrix of integers is widened for products of many rows.
    pub scratch: Buffer,
    /// If layers consist of experts.
    pub experts: Option<ExpertBuffers>,
    /// What adapters pass between their kernels.
    pub narrow: Buffer,
    pub logits: Buffer,
    pub partial: Buffer,
    /// Counters of attention; all zero between steps.
    pub tickets: Buffer,
    /// Shares of the sums of squares of the residual stream's rows.
    pub squares: Buffer,
    /// Marks of seen tokens; all zero between steps.
    pub seen: Buffer,
    /// Logits of whole prompts, by slot.
    pub kept: Buffer,
    /// By `ModelConfig::ropes`.
    pub ropes: Vec<Buffer>,
    pub pool: Pool,
}

/// Pinned memory for what a step sends to the device and gets back.
pub(super) struct Staging {
    /// Set after the step's last work.
    pub done: Box<dyn Mark>,
    pub step: HostBuffer,
    pub drawn: HostBuffer,
}

/// Keys and values of all layers: `[layer][keys, values][block][kv head][position][dimension]`.
pub(super) struct Pool {
    pub data: Buffer,
    pub block_bytes: usize,
    /// Bytes from a layer's keys to its values, and from these to the next layer's keys.
    pub stride: usize,
}

impl Pool {
    /// Addresses of a layer's keys and values.
    pub(super) fn layer(&self, index: usize) -> (u64, u64) {
        let keys = self.data.at() + (2 * index * self.stride) as u64;
        (keys, keys + self.stride as u64)
    }

    /// Pieces of a block: keys and values of each layer.
    pub(super) fn pieces(&self) -> usize {
        self.data.bytes() / self.stride
    }

    /// Where the `nth` piece of a block starts.
    pub(super) fn start(&self, nth: usize, BlockId(block): BlockId) -> usize {
        nth * self.stride + block as usize * self.block_bytes
    }
}

impl Buffers {
    pub(super) fn new(model: &DeviceModel, options: &DeviceOptions) -> Result<Self, CudaError> {
        let DeviceModel { config, ty, device, weights, .. } = model;
        let (shape, properties) = (shape(config, *ty), device.properties());
        let prefill = prefill_form(&shape, properties, options);
        let most = model.most_adapters();
        let layout = StepLayout::new(tile_tokens(&shape, properties, options), options, most);
        let [residual, normed, qkv, attended, projected, gate_up, gated, logits, partial, tickets, squares] =
            activation_bytes(config, *ty, properties, options);
        let rows = options.max_rows as usize;
        let buffer = |bytes| Buffer::new(device, bytes);
        let zeros = |bytes| {
            let buffer = buffer(bytes)?;
            buffer.fill(0)?;
            Ok(buffer)
        };
        Ok(Self {
            layout,
            prefill,
            step: buffer(layout.end * 4)?,
            drawn: buffer(rows * 4)?,
            staging: [staging(device, &layout, rows)?, staging(device, &layout, rows)?],
            turn: 0,
            host_logits: HostBuffer::new(device, config.vocab.max(config.hidden) * 4)?,
            residual: buffer(residual)?,
            normed: buffer(normed)?,
            qkv: buffer(qkv)?,
            attended: buffer(attended)?,
            projected: buffer(projected)?,
            gate_up: buffer(gate_up)?,
            gated: buffer(gated)?,
            scratch: buffer(weights.scratch_bytes(*ty))?,
            experts: match config.has_experts() {
                true => {
                    let sizes = experts::bytes(config, *ty, options.max_tokens as usize);
                    Some(ExpertBuffers::new(sizes, buffer)?)
                }
                false => None,
            },
            narrow: buffer(reserved_bytes(model, options))?,
            logits: buffer(logits)?,
            partial: buffer(partial)?,
            tickets: zeros(tickets)?,
            squares: buffer(squares)?,
            seen: zeros(rows * config.vocab.div_ceil(32) * 4)?,
            kept: buffer(options.prompt_cache_entries as usize * config.vocab * 4)?,
            ropes: ropes(device, config, options.max_seq_len)?,
            pool: pool(device, config, *ty, options)?,
        })
    }
}

impl Buffers {
    /// Staging memory of the step being built.
    pub(super) fn staged(&mut self) -> &mut Staging {
        &mut self.staging[self.turn]
    }
}

fn staging(device: &Arc<dyn Device>, layout: &StepLayout, rows: usize) -> Result<Staging, CudaError> {
    let step = HostBuffer::new(device, layout.end * 4)?;
    Ok(Staging { step, drawn: HostBuffer::new(device, rows * 4)?, done: device.mark()? })
}

fn pool(
    device: &Arc<dyn Device>,
    config: &ModelConfig,
    ty: Type,
    options: &DeviceOptions,
) -> Result<Pool, CudaError> {
    let block_bytes = options.block_size as usize * config.kv_width() * ty.bytes();
    let stride = (options.total_blocks as usize * block_bytes).next_multiple_of(256);
    Ok(Pool { data: Buffer::new(device, 2 * config.layers.len() * stride)?, block_bytes, stride })
}

/// Cosines and sines of every position, one table per position embedding.
fn ropes(device: &Arc<dyn Device>, config: &ModelConfig, positions: u32) -> Result<Vec<Buffer>, CudaError> {
    let table = |rope: &crate::config::RopeConfig| {
        let table = rope.table(config.head_dim, positions as usize);
        let mut numbers = Vec::with_capacity(positions as usize * config.head_dim);
        for position in 0..positions {
            let (cosines, sines) = table.at(position);
            numbers.extend_from_slice(cosines);
            numbers.extend_from_slice(sines);
        }
        Buffer::from_numbers(device, Type::F32, &numbers)
    };
    config.ropes.iter().map(table).collect()
}
