//! Drives an executor by hand: sequences with scattered blocks, chunks put together into batches.

use std::collections::HashMap;

use infer_core::{Batch, BlockId, Executor, LogitsSlot, Row, SamplingParams, SequenceId, StepOutput};

use crate::cuda::{DeviceExecutor, DeviceModel, DeviceOptions};

/// Rows and kept logits of a batch.
const ROWS: u32 = 32;

/// A part of a sequence to compute.
#[derive(Clone, Debug)]
pub(super) struct Chunk<'a> {
    pub sequence: u64,
    pub start: usize,
    pub tokens: &'a [u32],
}

/// How a batch's rows are drawn, and whether their logits are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws {
    pub temperature: f32,
    pub keep: bool,
    /// Index of the token drawn.
    pub index: u32,
}

impl Draws {
    pub(super) const GREEDY: Self = Self { temperature: 0.0, keep: true, index: 0 };
}

/// An executor and its sequences' blocks.
pub(super) struct Walk {
    pub executor: DeviceExecutor,
    block_size: usize,
    tables: HashMap<u64, Vec<BlockId>>,
    free: Vec<u32>,
}

impl Walk {
    pub(super) fn new(
        model: &DeviceModel,
        block_size: u32,
        max_seq_len: u32,
        graphs: bool,
    ) -> Result<Self, String> {
        // Odd numbers are coprime with the power of two: every block once, in scattered order.
        let total_blocks = (ROWS * max_seq_len.next_multiple_of(block_size) / block_size).next_power_of_two();
        let options = DeviceOptions {
            block_size,
            total_blocks,
            max_rows: ROWS,
            max_tokens: 4_096,
            max_seq_len,
            prompt_cache_entries: ROWS,
            deterministic: false,
            graphs,
        };
        let executor = model.executor(options).map_err(|error| error.to_string())?;
        let free = (0..total_blocks).map(|i| i.wrapping_mul(37) % total_blocks).collect();
        Ok(Self { executor, block_size: block_size as usize, tables: HashMap::new(), free })
    }

    /// Gives a sequence's blocks back.
    pub(super) fn release(&mut self, sequence: u64) {
        let table = self.tables.remove(&sequence).unwrap_or_default();
        self.free.extend(table.iter().map(|block| block.0));
    }

    /// Runs a batch of these chunks, each drawing after its last token. Answers with the tokens.
    pub(super) fn run(&mut self, chunks: &[Chunk<'_>], draws: Draws) -> Result<Vec<u32>, String> {
        let mut batch = Batch { step: 1, ..Batch::default() };
        for (index, chunk) in chunks.iter().enumerate() {
            let end = chunk.start + chunk.tokens.len();
            let table = self.tables.entry(chunk.sequence).or_default();
            while table.len() * self.block_size < end {
                table.push(BlockId(self.free.pop().ok_or("the pool is too small")?));
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
                generated: draws.index,
                sampling: SamplingParams {
                    temperature: draws.temperature,
                    seed: chunk.sequence,
                    ..SamplingParams::default()
                },
                history_start: 0,
                history_len: 0,
                forbidden_start: 0,
                forbidden_len: 0,
                logits_to: draws.keep.then_some(LogitsSlot(index as u32)),
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
        let mut output = StepOutput::default();
        self.executor.execute(&batch, &mut output).map_err(|fault| fault.message)?;
        output.sampled.into_iter().map(|token| token.ok_or_else(|| "a row drew nothing".to_owned())).collect()
    }

    /// Logits that row `index` of the last batch kept.
    pub(super) fn kept(&mut self, index: usize) -> Result<Vec<f32>, String> {
        let kept = self.executor.kept_logits(LogitsSlot(index as u32)).map_err(|fault| fault.message)?;
        kept.ok_or_else(|| "a row kept nothing".to_owned())
    }
}
