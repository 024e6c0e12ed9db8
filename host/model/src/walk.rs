//! Drives an executor by hand: sequences with separate blocks, and chunks of them combined into batches. This is the engine
//! without queue, policies and sharing, for benchmarks and checks of executors.

use std::collections::HashMap;
use std::sync::Arc;

use infer_core::{
    AdapterId, Batch, BlockId, Executor, LogitsSlot, Row, SamplingExtras, SamplingParams, SequenceId,
    StepOutput,
};

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

/// What to do with the rows of a batch. The seed of a sample is its sequence.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    /// Whether a token is sampled after each chunk.
    pub sample: bool,
    /// 0 is greedy.
    pub temperature: f32,
    /// Index of the sampled token.
    pub index: u32,
    /// Row `i` keeps its logits in slot `i`.
    pub keep: bool,
    /// How many of each chunk's last tokens are draft tokens.
    pub guesses: u32,
    /// Whether the last token's vector is reported in place of a sample.
    pub embed: bool,
}

impl Draws {
    /// Samples the likeliest token of each row.
    pub const GREEDY: Self =
        Self { sample: true, temperature: 0.0, index: 0, keep: false, guesses: 0, embed: false };
    /// The same, and keeps logits.
    pub const KEPT: Self = Self { keep: true, ..Self::GREEDY };
    /// Samples nothing: for chunks that others follow.
    pub const NONE: Self = Self { sample: false, ..Self::GREEDY };
    /// Samples nothing, and reports the vector of each row's last token.
    pub const EMBED: Self = Self { embed: true, ..Self::GREEDY };
}

/// An executor and its sequences' blocks.
pub struct Walk<E> {
    /// Computes the batches.
    pub executor: E,
    block_size: usize,
    tables: HashMap<u64, Vec<BlockId>>,
    adapters: HashMap<u64, AdapterId>,
    free: Vec<u32>,
    released: Vec<SequenceId>,
    step: u64,
    output: StepOutput,
}

impl<E: Executor> Walk<E> {
    /// Wraps an executor whose pool has `total_blocks` blocks, which are allocated in scattered order.
    pub fn new(executor: E, block_size: u32, total_blocks: u32) -> Self {
        // Multiples of a factor coprime to the number of blocks visit every block once.
        let common = |mut a: u32, mut b: u32| {
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        let factor = (37..u32::MAX).find(|factor| common(*factor, total_blocks) == 1).unwrap_or(1);
        let block = |i: u32| (u64::from(i) * u64::from(factor) % u64::from(total_blocks)) as u32;
        Self {
            executor,
            block_size: block_size as usize,
            tables: HashMap::new(),
            adapters: HashMap::new(),
            free: (0..total_blocks).map(block).collect(),
            released: Vec::new(),
            step: 0,
            output: StepOutput::default(),
        }
    }

    /// Frees a sequence's blocks.
    pub fn release(&mut self, sequence: u64) {
        if let Some(table) = self.tables.remove(&sequence) {
            self.free.extend(table.iter().map(|block| block.0));
            self.released.push(SequenceId(sequence));
        }
    }

    /// Computes all tokens of a sequence with an adapter from now on, also if it is released and begins anew.
    pub fn adapt(&mut self, sequence: u64, adapter: AdapterId) {
        self.adapters.insert(sequence, adapter);
    }

    /// A sequence's blocks.
    ///
    /// # Panics
    /// If it has none.
    pub fn table(&self, sequence: u64) -> Vec<BlockId> {
        self.tables[&sequence].clone()
    }

    /// Copies a sequence's blocks to the host.
    ///
    /// # Errors
    /// What the executor reports.
    ///
    /// # Panics
    /// If it has none.
    pub fn read_blocks(&mut self, sequence: u64) -> Result<Vec<Vec<u8>>, String> {
        let read = |block: &BlockId| {
            let mut bytes = vec![0; self.executor.block_bytes()];
            self.executor.read_block(*block, &mut bytes).map_err(|fault| fault.message)?;
            Ok(bytes)
        };
        self.tables[&sequence].iter().map(read).collect()
    }

    /// Gives a new sequence blocks with what was read from others.
    ///
    /// # Errors
    /// What the executor reports.
    ///
    /// # Panics
    /// If the pool is too small.
    pub fn write_blocks(&mut self, sequence: u64, contents: &[Vec<u8>]) -> Result<(), String> {
        let mut table = Vec::new();
        for bytes in contents {
            let block = BlockId(self.free.pop().expect("the pool is large enough"));
            self.executor.write_block(block, bytes).map_err(|fault| fault.message)?;
            table.push(block);
        }
        self.tables.insert(sequence, table);
        Ok(())
    }

    /// Builds a batch of these chunks.
    ///
    /// # Panics
    /// If the pool is too small for them.
    pub fn batch(&mut self, chunks: &[Chunk<'_>], draws: Draws) -> Batch {
        self.step += 1;
        let extras =
            draws.embed.then(|| Arc::new(SamplingExtras { embed: true, ..SamplingExtras::default() }));
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
                adapter: self.adapters.get(&chunk.sequence).copied().unwrap_or_default(),
                token_start: batch.tokens.len() as u32,
                token_len: chunk.tokens.len() as u32,
                context_len: end as u32,
                input_from: None,
                table_start: batch.block_tables.len() as u32,
                table_len: table.len() as u32,
                sample: draws.sample,
                guesses: draws.guesses,
                generated: draws.index,
                sampling: SamplingParams {
                    temperature: draws.temperature,
                    seed: chunk.sequence,
                    extras: extras.clone(),
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
        batch
    }

    /// Runs a batch and returns the token sampled for each row.
    ///
    /// # Errors
    /// What the executor reports.
    ///
    /// # Panics
    /// If the pool is too small.
    pub fn run(&mut self, chunks: &[Chunk<'_>], draws: Draws) -> Result<&[Option<u32>], String> {
        let batch = self.batch(chunks, draws);
        self.execute(&batch)
    }

    /// Runs a batch built before.
    ///
    /// # Errors
    /// What the executor reports.
    pub fn execute(&mut self, batch: &Batch) -> Result<&[Option<u32>], String> {
        self.executor.execute(batch, &mut self.output).map_err(|fault| fault.message)?;
        Ok(&self.output.sampled)
    }

    /// The vectors of the last batch, with their rows.
    pub fn embeddings(&self) -> &[(usize, Vec<f32>)] {
        &self.output.embeddings
    }

    /// The tokens sampled after the draft tokens of the last batch, with their rows.
    pub fn after_guesses(&self) -> &[(usize, Option<u32>)] {
        &self.output.after_guesses
    }
}
