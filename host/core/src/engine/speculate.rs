//! Speculation without a second model (prompt lookup decoding, Saxena 2023): the tokens that followed an
//! earlier occurrence of the last few tokens, in prompt or output, become draft tokens. They are computed
//! behind the token that is due, in the same row, and a token is sampled after each. Sampling is a function
//! of the preceding tokens alone, so as long as each draft token equals the sampled one, the next sampled
//! token is the one that the next step would have produced: the stream is the same with and without
//! speculation, greedy or sampled.
//!
//! Policies don't see it. Draft tokens use only tokens, samples and free blocks left over in a step, evenly
//! divided among its decodes, and return the blocks within it. None are drafted for rows whose sampling looks
//! at their history (penalties, constraints), that report probabilities, or that may not end yet.

use super::Engine;
use crate::ids::Micros;
use crate::request::SequenceState;
use crate::sequence::{SeqIx, Sequence};
use crate::verify::PlannedRow;

/// Shortest match; a shorter one predicts too little.
const SHORTEST_MATCH: usize = 2;
/// A longer match is no better sign.
const LONGEST_MATCH: usize = 4;
/// How far back is looked.
const LOOKBACK: usize = 8_192;

impl Engine {
    /// Adds draft tokens to the decodes of the step being made, as far as there is room for them.
    pub(super) fn guess(&mut self, now: Micros) {
        self.step.guesses.clear();
        if self.config.speculate == 0 {
            return;
        }
        let rows = &self.step.rows;
        let planned: u32 = rows.iter().map(|row| row.tokens).sum();
        let tokens = self.config.limits.max_batch_tokens.saturating_sub(planned);
        let mut left = tokens.min(self.config.max_samples.saturating_sub(rows.len() as u32));
        let mut sharers = rows.iter().filter(|row| may_guess(row, &self.slab[row.ix])).count() as u32;
        for at in 0..self.step.rows.len() {
            let row = &self.step.rows[at];
            let (ix, sequence) = (row.ix, &self.slab[row.ix]);
            if left == 0 || !may_guess(row, sequence) {
                continue;
            }
            // The first draft tokens of a sequence are the likeliest to be right.
            let share = left.div_ceil(sharers);
            sharers -= 1;
            let most =
                sequence.guesses.min(share).min(sequence.request.max_new_tokens - sequence.generated - 1);
            let first = self.step.guesses.len();
            look_up(&sequence.tokens, most as usize, &mut self.step.guesses);
            let (held, free) = (sequence.table.len() as u32, self.kv.blocks.free());
            let mut count = (self.step.guesses.len() - first) as u32;
            while count > 0 && self.kv.blocks_for(sequence.computed + 1 + count) > held + free {
                count -= 1;
            }
            self.step.guesses.truncate(first + count as usize);
            self.step.rows[at].guesses = count;
            left -= count;
            let sequence = &mut self.slab[ix];
            self.kv.grow(sequence, ix, sequence.computed + 1 + count, now);
            self.view.running.blocks[sequence.row as usize] = sequence.table.len() as u32;
        }
    }

    /// Accepts draft tokens up to the first that differs from the sampled one. `drawn` are the tokens sampled
    /// after each. Returns how many tokens that adds.
    pub(super) fn accept(
        &mut self,
        ix: SeqIx,
        guesses: &[u32],
        drawn: impl Iterator<Item = Option<u32>>,
        now: Micros,
    ) -> u64 {
        let (mut accepted, drafted) = (0, guesses.len() as u32);
        for (&guess, next) in guesses.iter().zip(drawn) {
            let goes_on = |s: &mut Sequence| s.is_running() && s.tokens.last() == Some(&guess);
            let Some(next) = next.filter(|_| self.slab.get_mut(ix).is_some_and(goes_on)) else { break };
            let sequence = &mut self.slab[ix];
            sequence.computed += 1;
            sequence.furthest = sequence.furthest.max(sequence.computed);
            self.kv.commit(&mut self.slab, ix, now);
            self.push_token(ix, next, None, now);
            accepted += 1;
        }
        self.counters.drafted_tokens += u64::from(drafted);
        self.counters.accepted_tokens += u64::from(accepted);
        let most = self.config.speculate;
        if let Some(sequence) = self.slab.get_mut(ix).filter(|s| s.is_running()) {
            sequence.guesses = match accepted {
                0 => (sequence.guesses / 2).max(1),
                _ if accepted == drafted => (sequence.guesses * 2).min(most),
                some => some.max(1),
            };
            self.view.running.computed_tokens[sequence.row as usize] = sequence.computed;
            self.return_guessed(ix, now);
        }
        u64::from(accepted)
    }

