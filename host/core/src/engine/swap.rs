//! Swaps at a step boundary: at once, on trial (canary), beside the live policy (shadow), and back.

use std::sync::Arc;

use super::{Context, Engine, SwapReport, context};
use crate::event::Change;
use crate::guard::{Company, Renewal, Slot, Trial};
use crate::ids::Micros;
use crate::policy::{AnyPolicy, CacheEvents, Policy, PolicyInfo, PolicyKind};
use crate::trial::CanaryState;

/// How long a canary is watched where nobody says otherwise.
pub const CANARY_WINDOW: Micros = Micros(30_000_000);

/// Does the same for whichever slot.
macro_rules! slot {
    ($engine:expr, $kind:expr, $slot:ident => $do:expr) => {
        match $kind {
            PolicyKind::Scheduler => {
                let $slot = &mut $engine.scheduler;
                $do
            }
            PolicyKind::Admission => {
                let $slot = &mut $engine.admission;
                $do
            }
            PolicyKind::PrefixCache => {
                let $slot = &mut $engine.prefix;
                $do
            }
        }
    };
}

impl Engine {
    /// Every cached block, as a prefix-cache policy is told after a swap. Call it, let the new policy
    /// `observe` it off the engine thread, then `swap` or `shadow`: the engine tells it what happened
    /// in between.
    pub fn begin_priming(&mut self) -> CacheEvents {
        self.start_priming()
    }

    /// The policy that was to be told will not come: what happens meanwhile is kept for nobody.
    pub fn end_priming(&mut self) {
        self.stop_priming();
    }

    /// Puts a policy in force. Call it between steps.
    pub fn swap(&mut self, policy: AnyPolicy, now: Micros) -> SwapReport {
        let now = self.tick(now);
        self.withdraw(policy.kind(), "another policy comes into the slot", now);
        self.put_in_force(policy, Change::Swap, None, now)
    }

    /// Puts a policy in force and watches it for `window` of time with work in it. It goes out, and the
    /// previous one comes back, at its first fault, or when clients are worse off than before; at the
    /// end of a clean window it stays. Extended to at most four windows where more is asked of the
    /// host than before.
    ///
    /// One policy is on trial at a time, or nobody could tell whose doing it is: where another slot's
    /// is, the policy comes back with that slot. For the same reason nothing is compared any more once
    /// another slot's policy changed, by hand or by faults: a full window without a fault is what is
    /// left to ask for then.
    pub fn canary(
        &mut self,
        policy: AnyPolicy,
        window: Micros,
        now: Micros,
    ) -> Result<SwapReport, (AnyPolicy, PolicyKind)> {
        let now = self.tick(now);
        let kind = policy.kind();
        if let Some(other) = self.on_trial().filter(|&other| other != kind) {
            return Err((policy, other));
        }
        self.withdraw(kind, "another policy comes into the slot on trial", now);
        Ok(self.put_in_force(policy, Change::Canary, Some(window), now))
    }

    /// Lets a policy answer beside the live one, without effect. A shadow that was there ends.
    pub fn shadow(&mut self, policy: AnyPolicy, now: Micros) -> SwapReport {
        let now = self.tick(now);
        let (kind, to) = (policy.kind(), policy.info().name.clone());
        if kind == PolicyKind::PrefixCache {
            self.flush_all(now);
        }
        let retired = self.retired.len();
        let mut cx = context!(self, now);
        let restored = match policy {
            AnyPolicy::Scheduler(p) => self.scheduler.start_shadow(&mut cx, p),
            AnyPolicy::Admission(p) => self.admission.start_shadow(&mut cx, p),
            AnyPolicy::PrefixCache(p) => self.prefix.start_shadow(&mut cx, p),
        };
        if kind == PolicyKind::PrefixCache {
            let renewal = self.renewal(self.prefix.has_blank_shadow());
            self.feed.shadow_renewed = Some(renewal);
            self.flush_cache_events(now);
        }
        let retired = if self.retired.len() > retired { self.retired.pop() } else { None };
        SwapReport { kind, from: self.name_of(kind), to, at_step: self.view.number, restored, retired }
    }

