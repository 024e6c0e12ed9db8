//! Flattens a step's rows into a batch, in the buffers of one that came back.

use super::Engine;
use crate::batch::{Batch, Row};
use crate::ids::Micros;
use crate::sequence::{SeqIx, Sequence};
use crate::verify::PlannedRow;
use crate::watchdog::Mark;

impl Engine {
    pub(super) fn compose(&mut self, now: Micros) -> Batch {
        let mut batch = self.flights.begin(Mark { at: now, step: self.view.number });
        let mut guessed = 0;
        let mut needs_host = false;
        for at in 0..self.step.rows.len() {
            let PlannedRow { ix, tokens, guesses, .. } = self.step.rows[at];
            self.compose_row(&mut batch, ix, tokens, now);
            needs_host |= batch.rows[at].sampling.needs_host();
            if guesses > 0 {
                self.compose_guesses(&mut batch, ix, guessed..guessed + guesses as usize);
                guessed += guesses as usize;
            }
        }
        self.kv.take_copies(&mut batch.offload);
        self.count_copies(&batch.offload);
        self.flights.launch(std::mem::take(&mut self.step.rows), needs_host, batch.offload.clone());
        batch
    }

    fn compose_row(&mut self, batch: &mut Batch, ix: SeqIx, tokens: u32, now: Micros) {
        let sequence = &self.slab[ix];
        // The first row of the batch in flight that reads them.
        let logits_from = sequence.logits_from.filter(|_| sequence.out == 0);
        if logits_from.is_some()
            && let Some(copy) = self.kv.copy_for(sequence)
        {
            batch.copies.push(copy);
            self.kv.unpin_source(&self.slab[ix]);
        }
        let sequence = &self.slab[ix];
        let sample = tokens == sequence.remaining();
        let fills_prompt = sample && sequence.drawn() == 0 && logits_from.is_none();
        let logits_to = if fills_prompt { self.kv.reserve_logits(sequence, now) } else { None };
        let mut row = Row {
            sequence: sequence.id,
            adapter: sequence.request.adapter,
            token_start: batch.tokens.len() as u32,
            token_len: tokens,
            context_len: sequence.reached() + tokens,
            input_from: (sequence.drawing > 0).then_some(sequence.out_row),
            table_start: batch.block_tables.len() as u32,
            table_len: sequence.table.len() as u32,
            sample,
            guesses: 0,
            generated: sequence.drawn(),
            sampling: sequence.request.sampling.clone(),
            history_start: batch.history.len() as u32,
            history_len: 0,
            forbidden_start: batch.forbidden.len() as u32,
            forbidden_len: 0,
            logits_to,
            logits_from,
        };
        push_inputs(batch, sequence, tokens, self.config.block_size);
        let asks_about_prompt = sequence.drawn() == 0 && row.sampling.prompt_logprobs().is_some();
        if asks_about_prompt || (sample && row.sampling.needs_history()) {
            batch.history.extend_from_slice(&sequence.tokens);
            row.history_len = sequence.tokens.len() as u32;
        }
        if sample && sequence.drawn() < sequence.request.min_new_tokens {
            batch.forbidden.extend_from_slice(&sequence.request.stop_tokens);
            row.forbidden_len = sequence.request.stop_tokens.len() as u32;
        }
        let sequence = &mut self.slab[ix];
        sequence.logits_to = logits_to.or(sequence.logits_to);
        sequence.out += 1;
        sequence.out_row = batch.rows.len() as u32;
        sequence.computing += tokens;
        sequence.drawing += u32::from(sample);
        batch.rows.push(row);
    }
}

impl Engine {
    /// Adds draft tokens behind the last row's only token.
    fn compose_guesses(&self, batch: &mut Batch, ix: SeqIx, guesses: std::ops::Range<usize>) {
        let (sequence, block_size) = (&self.slab[ix], self.config.block_size);
        for (at, &guess) in (sequence.computed + 1..).zip(&self.step.guesses[guesses.clone()]) {
            batch.tokens.push(guess);
            batch.positions.push(at);
            batch.slots.push(sequence.table[(at / block_size) as usize].0 * block_size + at % block_size);
        }
        let row = batch.rows.last_mut().expect("it was just made");
        debug_assert!(row.sample && row.token_len == 1);
        row.guesses = guesses.len() as u32;
        row.token_len += row.guesses;
        row.context_len += row.guesses;
    }
}

fn push_inputs(batch: &mut Batch, sequence: &Sequence, tokens: u32, block_size: u32) {
    let (from, to) = (sequence.reached(), sequence.reached() + tokens);
    match sequence.drawing {
        0 => batch.tokens.extend_from_slice(&sequence.tokens[from as usize..to as usize]),
        _ => batch.tokens.push(0),
    }
    if tokens == 1 {
        // A decode, as most rows are: making ranges would cost more than they copy.
        batch.positions.push(from);
        batch.slots.push(sequence.table[(from / block_size) as usize].0 * block_size + from % block_size);
        batch.block_tables.extend_from_slice(&sequence.table);
        return;
    }
    batch.positions.extend(from..to);
    batch.slots.extend(
        (from..to).map(|at| sequence.table[(at / block_size) as usize].0 * block_size + at % block_size),
    );
    batch.block_tables.extend_from_slice(&sequence.table);
}
