//! One policy slot: the live policy, the previous one, and the built-in that replaces both when they fail.
//!
//! Every policy call goes through `ask`. A fault costs no request anything: the built-in answers the same call at
//! once. Too many faults within a window, failing exports in a row, or a failing restart remove the policy; the
//! previous one comes back, or else the built-in, which needs nothing from the failed one. A policy can also be tried:
//! beside the live one (`shadow`), or live and watched (`canary`). Deliberately absent: what the calls mean.

mod budget;
mod canary;
mod lasting;
mod shadow;
mod tenure;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;

pub(crate) use canary::{Company, Trial};
pub(crate) use shadow::Compared;

use budget::{Budget, over_budget};
use canary::Canary;
use shadow::Shadow;
use tenure::Tenure;

use crate::event::{Change, Event, Handover};
use crate::ids::Micros;
use crate::policy::{
    AnyPolicy, CallStats, Culprit, Fault, FaultView, Policy, PolicyFault, PolicyInfo, PolicyKind,
};
use crate::snapshot::SlotSnapshot;
use crate::trial::{CanaryReport, CanaryState, ShadowReport, ShadowState};

/// When a call is made, and where its consequences go.
pub(crate) struct Context<'a> {
    pub now: Micros,
    pub step: u64,
    pub events: &'a mut Vec<Event>,
    /// Policies that are no longer used.
    pub retired: &'a mut Vec<AnyPolicy>,
}

/// Exports in a row whose failure removes a policy. They may be too far apart for its strikes to add up, and each
/// winds it back to the copy before.
const MAX_FAILED_EXPORTS: u32 = 3;

/// What a policy may do before it is removed; see [`crate::EngineConfig`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuardLimits {
    pub max_strikes: u32,
    pub strike_window: Micros,
    pub step_budget: Micros,
}

/// What a fault means for the live policy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weight {
    /// It counts, and removes the policy if it is one too many within the window.
    Strike,
    /// It was one too many by another count.
    LastStrike,
    /// It removes the policy by itself.
    Fatal,
}

/// A fault that counts towards the live policy's removal.
struct Strike {
    at: Micros,
    culprit: Culprit,
}

pub(crate) struct Slot<P: ?Sized> {
    kind: PolicyKind,
    into_any: fn(Box<P>) -> AnyPolicy,
    limits: GuardLimits,
    /// `None` while the built-in replaces a removed policy.
    current: Option<Tenure<P>>,
    previous: Option<Tenure<P>>,
    builtin: Box<P>,
    fallback_since: Micros,
    strikes: VecDeque<Strike>,
    budget: Budget,
    fallbacks: u64,
    last_fault: Option<Arc<Fault>>,
    shadow: Option<Shadow<P>>,
    last_shadow: Option<ShadowReport>,
    /// Set while the live policy is on trial.
    canary: Option<Canary>,
    last_canary: Option<CanaryReport>,
    /// The live instance is new, was restarted or came back: it may have to receive events again.
    pub renewed: Option<Renewal>,
    /// A policy was removed since the last `take_removal`.
    removed: bool,
}

/// How a policy became live.
pub(crate) struct Arrival {
    /// The state that it goes on with.
    pub state: Handover,
    /// Why it doesn't have the state that there was for it, for an operator.
    pub note: Option<String>,
    /// A policy that is no longer used.
    pub retired: Option<AnyPolicy>,
}

/// Why the live policy may not know what happened so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// It is new or was restarted: it knows nothing.
    Blank,
    /// It is new and was primed: it knows everything but what happened since.
    Primed,
    /// It was the previous policy: it knows what was true when it was replaced.
    CameBack,
}

impl<P: Policy + ?Sized> Slot<P> {
    pub fn new(
        kind: PolicyKind,
        policy: Box<P>,
        builtin: Box<P>,
        into_any: fn(Box<P>) -> AnyPolicy,
        limits: GuardLimits,
    ) -> Self {
        Self {
            kind,
            into_any,
            limits,
            current: Some(Tenure::new(policy, Micros::ZERO)),
            previous: None,
            builtin,
            fallback_since: Micros::ZERO,
            strikes: VecDeque::new(),
            budget: Budget::default(),
            fallbacks: 0,
            last_fault: None,
            shadow: None,
            last_shadow: None,
            canary: None,
            last_canary: None,
            renewed: None,
            removed: false,
        }
    }

