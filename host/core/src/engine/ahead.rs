//! Planning ahead: making the next batch while one is in flight, so that a device never waits for the host.
//!
//! Policies are shown the state after the batch in flight, as far as it is certain: what it computes counts
//! as computed and what it samples as sampled, although the tokens are not known yet. Everything else stays
//! as it is until the batch returns. A sequence whose last token is being sampled keeps its slot and its
//! blocks until then, and so it keeps its row, with nothing left to compute.
//!
//! What was uncertain is settled when the first batch returns: a row of a sequence that has ended was
//! computed for nothing, and its blocks are freed with it; if a batch is lost, the one behind it is lost too,
//! and both are retried. Deliberately absent: undoing. What might have to be undone is not planned ahead.

use super::Engine;
use crate::ids::Micros;

impl Engine {
    /// Whether the next batch can be made while one is in flight. It can't if the host takes part in that
    /// one's sampling, nor with draft tokens, which need the tokens before them to be known.
    pub(super) fn may_plan_ahead(&self) -> bool {
        assert!(
            self.config.plan_ahead && self.flights.out.len() == 1,
            "finish_step must take the last batch first"
        );
        let out = &self.flights.out[0];
        self.config.speculate == 0 && !out.needs_host && !out.void
    }

    /// Fills `rows` with the batch behind the one in flight. If the plan takes blocks from any sequence, the
    /// batch in flight has to return first, because the device may write to them.
    pub(super) fn plan_ahead(&mut self, now: Micros) {
        self.show_flight(true);
        let plan = self.ask_scheduler(now);
        self.show_flight(false);
        if plan.preempt().is_empty() {
            self.carry_out(plan, now);
        } else {
            self.step.verifier.give_back(plan);
        }
    }

    /// Makes the view show the state after the batch in flight, or the current one.
    fn show_flight(&mut self, done: bool) {
        let (running, tenants) = (&mut self.view.running, &mut self.view.tenants);
        for row in &self.flights.out[0].rows {
            let sequence = &self.slab[row.ix];
            if !sequence.is_running() {
                continue;
            }
            let generated = match done && !sequence.is_ending() {
                true => sequence.drawn(),
                false => sequence.generated,
            };
            let at = sequence.row as usize;
            running.computed_tokens[at] = if done { sequence.reached() } else { sequence.computed };
            running.generated_tokens[at] = generated;
            running.expected_tokens[at] = sequence.expected_at(generated);
            let prefill = u64::from(sequence.prefilling());
            let served = [
                (&mut tenants.prompt_tokens_served, prefill),
                (&mut tenants.output_tokens_served, u64::from(sequence.drawing)),
            ];
            for (column, tokens) in served {
                let cell = &mut column[sequence.tenant_row as usize];
                *cell = if done { *cell + tokens } else { *cell - tokens };
            }
        }
    }
}
