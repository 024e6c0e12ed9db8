//! One policy slot: who is in force, who was before, and the built-in that stands in for both.
//!
//! Every question to a policy goes through `ask`. A fault costs nobody anything: the built-in
//! answers the same question at once. Too many faults within a window, or a failing restart, take
//! the policy out: the previous one comes back, then the built-in, which needs nothing from the
//! failing one. A policy may also be tried: in a shadow of the live one (`shadow`), or live and
//! watched (`canary`). Deliberately absent: what the questions mean.

mod canary;
mod shadow;

use std::collections::VecDeque;
use std::sync::Arc;

pub(crate) use canary::{Company, Trial};
pub(crate) use shadow::Compared;

use canary::Canary;
use shadow::Shadow;

use crate::event::{Change, Event};
use crate::ids::Micros;
use crate::policy::{
    AnyPolicy, CallStats, Fault, FaultKind, FaultView, Policy, PolicyFault, PolicyInfo, PolicyKind,
};
use crate::snapshot::SlotSnapshot;
use crate::trial::{CanaryReport, CanaryState, ShadowReport, ShadowState};

/// When and where a question is asked, and what happens to what comes of it.
pub(crate) struct Context<'a> {
    pub now: Micros,
    pub step: u64,
    pub events: &'a mut Vec<Event>,
    /// Policies that nobody needs any more.
    pub retired: &'a mut Vec<AnyPolicy>,
}

/// Processor time that the calls of a policy may take from one step to the next: so much as five that take all of
/// theirs. Of the hundreds that a step may have, each within its limit, all streams would feel the sum.
const STEP_BUDGET: Micros = Micros(100_000);

/// How many faults in what time take a policy out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strikes {
    pub max: u32,
    pub window: Micros,
}

struct Tenure<P: ?Sized> {
    policy: Box<P>,
    since: Micros,
    /// A fault left it in an unknown state: `restart` comes before the next question.
    broken: bool,
    /// What it last exported or took over: the only copy, from which a restarted one begins.
    state: Vec<u8>,
}

/// What the calls of a slot's policy may take of a step, whatever each takes of its own limit.
#[derive(Default)]
struct Budget {
    /// What they had taken before this step.
    before: Micros,
    /// The built-in answers what is left of the step.
    over: bool,
}

pub(crate) struct Slot<P: ?Sized> {
    kind: PolicyKind,
    into_any: fn(Box<P>) -> AnyPolicy,
    limits: Strikes,
    /// `None` while the built-in stands in.
    current: Option<Tenure<P>>,
    previous: Option<Tenure<P>>,
    builtin: Box<P>,
    fallback_since: Micros,
    strikes: VecDeque<Micros>,
    budget: Budget,
    faults: u64,
    fallbacks: u64,
    last_fault: Option<Arc<Fault>>,
    shadow: Option<Shadow<P>>,
    last_shadow: Option<ShadowReport>,
    /// The policy in force is on trial.
    canary: Option<Canary>,
    last_canary: Option<CanaryReport>,
    /// The instance in force was made afresh, or came back: it may have to be told things again.
    pub renewed: Option<Renewal>,
    /// A policy was taken out, and nobody has asked since.
    removed: bool,
}

/// Why a policy in force may not know what happened so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// It is new or was restarted: it knows nothing.
    Blank,
    /// It is new and was told everything, but for what happened since.
    Primed,
    /// It was the previous one: it knows what was so when it left.
    CameBack,
}

