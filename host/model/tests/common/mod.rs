//! Drives an executor by hand: sequences with scattered blocks, chunks put together into batches. It is what
//! the engine does, without its policies.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::HashMap;
use std::path::PathBuf;

use infer_core::{
    Batch, BlockId, DeviceFault, Executor, LogitsSlot, Row, SamplingParams, SequenceId, StepOutput,
};
use infer_model::{DType, ExecutorOptions, KvCacheKind, Model, ModelExecutor, Source};

/// Logits that the driver can ask for in one batch.
pub const SLOTS: u32 = 256;
/// Longest sequence.
pub const MAX_SEQ_LEN: u32 = 400;

/// The directory of a golden checkpoint.
pub fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

/// A golden checkpoint.
pub fn model(name: &str, dtype: DType) -> Model {
    Model::load(&Source::Directory(golden(name)), Some(dtype)).expect("golden checkpoints load")
}

/// A part of a sequence to compute in a batch.
#[derive(Clone, Debug)]
pub struct Chunk<'a> {
    /// Which sequence.
    pub sequence: u64,
    /// Position of the first token.
    pub start: usize,
    /// Inputs.
    pub tokens: &'a [u32],
}

/// An executor and its sequences' blocks.
pub struct Driver {
    pub executor: ModelExecutor,
    block_size: usize,
    tables: HashMap<u64, Vec<BlockId>>,
    free: Vec<u32>,
    released: Vec<SequenceId>,
    step: u64,
}

/// Logits of each chunk's last position, and the greedy token there.
pub type Outcome = Vec<(Vec<f32>, u32)>;

impl Driver {
    pub fn new(model: &Model, kind: KvCacheKind, block_size: u32, threads: usize) -> Self {
        // Odd numbers are coprime with the power of two: every block once, in scattered order.
        let total_blocks = 8_192 / block_size.next_power_of_two();
        let options = ExecutorOptions {
            kv_cache: kind,
            block_size,
            total_blocks,
            max_running: 32,
            max_seq_len: MAX_SEQ_LEN,
            prompt_cache_entries: SLOTS,
            threads,
        };
        Self {
            executor: model.executor(options).expect("a small KV cache fits"),
            block_size: block_size as usize,
            tables: HashMap::new(),
            free: (0..total_blocks).map(|i| i.wrapping_mul(37) % total_blocks).collect(),
            released: Vec::new(),
            step: 0,
        }
    }

    /// Gives a sequence's blocks back.
    pub fn release(&mut self, sequence: u64) {
        if let Some(table) = self.tables.remove(&sequence) {
            self.free.extend(table.iter().map(|block| block.0));
            self.released.push(SequenceId(sequence));
        }
    }

    /// A batch of these chunks, each drawing greedily after its last token.
    pub fn batch(&mut self, chunks: &[Chunk<'_>]) -> Batch {
        self.step += 1;
        let mut batch =
            Batch { step: self.step, released: std::mem::take(&mut self.released), ..Batch::default() };
        for (index, chunk) in chunks.iter().enumerate() {
            let end = chunk.start + chunk.tokens.len();
            let table = self.tables.entry(chunk.sequence).or_default();
            while table.len() * self.block_size < end {
                table.push(BlockId(self.free.pop().expect("the pool is large enough")));
            }
            batch.rows.push(Row {
                sequence: SequenceId(chunk.sequence),
                token_start: batch.tokens.len() as u32,
                token_len: chunk.tokens.len() as u32,
                context_len: end as u32,
                table_start: batch.block_tables.len() as u32,
                table_len: table.len() as u32,
                sample: true,
                guesses: 0,
                generated: 0,
                sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
                history_start: 0,
                history_len: 0,
                forbidden_start: 0,
                forbidden_len: 0,
                logits_to: Some(LogitsSlot(index as u32)),
                logits_from: None,
            });
            batch.tokens.extend_from_slice(chunk.tokens);
            for position in chunk.start..end {
                let block = table[position / self.block_size].0 as usize;
                batch.positions.push(position as u32);
                batch.slots.push((block * self.block_size + position % self.block_size) as u32);
            }
            batch.block_tables.extend_from_slice(table);
        }
        batch
    }

    /// Runs a batch of these chunks.
    pub fn run(&mut self, chunks: &[Chunk<'_>]) -> Outcome {
        let batch = self.batch(chunks);
        let mut output = StepOutput::default();
        self.executor.execute(&batch, &mut output).expect("sound batches run");
        let logits =
            |i: usize| self.executor.kept_logits(LogitsSlot(i as u32)).expect("every row keeps").to_vec();
        let tokens = output.sampled.iter().map(|token| token.expect("every row draws"));
        tokens.enumerate().map(|(i, token)| (logits(i), token)).collect()
    }

    /// A sequence's blocks.
    pub fn table(&self, sequence: u64) -> Vec<BlockId> {
        self.tables[&sequence].clone()
    }

    /// Logits that row `index` of the last batch kept.
    pub fn kept(&self, index: u32) -> &[f32] {
        self.executor.kept_logits(LogitsSlot(index)).expect("every row keeps")
    }

    /// Runs a batch and returns the raw answer.
    pub fn try_run(&mut self, batch: &Batch) -> (StepOutput, Result<(), DeviceFault>) {
        let mut output = StepOutput::default();
        let result = self.executor.execute(batch, &mut output);
        (output, result)
    }
}
