//! Sampling on the device, unless a row needs something that only the host can do (a constraint, log-probabilities). Then
//! only that row's logits are copied to the host and go through the CPU's sampler.

use infer_core::{Batch, Row};
use infer_kernels::cuda::{NONE, SampleRow};

use super::layout::{ROW_WORDS, StepLayout};
use crate::sampler::uniform;

/// Whether the device can sample this row.
pub(super) fn on_device(row: &Row) -> bool {
    row.sampling.extras.as_ref().is_none_or(|extras| extras.constraint.is_none() && extras.logprobs.is_none())
}

/// Lists of tokens that grow while a step is built.
pub(super) struct Lists {
    start: usize,
    used: usize,
    room: usize,
}

impl Lists {
    pub(super) fn new(layout: &StepLayout) -> Self {
        Self { start: layout.lists, used: 0, room: layout.list_words() }
    }

    /// Words in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    fn add(&mut self, words: &mut [u32], list: impl ExactSizeIterator<Item = u32>) -> (u32, u32) {
        let (start, len) = (self.used, list.len());
        for (to, word) in words[self.start + start..].iter_mut().zip(list) {
            *to = word;
        }
        self.used += len;
        (start as u32, len as u32)
    }
}

/// Writes sample `index` of the step, from logits row `logits`: the row's due token, or the one after its `nth` draft token.
/// Returns `false`, writing nothing, if its lists don't fit.
pub(super) fn write(
    words: &mut [u32],
    layout: &StepLayout,
    lists: &mut Lists,
    batch: &Batch,
    (row, nth): (&Row, u32),
    [index, logits]: [usize; 2],
) -> bool {
    let params = &row.sampling;
    let history = batch.row_history(row);
    let output = &history[history.len().saturating_sub(row.generated as usize)..];
    let seen = if params.repetition_penalty == 1.0 { &[] } else { history };
    let forbidden = batch.row_forbidden(row);
    let bias: &[(u32, f32)] = params.extras.as_ref().map_or(&[], |extras| &extras.logit_bias);
    let less = discouraged(output, params.frequency_penalty, params.presence_penalty);
    let wanted = seen.len() + forbidden.len() + 2 * (bias.len() + less.len());
    if lists.used + wanted > lists.room {
        return false;
    }
    let (history_start, history_len) = lists.add(words, seen.iter().copied());
    let (forbidden_start, forbidden_len) = lists.add(words, forbidden.iter().copied());
    let (bias_start, bias_words) = lists.add(words, pairs(&total(bias)).into_iter());
    let (less_start, less_words) = lists.add(words, pairs(&less).into_iter());
    let draw = SampleRow {
        row: logits as u32,
        history_start,
        history_len,
        forbidden_start,
        forbidden_len,
        bias_start,
        bias_len: bias_words / 2,
        less_start,
        less_len: less_words / 2,
        top_k: params.top_k,
        temperature: params.temperature,
        top_p: params.top_p,
        min_p: params.min_p,
        penalty: params.repetition_penalty,
        uniform: uniform(params.seed, row.generated + nth) as f32,
    };
    place(words, layout, index, &draw);
    true
}

/// Writes a sample that does nothing.
pub(super) fn write_nothing(words: &mut [u32], layout: &StepLayout, index: usize) {
    place(words, layout, index, &SampleRow::NOTHING);
}

fn place(words: &mut [u32], layout: &StepLayout, index: usize, draw: &SampleRow) {
    let to = &mut words[layout.rows + index * ROW_WORDS..][..ROW_WORDS];
    for (to, bytes) in to.iter_mut().zip(draw.as_bytes().chunks_exact(4)) {
        *to = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
}

/// Each token of the output, and how much the frequency and presence penalties lower its logit.
#[allow(clippy::float_cmp, reason = "0 is the exact value that turns the penalties off")]
fn discouraged(output: &[u32], frequency: f32, presence: f32) -> Vec<(u32, f32)> {
    if frequency == 0.0 && presence == 0.0 {
        return Vec::new();
    }
    let mut sorted = output.to_vec();
    sorted.sort_unstable();
    sorted.chunk_by(|a, b| a == b).map(|same| (same[0], frequency * same.len() as f32 + presence)).collect()
}

/// Sums biases to one entry per token, since the device adds them in no particular order.
fn total(bias: &[(u32, f32)]) -> Vec<(u32, f32)> {
    let mut sorted = bias.to_vec();
    sorted.sort_by_key(|(token, _)| *token);
    sorted
        .chunk_by(|a, b| a.0 == b.0)
        .map(|same| (same[0].0, same.iter().map(|(_, bias)| bias).sum()))
        .collect()
}

fn pairs(list: &[(u32, f32)]) -> Vec<u32> {
    list.iter().flat_map(|(token, number)| [*token, number.to_bits()]).collect()
}

/// The token that the device sampled.
pub(super) fn drawn(token: u32) -> Option<u32> {
    (token != NONE).then_some(token)
}
