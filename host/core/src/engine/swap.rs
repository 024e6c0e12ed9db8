//! Swaps at a step boundary: at once, on trial (canary), beside the live policy (shadow), and back.

use super::{Engine, SwapReport};
use crate::event::{Change, Handover};
use crate::guard::{Arrival, Renewal, Trial};
use crate::ids::Micros;
use crate::policy::{AnyPolicy, CacheEvents, PolicyKind};
use crate::trial::CanaryState;

/// Default length of a canary's trial.
pub const CANARY_WINDOW: Micros = Micros(30_000_000);

/// Does the same for whichever slot.
macro_rules! slot {
    ($engine:expr, $kind:expr, $slot:ident => $do:expr) => {
        match $kind {
            PolicyKind::Scheduler => {
                let $slot = &mut $engine.policies.scheduler;
                $do
            }
            PolicyKind::Admission => {
                let $slot = &mut $engine.policies.admission;
                $do
            }
            PolicyKind::PrefixCache => {
                let $slot = &mut $engine.policies.prefix;
                $do
            }
        }
    };
}

impl Engine {
    /// Returns every cached block, in the form in which a prefix-cache policy receives them after a swap. Let
    /// the new policy `observe` them off the engine thread, then call `swap` or `shadow`: the engine sends it
    /// what happened in between.
    pub fn begin_priming(&mut self) -> CacheEvents {
        self.start_priming()
    }

    /// The primed policy will not come: stops keeping events for it.
    pub fn end_priming(&mut self) {
        self.stop_priming();
    }

    /// Makes a policy live. Call it between steps.
    pub fn swap(&mut self, policy: AnyPolicy, now: Micros) -> SwapReport {
        let now = self.tick(now);
        self.withdraw(policy.kind(), "another policy is swapped in", now);
        self.put_in_force(policy, Change::Swap, None, now)
    }

    /// Leaves a slot of a new engine to the built-in, as if its policy had been removed. Call it before anything else.
    /// Returns that policy.
    pub fn leave_to_builtin(&mut self, kind: PolicyKind) -> Option<AnyPolicy> {
        slot!(self, kind, slot => slot.vacate())
    }

    /// Makes a policy live and watches it for `window` of time with work in it. It is removed, and the
    /// previous one comes back, at its first fault or when clients are worse off than before; after a clean
    /// window it stays. The window is extended up to four times if the load is higher than before.
    ///
    /// Only one policy is on trial at a time, or a difference could not be attributed: if another slot has
    /// one, the policy is returned with that slot. For the same reason nothing is compared any more once
    /// another slot's policy changes, by hand or by faults; what counts from then on is a full window without
    /// a fault.
    pub fn canary(
        &mut self,
        policy: AnyPolicy,
        window: Micros,
        now: Micros,
    ) -> Result<SwapReport, (AnyPolicy, PolicyKind)> {
        let now = self.tick(now);
        let kind = policy.kind();
        if let Some(other) = self.policies.on_trial().filter(|&other| other != kind) {
            return Err((policy, other));
        }
        self.withdraw(kind, "another canary is swapped in", now);
        Ok(self.put_in_force(policy, Change::Canary, Some(window), now))
    }

    /// Runs a policy beside the live one, without effect. Ends an earlier shadow.
    pub fn shadow(&mut self, policy: AnyPolicy, now: Micros) -> SwapReport {
        let now = self.tick(now);
        let (kind, to) = (policy.kind(), policy.info().name.clone());
        if kind == PolicyKind::PrefixCache {
            self.flush_all(now);
        }
        let retired = self.outbox.retired.len();
        let mut cx = self.outbox.context(self.view.number, now);
        let (state, state_note) = match policy {
            AnyPolicy::Scheduler(p) => self.policies.scheduler.start_shadow(&mut cx, p),
            AnyPolicy::Admission(p) => self.policies.admission.start_shadow(&mut cx, p),
            AnyPolicy::PrefixCache(p) => self.policies.prefix.start_shadow(&mut cx, p),
        };
        if kind == PolicyKind::PrefixCache {
            let renewal = self.renewal(self.policies.prefix.has_blank_shadow());
            self.feed.shadow_renewed = Some(renewal);
            self.flush_cache_events(now);
        }
        let retired = if self.outbox.retired.len() > retired { self.outbox.retired.pop() } else { None };
        let (from, at_step) = (self.name_of(kind), self.view.number);
        SwapReport { kind, from, to, at_step, state, state_note, retired }
    }

