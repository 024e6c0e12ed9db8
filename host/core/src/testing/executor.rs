//! An executor without a model whose tokens depend on everything that memory must get right.
//!
//! It keeps the contents of every slot of the pool, and the next token is a hash of the sequence's whole
//! history *read back through the block table*. A wrong table, a missing copy, or a block that is used twice
//! or stale gives other tokens than the same request run alone, see `solo`. A batch with inconsistent parts
//! makes it panic: that is a bug of the engine, not of a device.

use std::collections::VecDeque;
use std::ops::Range;

use super::random::mix;
use crate::batch::{Batch, Row};
use crate::executor::{DeviceFault, Executor, StepOutput, TokenLogprobs};
use crate::ids::{AdapterId, BlockId};
use crate::request::{Request, SamplingParams};

/// Bytes of a slot's position and token.
const CELL_BYTES: usize = 8;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct ScriptedExecutor {
    block_size: u32,
    vocab: u32,
    /// Position and token in each slot; the token as the row's adapter makes it.
    cells: Vec<Option<(u32, u32)>>,
    /// Contents of each logits slot.
    logits: Vec<Option<u64>>,
    /// The last batch: its step, and what each row sampled. Nothing if it was lost.
    drawn: Option<(u64, Vec<Option<u32>>)>,
    faults: VecDeque<DeviceFault>,
    /// Tokens computed so far.
    pub computed: u64,
    /// Rows answered from kept logits so far.
    pub answered: u64,
}

impl ScriptedExecutor {
    /// An executor for a pool of this size that samples tokens below `vocab`.
    pub fn new(block_size: u32, total_blocks: u32, prompt_cache_entries: u32, vocab: u32) -> Self {
        Self {
            block_size,
            vocab,
            cells: vec![None; (block_size * total_blocks) as usize],
            logits: vec![None; prompt_cache_entries as usize],
            drawn: None,
            faults: VecDeque::new(),
            computed: 0,
            answered: 0,
        }
    }

    /// Makes the next step fail like this. Whatever it was to write is then garbage.
    pub fn fail_next(&mut self, fault: DeviceFault) {
        self.faults.push_back(fault);
    }

    fn copy(&mut self, batch: &Batch) {
        for copy in &batch.copies {
            assert!(copy.from != copy.to && copy.tokens <= self.block_size, "{copy:?}");
            let (from, to) = (copy.from.0 * self.block_size, copy.to.0 * self.block_size);
            for at in 0..copy.tokens {
                self.cells[(to + at) as usize] = self.cells[(from + at) as usize];
            }
        }
    }

    fn write(&mut self, batch: &Batch, row: &Row) {
        let table = batch.table(row);
        let from = row.token_start as usize;
        let first = row.context_len - row.token_len;
        for (nth, at) in (from..from + row.token_len as usize).enumerate() {
            let position = batch.positions[at];
            assert_eq!(position, first + nth as u32, "positions follow each other");
            let block = table[(position / self.block_size) as usize];
            let slot = block.0 * self.block_size + position % self.block_size;
            assert_eq!(batch.slots[at], slot, "the slot is the table's");
            self.cells[slot as usize] = Some((position, adapted(self.input(batch, row, at), row.adapter)));
        }
    }

    /// A token that a row computes: the batch's, or what its row of the batch before drew.
    fn input(&self, batch: &Batch, row: &Row, at: usize) -> u32 {
        match (row.input_from, &self.drawn) {
            (None, _) => batch.tokens[at],
            (Some(from), Some((step, drawn))) if step + 1 == batch.step => {
                drawn[from as usize].expect("a row that draws is named")
            }
            // That one was lost, and this one is void.
            (Some(_), _) => u32::MAX,
        }
    }

    /// The state after the first `len` tokens of a row's context, as it is in memory.
    fn read(&self, batch: &Batch, row: &Row, len: u32) -> u64 {
        let table = batch.table(row);
        (0..len).fold(0, |state, position| {
            let block = table[(position / self.block_size) as usize];
            match self.cells[(block.0 * self.block_size + position % self.block_size) as usize] {
                Some((at, token)) => absorb(state, at, token),
                None => absorb(state, u32::MAX, u32::MAX),
            }
        })
    }

    fn cells_of(&self, BlockId(block): BlockId) -> Range<usize> {
        let size = self.block_size as usize;
        block as usize * size..(block as usize + 1) * size
    }

    fn scribble(&mut self, batch: &Batch) {
        for &slot in &batch.slots {
            self.cells[slot as usize] = Some((u32::MAX, 0));
        }
        for row in &batch.rows {
            if let Some(slot) = row.logits_to {
                self.logits[slot.0 as usize] = Some(0);
            }
        }
    }
}

