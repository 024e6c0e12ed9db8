//! One policy slot: the live policy, the previous one, and the built-in that replaces both when they fail.
//!
//! Every policy call goes through `ask`. A fault costs no request anything: the built-in answers the same call at
//! once. Too many faults within a window, failing exports in a row, or a failing restart remove the policy (`strikes`);
//! the previous one comes back, or else the built-in, which needs nothing from the failed one. Another policy takes its
//! place at a swap (`exchange`), or can be tried: beside the live one (`shadow`), or live and watched (`canary`).
//! Deliberately absent: what the calls mean.

mod budget;
mod canary;
mod exchange;
mod lasting;
mod shadow;
mod strikes;
mod tenure;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;

pub(crate) use canary::{Company, Trial};
pub(crate) use shadow::Compared;

use budget::Budget;
use canary::Canary;
use shadow::Shadow;
use strikes::{Strike, Weight};
use tenure::Tenure;

use crate::event::{Change, Event, Handover};
use crate::ids::Micros;
use crate::policy::{AnyPolicy, CallStats, Fault, FaultView, Policy, PolicyFault, PolicyInfo, PolicyKind};
use crate::snapshot::SlotSnapshot;
use crate::trial::{CanaryReport, ShadowReport};

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

    /// Calls the built-in even though another policy is live, because that one's answer was of no use.
    pub fn ask_builtin<T>(&mut self, mut question: impl FnMut(&mut P) -> Result<T, PolicyFault>) -> T {
        self.fallbacks += 1;
        question(&mut self.builtin).expect("the built-in keeps the rules")
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