    /// Ends a slot's shadow. `None` if there is none.
    pub fn stop_shadow(&mut self, kind: PolicyKind, now: Micros) -> Option<AnyPolicy> {
        let now = self.tick(now);
        let mut cx = self.outbox.context(self.view.number, now);
        slot!(self, kind, slot => slot.stop_shadow(&mut cx))
    }

    /// Makes the shadow live, or accepts the canary early. `None` if there is neither.
    pub fn promote(&mut self, kind: PolicyKind, now: Micros) -> Option<SwapReport> {
        let now = self.tick(now);
        let from = self.name_of(kind);
        let previous = slot!(self, kind, slot => slot.canary_report());
        let mut cx = self.outbox.context(self.view.number, now);
        if slot!(self, kind, slot => slot.end_canary(&mut cx, CanaryState::Promoted, "an operator promoted it"))
        {
            let from = previous.map_or(from, |canary| canary.previous.name.clone());
            let accepted = Arrival { state: Handover::Kept, note: None, retired: None };
            return Some(self.report(kind, from, accepted));
        }
        if !slot!(self, kind, slot => slot.has_shadow()) {
            return None;
        }
        if kind == PolicyKind::PrefixCache {
            // Both the outgoing and the new policy know everything up to here.
            self.flush_all(now);
            self.stop_catching_up();
        }
        let mut cx = self.outbox.context(self.view.number, now);
        let arrival = slot!(self, kind, slot => slot.promote_shadow(&mut cx))?;
        match kind {
            PolicyKind::PrefixCache => self.restart_feed(),
            _ => self.settle_in(kind, now),
        }
        Some(self.report(kind, from, arrival))
    }

    /// Brings a slot's previous policy back. `None` if there is none.
    pub fn rollback(&mut self, kind: PolicyKind, now: Micros) -> Option<SwapReport> {
        let now = self.tick(now);
        let from = self.name_of(kind);
        if kind == PolicyKind::PrefixCache {
            self.flush_before_command(now);
        }
        let mut cx = self.outbox.context(self.view.number, now);
        let arrival = slot!(self, kind, slot => slot.rollback(&mut cx))?;
        self.settle_in(kind, now);
        Some(self.report(kind, from, arrival))
    }

    fn report(&self, kind: PolicyKind, from: String, arrival: Arrival) -> SwapReport {
        let Arrival { state, note: state_note, retired } = arrival;
        let (to, at_step) = (self.name_of(kind), self.view.number);
        SwapReport { kind, from, to, at_step, state, state_note, retired }
    }

    /// Brings back a reloaded policy that was live before the previous one. The live one is dropped from the
    /// history, or the next rollback would lead to it again.
    pub fn rollback_to(&mut self, policy: AnyPolicy, now: Micros) -> SwapReport {
        let now = self.tick(now);
        let kind = policy.kind();
        self.withdraw(kind, "an earlier policy is brought back", now);
        let report = self.put_in_force(policy, Change::Rollback, None, now);
        let mut cx = self.outbox.context(self.view.number, now);
        slot!(self, kind, slot => slot.drop_previous(&mut cx));
        report
    }

    /// Ends a canary's trial if the measurements decide it.
    pub(super) fn judge_canaries(&mut self, now: Micros) {
        let Some(kind) = self.policies.on_trial() else { return };
        if kind == PolicyKind::PrefixCache {
            // Should the previous policy come back, it receives all that it missed.
            self.flush_cache_events(now);
        }
        self.note_disturbance(kind, now);
        let mut cx = self.outbox.context(self.view.number, now);
        let recorder = &self.perf;
        if slot!(self, kind, slot => slot.judge_canary(&mut cx, recorder)) {
            self.settle_in(kind, now);
        }
    }

