//! The device as the engine sees it: a batch in, sampled tokens out. A step is submitted (`step`) and later collected
//! (`answer`); another one may be submitted in between. Failures become a `DeviceFault` and leave a valid state for the next
//! step.
#![allow(unsafe_code, reason = "pinned memory as words; see the SAFETY lines")]

use std::collections::{HashMap, VecDeque};

use infer_core::{
    AdapterId, AdapterWeights, Batch, BlockId, DeviceFault, DeviceFaultKind, Executor, LogitsSlot, Row,
    StepOutput,
};
use infer_kernels::cuda::{CudaError, CudaErrorKind, Graph, NONE};

use super::adapters::PackedAdapter;
use super::decoder::DeviceDecoder;
use super::plan::Plan;
use super::{DeviceModel, DeviceOptions, fault, unfit};
use crate::error::ModelError;
use crate::executor::Drawing;
use crate::lora::apply::Places;
use crate::rows::{Limits, drawn_but};

/// Maximum tokens of a step: the limit of a grid's second and third dimension.
const MAX_TOKENS: u32 = 65_535;

/// Runs batches of one model on a device.
pub struct DeviceExecutor {
    pub(super) decoder: DeviceDecoder,
    pub(super) options: DeviceOptions,
    /// Recorded decodes by padded size, and whether rows have adapters.
    pub(super) graphs: HashMap<(u32, bool), Recorded>,
    /// Tokens of the step being built that have adapters.
    pub(super) places: Places,
    /// Which slots of kept logits are filled.
    pub(super) kept: Vec<bool>,
    pub(super) drawing: Drawing,
    pub(super) scratch: Vec<f32>,
    /// Submitted steps, oldest first.
    pending: VecDeque<Pending>,
    /// Collected ones, for their memory.
    pub(super) spare: Vec<Pending>,
    /// For each row of the last step its index in the device's samples, or `NONE`.
    pub(super) draws: Vec<u32>,
    pub(super) forward_passes: u64,
    pub(super) graph_launches: u64,
}

/// A decode of one size.
pub(super) enum Recorded {
    /// Ran once, so everything it needs is loaded.
    Warm,
    Graph(Box<dyn Graph>),
    /// Can't be recorded, so it is launched kernel by kernel.
    Refused,
}

/// One sample: its row in the batch, and how many of the row's draft tokens precede it (0 for the due token).
pub(super) type Sampled = (usize, u32);

/// A submitted step.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) step: u64,
    /// Index of its staging memory.
    pub(super) turn: usize,
    pub(super) plan: Plan,
    /// The samples of the step in the order of the device's.
    pub(super) draws: Vec<Sampled>,
    /// Those on the host, with their row of logits.
    pub(super) host_draws: Vec<(Sampled, usize)>,
    /// Slots of kept logits, and the rows of logits that are copied there.
    pub(super) to_kept: Vec<(LogitsSlot, usize)>,
    /// Slots of kept logits, and the rows of logits they are copied to.
    pub(super) from_kept: Vec<(LogitsSlot, usize)>,
    /// Rows whose kept logits don't exist.
    pub(super) lost: Vec<usize>,
}

impl Pending {
    /// A step to be submitted, with the memory of this one.
    pub(super) fn reused(mut self, plan: Plan) -> Self {
        self.plan = plan;
        self.draws.clear();
        self.host_draws.clear();
        self.to_kept.clear();
        self.from_kept.clear();
        self.lost.clear();
        self
    }
}

