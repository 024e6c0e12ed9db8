//! The model as the engine sees it: a batch in, sampled tokens out. A fault or a panic becomes a `DeviceFault`, and the
//! process continues. Logits are computed only for rows that sample from them or keep them, vectors only for rows that embed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use infer_core::{
    AdapterId, AdapterWeights, Batch, BlockId, DeviceFault, DeviceFaultKind, Executor, LogitsSlot, Row,
    StepOutput,
};

use crate::cache::KvStore;
use crate::decoder::Decoder;
use crate::lora;
use crate::rows::{Asking, Limits, asking, drawn_but, embedding, is_usable, samples};
use crate::sampler::{Draw, Sampler, logprobs};

/// Rows whose logits or vectors are computed at once.
const LOGIT_ROWS: usize = 32;

/// Runs batches of one model.
pub struct ModelExecutor {
    decoder: Decoder,
    kv: Box<dyn KvStore>,
    drawing: Drawing,
    limits: Limits,
    /// Logits of whole prompts, kept by slot; a slot's memory is allocated on first use.
    kept: Vec<Option<Box<[f32]>>>,
    scratch: Vec<f32>,
    /// Tokens to sample from computed logits: a row of the batch, and how many of its draft tokens precede (0 for the due
    /// token).
    draws: Vec<(usize, u32)>,
    forward_passes: u64,
}

impl ModelExecutor {
    pub(crate) fn new(decoder: Decoder, kv: Box<dyn KvStore>, limits: Limits) -> Self {
        Self {
            decoder,
            kv,
            drawing: Drawing::default(),
            limits,
            kept: vec![None; limits.prompt_cache_entries],
            scratch: Vec::new(),
            draws: Vec::new(),
            forward_passes: 0,
        }
    }

    /// Number of batches run through the model, not counting batches without tokens.
    pub fn forward_passes(&self) -> u64 {
        self.forward_passes
    }

    /// Bytes of the weight matrices that the last batch read: all that every step reads, the experts that a token of it chose,
    /// and the adapters of its rows.
    pub fn read_bytes(&self) -> u64 {
        self.decoder.read_bytes() as u64
    }

    /// Logits that a row kept with `logits_to`.
    pub fn kept_logits(&self, slot: LogitsSlot) -> Option<&[f32]> {
        self.kept.get(slot.0 as usize)?.as_deref()
    }

    fn step(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        output.reset(batch.rows.len());
        self.kv.release(&batch.released);
        self.limits.check(batch, |row| self.decoder.adapters.has(row.adapter))?;
        self.kv.begin(batch)?;
        if !batch.tokens.is_empty() {
            self.forward_passes += 1;
            self.decoder.forward(batch, self.kv.as_mut());
        }
        let mut lost = Vec::new();
        self.judge_prompts(batch, output);
        self.embed(batch, output);
        self.draw_computed(batch, output, &mut lost);
        self.draw_kept(batch, output, &mut lost);
        output.logprobs.sort_unstable_by_key(|(row, _)| *row);
        drawn_but(lost)
    }

    /// Samples rows from computed logits, a few rows at a time.
    fn draw_computed(&mut self, batch: &Batch, output: &mut StepOutput, lost: &mut Vec<usize>) {
        let wanted = |row: &Row| row.token_len > 0 && (samples(row) || row.logits_to.is_some());
        self.draws.clear();
        for index in (0..batch.rows.len()).filter(|i| wanted(&batch.rows[*i])) {
            self.draws.extend((0..=batch.rows[index].guesses).map(|nth| (index, nth)));
        }
        for draws in self.draws.chunks(LOGIT_ROWS) {
            let token = |(i, nth): &(usize, u32)| {
                let row = &batch.rows[*i];
                (row.token_start + row.token_len - 1 - row.guesses + nth) as usize
            };
            let logits = self.decoder.logits(draws.iter().map(token));
            for ((index, nth), logits) in draws.iter().zip(logits.chunks_exact_mut(self.limits.vocab)) {
                let row = &batch.rows[*index];
                if let Some(slot) = row.logits_to {
                    self.kept[slot.0 as usize].get_or_insert_with(|| logits.into()).copy_from_slice(logits);
                }
                if samples(row) {
                    self.drawing.draw(batch, (*index, *nth), logits, output, lost);
                }
            }
        }
    }

    /// Samples rows that repeat a prompt from its kept logits.
    fn draw_kept(&mut self, batch: &Batch, output: &mut StepOutput, lost: &mut Vec<usize>) {
        for (index, row) in batch.rows.iter().enumerate() {
            let Some(slot) = row.logits_from else { continue };
            let Some(logits) = self.kept[slot.0 as usize].as_deref() else {
                lost.push(index);
                continue;
            };
            self.scratch.clear();
            self.scratch.extend_from_slice(logits);
            self.drawing.draw(batch, (index, 0), &mut self.scratch, output, lost);
        }
    }

