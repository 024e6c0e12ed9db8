//! Speculation without a second model (prompt lookup decoding, Saxena 2023): what followed the last few tokens
//! where they stood before, in prompt or output, is guessed to follow again. The guesses are computed behind the
//! token that is due, in the same row, and a token is drawn after each. Draws are a function of what came before
//! them alone, so as long as each guess is what was drawn, the next draw is the one that the next step would have
//! made: the stream is the same with and without guesses, greedy or sampled.
//!
//! Policies see nothing of it. Guesses take only what a step leaves over, tokens and free blocks, and blocks
//! that they needed are given back in the same step. Not guessed for: rows whose draws look at their history
//! (penalties, constraints), report probabilities, or may not end yet.

use super::Engine;
use crate::batch::Row;
use crate::ids::Micros;
use crate::request::SequenceState;
use crate::sequence::{SeqIx, Sequence};

/// Tokens that must have stood together before; fewer say too little.
const SHORTEST_MATCH: usize = 2;
/// A longer match is no better sign.
const LONGEST_MATCH: usize = 4;
/// How far back is looked.
const LOOKBACK: usize = 8_192;

impl Engine {
    /// Adds guesses to the decodes of the step being made, as far as tokens and free blocks are left.
    pub(super) fn guess(&mut self, now: Micros) {
        self.guesses.clear();
        if self.config.speculate == 0 {
            return;
        }
        let planned: u32 = self.rows.iter().map(|row| row.tokens).sum();
        let mut left = self.config.limits.max_batch_tokens.saturating_sub(planned);
        for at in 0..self.rows.len() {
            let ix = self.rows[at].ix;
            let sequence = &self.slab[ix];
            if left == 0 || self.rows[at].tokens != 1 || !may_guess(sequence) {
                continue;
            }
            let most =
                sequence.guesses.min(left).min(sequence.request.max_new_tokens - sequence.generated - 1);
            let first = self.guesses.len();
            look_up(&sequence.tokens, most as usize, &mut self.guesses);
            let (held, free) = (sequence.table.len() as u32, self.kv.blocks.free());
            let mut count = (self.guesses.len() - first) as u32;
            while count > 0 && self.kv.blocks_for(sequence.computed + 1 + count) > held + free {
                count -= 1;
            }
            self.guesses.truncate(first + count as usize);
            self.rows[at].guesses = count;
            left -= count;
            let sequence = &mut self.slab[ix];
            self.kv.grow(sequence, ix, sequence.computed + 1 + count, now);
            self.view.running.blocks[sequence.row as usize] = sequence.table.len() as u32;
        }
    }

    /// Keeps guesses as long as they are what was drawn. `drawn` are the tokens drawn after each. Returns how many
    /// tokens that made.
    pub(super) fn accept(
        &mut self,
        ix: SeqIx,
        row: &Row,
        guesses: &[u32],
        drawn: impl Iterator<Item = Option<u32>>,
        now: Micros,
    ) -> u64 {
        let mut accepted = 0;
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
        self.counters.drafted_tokens += u64::from(row.guesses);
        self.counters.accepted_tokens += u64::from(accepted);
        let most = self.config.speculate;
        if let Some(sequence) = self.slab.get_mut(ix).filter(|s| s.is_running()) {
            sequence.guesses = match accepted {
                0 => (sequence.guesses / 2).max(1),
                _ if accepted == row.guesses => (sequence.guesses * 2).min(most),
                some => some.max(1),
            };
            self.view.running.computed_tokens[sequence.row as usize] = sequence.computed;
            self.return_guessed(ix, now);
        }
        u64::from(accepted)
    }

    /// Gives back the blocks that only guesses needed.
    pub(super) fn return_guessed(&mut self, ix: SeqIx, now: Micros) {
        let sequence = &mut self.slab[ix];
        self.kv.shrink(sequence, ix, now);
        self.view.running.blocks[sequence.row as usize] = sequence.table.len() as u32;
    }
}

/// Whether a draw after a guess is the draw that the next step would make.
fn may_guess(sequence: &Sequence) -> bool {
    let sampling = &sequence.request.sampling;
    sequence.state == SequenceState::Decode
        && sequence.remaining() == 1
        && !sampling.needs_host()
        && sequence.generated >= sequence.request.min_new_tokens
}

/// Appends to `out` up to `most` tokens that followed the last ones where they stood before: at the latest place
/// of the longest match. What repeats itself goes on repeating itself.
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
    fn the_latest_place_of_the_longest_match_is_followed() {
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
    fn what_repeats_itself_goes_on_beyond_the_end() {
        assert_eq!(guess(&[4, 4, 4], 4), [4, 4, 4, 4]);
        assert_eq!(guess(&[1, 2, 3, 1, 2, 3], 7), [1, 2, 3, 1, 2, 3, 1]);
    }
}