impl Executor for ScriptedExecutor {
    fn execute(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        output.reset(batch.rows.len());
        if let Some(fault) = self.faults.pop_front() {
            self.scribble(batch);
            self.drawn = None;
            return Err(fault);
        }
        self.copy(batch);
        for row in &batch.rows {
            self.write(batch, row);
            self.computed += u64::from(row.token_len);
        }
        for (at, row) in batch.rows.iter().enumerate() {
            assert!(row.token_len > 0 || row.logits_from.is_some(), "a row has something to do: {row:?}");
            if row.generated == 0 && row.sampling.prompt_logprobs().is_some() {
                output.prompt_logprobs.push((at, likely(batch, row)));
            }
            if !row.sample {
                continue;
            }
            if row.sampling.embeds() {
                assert!(row.logits_from.is_none() && row.logits_to.is_none(), "no logits: {row:?}");
                output.embeddings.push((at, vector(self.read(batch, row, row.context_len))));
                continue;
            }
            let state = match row.logits_from {
                Some(slot) => {
                    self.answered += 1;
                    self.logits[slot.0 as usize].expect("logits were kept there")
                }
                None => self.read(batch, row, row.context_len - row.guesses),
            };
            if let Some(slot) = row.logits_to {
                self.logits[slot.0 as usize] = Some(state);
            }
            let history = if row.sampling.needs_history() { batch.row_history(row) } else { &[] };
            let forbidden = batch.row_forbidden(row);
            let draw = Draw { sampling: &row.sampling, history, forbidden, vocab: self.vocab };
            let token = draw.token(state, row.generated);
            output.sampled[at] = Some(token);
            for nth in 1..=row.guesses {
                let state = self.read(batch, row, row.context_len - row.guesses + nth);
                output.after_guesses.push((at, Some(draw.token(state, row.generated + nth))));
            }
            if row.sampling.extras.as_ref().is_some_and(|extras| extras.logprobs.is_some()) {
                output.logprobs.push((at, TokenLogprobs { logprob: -(token as f32), top: Vec::new() }));
            }
        }
        self.drawn = Some((batch.step, output.sampled.clone()));
        Ok(())
    }

    fn plans_ahead(&self) -> bool {
        true
    }

    fn block_bytes(&self) -> usize {
        self.block_size as usize * CELL_BYTES
    }

    fn read_block(&mut self, block: BlockId, bytes: &mut [u8]) -> Result<(), DeviceFault> {
        for (bytes, cell) in bytes.chunks_exact_mut(CELL_BYTES).zip(&self.cells[self.cells_of(block)]) {
            let (position, token) = cell.unwrap_or((u32::MAX, u32::MAX));
            bytes.copy_from_slice(&(u64::from(position) << 32 | u64::from(token)).to_le_bytes());
        }
        Ok(())
    }

    fn write_block(&mut self, block: BlockId, bytes: &[u8]) -> Result<(), DeviceFault> {
        let place = self.cells_of(block);
        for (bytes, cell) in bytes.as_chunks::<CELL_BYTES>().0.iter().zip(&mut self.cells[place]) {
            let both = u64::from_le_bytes(*bytes);
            *cell = Some(((both >> 32) as u32, both as u32));
        }
        Ok(())
    }
}

/// Reports the negative id of each prompt token after the computed ones as its log-probability.
fn likely(batch: &Batch, row: &Row) -> Vec<TokenLogprobs> {
    let prompt = batch.row_history(row);
    let (to, from) = (row.context_len as usize, (row.context_len - row.token_len) as usize);
    let told = &prompt[from + 1..prompt.len().min(to + 1)];
    told.iter().map(|&token| TokenLogprobs { logprob: -(token as f32), top: Vec::new() }).collect()
}

/// The vector that `ScriptedExecutor` reports for a prompt that runs alone, without an adapter.
pub fn solo_embedding(prompt: &[u32]) -> Vec<f32> {
    vector(prompt.iter().enumerate().fold(0, |state, (at, &token)| absorb(state, at as u32, token)))
}

/// Three numbers that tell states apart, each of which f32 holds exactly.
fn vector(state: u64) -> Vec<f32> {
    (0..3).map(|part| ((state >> (20 * part)) & 0xF_FFFF) as f32).collect()
}

/// What `ScriptedExecutor` samples for a request that runs alone.
pub fn solo(request: &Request, vocab: u32) -> Vec<u32> {
    let mut tokens = request.prompt.to_vec();
    let mut output = Vec::new();
    let absorb = |state, at, token| absorb(state, at, adapted(token, request.adapter));
    let mut state = tokens.iter().enumerate().fold(0, |state, (at, &token)| absorb(state, at as u32, token));
    while (output.len() as u32) < request.max_new_tokens {
        let generated = output.len() as u32;
        let history: &[u32] = if request.sampling.needs_history() { &tokens } else { &[] };
        let forbidden: &[u32] = if generated < request.min_new_tokens { &request.stop_tokens } else { &[] };
        let draw = Draw { sampling: &request.sampling, history, forbidden, vocab };
        let token = draw.token(state, generated);
        state = absorb(state, tokens.len() as u32, token);
        tokens.push(token);
        output.push(token);
        if request.stop_tokens.contains(&token) {
            break;
        }
    }
    output
}

/// What memory holds of a token that is computed with an adapter.
fn adapted(token: u32, adapter: AdapterId) -> u32 {
    token ^ adapter.0 << 24
}

fn absorb(state: u64, position: u32, token: u32) -> u64 {
    mix(state ^ (u64::from(position) << 32 | u64::from(token)).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// What decides which token is sampled, besides what memory holds.
struct Draw<'a> {
    sampling: &'a SamplingParams,
    history: &'a [u32],
    forbidden: &'a [u32],
    vocab: u32,
}

impl Draw<'_> {
    /// The token of index `generated` in the output.
    fn token(&self, mut state: u64, generated: u32) -> u32 {
        if self.sampling.temperature > 0.0 {
            state = mix(state ^ self.sampling.seed ^ u64::from(generated));
        }
        for &token in self.history {
            state = mix(state ^ u64::from(token));
        }
        let mut token = (mix(state) % u64::from(self.vocab)) as u32;
        while self.forbidden.contains(&token) {
            token = (token + 1) % self.vocab;
        }
        token
    }
}