    /// Frees the blocks that only draft tokens needed.
    pub(super) fn return_guessed(&mut self, ix: SeqIx, now: Micros) {
        let sequence = &mut self.slab[ix];
        self.kv.shrink(sequence, ix, now);
        self.view.running.blocks[sequence.row as usize] = sequence.table.len() as u32;
    }
}

/// Whether sampling after a draft token gives what the next step would sample.
fn may_guess(row: &PlannedRow, sequence: &Sequence) -> bool {
    let sampling = &sequence.request.sampling;
    row.tokens == 1
        && sequence.state == SequenceState::Decode
        && sequence.remaining() == 1
        && !sampling.needs_host()
        && sequence.generated >= sequence.request.min_new_tokens
}

/// Appends to `out` up to `most` tokens that followed the latest occurrence of the longest match of the last
/// tokens. Repetitive text tends to go on repeating itself.
fn look_up(tokens: &[u32], most: usize, out: &mut Vec<u32>) {
    if tokens.len() <= SHORTEST_MATCH || most == 0 {
        return;
    }
    let same_at = |end: usize| {
        let back = tokens[..end].iter().rev().zip(tokens.iter().rev());
        back.take(LONGEST_MATCH).take_while(|(a, b)| a == b).count()
    };
    let mut best = (SHORTEST_MATCH - 1, 0);
    for end in (tokens.len().saturating_sub(LOOKBACK).max(SHORTEST_MATCH)..tokens.len()).rev() {
        let len = same_at(end);
        if len > best.0 {
            best = (len, end);
            if len == LONGEST_MATCH {
                break;
            }
        }
    }
    let (len, follows) = best;
    if len < SHORTEST_MATCH {
        return;
    }
    let first = out.len();
    for at in follows..follows + most {
        let token = tokens.get(at).copied().unwrap_or_else(|| out[first + at - tokens.len()]);
        out.push(token);
    }
}

#[cfg(test)]
mod tests {
    use super::look_up;

    fn guess(tokens: &[u32], most: usize) -> Vec<u32> {
        let mut out = vec![9];
        look_up(tokens, most, &mut out);
        out.split_off(1)
    }

    #[test]
    fn the_latest_occurrence_of_the_longest_match_is_followed() {
        assert_eq!(guess(&[1, 2, 3, 4, 5, 1, 2], 3), [3, 4, 5]);
        // The later match is shorter than the earlier one.
        assert_eq!(guess(&[7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 2), [3, 8]);
        assert_eq!(guess(&[1, 2, 3, 1, 2, 4, 1, 2], 1), [4]);
        assert_eq!(guess(&[1, 2, 3, 4, 5], 3), [0_u32; 0]);
        assert_eq!(guess(&[5, 1, 5], 3), [0_u32; 0]);
        assert_eq!(guess(&[1, 2, 1, 2], 0), [0_u32; 0]);
        assert_eq!(guess(&[], 3), [0_u32; 0]);
    }

    #[test]
    fn a_repetition_continues_beyond_the_end() {
        assert_eq!(guess(&[4, 4, 4], 4), [4, 4, 4, 4]);
        assert_eq!(guess(&[1, 2, 3, 1, 2, 3], 7), [1, 2, 3, 1, 2, 3, 1]);
    }
}