    /// Reports the vectors of rows that embed. One that isn't finite is left out, which fails only its request.
    fn embed(&mut self, batch: &Batch, output: &mut StepOutput) {
        let due: Vec<(usize, u32)> = embedding(batch).collect();
        for due in due.chunks(LOGIT_ROWS) {
            let vectors = self.decoder.vectors(due.iter().map(|(_, token)| *token as usize));
            let usable = due.iter().zip(vectors).filter(|(_, vector)| is_usable(vector));
            output.embeddings.extend(usable.map(|((index, _), vector)| (*index, vector.to_vec())));
        }
    }

    /// Computes log-probabilities of prompt tokens for rows that request them, from logits at every computed position.
    fn judge_prompts(&mut self, batch: &Batch, output: &mut StepOutput) {
        for Asking { index, row, prompt, first, positions, count } in asking(batch) {
            let mut judged = Vec::with_capacity(positions.len());
            for start in positions.clone().step_by(LOGIT_ROWS) {
                let some = start..positions.end.min(start + LOGIT_ROWS);
                let offset = row.token_start as usize;
                let logits = self.decoder.logits(some.clone().map(|at| offset + at - first));
                let rows = logits.chunks_exact(self.limits.vocab);
                judged.extend(some.zip(rows).map(|(at, row)| logprobs(row, prompt[at + 1], count)));
            }
            output.prompt_logprobs.push((index, judged));
        }
    }
}

impl Executor for ModelExecutor {
    fn execute(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        catch_unwind(AssertUnwindSafe(|| self.step(batch, output))).unwrap_or_else(|panic| {
            output.reset(batch.rows.len());
            let reason = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("unknown reason");
            Err(DeviceFault {
                kind: DeviceFaultKind::Failed,
                message: format!("the model failed: {reason}"),
                rows: None,
            })
        })
    }

    fn block_bytes(&self) -> usize {
        self.kv.block_bytes()
    }

    fn read_block(&mut self, block: BlockId, bytes: &mut [u8]) -> Result<(), DeviceFault> {
        self.kv.read_block(block, bytes);
        Ok(())
    }

    fn write_block(&mut self, block: BlockId, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.kv.write_block(block, bytes);
        Ok(())
    }

    fn load_adapter(&mut self, adapter: AdapterId, weights: AdapterWeights) -> Result<(), DeviceFault> {
        let Some(weights) = lora::unboxed(weights) else {
            let message = "the adapter was made ready for another device".to_owned();
            return Err(DeviceFault { kind: DeviceFaultKind::Failed, message, rows: None });
        };
        self.decoder.adapters.insert(adapter, weights);
        Ok(())
    }

    fn unload_adapter(&mut self, adapter: AdapterId) -> Option<AdapterWeights> {
        self.decoder.adapters.remove(adapter).map(lora::boxed)
    }
}

/// Samples tokens for rows, with buffers reused between rows.
#[derive(Default)]
pub(crate) struct Drawing {
    sampler: Sampler,
    /// Unmodified logits for rows that request log-probabilities: sampling changes logits.
    raw: Vec<f32>,
}

impl Drawing {
    /// Samples a row's token: the due one, or the one after its `nth` draft token.
    pub(crate) fn draw(
        &mut self,
        batch: &Batch,
        (index, nth): (usize, u32),
        logits: &mut [f32],
        output: &mut StepOutput,
        lost: &mut Vec<usize>,
    ) {
        let row = &batch.rows[index];
        let history = batch.row_history(row);
        let extras = row.sampling.extras.as_deref();
        let asked = extras.and_then(|extras| extras.logprobs);
        if asked.is_some() {
            self.raw.clear();
            self.raw.extend_from_slice(logits);
        }
        let constraint = extras.and_then(|extras| extras.constraint.as_ref());
        if let Some(constraint) = constraint
            && !constraint.restrict(&history[history.len() - row.generated as usize..], logits)
        {
            return;
        }
        let forbidden = batch.row_forbidden(row);
        let draw = Draw { params: &row.sampling, index: row.generated + nth, history, forbidden };
        match self.sampler.draw(logits, draw) {
            // A draft token that leads to broken logits counts as rejected.
            token if nth > 0 => output.after_guesses.push((index, token)),
            Some(token) => {
                output.sampled[index] = Some(token);
                if let Some(constraint) = constraint {
                    Arc::clone(constraint).drawn(token);
                }
                if let Some(count) = asked {
                    output.logprobs.push((index, logprobs(&self.raw, token, count as usize)));
                }
            }
            // A constraint that allows no token fails only its request: the others keep their step.
            None if constraint.is_some() => {}
            None => lost.push(index),
        }
    }
}