    /// Once another slot's policy changed, a difference can't be attributed to the canary.
    fn note_disturbance(&mut self, kind: PolicyKind, now: Micros) {
        let company = self.policies.in_force();
        let Some(other) = slot!(self, kind, slot => slot.disturbance(&company)) else { return };
        self.perf.cut(now);
        let seen = self.perf.closed();
        let mut cx = self.outbox.context(self.view.number, now);
        slot!(self, kind, slot => slot.disturb_canary(&mut cx, other, company, seen));
    }

    /// Updates the recorder to the current load.
    pub(super) fn note_load(&mut self, now: Micros) {
        let (busy, waiting) = (self.has_work(), self.waiting_in_all());
        self.perf.stands(now, busy, waiting);
    }

    /// Sequences that wait, for any reason.
    pub(super) fn waiting_in_all(&self) -> u32 {
        (self.rows.waiting.ix.len() + self.held.len()) as u32
    }

    /// Removes a canary that is replaced before its trial is over.
    fn withdraw(&mut self, kind: PolicyKind, reason: &str, now: Micros) {
        if self.policies.on_trial() == Some(kind) {
            if kind == PolicyKind::PrefixCache {
                self.flush_before_command(now);
            }
            let mut cx = self.outbox.context(self.view.number, now);
            slot!(self, kind, slot => slot.withdraw_canary(&mut cx, reason));
            self.settle_in(kind, now);
        }
    }

    /// With a `window` it is on trial from its first call or event.
    fn put_in_force(
        &mut self,
        policy: AnyPolicy,
        change: Change,
        window: Option<Micros>,
        now: Micros,
    ) -> SwapReport {
        let (kind, to) = (policy.kind(), policy.info().name.clone());
        if kind == PolicyKind::PrefixCache {
            // The outgoing policy knows everything up to here.
            self.flush_all(now);
            self.stop_catching_up();
        }
        let from = self.name_of(kind);
        let trial = window.map(|window| self.trial(kind, window, now));
        let mut cx = self.outbox.context(self.view.number, now);
        let Arrival { state, note: state_note, retired } = match policy {
            AnyPolicy::Scheduler(p) => self.policies.scheduler.replace(&mut cx, p, change),
            AnyPolicy::Admission(p) => self.policies.admission.replace(&mut cx, p, change),
            AnyPolicy::PrefixCache(p) => self.policies.prefix.replace(&mut cx, p, change),
        };
        if let Some(trial) = trial {
            slot!(self, kind, slot => slot.watch(&mut cx, trial));
        }
        if kind == PolicyKind::PrefixCache {
            self.restart_feed();
            let renewal = self.renewal(self.policies.prefix.is_broken());
            self.policies.prefix.renewed = Some(renewal);
        }
        self.settle_in(kind, now);
        SwapReport { kind, from, to, at_step: self.view.number, state, state_note, retired }
    }

    /// What a new prefix-cache policy knows; `blank` is whether it forgot what it was primed with.
    fn renewal(&mut self, blank: bool) -> Renewal {
        if blank {
            self.stop_priming();
        }
        if self.is_primed() { Renewal::Primed } else { Renewal::Blank }
    }

    /// What a new policy in this slot is compared with.
    fn trial(&mut self, kind: PolicyKind, window: Micros, now: Micros) -> Trial {
        self.perf.cut(now);
        let previous = self.policies.info(kind);
        // Under another policy in any slot clients got something else.
        let since = self.policies.since();
        let (before, seen) = (self.perf.before(since, window), self.perf.closed());
        Trial { previous, window, company: self.policies.in_force(), before, seen }
    }

    /// Another policy is live.
    fn settle_in(&mut self, kind: PolicyKind, now: Micros) {
        match kind {
            PolicyKind::Scheduler => self.forgive(now),
            PolicyKind::Admission => self.held.start_over(),
            PolicyKind::PrefixCache => self.flush_cache_events(now),
        }
    }

    /// Sends the live prefix-cache policy everything, even if it came back in this very flush.
    fn flush_all(&mut self, now: Micros) {
        self.flush_before_command(now);
        if self.policies.prefix.renewed.is_some() {
            self.flush_before_command(now);
        }
    }

    fn name_of(&self, kind: PolicyKind) -> String {
        self.policies.info(kind).name.clone()
    }
}