impl<P: Policy + ?Sized> Slot<P> {
    pub fn new(
        kind: PolicyKind,
        policy: Box<P>,
        builtin: Box<P>,
        into_any: fn(Box<P>) -> AnyPolicy,
        limits: Strikes,
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
            faults: 0,
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

    /// Who is in force.
    pub fn info(&self) -> Arc<PolicyInfo> {
        self.current.as_ref().map_or_else(|| self.builtin.info(), |t| t.policy.info())
    }

    /// Asks the policy in force; where it faults, the built-in answers. `view` is what it was shown.
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
                    self.strike(cx, fault, view(), false);
                }
            }
        }
        self.fallbacks += 1;
        question(&mut self.builtin).expect("the built-in keeps the rules")
    }

    /// A step begins: what calls took before counts no more.
    pub fn begin_step(&mut self) {
        self.budget.over = false;
        self.budget.measure_from(self.current.as_mut());
        if let Some(shadow) = &mut self.shadow {
            shadow.begin_step();
        }
    }

    /// Whether the policy in force is asked nothing more in this step.
    pub fn is_over_budget(&self) -> bool {
        self.budget.over
    }

    /// Each call was within its limit; that all of them together take too long is one fault for the step.
    fn charge(&mut self, cx: &mut Context<'_>, view: impl Fn() -> FaultView) {
        let fault = self.current.as_ref().and_then(|t| over_budget(&*t.policy, self.budget.before));
        if let Some(fault) = fault {
            self.budget.over = true;
            self.strike(cx, fault, view(), false);
        }
    }

    /// The built-in answers, whoever is in force: the answer of the policy was of no use.
    pub fn ask_builtin<T>(&mut self, mut question: impl FnMut(&mut P) -> Result<T, PolicyFault>) -> T {
        self.fallbacks += 1;
        question(&mut self.builtin).expect("the built-in keeps the rules")
    }

    /// What it decided so far has an outcome that nobody can wait any longer for: out it goes.
    pub fn condemn(&mut self, cx: &mut Context<'_>, fault: PolicyFault, view: FaultView) {
        if let Some(tenure) = &self.current {
            let fault = tenure.policy.attribute(fault);
            self.strike(cx, fault, view, true);
        }
    }

    /// Makes a policy that faulted usable again, or takes it out.
    pub fn mend(&mut self, cx: &mut Context<'_>) {
        while let Some(tenure) = &mut self.current
            && std::mem::take(&mut tenure.broken)
        {
            match tenure.policy.restart() {
                Ok(()) => {
                    // A policy that can't read its own state starts cold, which is no fault.
                    if !tenure.state.is_empty()
                        && tenure.policy.import_state(&tenure.state).is_err_and(|fault| !fault.is_refusal())
                    {
                        tenure.state.clear();
                        tenure.broken = true;
                    }
                    self.renew(Renewal::Blank);
                }
                Err(fault) => self.strike(cx, fault, FaultView::Lifecycle, true),
            }
        }
    }

    fn strike(&mut self, cx: &mut Context<'_>, fault: PolicyFault, view: FaultView, at_once: bool) {
        self.faults += 1;
        self.strikes.push_back(cx.now);
        while self.strikes.front().is_some_and(|&at| cx.now.since(at) > self.limits.window) {
            self.strikes.pop_front();
        }
        let last = self.strikes.len() >= self.limits.max as usize;
        let at_once = at_once || self.on_trial();
        let removed = last || at_once;
        let reason = if at_once || self.limits.max <= 1 {
            fault.to_string()
        } else {
            format!(
                "{} faults in {} s, the last: {fault}",
                self.strikes.len(),
                self.limits.window.0 / 1_000_000
            )
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
        };
        self.last_fault = Some(Arc::new(fault.clone()));
        cx.events.push(Event::PolicyFault(Box::new(fault)));
        if removed {
            self.take_out(cx, Change::Fault, reason);
        }
    }

    /// Removes the policy in force: the previous one comes back, else the built-in stands in.
    fn take_out(&mut self, cx: &mut Context<'_>, change: Change, reason: String) {
        self.end_canary(cx, CanaryState::RolledBack, &reason);
        let from = self.info();
        let left = self.current.take().expect("a policy was in force");
        cx.retired.push((self.into_any)(left.policy));
        self.removed = true;
        self.strikes.clear();
        self.fallback_since = cx.now;
        if let Some(mut previous) = self.previous.take() {
            previous.since = cx.now;
            self.current = Some(previous);
            self.renew(Renewal::CameBack);
        }
        self.budget.measure_from(self.current.as_mut());
        self.changed(cx, from, change, reason);
    }

    /// Whether a policy was taken out since the last call of this.
    pub fn take_removal(&mut self) -> bool {
        std::mem::take(&mut self.removed)
    }

    /// Only prefix-cache policies are told things; the others see everything each time.
    fn renew(&mut self, renewal: Renewal) {
        if self.kind == PolicyKind::PrefixCache {
            self.renewed = Some(renewal);
        }
    }

    /// Keeps a copy of the state of the policy in force.
    pub fn save_state(&mut self, cx: &mut Context<'_>) {
        self.mend(cx);
        if let Some(tenure) = &mut self.current {
            match tenure.policy.export_state() {
                Ok(state) => tenure.state = state,
                Err(fault) => {
                    tenure.broken = true;
                    self.strike(cx, fault, FaultView::Lifecycle, false);
                }
            }
        }
    }

    /// The state of the policy in force; empty where it has none, or can't export it.
    pub fn state_now(&mut self, cx: &mut Context<'_>) -> Vec<u8> {
        self.save_state(cx);
        self.current.as_ref().map_or_else(Vec::new, |t| t.state.clone())
    }

    /// Puts `policy` in force. Returns whether it took the outgoing one's state over, and who is not
    /// needed any more.
    pub fn replace(
        &mut self,
        cx: &mut Context<'_>,
        policy: Box<P>,
        change: Change,
    ) -> (bool, Option<AnyPolicy>) {
        self.end_shadow(cx, ShadowState::Replaced, "another policy came into the slot");
        let state = self.outgoing_state(&*policy);
        let mut tenure = Tenure::new(policy, cx.now);
        let restored = state.is_some_and(|state| tenure.import(state));
        (restored, self.install(cx, tenure, change))
    }

    /// Makes the shadow the live policy. It keeps the state that it has.
    pub fn promote_shadow(&mut self, cx: &mut Context<'_>) -> Option<Option<AnyPolicy>> {
        let policy = self.take_shadow(cx, ShadowState::Promoted, "it became the live policy")?;
        let mut tenure = Tenure::new(policy, cx.now);
        tenure.export();
        Some(self.install(cx, tenure, Change::Promote))
    }

    fn install(&mut self, cx: &mut Context<'_>, tenure: Tenure<P>, change: Change) -> Option<AnyPolicy> {
        let from = self.info();
        let mut outgoing = self.current.replace(tenure);
        self.budget.measure_from(self.current.as_mut());
        if self.renewed.take().is_some()
            && let Some(outgoing) = &mut outgoing
        {
            // It was not told yet what it missed: should it come back, it begins afresh.
            outgoing.broken = true;
        }
        let retired = match outgoing {
            Some(outgoing) => self.previous.replace(outgoing),
            None => self.previous.take(),
        };
        self.changed(cx, from, change, change.name().to_owned());
        retired.map(|t| (self.into_any)(t.policy))
    }

    /// Brings the previous policy back. The one in force is retired.
    pub fn rollback(&mut self, cx: &mut Context<'_>) -> Option<(bool, Option<AnyPolicy>)> {
        let mut previous = self.previous.take()?;
        self.end_canary(cx, CanaryState::RolledBack, "an operator rolled it back");
        let from = self.info();
        let state = self.outgoing_state(&*previous.policy);
        let restored = state.is_some_and(|state| previous.import(state));
        previous.since = cx.now;
        let retired = self.current.replace(previous);
        self.budget.measure_from(self.current.as_mut());
        self.renew(Renewal::CameBack);
        self.changed(cx, from, Change::Rollback, Change::Rollback.name().to_owned());
        Some((restored, retired.map(|t| (self.into_any)(t.policy))))
    }

    /// The state that a successor takes over. One that can't export any more left some earlier.
    fn outgoing_state(&mut self, successor: &P) -> Option<Vec<u8>> {
        let tenure = self.current.as_mut()?;
        let outgoing = tenure.policy.info();
        if !successor.takes_state_of(&outgoing.name) {
            return None;
        }
        let fresh = !tenure.broken && tenure.export();
        // Empty is also what was never exported.
        let any = fresh || !tenure.state.is_empty();
        any.then(|| successor.own_part_of(&outgoing.name, &tenure.state)).flatten()
    }

    /// Whether the policy in force is made anew before it is asked anything: nothing that it was told counts.
    pub fn is_broken(&self) -> bool {
        self.current.as_ref().is_some_and(|t| t.broken)
    }

    /// Takes a watched canary out because something else is to come.
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

    /// Whether the previous policy is kept up to date though it is not asked. One that failed isn't: should it
    /// come back, it is started anew.
    pub fn has_hot_previous(&self) -> bool {
        self.previous.as_ref().is_some_and(|t| !t.broken)
    }

    /// Tells the previous policy something. What it answers counts for nothing.
    pub fn tell_previous<T>(&mut self, tell: impl FnOnce(&mut P) -> Result<T, PolicyFault>) {
        if let Some(tenure) = self.previous.as_mut().filter(|t| !t.broken) {
            tenure.broken = tell(&mut tenure.policy).is_err();
        }
    }

    /// When the policy in force came.
    pub fn since(&self) -> Micros {
        self.current.as_ref().map_or(self.fallback_since, |t| t.since)
    }

    /// Gives the previous policy up.
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
            faults: self.faults,
            fallbacks: self.fallbacks,
            since: self.since(),
            last_fault: self.last_fault.clone(),
            trial: self.on_trial(),
            canary: self.canary_report(),
            shadow: self.shadow_report(),
        }
    }
}

