//! What a slot does about a fault of its live policy: it restarts it, counts, and removes it when that was one too many.

use std::sync::Arc;

use super::budget::over_budget;
use super::{Context, Renewal, Slot};
use crate::event::{Change, Event};
use crate::ids::Micros;
use crate::policy::{Culprit, Fault, FaultView, Policy, PolicyFault};
use crate::trial::CanaryState;

/// What a fault means for the live policy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    /// It counts, and removes the policy if it is one too many within the window.
    Strike,
    /// It was one too many by another count.
    LastStrike,
    /// It removes the policy by itself.
    Fatal,
}

/// A fault that counts towards the live policy's removal.
pub(super) struct Strike {
    at: Micros,
    culprit: Culprit,
}

impl<P: Policy + ?Sized> Slot<P> {
    /// Calls that are each within their limit but too long together are one fault per step.
    pub(super) fn charge(&mut self, cx: &mut Context<'_>, view: impl Fn() -> FaultView) {
        let fault = self
            .current
            .as_ref()
            .and_then(|t| over_budget(&*t.policy, self.budget.before, self.limits.step_budget));
        if let Some(fault) = fault {
            self.budget.over = true;
            self.strike(cx, fault, view(), Weight::Strike);
        }
    }

    /// Removes the live policy at once because the watchdog found that its decisions lead nowhere.
    pub fn condemn(&mut self, cx: &mut Context<'_>, fault: PolicyFault, view: FaultView) {
        if let Some(tenure) = &self.current {
            let fault = tenure.policy.attribute(fault);
            self.strike(cx, fault, view, Weight::Fatal);
        }
    }

    /// Restarts a policy that faulted, or removes it.
    pub fn mend(&mut self, cx: &mut Context<'_>) {
        while let Some(tenure) = &mut self.current
            && std::mem::take(&mut tenure.broken)
        {
            match tenure.resume() {
                Ok(()) => self.renew(Renewal::Blank),
                Err(fault) => self.strike(cx, fault, FaultView::Lifecycle, Weight::Fatal),
            }
        }
    }

    pub(super) fn strike(
        &mut self,
        cx: &mut Context<'_>,
        fault: PolicyFault,
        view: FaultView,
        weight: Weight,
    ) {
        if let Some(tenure) = &mut self.current {
            tenure.faults += 1;
        }
        let policy = fault.member.clone().unwrap_or_else(|| self.info());
        self.strikes.push_back(Strike { at: cx.now, culprit: Culprit { policy, reason: fault.to_string() } });
        while self.strikes.front().is_some_and(|strike| cx.now.since(strike.at) > self.limits.strike_window) {
            self.strikes.pop_front();
        }
        let weight = match weight {
            _ if self.on_trial() => Weight::Fatal,
            Weight::Strike if self.limits.max_strikes <= 1 => Weight::LastStrike,
            weight => weight,
        };
        let full = self.strikes.len() >= self.limits.max_strikes as usize;
        let (removed, reason, culprits) = match weight {
            Weight::Fatal => (true, fault.to_string(), self.culprits().pop().into_iter().collect()),
            Weight::LastStrike => (true, fault.to_string(), self.culprits()),
            Weight::Strike if full => {
                let (count, seconds) = (self.strikes.len(), self.limits.strike_window.0 / 1_000_000);
                (true, format!("{count} faults in {seconds} s, the last: {fault}"), self.culprits())
            }
            Weight::Strike => (false, String::new(), Vec::new()),
        };
        let fault = Fault {
            slot: self.kind,
            policy: self.info(),
            fault,
            step: cx.step,
            at: cx.now,
            view,
            state: self.current.as_ref().map_or_else(Vec::new, |t| t.state.clone()),
            shadow: false,
            removed,
            culprits,
        };
        self.last_fault = Some(Arc::new(fault.clone()));
        cx.events.push(Event::PolicyFault(Box::new(fault)));
        if removed {
            self.take_out(cx, Change::Fault, reason);
        }
    }

    /// What the strikes within the window are attributed to, each policy once, the last to strike last.
    fn culprits(&self) -> Vec<Culprit> {
        let mut all: Vec<Culprit> = Vec::new();
        for Strike { culprit, .. } in &self.strikes {
            all.retain(|known| known.policy != culprit.policy);
            all.push(culprit.clone());
        }
        all
    }

    /// Removes the live policy. The previous one comes back, or else the built-in takes over.
    pub(super) fn take_out(&mut self, cx: &mut Context<'_>, change: Change, reason: String) {
        self.end_canary(cx, CanaryState::RolledBack, &reason);
        let from = self.info();
        let left = self.current.take().expect("a policy was live");
        cx.retired.push((self.into_any)(left.policy));
        self.removed = true;
        self.strikes.clear();
        self.fallback_since = cx.now;
        if let Some(mut previous) = self.previous.take() {
            previous.since = cx.now;
            self.current = Some(previous);
            self.renew(Renewal::CameBack);
        }
        self.measure();
        self.changed(cx, from, change, reason);
    }
}