    /// Ends a slot's shadow. `None` where there is none.
    pub fn stop_shadow(&mut self, kind: PolicyKind, now: Micros) -> Option<AnyPolicy> {
        let now = self.tick(now);
        let mut cx = context!(self, now);
        slot!(self, kind, slot => slot.stop_shadow(&mut cx))
    }

    /// What runs in shadow becomes the live policy, or what is on trial stays. `None` where there is neither.
    pub fn promote(&mut self, kind: PolicyKind, now: Micros) -> Option<SwapReport> {
        let now = self.tick(now);
        let from = self.name_of(kind);
        let report = |engine: &Self, from, retired| SwapReport {
            kind,
            from,
            to: engine.name_of(kind),
            at_step: engine.view.number,
            restored: true,
            retired,
        };
        let previous = slot!(self, kind, slot => slot.canary_report());
        let mut cx = context!(self, now);
        if slot!(self, kind, slot => slot.end_canary(&mut cx, CanaryState::Promoted, "an operator promoted it"))
        {
            let from = previous.map_or(from, |canary| canary.previous.name.clone());
            return Some(report(self, from, None));
        }
        if !slot!(self, kind, slot => slot.has_shadow()) {
            return None;
        }
        if kind == PolicyKind::PrefixCache {
            // Whoever leaves, and whoever comes, knows everything up to here.
            self.flush_all(now);
            self.stop_catching_up();
        }
        let mut cx = context!(self, now);
        let retired = slot!(self, kind, slot => slot.promote_shadow(&mut cx))?;
        match kind {
            PolicyKind::PrefixCache => self.restart_feed(),
            _ => self.settle_in(kind, now),
        }
        Some(report(self, from, retired))
    }

    /// Brings the previous policy of a slot back. `None` where there is none.
    pub fn rollback(&mut self, kind: PolicyKind, now: Micros) -> Option<SwapReport> {
        let now = self.tick(now);
        let from = self.name_of(kind);
        if kind == PolicyKind::PrefixCache {
            self.flush_before_command(now);
        }
        let mut cx = context!(self, now);
        let (restored, retired) = slot!(self, kind, slot => slot.rollback(&mut cx))?;
        self.settle_in(kind, now);
        Some(SwapReport { kind, from, to: self.name_of(kind), at_step: self.view.number, restored, retired })
    }

    /// Brings a policy back that was in force before the previous one, made anew. The one in force is not
    /// kept, or the way back would lead to it again.
    pub fn rollback_to(&mut self, policy: AnyPolicy, now: Micros) -> SwapReport {
        let now = self.tick(now);
        let kind = policy.kind();
        self.withdraw(kind, "an earlier policy comes back into the slot", now);
        let report = self.put_in_force(policy, Change::Rollback, None, now);
        let mut cx = context!(self, now);
        slot!(self, kind, slot => slot.drop_previous(&mut cx));
        report
    }

    /// Ends a canary's trial where what was measured says so.
    pub(super) fn judge_canaries(&mut self, now: Micros) {
        let Some(kind) = self.on_trial() else { return };
        if kind == PolicyKind::PrefixCache {
            // Should the previous one come back, it is told all that it missed.
            self.flush_cache_events(now);
        }
        self.note_disturbance(kind, now);
        let mut cx = context!(self, now);
        let recorder = &self.perf;
        if slot!(self, kind, slot => slot.judge_canary(&mut cx, recorder)) {
            self.settle_in(kind, now);
        }
    }

    /// Whose doing it is that clients are worse off can't be told once another slot's policy changed.
    fn note_disturbance(&mut self, kind: PolicyKind, now: Micros) {
        let company = self.in_force();
        let Some(other) = slot!(self, kind, slot => slot.disturbance(&company)) else { return };
        self.perf.cut(now);
        let seen = self.perf.closed();
        let mut cx = context!(self, now);
        slot!(self, kind, slot => slot.disturb_canary(&mut cx, other, company, seen));
    }

    fn in_force(&self) -> Company {
        [self.scheduler.info(), self.admission.info(), self.prefix.info()]
    }

    /// Brings the recorder up to what is there now.
    pub(super) fn note_load(&mut self, now: Micros) {
        let (busy, waiting) = (self.has_work(), self.waiting_in_all());
        self.perf.stands(now, busy, waiting);
    }