impl Budget {
    fn measure_from<P: Policy + ?Sized>(&mut self, current: Option<&mut Tenure<P>>) {
        self.before = current.map_or(Micros::ZERO, |t| {
            t.policy.begin_step();
            t.policy.spent()
        });
    }
}

/// What is wrong where the calls of a step took too long; `before` is what those before had taken.
fn over_budget<P: Policy + ?Sized>(policy: &P, before: Micros) -> Option<PolicyFault> {
    let spent = policy.spent().since(before);
    (spent > STEP_BUDGET).then(|| {
        let (spent, budget) = (spent.0 / 1_000, STEP_BUDGET.0 / 1_000);
        let message = format!("its calls of one step took {spent} ms, over {budget} ms in all");
        policy.attribute(PolicyFault::new(FaultKind::StepBudget, message))
    })
}

impl<P: Policy + ?Sized> Tenure<P> {
    fn new(policy: Box<P>, since: Micros) -> Self {
        Self { policy, since, broken: false, state: Vec::new() }
    }

    /// Keeps a copy of its state. False where that fails: it may be beyond answering, and is started anew
    /// before anything else is asked of it.
    fn export(&mut self) -> bool {
        match self.policy.export_state() {
            Ok(state) => self.state = state,
            Err(_) => self.broken = true,
        }
        !self.broken
    }

    /// Takes a state over, and keeps a copy of what it has then: what it had exported before is older, and this may be
    /// a part of it. False where it can't read it.
    fn import(&mut self, state: Vec<u8>) -> bool {
        if self.broken {
            // It begins from there once it is restarted.
            self.state = state;
            return true;
        }
        if let Err(fault) = self.policy.import_state(&state) {
            self.broken = !fault.is_refusal();
            return false;
        }
        self.state = state;
        self.export();
        true
    }
}
