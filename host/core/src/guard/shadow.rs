//! A shadow in a slot: gets the live policy's calls, right after it and with the same view.
//!
//! Its answers are checked like live ones and compared, never applied. Its first fault removes it; taking more than
//! its share of the time is one.
//! Deliberately absent: what the answers mean; the caller compares them.

use std::sync::Arc;

use super::budget::{Share, over_budget};
use super::exchange::why_not_taken;
use super::{Context, Slot};
use crate::event::{Event, Handover};
use crate::ids::Micros;
use crate::policy::{AnyPolicy, CallStats, Culprit, Fault, FaultView, Policy, PolicyFault};
use crate::trial::{Divergence, DivergenceKind, SHADOW_EXAMPLES, ShadowReport, ShadowState};

pub(super) struct Shadow<P: ?Sized> {
    policy: Box<P>,
    report: ShadowReport,
    /// Its calls' total before this step.
    spent: Micros,
    share: Share,
    /// The state that it began from.
    state: Vec<u8>,
    /// It was restarted on arrival, so it has forgotten what it was primed with.
    blank: bool,
}

impl<P: Policy + ?Sized> Shadow<P> {
    pub fn begin_step(&mut self) {
        self.policy.begin_step();
        self.spent = self.policy.spent();
    }
}

/// Outcome of a shadow's call.
pub(crate) enum Compared {
    /// It decided like the live policy.
    Same,
    /// It decided otherwise.
    Differs { kind: DivergenceKind, live: String, shadow: String },
    /// There was nothing to compare.
    Told,
}

impl Compared {
    /// Compares two answers; `words` abbreviates them if they differ.
    pub fn of<T: PartialEq>(
        kind: DivergenceKind,
        live: &T,
        shadow: &T,
        words: impl Fn(&T) -> String,
    ) -> Self {
        if live == shadow {
            return Self::Same;
        }
        Self::Differs { kind, live: words(live), shadow: words(shadow) }
    }
}

impl<P: Policy + ?Sized> Slot<P> {
    /// Runs a policy beside the live one. Returns whether it begins with a copy of the live one's state, and if it can't
    /// read that, why.
    pub fn start_shadow(&mut self, cx: &mut Context<'_>, mut policy: Box<P>) -> (Handover, Option<String>) {
        self.end_shadow(cx, ShadowState::Replaced, "another shadow replaced it");
        let mut state = self.shared_state(cx, &*policy);
        let (mut blank, mut note) = (false, None);
        if !state.is_empty()
            && let Err(fault) = policy.import_state(&state)
        {
            state.clear();
            note = why_not_taken(&fault, false);
            // If that fails too, its first call reports it.
            blank = !fault.is_refusal() && policy.restart().is_ok();
        }
        let handover = if state.is_empty() { Handover::Cold } else { Handover::Restored };
        let report = ShadowReport {
            policy: policy.info(),
            state: ShadowState::Watching,
            reason: String::new(),
            since: cx.now,
            ended: Micros::NEVER,
            questions: 0,
            agreements: 0,
            divergences: [0; DivergenceKind::ALL.len()],
            examples: Vec::new(),
            fault: None,
            stats: CallStats::default(),
            live_stats: CallStats::default(),
            gauges: Vec::new(),
        };
        policy.begin_step();
        let (spent, share) = (policy.spent(), Share::new(&*policy, cx.now));
        self.shadow = Some(Shadow { policy, report, spent, share, state, blank });
        self.tell_shadow(cx, note.clone());
        (handover, note)
    }

    pub fn has_shadow(&self) -> bool {
        self.shadow.is_some()
    }

    /// Whether the shadow was restarted on arrival.
    pub fn has_blank_shadow(&self) -> bool {
        self.shadow.as_ref().is_some_and(|shadow| shadow.blank)
    }

    /// Calls the shadow, if there is one. `view` is what it was shown.
    pub fn ask_shadow(
        &mut self,
        cx: &mut Context<'_>,
        question: impl FnOnce(&mut P) -> Result<Compared, PolicyFault>,
        view: impl FnOnce() -> FaultView,
    ) {
        let Some(shadow) = &mut self.shadow else { return };
        let report = &mut shadow.report;
        shadow.share.begin_call(&*shadow.policy, cx.now);
        let mut over_share = false;
        let compared = question(&mut shadow.policy).and_then(|compared| {
            let policy = &*shadow.policy;
            over_budget(policy, shadow.spent, self.limits.step_budget)
                .or_else(|| shadow.share.exceeded(policy).inspect(|_| over_share = true))
                .map_or(Ok(compared), Err)
        });
        match compared {
            Ok(Compared::Told) => {}
            Ok(Compared::Same) => {
                report.questions += 1;
                report.agreements += 1;
            }
            Ok(Compared::Differs { kind, live, shadow }) => {
                report.questions += 1;
                report.divergences[kind as usize] += 1;
                if report.examples.len() == SHADOW_EXAMPLES {
                    report.examples.remove(0);
                }
                report.examples.push(Divergence { kind, step: cx.step, at: cx.now, live, shadow });
            }
            Err(fault) => {
                let reason = fault.to_string();
                let policy = fault.member.clone().unwrap_or_else(|| report.policy.clone());
                let culprit = Culprit { policy, reason: reason.clone() };
                let fault = Fault {
                    slot: self.kind,
                    policy: report.policy.clone(),
                    fault,
                    step: cx.step,
                    at: cx.now,
                    view: view(),
                    state: std::mem::take(&mut shadow.state),
                    shadow: true,
                    removed: true,
                    // Live it would be within its limits.
                    culprits: if over_share { Vec::new() } else { vec![culprit] },
                };
                report.fault = Some(Arc::new(fault.clone()));
                cx.events.push(Event::PolicyFault(Box::new(fault)));
                self.end_shadow(cx, ShadowState::Failed, &reason);
            }
        }
    }

    /// Ends the shadow; the engine's driver drops it.
    pub fn end_shadow(&mut self, cx: &mut Context<'_>, state: ShadowState, reason: &str) -> bool {
        let policy = self.take_shadow(cx, state, reason);
        policy.map(|policy| cx.retired.push((self.into_any)(policy))).is_some()
    }

    /// Ends the shadow on an operator's behalf and returns it.
    pub fn stop_shadow(&mut self, cx: &mut Context<'_>) -> Option<AnyPolicy> {
        let policy = self.take_shadow(cx, ShadowState::Stopped, "an operator stopped it")?;
        Some((self.into_any)(policy))
    }

    pub(super) fn take_shadow(
        &mut self,
        cx: &mut Context<'_>,
        state: ShadowState,
        reason: &str,
    ) -> Option<Box<P>> {
        let mut report = self.shadow_report()?;
        let shadow = self.shadow.take()?;
        report.state = state;
        report.reason = reason.to_owned();
        report.ended = cx.now;
        self.last_shadow = Some(report);
        self.tell_shadow(cx, None);
        Some(shadow.policy)
    }

    /// The running shadow's report, or that of the last one.
    pub fn shadow_report(&self) -> Option<ShadowReport> {
        let Some(shadow) = &self.shadow else { return self.last_shadow.clone() };
        Some(ShadowReport {
            stats: shadow.policy.stats(),
            live_stats: self.live_stats(),
            gauges: shadow.policy.gauges(),
            ..shadow.report.clone()
        })
    }

    fn tell_shadow(&self, cx: &mut Context<'_>, state_note: Option<String>) {
        let Some(report) = self.shadow_report() else { return };
        let live = self.info().name.clone();
        cx.events.push(Event::Shadow { kind: self.kind, live, report: Box::new(report), state_note });
    }
}
