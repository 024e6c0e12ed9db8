//! `finish_step`: sequences advance, blocks are committed, finished sequences end.

use super::Engine;
use super::flight::InFlight;
use crate::batch::{Batch, Row};
use crate::event::{Event, FailureCause};
use crate::executor::{DeviceFault, DeviceFaultKind, StepOutput, TokenLogprobs};
use crate::ids::Micros;
use crate::perf::{self, StepLoad};
use crate::request::{FinishReason, SequenceState};
use crate::sequence::SeqIx;
use crate::verify::PlannedRow;
use crate::watchdog::Mark;

/// Blocks that the invariants' check of a debug build may look at per step, on average.
const CHECKED_BLOCKS_PER_STEP: u64 = 4_096;

impl Engine {
    /// Takes the result of the batch that has been in flight longest.
    pub fn finish_step(&mut self, batch: Batch, result: Result<&StepOutput, DeviceFault>, now: Micros) {
        let now = self.tick(now);
        let mut flight = self.flights.take_oldest(&batch, now);
        self.view.last_step = now.since(flight.since);
        self.land(&flight, &batch);
        (self.view.last_prefill_tokens, self.view.last_decodes) = (0, 0);
        let result = match result {
            Ok(output) if output.sampled.len() != batch.rows.len() => Err(DeviceFault {
                kind: DeviceFaultKind::Failed,
                message: format!("the device answered {} of {} rows", output.sampled.len(), batch.rows.len()),
                rows: None,
            }),
            other => other,
        };
        match result {
            // Its input was missing because the batch before it was lost: no row is at fault, and none fails.
            _ if flight.void => self.lose(&flight, &batch, None, now),
            Ok(output) => self.advance(&flight, &batch, output, now),
            Err(fault) => {
                let mut copies = std::mem::take(&mut flight.copies);
                copies.append(&mut self.flights.void_next());
                // They may read what these should have written.
                self.kv.take_copies(&mut copies);
                self.lose_copies(&copies, fault.kind, now);
                self.lose(&flight, &batch, Some(&fault), now);
            }
        }
        self.kv.end_reading();
        for ix in std::mem::take(&mut self.flights.lingering) {
            if self.slab[ix].out > 0 {
                self.flights.lingering.push(ix);
            } else {
                self.bury(ix, now);
            }
        }
        self.remove_running(now);
        self.note_load(now);
        self.flush_cache_events(now);
        self.flights.spare.push(batch);
        flight.rows.clear();
        self.step.rows = flight.rows;
        // Each step if that is cheap; with a large pool only so often that it stays cheap.
        let every = 1 + u64::from(self.config.total_blocks) / CHECKED_BLOCKS_PER_STEP;
        if cfg!(debug_assertions) && flight.begun.step.is_multiple_of(every) {
            self.check_invariants();
        }
    }

    /// Its rows are no longer in flight, whatever the result.
    fn land(&mut self, flight: &InFlight, batch: &Batch) {
        for (planned, row) in flight.rows.iter().zip(&batch.rows) {
            let sequence = &mut self.slab[planned.ix];
            sequence.out -= 1;
            sequence.computing -= planned.tokens;
            sequence.drawing -= u32::from(row.sample);
        }
    }

    fn advance(&mut self, flight: &InFlight, batch: &Batch, output: &StepOutput, now: Micros) {
        let (mut prefilled, mut drawn) = (0, 0);
        let mut decodes = 0;
        let computed_before = self.counters.computed_tokens;
        let mut logprobs = output.logprobs.iter().peekable();
        let mut after_guesses = output.after_guesses.iter().peekable();
        let mut prompts = output.prompt_logprobs.iter().peekable();
        let mut embeddings = output.embeddings.iter().peekable();
        for (at, (row, &sampled)) in batch.rows.iter().zip(&output.sampled).enumerate() {
            let logprobs = logprobs.next_if(|(of, _)| *of == at).map(|(_, of)| of);
            let prompt = prompts.next_if(|(of, _)| *of == at).map(|(_, of)| of);
            let vector = embeddings.next_if(|(of, _)| *of == at).map(|(_, of)| &of[..]);
            let drawn_after: Vec<Option<u32>> =
                std::iter::from_fn(|| after_guesses.next_if(|(of, _)| *of == at))
                    .map(|&(_, token)| token)
                    .collect();
            let ix = flight.rows[at].ix;
            self.counters.computed_tokens += u64::from(row.token_len);
            if self.slab[ix].has_ended() {
                continue;
            }
            if let Some(prompt) = prompt {
                self.tell_prompt(ix, row, prompt);
            }
            let prefill = self.advance_row(ix, row, flight.begun, now);
            prefilled += u64::from(prefill);
            decodes += u32::from(prefill == 0);
            if row.sample && row.sampling.embeds() {
                self.tell_embedding(ix, vector, now);
            } else if row.sample {
                drawn += 1;
                match sampled {
                    Some(token) => {
                        self.push_token(ix, token, logprobs, now);
                        if row.guesses > 0 {
                            let guesses = batch.row_guesses(row);
                            drawn += self.accept(ix, guesses, drawn_after.into_iter(), now);
                        }
                    }
                    None => self.fail(
                        ix,
                        FailureCause::Device,
                        "the device sampled no token although one was due".into(),
                        now,
                    ),
                }
            }
        }
        self.view.last_prefill_tokens = u32::try_from(prefilled).unwrap_or(u32::MAX);
        self.view.last_decodes = decodes;
        self.demand.rates.add(now, self.view.last_step, prefilled, drawn);
        let load = StepLoad {
            running: self.rows.running.ix.len() as u32,
            waiting: self.waiting_in_all(),
            prefill: prefilled,
            drawn,
            computed: self.counters.computed_tokens - computed_before,
        };
        self.perf.step(now, load);
    }