    /// Leaves a new slot to the built-in, as if its policy had been removed. Returns that policy.
    pub fn vacate(&mut self) -> Option<AnyPolicy> {
        self.current.take().map(|tenure| (self.into_any)(tenure.policy))
    }

    /// The live policy.
    pub fn info(&self) -> Arc<PolicyInfo> {
        self.current.as_ref().map_or_else(|| self.builtin.info(), |t| t.policy.info())
    }

    /// Calls the live policy, or the built-in if that faults. `view` is what it was shown.
    pub fn ask<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut question: impl FnMut(&mut P) -> Result<T, PolicyFault>,
        view: impl Fn() -> FaultView,
    ) -> T {
        self.mend(cx);
        if let Some(tenure) = self.current.as_mut().filter(|_| !self.budget.over) {
            match question(&mut tenure.policy) {
                Ok(answer) => {
                    self.charge(cx, view);
                    return answer;
                }
                Err(fault) => {
                    tenure.broken = true;
                    self.strike(cx, fault, view(), Weight::Strike);
                }
            }
        }
        self.fallbacks += 1;
        question(&mut self.builtin).expect("the built-in keeps the rules")
    }

    /// Starts a step's budget.
    pub fn begin_step(&mut self) {
        self.budget.over = false;
        self.measure();
        if let Some(shadow) = &mut self.shadow {
            shadow.begin_step();
        }
    }

    /// Whether the live policy gets no more calls in this step.
    pub fn is_over_budget(&self) -> bool {
        self.budget.over
    }

    fn measure(&mut self) {
        self.budget.measure_from(self.current.as_mut().map(|t| &mut *t.policy));
    }

    /// Calls that are each within their limit but too long together are one fault per step.
    fn charge(&mut self, cx: &mut Context<'_>, view: impl Fn() -> FaultView) {
        let fault = self
            .current
            .as_ref()
            .and_then(|t| over_budget(&*t.policy, self.budget.before, self.limits.step_budget));
        if let Some(fault) = fault {
            self.budget.over = true;
            self.strike(cx, fault, view(), Weight::Strike);
        }
    }

    /// Calls the built-in even though another policy is live, because that one's answer was of no use.
    pub fn ask_builtin<T>(&mut self, mut question: impl FnMut(&mut P) -> Result<T, PolicyFault>) -> T {
        self.fallbacks += 1;
        question(&mut self.builtin).expect("the built-in keeps the rules")
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

    fn strike(&mut self, cx: &mut Context<'_>, fault: PolicyFault, view: FaultView, weight: Weight) {
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
    fn take_out(&mut self, cx: &mut Context<'_>, change: Change, reason: String) {
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

    /// Whether a policy was removed since the last call.
    pub fn take_removal(&mut self) -> bool {
        std::mem::take(&mut self.removed)
    }

    /// Only prefix-cache policies receive events; the others see everything in each call.
    fn renew(&mut self, renewal: Renewal) {
        if self.kind == PolicyKind::PrefixCache {
            self.renewed = Some(renewal);
        }
    }

    /// Keeps a copy of the live policy's state.
    pub fn save_state(&mut self, cx: &mut Context<'_>) {
        self.mend(cx);
        let Some(tenure) = &mut self.current else { return };
        if let Err(mut fault) = tenure.export() {
            let mut weight = Weight::Strike;
            if tenure.failed_exports >= MAX_FAILED_EXPORTS {
                weight = Weight::LastStrike;
                let _ = write!(fault.message, " ({MAX_FAILED_EXPORTS} exports of its state in a row failed)");
            }
            self.strike(cx, fault, FaultView::Lifecycle, weight);
        }
    }

    /// The live policy's state; empty if it has none or can't export it.
    pub fn state_now(&mut self, cx: &mut Context<'_>) -> Vec<u8> {
        self.save_state(cx);
        self.current.as_ref().map_or_else(Vec::new, |t| t.state.clone())
    }

    /// Makes `policy` live.
    pub fn replace(&mut self, cx: &mut Context<'_>, policy: Box<P>, change: Change) -> Arrival {
        self.end_shadow(cx, ShadowState::Replaced, "another policy was swapped in");
        let state = self.outgoing_state(&*policy);
        let mut tenure = Tenure::new(policy, cx.now);
        let (state, note) = match state.map(|state| (state.is_empty(), tenure.import(state))) {
            Some((_, Ok(()))) => (Handover::Restored, None),
            Some((empty, Err(fault))) => (Handover::Cold, why_not_taken(&fault, empty)),
            None => (Handover::Cold, None),
        };
        let retired = self.install(cx, tenure, change, note.as_deref());
        Arrival { state, note, retired }
    }

    /// Makes the shadow the live policy. It keeps its own state.
    pub fn promote_shadow(&mut self, cx: &mut Context<'_>) -> Option<Arrival> {
        let policy = self.take_shadow(cx, ShadowState::Promoted, "it became the live policy")?;
        let mut tenure = Tenure::new(policy, cx.now);
        // An error leaves it broken, and it is restarted before its first call.
        let note = tenure.export().err().map(|fault| format!("its own state could not be exported: {fault}"));
        let state = tenure.own_state();
        let retired = self.install(cx, tenure, Change::Promote, note.as_deref());
        Some(Arrival { state, note, retired })
    }

    fn install(
        &mut self,
        cx: &mut Context<'_>,
        tenure: Tenure<P>,
        change: Change,
        note: Option<&str>,
    ) -> Option<AnyPolicy> {
        let from = self.info();
        let mut outgoing = self.current.replace(tenure);
        self.measure();
        if self.renewed.take().is_some()
            && let Some(outgoing) = &mut outgoing
        {
            // It has not received what it missed: should it come back, it is restarted.
            outgoing.broken = true;
        }
        let retired = match outgoing {
            Some(outgoing) => self.previous.replace(outgoing),
            None => self.previous.take(),
        };
        self.changed(cx, from, change, reason_of(change, note));
        retired.map(|t| (self.into_any)(t.policy))
    }

    /// Brings the previous policy back and retires the live one.
    pub fn rollback(&mut self, cx: &mut Context<'_>) -> Option<Arrival> {
        let mut previous = self.previous.take()?;
        self.end_canary(cx, CanaryState::RolledBack, "an operator rolled it back");
        let from = self.info();
        let state = self.outgoing_state(&*previous.policy);
        let (state, note) = match state.map(|state| (state.is_empty(), previous.import(state))) {
            Some((_, Ok(()))) => (Handover::Restored, None),
            Some((empty, Err(fault))) => (previous.own_state(), why_not_taken(&fault, empty)),
            None => (previous.own_state(), None),
        };
        previous.since = cx.now;
        let retired = self.current.replace(previous);
        self.measure();
        self.renew(Renewal::CameBack);
        self.changed(cx, from, Change::Rollback, reason_of(Change::Rollback, note.as_deref()));
        Some(Arrival { state, note, retired: retired.map(|t| (self.into_any)(t.policy)) })
    }

    /// The state that a successor imports: exported now or, if that fails, the last copy.
    fn outgoing_state(&mut self, successor: &P) -> Option<Vec<u8>> {
        let tenure = self.current.as_mut()?;
        let outgoing = tenure.policy.info();
        if !successor.takes_state_of(&outgoing.name) {
            return None;
        }
        let fresh = !tenure.broken && tenure.export().is_ok();
        // An empty copy may also mean that nothing was ever exported.
        let any = fresh || !tenure.state.is_empty();
        any.then(|| successor.own_part_of(&outgoing.name, &tenure.state)).flatten()
    }

    /// A copy of the live state for a policy that runs beside the live one. Empty if there is none for it.
    fn shared_state(&mut self, cx: &mut Context<'_>, companion: &P) -> Vec<u8> {
        let takes = |slot: &Self| {
            slot.current.as_ref().is_some_and(|t| companion.takes_state_of(&t.policy.info().name))
        };
        if takes(self) {
            // The live policy stays, so its failure to export is a fault like any other, and may remove it.
            self.save_state(cx);
        }
        let tenure = self.current.as_ref().filter(|t| takes(self) && !t.state.is_empty());
        tenure.and_then(|t| companion.own_part_of(&t.policy.info().name, &t.state)).unwrap_or_default()
    }

    /// Whether the live policy is restarted before its next call, so that it has forgotten all events.
    pub fn is_broken(&self) -> bool {
        self.current.as_ref().is_some_and(|t| t.broken)
    }

    /// Removes a canary that is about to be replaced.
    pub fn withdraw_canary(&mut self, cx: &mut Context<'_>, reason: &str) {
        if self.on_trial() {
            self.take_out(cx, Change::Rollback, reason.to_owned());
        }
    }

    fn changed(&mut self, cx: &mut Context<'_>, left: Arc<PolicyInfo>, change: Change, reason: String) {
        self.strikes.clear();
        let policy = self.info();
        let (from, to) = (left.name.clone(), policy.name.clone());
        let (kind, at, step) = (self.kind, cx.now, cx.step);
        cx.events.push(Event::PolicyChanged { kind, from, to, left, policy, at, step, change, reason });
    }

    fn live_stats(&self) -> CallStats {
        self.current.as_ref().map_or_else(|| self.builtin.stats(), |t| t.policy.stats())
    }

    /// Whether the previous policy is kept up to date though it decides nothing. A failed one isn't: should it
    /// come back, it is restarted.
    pub fn has_hot_previous(&self) -> bool {
        self.previous.as_ref().is_some_and(|t| !t.broken)
    }

    /// Sends the previous policy something and ignores its answer.
    pub fn tell_previous<T>(&mut self, tell: impl FnOnce(&mut P) -> Result<T, PolicyFault>) {
        if let Some(tenure) = self.previous.as_mut().filter(|t| !t.broken) {
            tenure.broken = tell(&mut tenure.policy).is_err();
        }
    }

    /// When the live policy became live.
    pub fn since(&self) -> Micros {
        self.current.as_ref().map_or(self.fallback_since, |t| t.since)
    }

    /// Retires the previous policy.
    pub fn drop_previous(&mut self, cx: &mut Context<'_>) {
        if let Some(tenure) = self.previous.take() {
            cx.retired.push((self.into_any)(tenure.policy));
        }
    }

    pub fn snapshot(&self) -> SlotSnapshot {
        let current = self.current.as_ref();
        SlotSnapshot {
            kind: self.kind,
            policy: self.info(),
            fallback: current.is_none(),
            previous: self.previous.as_ref().map(|t| t.policy.info()),
            stats: self.live_stats(),
            gauges: current.map(|t| t.policy.gauges()).unwrap_or_default(),
            faults: current.map_or(0, |t| t.faults),
            fallbacks: self.fallbacks,
            since: self.since(),
            last_fault: self.last_fault.clone(),
            trial: self.on_trial(),
            canary: self.canary_report(),
            shadow: self.shadow_report(),
        }
    }
}

/// Why a policy doesn't have the state of its predecessor. One that refuses an empty state misses nothing.
fn why_not_taken(fault: &PolicyFault, empty: bool) -> Option<String> {
    match fault.is_refusal() {
        true if empty => None,
        true => Some(format!("it refuses its predecessor's state: {}", fault.message)),
        false => Some(format!("it failed over its predecessor's state: {fault}")),
    }
}

/// Why a policy became live, and what is to be known about its state.
fn reason_of(change: Change, note: Option<&str>) -> String {
    note.map_or_else(|| change.name().to_owned(), |note| format!("{}; {note}", change.name()))
}