impl DeviceExecutor {
    pub(super) fn new(model: &DeviceModel, options: DeviceOptions) -> Result<Self, ModelError> {
        let refuse = |message: String| Err(ModelError::unsupported(message));
        let longest = model.config.max_positions as u64;
        if options.max_seq_len == 0 || u64::from(options.max_seq_len) > longest {
            return refuse(format!("max-seq-len {} must be from 1 to {longest}", options.max_seq_len));
        }
        if options.block_size == 0 || options.total_blocks == 0 || options.max_rows == 0 {
            return refuse("block-size, the number of KV blocks and max-batch-size must not be 0".to_owned());
        }
        if options.max_tokens > MAX_TOKENS {
            let most = MAX_TOKENS;
            return refuse(format!(
                "max-batch-tokens {} exceeds a device's maximum of {most}",
                options.max_tokens
            ));
        }
        let slots = u64::from(options.block_size) * u64::from(options.total_blocks);
        if slots >= u64::from(u32::MAX) || options.max_tokens < options.max_rows {
            return refuse(format!(
                "a pool of {slots} tokens, or steps of {} tokens for {} sequences, exceed the range of indexes",
                options.max_tokens, options.max_rows
            ));
        }
        let decoder = DeviceDecoder::new(model, options).map_err(unfit)?;
        Ok(Self {
            decoder,
            options,
            graphs: HashMap::new(),
            places: Places::default(),
            kept: vec![false; options.prompt_cache_entries as usize],
            drawing: Drawing::default(),
            scratch: Vec::new(),
            pending: VecDeque::new(),
            spare: Vec::new(),
            draws: Vec::new(),
            forward_passes: 0,
            graph_launches: 0,
        })
    }

    /// Number of batches run through the model.
    pub fn forward_passes(&self) -> u64 {
        self.forward_passes
    }

    /// Number of recorded batches among them.
    pub fn graph_launches(&self) -> u64 {
        self.graph_launches
    }

    /// Logits that a row kept with `logits_to`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn kept_logits(&mut self, slot: LogitsSlot) -> Result<Option<Vec<f32>>, DeviceFault> {
        if self.kept.get(slot.0 as usize).is_none_or(|kept| !kept) {
            return Ok(None);
        }
        self.fetch(self.kept_at(slot)).map_err(fault)?;
        Ok(Some(self.scratch.clone()))
    }

    /// Overwrites the pool with random numbers, for benchmarks, which read blocks that were never written. Zeros would
    /// draw less power and so run faster than real keys and values.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn fill_pool(&mut self) -> Result<(), DeviceFault> {
        self.decoder.fill_pool().map_err(fault)
    }

    /// Finds rows that would read beyond the tables.
    fn check(&self, batch: &Batch) -> Result<(), DeviceFault> {
        let layout = &self.decoder.buffers.layout;
        let samples: usize = batch.rows.iter().map(|row| 1 + row.guesses as usize).sum();
        if batch.tokens.len() > self.options.max_tokens as usize
            || samples > self.options.max_rows as usize
            || batch.block_tables.len() > layout.lists - layout.blocks
        {
            return Err(DeviceFault {
                kind: DeviceFaultKind::Failed,
                message: "the batch is larger than the device's buffers".to_owned(),
                rows: None,
            });
        }
        let lost = |row: &Row| row.input_from.is_some_and(|from| self.drawn_at(from).is_none());
        if let Some(index) = batch.rows.iter().position(lost) {
            return Err(DeviceFault {
                kind: DeviceFaultKind::Failed,
                message: format!("row {index} continues from a sample that is not on the device"),
                rows: None,
            });
        }
        let limits = Limits {
            vocab: self.decoder.config.vocab,
            positions: self.options.max_seq_len as usize,
            prompt_cache_entries: self.kept.len(),
        };
        limits.check(batch, |row| {
            let span = row.token_start as usize..(row.token_start + row.token_len) as usize;
            let room = u64::from(row.table_len) * u64::from(self.options.block_size);
            batch.positions[span].iter().all(|at| u64::from(*at) < room)
                && self.decoder.adapters.has(row.adapter)
        })
    }

    /// Index of a row of the last step in the device's samples.
    pub(super) fn drawn_at(&self, row: u32) -> Option<u32> {
        self.draws.get(row as usize).copied().filter(|at| *at != NONE)
    }

    /// Drops recordings with adapters, whose addresses and shapes change.
    fn drop_adapted(&mut self) {
        self.graphs.retain(|(_, adapted), _| !adapted);
    }

    /// Waits for work in flight and drops recordings, which may be incomplete.
    fn recover(&mut self, error: CudaError) -> DeviceFault {
        // The first failure may not show that the device is lost.
        let lost = self.decoder.device.wait().err().filter(|error| error.kind == CudaErrorKind::Lost);
        let error = lost.unwrap_or(error);
        self.draws.clear();
        let _ = self.decoder.buffers.seen.fill(0);
        self.graphs.clear();
        fault(error)
    }
}

