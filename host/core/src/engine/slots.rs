//! The three policy slots, and what is asked of all of them alike.

use std::sync::Arc;

use super::{Exported, Policies};
use crate::guard::{Company, Context, GuardLimits, Slot};
use crate::ids::Micros;
use crate::policy::{AdmissionPolicy, AnyPolicy, PolicyInfo, PolicyKind, PrefixCachePolicy, SchedulerPolicy};
use crate::snapshot::SlotSnapshot;

/// Steps after which policies export a copy of their state.
const EXPORT_EVERY: u64 = 1_000;

/// The slots. They are fields because their policies have different traits; the methods treat them alike.
pub(super) struct Slots {
    pub scheduler: Slot<dyn SchedulerPolicy>,
    pub admission: Slot<dyn AdmissionPolicy>,
    pub prefix: Slot<dyn PrefixCachePolicy>,
    /// The step at which policies export a copy of their state.
    next_export: u64,
}

impl Slots {
    pub fn new(policies: Policies, limits: GuardLimits) -> Self {
        let Policies { scheduler, admission, prefix_cache } = policies;
        let builtin = Policies::builtin();
        Self {
            scheduler: Slot::new(
                PolicyKind::Scheduler,
                scheduler,
                builtin.scheduler,
                AnyPolicy::Scheduler,
                limits,
            ),
            admission: Slot::new(
                PolicyKind::Admission,
                admission,
                builtin.admission,
                AnyPolicy::Admission,
                limits,
            ),
            prefix: Slot::new(
                PolicyKind::PrefixCache,
                prefix_cache,
                builtin.prefix_cache,
                AnyPolicy::PrefixCache,
                limits,
            ),
            next_export: EXPORT_EVERY,
        }
    }

    /// Starts a step's budgets.
    pub fn begin_step(&mut self) {
        self.scheduler.begin_step();
        self.admission.begin_step();
        self.prefix.begin_step();
    }

    /// Keeps copies of the live policies' states, every so many steps.
    pub fn save_states(&mut self, cx: &mut Context<'_>) {
        if cx.step < self.next_export {
            return;
        }
        self.next_export = cx.step + EXPORT_EVERY;
        self.scheduler.save_state(cx);
        self.admission.save_state(cx);
        self.prefix.save_state(cx);
    }

    /// The slots are those of an engine that begins then, with this step.
    pub fn begin_at(&mut self, now: Micros, step: u64) {
        self.scheduler.begin_at(now);
        self.admission.begin_at(now);
        self.prefix.begin_at(now);
        self.next_export = step + EXPORT_EVERY;
    }

    /// The policy that a restart of the host brings back, by name, and its state.
    pub fn lasting_state(&mut self, kind: PolicyKind, cx: &mut Context<'_>) -> Option<(String, Vec<u8>)> {
        match kind {
            PolicyKind::Scheduler => self.scheduler.lasting_state(cx),
            PolicyKind::Admission => self.admission.lasting_state(cx),
            PolicyKind::PrefixCache => self.prefix.lasting_state(cx),
        }
    }

    /// Gives a live policy what was exported before a restart of the host, if it is meant for it.
    pub fn take_over(&mut self, exported: &Exported) -> Option<Result<(), String>> {
        let Exported { kind, policy, state } = exported;
        match kind {
            PolicyKind::Scheduler => self.scheduler.take_over(policy, state),
            PolicyKind::Admission => self.admission.take_over(policy, state),
            PolicyKind::PrefixCache => self.prefix.take_over(policy, state),
        }
    }

    /// The live policy's state.
    pub fn state_now(&mut self, kind: PolicyKind, cx: &mut Context<'_>) -> Vec<u8> {
        match kind {
            PolicyKind::Scheduler => self.scheduler.state_now(cx),
            PolicyKind::Admission => self.admission.state_now(cx),
            PolicyKind::PrefixCache => self.prefix.state_now(cx),
        }
    }

    /// The live policy.
    pub fn info(&self, kind: PolicyKind) -> Arc<PolicyInfo> {
        match kind {
            PolicyKind::Scheduler => self.scheduler.info(),
            PolicyKind::Admission => self.admission.info(),
            PolicyKind::PrefixCache => self.prefix.info(),
        }
    }

    /// The live policies of all slots.
    pub fn in_force(&self) -> Company {
        PolicyKind::ALL.map(|kind| self.info(kind))
    }

    /// Since when all of them have been live.
    pub fn since(&self) -> Micros {
        self.scheduler.since().max(self.admission.since()).max(self.prefix.since())
    }

    /// The slot whose policy is on trial.
    pub fn on_trial(&self) -> Option<PolicyKind> {
        let trials = [self.scheduler.on_trial(), self.admission.on_trial(), self.prefix.on_trial()];
        PolicyKind::ALL.into_iter().zip(trials).find_map(|(kind, trial)| trial.then_some(kind))
    }

    pub fn snapshot(&self, kind: PolicyKind) -> SlotSnapshot {
        match kind {
            PolicyKind::Scheduler => self.scheduler.snapshot(),
            PolicyKind::Admission => self.admission.snapshot(),
            PolicyKind::PrefixCache => self.prefix.snapshot(),
        }
    }
}
