//! `begin_step`: view, plan, verification, reservation, batch.

use std::sync::Arc;

use super::Engine;
use super::decisions::Decisions;
use crate::batch::Batch;
use crate::event::FailureCause;
use crate::ids::Micros;
use crate::policy::{
    Answer, FaultKind, FaultView, Plan, PolicyFault, PolicyInfo, PolicyKind, SchedulerPolicy, StepView,
};
use crate::sequence::SeqIx;
use crate::verify::{PlannedRow, VerifiedPlan, Verifier};
use crate::watchdog::Mark;

/// The step being made, from its plan to its batch, in buffers that all steps share.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub verifier: Verifier,
    /// For plans that are not carried out.
    pub shadow_verifier: Verifier,
    /// Blocks that could be allocated before the plan took any.
    pub available_before: u32,
    /// Its rows, as far as they fit in memory.
    pub rows: Vec<PlannedRow>,
    /// Draft tokens of those rows, row after row.
    pub guesses: Vec<u32>,
}

impl Engine {
    /// Plans the next step. `None` if nothing can run now; see `next_wake`. At most one batch is in flight at
    /// a time, until `finish_step`; with `EngineConfig::plan_ahead` a second one can be planned behind it,
    /// and `None` then means that the first must return first.
    pub fn begin_step(&mut self, now: Micros) -> Option<Batch> {
        let ahead = !self.flights.out.is_empty();
        if ahead && !self.may_plan_ahead() {
            return None;
        }
        let now = self.tick(now);
        self.policies.begin_step();
        self.judge_canaries(now);
        self.kv.expire(now);
        self.reask_held(now);
        self.judge_admission(now);
        self.refresh_hits(now);
        if self.rows.is_empty() {
            self.wake = Micros::NEVER;
            self.watchdog.progressed();
            self.watchdog.advanced(Mark { at: now, step: self.view.number });
            self.rest(now);
            return None;
        }
        self.bring_in(now);
        self.judge_neglect(now);
        match ahead {
            true => self.plan_ahead(now),
            false => self.plan_and_reserve(now),
        }
        if self.step.rows.is_empty() {
            self.rest(now);
            return None;
        }
        self.watchdog.progressed();
        self.start_planned(now);
        self.guess(now);
        let batch = self.compose(now);
        self.view.number += 1;
        self.counters.steps += 1;
        Some(batch)
    }

    /// Nothing runs in this step, and possibly nothing is left to run.
    fn rest(&mut self, now: Micros) {
        self.flush_cache_events(now);
        self.note_load(now);
    }

    /// Fills `rows` with this step's plan, or with the built-in's if the policy's leads nowhere.
    fn plan_and_reserve(&mut self, now: Micros) {
        let plan = self.ask_scheduler(now);
        let wanted = !plan.rows().is_empty();
        let preempted = self.carry_out(plan, now);
        if !self.step.rows.is_empty() {
            return;
        }
        let stuck = wanted || self.judge_stall(now);
        if stuck {
            // Nothing of the plan fits in memory, or the scheduler was just removed for doing nothing: the
            // built-in counts blocks, preempts, and gets something to run.
            self.ask_builtin_until_it_runs(now);
            self.unblock(now);
        } else if preempted {
            // There is more room than the plan could know of.
            self.wake = now;
        }
    }

    /// Carries a plan out and notes its wake. True if it preempts.
    pub(super) fn carry_out(&mut self, plan: VerifiedPlan, now: Micros) -> bool {
        self.wake = plan.wake();
        let preempts = !plan.preempt().is_empty();
        self.apply(plan, now);
        preempts
    }

    /// Blocks that several sequences shared are free once all of them were preempted, which no view shows
    /// beforehand: after a plan that only preempts, the next one finds room.
    fn ask_builtin_until_it_runs(&mut self, now: Micros) {
        loop {
            let plan = self.ask_builtin_scheduler(now);
            if !self.carry_out(plan, now) || !self.step.rows.is_empty() {
                return;
            }
        }
    }

    fn apply(&mut self, plan: VerifiedPlan, now: Micros) {
        for &ix in plan.preempt() {
            self.preempt(ix, now);
        }
        self.remove_running(now);
        self.reserve(&plan, now);
        self.step.verifier.give_back(plan);
    }

