//! One step's work: flattened, of variable length, without padding. Only the engine makes it.

use crate::ids::{AdapterId, BlockId, LogitsSlot, OffloadSlot, SequenceId};
use crate::request::SamplingParams;

/// What the executor computes in one step.
///
/// Token `i` of the flattened arrays is `tokens[i]` at `positions[i]` of its sequence; its keys and
/// values go to `slots[i] = block * block_size + offset`. A row names its slice of these.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Number of this step, from 1.
    pub step: u64,
    /// Input token ids, row after row.
    pub tokens: Vec<u32>,
    /// Position of each token in its sequence, from 0.
    pub positions: Vec<u32>,
    /// The slot each token's keys and values are written to: `block * block_size + offset`.
    pub slots: Vec<u32>,
    /// One entry per sequence, in the plan's order.
    pub rows: Vec<Row>,
    /// Block tables of all rows, row after row.
    pub block_tables: Vec<BlockId>,
    /// Prompt and output tokens of rows that need them (penalties, constraints, prompt log-probabilities),
    /// row after row.
    pub history: Vec<u32>,
    /// End tokens that rows may not sample yet (`min_new_tokens`), row after row.
    pub forbidden: Vec<u32>,
    /// Copies between the pool and the second level of the prefix cache, to do before anything else and in this order:
    /// a block that was copied out may be filled again, and a slot may be reused.
    pub offload: Vec<OffloadCopy>,
    /// Block copies (copy-on-write) to do next, in this order.
    pub copies: Vec<BlockCopy>,
    /// Sequences that ended or were preempted since the last batch. A backend that keeps state per
    /// sequence (the contiguous one) drops it before it reads the rows.
    pub released: Vec<SequenceId>,
}

/// One sequence's part of a batch. Every `*_start`/`*_len` pair is a slice of a `Batch` array.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Its sequence.
    pub sequence: SequenceId,
    /// What changes the model for all of its tokens.
    pub adapter: AdapterId,
    /// First of its tokens in `Batch::tokens`.
    pub token_start: u32,
    /// Tokens it computes; 0 only with `logits_from`.
    pub token_len: u32,
    /// Tokens whose keys and values the pool holds after this step: attention reads `0..=position`.
    pub context_len: u32,
    /// Its only token is the one that this row of the preceding batch, still in flight, samples; the entry in
    /// `Batch::tokens` is meaningless.
    pub input_from: Option<u32>,
    /// First of its blocks in `Batch::block_tables`.
    pub table_start: u32,
    /// Blocks in its table.
    pub table_len: u32,
    /// Whether a token is sampled after its last computed token (the whole input is then computed). If its sampling
    /// embeds, that token's vector is reported instead.
    pub sample: bool,
    /// How many of its last tokens are draft tokens; only with `sample`. A token is then sampled after each
    /// of its last `guesses + 1` tokens, as if the draft tokens before it were right.
    pub guesses: u32,
    /// Index of the (first) sampled token: 0 for the first generated one. Seeds the sampling.
    pub generated: u32,
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Slice of `Batch::history`; empty if the sampling needs none.
    pub history_start: u32,
    /// See `history_start`.
    pub history_len: u32,
    /// Slice of `Batch::forbidden`.
    pub forbidden_start: u32,
    /// See `forbidden_start`.
    pub forbidden_len: u32,
    /// Where to keep the last position's logits, for exact repetitions of the prompt.
    pub logits_to: Option<LogitsSlot>,
    /// Kept logits to sample from; nothing is computed for this row.
    pub logits_from: Option<LogitsSlot>,
}

/// Copies the first `tokens` keys and values of block `from` to block `to`, in every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// Source block.
    pub from: BlockId,
    /// Destination block, held by one sequence only.
    pub to: BlockId,
    /// Leading tokens that matter.
    pub tokens: u32,
}

/// Copies a whole block, all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadCopy {
    /// From the pool to the second level.
    Out {
        /// Source.
        block: BlockId,
        /// Destination.
        slot: OffloadSlot,
    },
    /// From the second level to the pool.
    In {
        /// Source.
        slot: OffloadSlot,
        /// Destination.
        block: BlockId,
    },
}

impl Batch {
    /// Empties it, keeping the buffers.
    pub fn clear(&mut self) {
        self.step = 0;
        self.tokens.clear();
        self.positions.clear();
        self.slots.clear();
        self.rows.clear();
        self.block_tables.clear();
        self.history.clear();
        self.forbidden.clear();
        self.offload.clear();
        self.copies.clear();
        self.released.clear();
    }

    /// The block table of a row.
    pub fn table(&self, row: &Row) -> &[BlockId] {
        slice(&self.block_tables, row.table_start, row.table_len)
    }

    /// The input tokens of a row.
    pub fn row_tokens(&self, row: &Row) -> &[u32] {
        slice(&self.tokens, row.token_start, row.token_len)
    }

    /// A row's draft tokens.
    pub fn row_guesses(&self, row: &Row) -> &[u32] {
        slice(&self.tokens, row.token_start + row.token_len - row.guesses, row.guesses)
    }

    /// Prompt and output tokens of a row, if its sampling needs them.
    pub fn row_history(&self, row: &Row) -> &[u32] {
        slice(&self.history, row.history_start, row.history_len)
    }

    /// Tokens that a row may not sample.
    pub fn row_forbidden(&self, row: &Row) -> &[u32] {
        slice(&self.forbidden, row.forbidden_start, row.forbidden_len)
    }
}

fn slice<T>(all: &[T], start: u32, len: u32) -> &[T] {
    &all[start as usize..(start + len) as usize]
}