    /// Sequences that wait, for whatever reason.
    pub(super) fn waiting_in_all(&self) -> u32 {
        (self.waiting.ix.len() + self.held.len()) as u32
    }

    fn on_trial(&self) -> Option<PolicyKind> {
        let trials = [self.scheduler.on_trial(), self.admission.on_trial(), self.prefix.on_trial()];
        PolicyKind::ALL.into_iter().zip(trials).find_map(|(kind, trial)| trial.then_some(kind))
    }

    /// Takes out a canary that somebody replaces before it has proved itself.
    fn withdraw(&mut self, kind: PolicyKind, reason: &str, now: Micros) {
        if self.on_trial() == Some(kind) {
            if kind == PolicyKind::PrefixCache {
                self.flush_before_command(now);
            }
            let mut cx = context!(self, now);
            slot!(self, kind, slot => slot.withdraw_canary(&mut cx, reason));
            self.settle_in(kind, now);
        }
    }

    /// With a `window` it is on trial from the first thing that it is asked or told.
    fn put_in_force(
        &mut self,
        policy: AnyPolicy,
        change: Change,
        window: Option<Micros>,
        now: Micros,
    ) -> SwapReport {
        let (kind, to) = (policy.kind(), policy.info().name.clone());
        if kind == PolicyKind::PrefixCache {
            // Whoever leaves knows everything up to here.
            self.flush_all(now);
            self.stop_catching_up();
        }
        let from = self.name_of(kind);
        let trial = window.map(|window| self.trial(kind, window, now));
        let mut cx = context!(self, now);
        let (restored, retired) = match policy {
            AnyPolicy::Scheduler(p) => self.scheduler.replace(&mut cx, p, change),
            AnyPolicy::Admission(p) => self.admission.replace(&mut cx, p, change),
            AnyPolicy::PrefixCache(p) => self.prefix.replace(&mut cx, p, change),
        };
        if let Some(trial) = trial {
            slot!(self, kind, slot => slot.watch(&mut cx, trial));
        }
        if kind == PolicyKind::PrefixCache {
            self.restart_feed();
            let renewal = self.renewal(self.prefix.is_broken());
            self.prefix.renewed = Some(renewal);
        }
        self.settle_in(kind, now);
        SwapReport { kind, from, to, at_step: self.view.number, restored, retired }
    }

    /// What a prefix-cache policy knows that comes now; `anew` is whether it forgot what it was primed with.
    fn renewal(&mut self, anew: bool) -> Renewal {
        if anew {
            self.stop_priming();
        }
        if self.is_primed() { Renewal::Primed } else { Renewal::Blank }
    }

    /// What a policy that comes into the slot now is compared with.
    fn trial(&mut self, kind: PolicyKind, window: Micros, now: Micros) -> Trial {
        self.perf.cut(now);
        let previous = slot!(self, kind, slot => slot.info());
        // Under another policy in any slot clients got something else.
        let since = self.scheduler.since().max(self.admission.since()).max(self.prefix.since());
        let (before, seen) = (self.perf.before(since, window), self.perf.closed());
        Trial { previous, window, company: self.in_force(), before, seen }
    }

    /// Another policy is in force.
    fn settle_in(&mut self, kind: PolicyKind, now: Micros) {
        match kind {
            PolicyKind::Scheduler => self.forgive(now),
            PolicyKind::Admission => {
                self.held_alone_since = None;
                self.load_changed = true;
            }
            PolicyKind::PrefixCache => self.flush_cache_events(now),
        }
    }

    /// Tells the live prefix-cache policy everything, even one that came back in this very flush.
    fn flush_all(&mut self, now: Micros) {
        self.flush_before_command(now);
        if self.prefix.renewed.is_some() {
            self.flush_before_command(now);
        }
    }

    fn name_of(&self, kind: PolicyKind) -> String {
        fn info<P: Policy + ?Sized>(slot: &Slot<P>) -> Arc<PolicyInfo> {
            slot.info()
        }
        let info = match kind {
            PolicyKind::Scheduler => info(&self.scheduler),
            PolicyKind::Admission => info(&self.admission),
            PolicyKind::PrefixCache => info(&self.prefix),
        };
        info.name.clone()
    }
}
