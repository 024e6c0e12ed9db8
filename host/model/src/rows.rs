//! Checks and reports about a batch's rows, shared by executors on all devices.

use std::ops::Range;

use infer_core::{Batch, DeviceFault, DeviceFaultKind, LogitsSlot, Row};

/// Limits of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub vocab: usize,
    pub positions: usize,
    pub prompt_cache_entries: usize,
}

impl Limits {
    /// Finds rows that would read beyond the tables or don't satisfy `fits`. These are faults of requests, not of the device.
    pub(crate) fn check(&self, batch: &Batch, fits: impl Fn(&Row) -> bool) -> Result<(), DeviceFault> {
        let slot =
            |slot: Option<LogitsSlot>| slot.is_none_or(|slot| (slot.0 as usize) < self.prompt_cache_entries);
        let sound = |row: &Row| {
            let span = row.token_start as usize..(row.token_start + row.token_len) as usize;
            batch.tokens[span.clone()].iter().all(|token| (*token as usize) < self.vocab)
                && batch.positions[span].iter().all(|at| (*at as usize) < self.positions)
                && slot(row.logits_to)
                && slot(row.logits_from)
                && (row.token_len > 0 || row.logits_from.is_some())
                && fits(row)
        };
        let bad = (0..batch.rows.len()).filter(|index| !sound(&batch.rows[*index])).collect();
        failing(
            bad,
            "a token is beyond the vocabulary, a position beyond the longest sequence, or an adapter isn't there",
        )
    }
}

/// Whether a token is sampled after the row.
pub(crate) fn samples(row: &Row) -> bool {
    row.sample && !row.sampling.embeds()
}

/// Rows whose vector is due: their indexes in the batch, and those of their last tokens.
pub(crate) fn embedding(batch: &Batch) -> impl Iterator<Item = (usize, u32)> {
    let due = |row: &Row| row.sample && row.token_len > 0 && row.sampling.embeds();
    let rows = batch.rows.iter().enumerate().filter(move |(_, row)| due(row));
    rows.map(|(index, row)| (index, row.token_start + row.token_len - 1))
}

/// Whether a vector can be sent: a model can overflow.
pub(crate) fn is_usable(vector: &[f32]) -> bool {
    vector.iter().all(|number| number.is_finite())
}

/// The result of a step in which these rows had no logits to sample from.
pub(crate) fn drawn_but(lost: Vec<usize>) -> Result<(), DeviceFault> {
    failing(lost, "the model produced no usable logits (not a number, or every token forbidden)")
}

fn failing(rows: Vec<usize>, message: &str) -> Result<(), DeviceFault> {
    if rows.is_empty() {
        return Ok(());
    }
    Err(DeviceFault { kind: DeviceFaultKind::Failed, message: message.to_owned(), rows: Some(rows) })
}

/// A row that requests log-probabilities of its prompt's tokens.
pub(crate) struct Asking<'a> {
    /// Its index in the batch.
    pub index: usize,
    pub row: &'a Row,
    pub prompt: &'a [u32],
    /// Index of its first token in the batch.
    pub first: usize,
    /// Positions whose logits predict prompt tokens: all but the last, which predicts the sampled token.
    pub positions: Range<usize>,
    /// Number of likely tokens to report for each.
    pub count: usize,
}

/// Rows of a batch that request log-probabilities of their prompts.
pub(crate) fn asking(batch: &Batch) -> impl Iterator<Item = Asking<'_>> {
    batch.rows.iter().enumerate().filter_map(|(index, row)| {
        let count = row.sampling.prompt_logprobs().filter(|_| row.generated == 0)? as usize;
        let prompt = batch.row_history(row);
        let (first, end) = ((row.context_len - row.token_len) as usize, row.context_len as usize);
        Some(Asking { index, row, prompt, first, positions: first..end.min(prompt.len() - 1), count })
    })
}