    /// The row's keys and values are in the pool, except those of its draft tokens. Returns how many were
    /// prefill.
    fn advance_row(&mut self, ix: SeqIx, row: &Row, begun: Mark, now: Micros) -> u32 {
        let sequence = &mut self.slab[ix];
        // Draft tokens are checked once tokens are sampled.
        let tokens = row.token_len - row.guesses;
        let prefill = if sequence.state == SequenceState::Prefill { tokens } else { 0 };
        sequence.computed += tokens;
        if sequence.computed > sequence.furthest || row.sample {
            sequence.furthest = sequence.furthest.max(sequence.computed);
            self.watchdog.advanced(begun);
        }
        sequence.usage.prefilled_tokens += prefill;
        sequence.logits_from = None;
        if prefill > 0 {
            self.view.tenants.prompt_tokens_served[sequence.tenant_row as usize] += u64::from(prefill);
        }
        self.kv.commit(&mut self.slab, ix, now);
        if let Some(slot) = row.logits_to {
            self.slab[ix].logits_to = None;
            self.kv.keep_prompt(&mut self.slab, ix, slot, now);
        } else if row.sample {
            // It is in the pool, but there was no slot for its logits: waiting for more is pointless.
            self.kv.withdraw_prompt(&mut self.slab, ix);
        }
        let sequence = &mut self.slab[ix];
        self.view.running.computed_tokens[sequence.row as usize] = sequence.computed;
        if row.sample {
            sequence.state = SequenceState::Decode;
        }
        prefill
    }

    /// A prompt that is computed again after a preemption isn't reported twice.
    fn tell_prompt(&mut self, ix: SeqIx, row: &Row, logprobs: &[TokenLogprobs]) {
        let sequence = &self.slab[ix];
        let first = row.context_len - row.token_len;
        let told = sequence.furthest.saturating_sub(first) as usize;
        if let Some(new) = logprobs.get(told..).filter(|new| !new.is_empty()) {
            self.outbox.events.push(Event::Prompt { id: sequence.id, logprobs: new.to_vec() });
        }
    }

    /// A sequence that embeds ends with its vector.
    fn tell_embedding(&mut self, ix: SeqIx, vector: Option<&[f32]>, now: Micros) {
        let Some(vector) = vector else {
            let message = "the device computed no usable vector";
            return self.fail(ix, FailureCause::Device, message.into(), now);
        };
        let sequence = &mut self.slab[ix];
        sequence.usage.first_token = now;
        self.perf.first_token(now.since(sequence.usage.arrived));
        self.outbox.events.push(Event::Embedding { id: sequence.id, vector: vector.to_vec() });
        self.complete(ix, FinishReason::Stop, now);
    }

    pub(super) fn push_token(
        &mut self,
        ix: SeqIx,
        token: u32,
        logprobs: Option<&TokenLogprobs>,
        now: Micros,
    ) {
        let sequence = &mut self.slab[ix];
        sequence.tokens.push(token);
        sequence.generated += 1;
        if sequence.generated == 1 {
            sequence.usage.first_token = now;
            self.perf.first_token(now.since(sequence.usage.arrived));
        } else {
            self.perf.token(sequence.drawn_at, now);
        }
        sequence.drawn_at = perf::short(now);
        let row = sequence.row as usize;
        self.view.running.generated_tokens[row] = sequence.generated;
        if let Some(longer) = self.demand.drew(sequence) {
            self.view.running.expected_tokens[row] = longer;
        }
        self.view.tenants.output_tokens_served[sequence.tenant_row as usize] += 1;
        self.counters.generated_tokens += 1;
        let logprobs = logprobs.map(|of| Box::new(of.clone()));
        self.outbox.events.push(Event::Token { id: sequence.id, token, logprobs });
        let reason = if sequence.request.stop_tokens.contains(&token) {
            FinishReason::Eos
        } else if sequence.generated == sequence.request.max_new_tokens {
            FinishReason::Length
        } else {
            return;
        };
        self.complete(ix, reason, now);
    }

    /// The device computed nothing: the rows that it names fail, the others are retried.
    fn lose(&mut self, flight: &InFlight, batch: &Batch, fault: Option<&DeviceFault>, now: Micros) {
        for (at, &PlannedRow { ix, guesses, .. }) in flight.rows.iter().enumerate() {
            let sequence = &mut self.slab[ix];
            if let Some(slot) = batch.rows[at].logits_to {
                sequence.logits_to = None;
                self.kv.cancel_logits(slot);
            }
            if sequence.has_ended() {
                continue;
            }
            let fails = |fault: &&DeviceFault| fault.rows.as_ref().is_none_or(|rows| rows.contains(&at));
            if let Some(fault) = fault.filter(fails) {
                self.fail(ix, FailureCause::Device, fault.message.clone(), now);
            } else if sequence.logits_from.is_some() {
                // Its copy wasn't made, and the source may be gone by the next step. A batch behind this one
                // is lost too, and releases it then.
                if sequence.out == 0 {
                    self.back_to_queue(ix, now);
                }
            } else if guesses > 0 {
                self.return_guessed(ix, now);
            }
        }
        self.restart_robbed(now);
    }
}
