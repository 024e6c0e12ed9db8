//! Planning ahead: the batch behind the one that is out, so that a device never waits for the host.
//!
//! Policies are shown what will be when that batch is done, as far as it is certain: what it computes is computed
//! and what it draws is drawn, though nobody knows yet which tokens. Everything else stays as it is until it comes
//! back. A sequence whose last token is being drawn keeps its place and its blocks until then, and so it keeps its
//! row, with nothing left to compute.
//!
//! What could not be known is found when the first batch comes back: a row of somebody who has ended is computed
//! for nothing, and its blocks return with it; behind a batch that was lost everything is lost, and tried again.
//! Deliberately absent: undoing. What would have to be undone is not planned ahead.

use super::Engine;
use crate::ids::Micros;

impl Engine {
    /// Whether the next batch can be made while one is out. Not where the host has a part in what that one draws,
    /// nor beside guesses, which are made at tokens that are known.
    pub(super) fn may_plan_ahead(&self) -> bool {
        assert!(
            self.config.plan_ahead && self.flights.len() == 1,
            "finish_step takes the last batch back first"
        );
        let out = &self.flights[0];
        self.config.speculate == 0 && !out.needs_host && !out.void
    }

    /// Fills `rows` with what runs behind the batch that is out. Where the plan takes blocks from anybody that batch
    /// has to come back first: the device may write to them.
    pub(super) fn plan_ahead(&mut self, now: Micros) {
        self.show_flight(true);
        let plan = self.ask_scheduler(now);
        self.show_flight(false);
        if plan.preempt().is_empty() {
            self.carry_out(plan, now);
        } else {
            self.verifier.give_back(plan);
        }
    }

    /// Lets the view say what the batch that is out will have done, or what is.
    fn show_flight(&mut self, done: bool) {
        let (running, tenants) = (&mut self.view.running, &mut self.view.tenants);
        for row in &self.flights[0].rows {
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
