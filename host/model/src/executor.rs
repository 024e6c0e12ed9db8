//! The model as the engine sees it: a batch in, drawn tokens out. A fault or a panic on the way becomes a
//! `DeviceFault`; the process lives on. Logits exist only for rows that draw (or keep) them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use infer_core::{Batch, DeviceFault, DeviceFaultKind, Executor, LogitsSlot, Row, StepOutput};

use crate::cache::KvStore;
use crate::decoder::Decoder;
use crate::sampler::{Draw, Sampler};

/// Rows whose logits are held at once.
const LOGIT_ROWS: usize = 32;

/// Runs batches of one model.
pub struct ModelExecutor {
    decoder: Decoder,
    kv: Box<dyn KvStore>,
    sampler: Sampler,
    limits: Limits,
    /// Logits of whole prompts, kept by slot; a slot's memory comes with its first use.
    kept: Vec<Option<Box<[f32]>>>,
    scratch: Vec<f32>,
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
            sampler: Sampler::default(),
            limits,
            kept: vec![None; limits.prompt_cache_entries],
            scratch: Vec::new(),
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
        output.sampled.clear();
        output.sampled.resize(batch.rows.len(), None);
        self.check(batch)?;
        self.kv.begin(batch)?;
        if !batch.tokens.is_empty() {
            self.forward_passes += 1;
            self.decoder.forward(batch, self.kv.as_mut());
        }
        let mut lost = Vec::new();
        self.draw_computed(batch, output, &mut lost);
        self.draw_kept(batch, output, &mut lost);
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
        let rows: Vec<usize> = (0..batch.rows.len()).filter(|i| wanted(&batch.rows[*i])).collect();
        for rows in rows.chunks(LOGIT_ROWS) {
            let last = |i: &usize| (batch.rows[*i].token_start + batch.rows[*i].token_len) as usize - 1;
            let logits = self.decoder.logits(rows.iter().map(last));
            for (index, logits) in rows.iter().zip(logits.chunks_exact_mut(self.limits.vocab)) {
                let row = &batch.rows[*index];
                if let Some(slot) = row.logits_to {
                    self.kept[slot.0 as usize].get_or_insert_with(|| logits.into()).copy_from_slice(logits);
                }
                if row.sample {
                    output.sampled[*index] = draw(&mut self.sampler, batch, row, logits);
                    if output.sampled[*index].is_none() {
                        lost.push(*index);
                    }
                }
            }
        }
    }

    /// Rows that repeat a prompt draw from its kept logits.
    fn draw_kept(&mut self, batch: &Batch, output: &mut StepOutput, lost: &mut Vec<usize>) {
        for (index, row) in batch.rows.iter().enumerate() {
            let Some(slot) = row.logits_from else { continue };
            output.sampled[index] = self.kept[slot.0 as usize].as_deref().and_then(|logits| {
                self.scratch.clear();
                self.scratch.extend_from_slice(logits);
                draw(&mut self.sampler, batch, row, &mut self.scratch)
            });
            if output.sampled[index].is_none() {
                lost.push(index);
            }
        }
    }
}

impl Executor for ModelExecutor {
    fn execute(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        catch_unwind(AssertUnwindSafe(|| self.step(batch, output))).unwrap_or_else(|panic| {
            output.sampled.clear();
            output.sampled.resize(batch.rows.len(), None);
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

fn draw(sampler: &mut Sampler, batch: &Batch, row: &Row, logits: &mut [f32]) -> Option<u32> {
    sampler.draw(
        logits,
        Draw {
            params: &row.sampling,
            index: row.generated,
            history: batch.row_history(row),
            forbidden: batch.row_forbidden(row),
        },
    )
}