    pub(super) fn ask_scheduler(&mut self, now: Micros) -> VerifiedPlan {
        self.show(now);
        self.policies.save_states(&mut self.outbox.context(self.view.number, now));
        self.note_state(PolicyKind::Scheduler, now);
        let mut cx = self.outbox.context(self.view.number, now);
        let (view, verifier, decisions) = (&self.view, &mut self.step.verifier, &mut self.decisions);
        let (slab, kv) = (&self.slab, &self.kv);
        self.policies.scheduler.ask(
            &mut cx,
            |p| {
                let plan = p.schedule(view)?;
                note_plan(decisions, p.info(), view, &plan);
                verifier.verify(&plan, view, slab, kv)
            },
            || FaultView::Schedule(Box::new(view.clone())),
        );
        let plan = self.step.verifier.take();
        self.shadow_schedule(&plan, now);
        plan
    }

    fn ask_builtin_scheduler(&mut self, now: Micros) -> VerifiedPlan {
        self.show(now);
        let (view, verifier, decisions) = (&self.view, &mut self.step.verifier, &mut self.decisions);
        let (slab, kv) = (&self.slab, &self.kv);
        let question = |p: &mut (dyn SchedulerPolicy + 'static)| {
            let plan = p.schedule(view)?;
            note_plan(decisions, p.info(), view, &plan);
            verifier.verify(&plan, view, slab, kv)
        };
        self.policies.scheduler.ask_builtin(question);
        self.step.verifier.take()
    }

    /// Brings everything into the view that isn't kept in columns.
    fn show(&mut self, now: Micros) {
        self.kv.settle(&mut self.slab);
        // A hit that shrank is in the view at once: a plan is checked against what it was shown.
        while let Some(ix) = self.kv.next_shrunk(&mut self.slab) {
            self.refresh_waiting(ix);
        }
        self.refresh_shared();
        self.view.now = now;
        self.view.memory = self.kv.blocks.memory();
    }

    /// The last resort if even the built-in's plan doesn't fit, which its arithmetic should rule out:
    /// preempts the latest to start, one after another. A sequence that is alone and still can't grow fails.
    fn unblock(&mut self, now: Micros) {
        while self.step.rows.is_empty() && self.rows.running.ix.len() > 1 && !self.would_fit_any() {
            let last = *self.rows.running.ix.last().expect("more than one runs");
            self.preempt(last, now);
            self.remove_running(now);
            self.ask_builtin_until_it_runs(now);
        }
        if let [alone] = self.rows.running.ix[..]
            && self.step.rows.is_empty()
            && !self.would_fit_any()
        {
            let message = "the sequence needs more KV blocks than the pool has".to_owned();
            self.fail(alone, FailureCause::Memory, message, now);
            self.remove_running(now);
        }
    }

    /// Handles a plan that runs nothing. `true` if that has lasted too long and the scheduler was removed for
    /// it. Full memory is no excuse: a running sequence can be preempted.
    fn judge_stall(&mut self, now: Micros) -> bool {
        let Some(stalled) = self.watchdog.stalled(now, self.wake) else { return false };
        self.watchdog.progressed();
        let message = format!("nothing ran for {} ms though something could", stalled.0 / 1_000);
        self.starvation(message, now);
        true
    }

    pub(super) fn starvation(&mut self, message: String, now: Micros) {
        self.show(now);
        let view = FaultView::Schedule(Box::new(self.view.clone()));
        let mut cx = self.outbox.context(self.view.number, now);
        self.policies.scheduler.condemn(&mut cx, PolicyFault::new(FaultKind::Starvation, message), view);
    }

    /// Whether the next token of a running sequence, or the whole input of a waiting one, fits in memory.
    fn would_fit_any(&self) -> bool {
        let available = self.kv.blocks.available();
        let grows = |&ix: &SeqIx| {
            let sequence = &self.slab[ix];
            self.kv.blocks_for(sequence.computed + 1).saturating_sub(sequence.table.len() as u32) <= available
        };
        self.rows.running.ix.iter().any(grows)
            || (self.has_place() && self.rows.waiting.ix.iter().any(|&ix| self.would_fit(ix, available)))
    }

    pub(super) fn has_place(&self) -> bool {
        (self.rows.running.ix.len() as u32) < self.config.limits.max_running
    }

    /// Whether a waiting sequence's whole input would fit.
    pub(super) fn would_fit(&self, ix: SeqIx, available: u32) -> bool {
        let sequence = &self.slab[ix];
        let reused = self.kv.reusable_tokens(sequence) / self.kv.block_size();
        let need = self.kv.blocks_for(sequence.tokens.len() as u32) - reused + self.kv.idle_blocks(sequence);
        need <= available
    }
}

fn note_plan(decisions: &mut Decisions, policy: Arc<PolicyInfo>, view: &StepView, plan: &Plan) {
    let question = || FaultView::Schedule(Box::new(view.clone()));
    decisions.note(PolicyKind::Scheduler, policy, question, || Answer::Plan(plan.clone()));
}