impl Executor for DeviceExecutor {
    fn execute(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        output.reset(batch.rows.len());
        self.submit(batch)?;
        self.collect(batch, output)
    }

    fn submit(&mut self, batch: &Batch) -> Result<bool, DeviceFault> {
        if self.pending.len() == self.decoder.buffers.staging.len() {
            // Never collected.
            self.decoder.device.wait().map_err(|error| self.recover(error))?;
            self.pending.pop_front();
        }
        self.check(batch)?;
        self.decoder.buffers.turn = self.pending.back().map_or(0, |pending| 1 - pending.turn);
        let mut pending = self.start(batch).map_err(|error| self.recover(error))?;
        (pending.step, pending.turn) = (batch.step, self.decoder.buffers.turn);
        self.draws.clear();
        self.draws.resize(batch.rows.len(), NONE);
        for (at, (row, _)) in (0..).zip(&pending.draws).filter(|(_, (_, nth))| *nth == 0) {
            self.draws[*row] = at;
        }
        self.pending.push_back(pending);
        Ok(true)
    }

    fn plans_ahead(&self) -> bool {
        true
    }

    fn collect(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        output.reset(batch.rows.len());
        while self.pending.front().is_some_and(|pending| pending.step != batch.step) {
            // Never collected.
            self.pending.pop_front();
        }
        let pending = self.pending.pop_front().expect("a submitted step");
        let lost = self.finish(batch, &pending, output).map_err(|error| {
            output.reset(batch.rows.len());
            self.recover(error)
        })?;
        self.spare.push(pending);
        output.logprobs.sort_unstable_by_key(|(row, _)| *row);
        // Samples on the host come after the device's.
        output.after_guesses.sort_by_key(|(row, _)| *row);
        drawn_but(lost)
    }

    fn block_bytes(&self) -> usize {
        self.decoder.buffers.pool.pieces() * self.decoder.buffers.pool.block_bytes
    }

    fn read_block(&mut self, block: BlockId, bytes: &mut [u8]) -> Result<(), DeviceFault> {
        let pool = &self.decoder.buffers.pool;
        let mut pieces = bytes.chunks_exact_mut(pool.block_bytes).enumerate();
        pieces.try_for_each(|(nth, piece)| pool.data.read_into(pool.start(nth, block), piece)).map_err(fault)
    }

    fn write_block(&mut self, block: BlockId, bytes: &[u8]) -> Result<(), DeviceFault> {
        let pool = &self.decoder.buffers.pool;
        let mut pieces = bytes.chunks_exact(pool.block_bytes).enumerate();
        pieces.try_for_each(|(nth, piece)| pool.data.write(pool.start(nth, block), piece)).map_err(fault)
    }

    fn load_adapter(&mut self, adapter: AdapterId, weights: AdapterWeights) -> Result<(), DeviceFault> {
        let refuse = |message: &str| {
            Err(DeviceFault { kind: DeviceFaultKind::Failed, message: message.to_owned(), rows: None })
        };
        let Ok(packed) = weights.downcast::<PackedAdapter>() else {
            return refuse("the adapter was made ready for another device");
        };
        if self.decoder.adapters.has(adapter) {
            return refuse("there is an adapter of this number");
        }
        if !self.decoder.adapters.has_room() {
            return refuse("there is no room for another adapter");
        }
        self.drop_adapted();
        self.decoder.load_adapter(adapter, &packed).map_err(fault)
    }

    /// Its memory is freed here: the device's calls come from the executor's thread alone.
    fn unload_adapter(&mut self, adapter: AdapterId) -> Option<AdapterWeights> {
        self.drop_adapted();
        self.decoder.unload_adapter(adapter).then(|| -> AdapterWeights { Box::new(()) })
    }
}

/// Pinned memory as words. Whole allocations are aligned for this.
pub(super) fn words(bytes: &[u8]) -> &[u32] {
    // SAFETY: any bits are a valid word; trailing bytes are left out.
    let (before, words, _) = unsafe { bytes.align_to() };
    debug_assert!(before.is_empty());
    words
}

pub(super) fn words_mut(bytes: &mut [u8]) -> &mut [u32] {
    // SAFETY: as above.
    let (before, words, _) = unsafe { bytes.align_to_mut() };
    debug_assert!(before.is_empty());
    words
}
