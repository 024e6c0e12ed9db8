//! The model as the engine sees it: a batch in, drawn tokens out. A fault or a panic on the way becomes a
//! `DeviceFault`; the process lives on. Logits exist only for rows that draw (or keep) them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use infer_core::{Batch, DeviceFault, DeviceFaultKind, Executor, LogitsSlot, Row, StepOutput};

use crate::cache::KvStore;
use crate::decoder::Decoder;
use crate::sampler::{Draw, Sampler, logprobs};

/// Rows whose logits are held at once.
const LOGIT_ROWS: usize = 32;

/// Runs batches of one model.
pub struct ModelExecutor {
    decoder: Decoder,
    kv: Box<dyn KvStore>,
    drawing: Drawing,
    limits: Limits,
    /// Logits of whole prompts, kept by slot; a slot's memory comes with its first use.
    kept: Vec<Option<Box<[f32]>>>,
    scratch: Vec<f32>,
    /// Draws from what was computed: a row of the batch, and after which of its guesses (0 for the due one).
    draws: Vec<(usize, u32)>,
    forward_passes: u64,
}

/// What a batch may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub vocab: usize,
    pub positions: usize,
    pub prompt_cache_entries: usize,
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

    /// How many batches were run through the model. A batch without tokens is not one.
    pub fn forward_passes(&self) -> u64 {
        self.forward_passes
    }

    /// Logits that a row kept with `logits_to`.
    pub fn kept_logits(&self, slot: LogitsSlot) -> Option<&[f32]> {
        self.kept.get(slot.0 as usize)?.as_deref()
    }

    fn step(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        output.reset(batch.rows.len());
        self.kv.release(&batch.released);
        self.check(batch)?;
        self.kv.begin(batch)?;
        if !batch.tokens.is_empty() {
            self.forward_passes += 1;
            self.decoder.forward(batch, self.kv.as_mut());
        }
        let mut lost = Vec::new();
        self.judge_prompts(batch, output);
        self.draw_computed(batch, output, &mut lost);
        self.draw_kept(batch, output, &mut lost);
        output.logprobs.sort_unstable_by_key(|(row, _)| *row);
        match lost.is_empty() {
            true => Ok(()),
            false => Err(DeviceFault {
                kind: DeviceFaultKind::Failed,
                message: "the model produced no usable logits (not a number, or every token forbidden)"
                    .to_owned(),
                rows: Some(lost),
            }),
        }
    }

    /// Finds rows that would read beyond the tables: a request's fault, not the device's.
    fn check(&self, batch: &Batch) -> Result<(), DeviceFault> {
        let sound = |row: &Row| {
            let span = row.token_start as usize..(row.token_start + row.token_len) as usize;
            let slot = |slot: Option<LogitsSlot>| slot.is_none_or(|slot| (slot.0 as usize) < self.kept.len());
            batch.tokens[span.clone()].iter().all(|token| (*token as usize) < self.limits.vocab)
                && batch.positions[span].iter().all(|at| (*at as usize) < self.limits.positions)
                && slot(row.logits_to)
                && slot(row.logits_from)
                && (row.token_len > 0 || row.logits_from.is_some())
        };
        let bad: Vec<usize> = (0..batch.rows.len()).filter(|index| !sound(&batch.rows[*index])).collect();
        if bad.is_empty() {
            return Ok(());
        }
        Err(DeviceFault {
            kind: DeviceFaultKind::Failed,
            message: "a token is beyond the vocabulary or a position beyond the longest sequence".to_owned(),
            rows: Some(bad),
        })
    }

    /// Logits of the rows that need them, a few rows at a time.
    fn draw_computed(&mut self, batch: &Batch, output: &mut StepOutput, lost: &mut Vec<usize>) {
        let wanted = |row: &Row| row.token_len > 0 && (row.sample || row.logits_to.is_some());
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
                if row.sample {
                    self.drawing.draw(batch, (*index, *nth), logits, output, lost);
                }
            }
        }
    }

    /// Rows that repeat a prompt draw from its kept logits.
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

    /// How likely the prompt's tokens were, of rows that ask: logits at every computed position.
    fn judge_prompts(&mut self, batch: &Batch, output: &mut StepOutput) {
        for (index, row) in batch.rows.iter().enumerate() {
            let Some(count) = row.sampling.prompt_logprobs().filter(|_| row.generated == 0) else { continue };
            let prompt = batch.row_history(row);
            let (first, end) = ((row.context_len - row.token_len) as usize, row.context_len as usize);
            // The prompt's last token is followed by what is drawn.
            let positions = first..end.min(prompt.len() - 1);
            let mut judged = Vec::with_capacity(positions.len());
            for start in positions.clone().step_by(LOGIT_ROWS) {
                let some = start..positions.end.min(start + LOGIT_ROWS);
                let offset = row.token_start as usize;
                let logits = self.decoder.logits(some.clone().map(|at| offset + at - first));
                let rows = logits.chunks_exact(self.limits.vocab);
                judged.extend(some.zip(rows).map(|(at, row)| logprobs(row, prompt[at + 1], count as usize)));
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
}

/// Draws tokens for rows, with what is kept for that between rows.
#[derive(Default)]
pub(crate) struct Drawing {
    sampler: Sampler,
    /// What the model said, where a row asks about it: drawing changes logits.
    raw: Vec<f32>,
}

impl Drawing {
    /// Draws a row's token: the due one, or the one after its `nth` guess.
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
            // A guess that spoils the logits is as good as a wrong one.
            token if nth > 0 => output.after_guesses.push((index, token)),
            Some(token) => {
                output.sampled[index] = Some(token);
                if let Some(count) = asked {
                    output.logprobs.push((index, logprobs(&self.raw, token, count as usize)));
                }
            }
            // A constraint that leaves nothing is its request's fault alone: the others keep their step.
            None if constraint.is_some() => {}
            None => lost.push(index),
        }
    }
}
