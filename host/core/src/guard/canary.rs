//! A canary in a slot: live, watched, and removed at its first fault or when clients are worse off.
//!
//! Deliberately absent: what worse means (`perf::judge`), and where the measurements come from.

use std::sync::Arc;

use super::{Change, Context, Slot};
use crate::event::Event;
use crate::ids::Micros;
use crate::perf::{self, Outlook, Slice, judge};
use crate::policy::{Policy, PolicyInfo, PolicyKind};
use crate::trial::{CanaryReport, CanaryState};

/// A window is extended to at most this many times its length while more is asked of the host than before.
const LONGEST: u64 = 4;

pub(super) struct Canary {
    report: CanaryReport,
    /// The live policies, in `PolicyKind::ALL` order.
    company: Company,
    before: Vec<Slice>,
    after: Vec<Slice>,
    /// Slices that the recorder had closed at the last look.
    seen: u64,
}

/// The live policies, in `PolicyKind::ALL` order.
pub(crate) type Company = [Arc<PolicyInfo>; 3];

/// What a trial starts from.
pub(crate) struct Trial {
    /// The policy that comes back if the canary fails.
    pub previous: Arc<PolicyInfo>,
    /// How much time with work in it the trial lasts.
    pub window: Micros,
    /// The live policies of all slots during the trial.
    pub company: Company,
    /// What was measured before.
    pub before: Vec<Slice>,
    /// Slices that the recorder has closed so far.
    pub seen: u64,
}

impl Canary {
    fn new(kind: PolicyKind, policy: Arc<PolicyInfo>, trial: Trial, since: Micros) -> Self {
        let Trial { previous, window, company, before, seen } = trial;
        let report = CanaryReport {
            kind,
            policy,
            previous,
            state: CanaryState::Watching,
            reason: what_counts(&before),
            since,
            ended: Micros::NEVER,
            window,
            longest: if before.is_empty() { window } else { Micros(window.0.saturating_mul(LONGEST)) },
            watched: Micros::ZERO,
            disturbed: None,
            before: perf::summarize(&before),
            after: perf::summarize(&[]),
        };
        Self { report, company, before, after: Vec::new(), seen }
    }

    /// Another slot's policy changed, which may cause what is measured from now on, after `seen` slices: the
    /// window restarts without a baseline.
    fn disturb(&mut self, other: PolicyKind, company: Company, seen: u64) {
        (self.company, self.seen) = (company, seen);
        self.before.clear();
        self.after.clear();
        let report = &mut self.report;
        (report.disturbed, report.watched) = (Some(other), Micros::ZERO);
        (report.before, report.after) = (perf::summarize(&[]), perf::summarize(&[]));
        report.longest = report.window;
        report.reason = format!("the {other} policy changed meanwhile; only faults are watched for");
    }

    fn end(mut self, state: CanaryState, reason: &str, now: Micros) -> CanaryReport {
        self.report.after = perf::summarize(&self.after);
        self.report.state = state;
        self.report.reason = reason.to_owned();
        self.report.ended = now;
        self.report
    }

    /// Takes in what was measured since the last look. Returns the verdict, if there is one.
    fn look(&mut self, recorder: &perf::Recorder) -> Option<(CanaryState, String)> {
        let new = recorder.closed_since(self.seen);
        if new.len() == 0 {
            return None;
        }
        self.after.extend(new.cloned());
        self.seen = recorder.closed();
        self.report.watched = self.after.iter().fold(Micros::ZERO, |sum, s| sum.plus(s.counts_as()));
        self.report.after = perf::summarize(&self.after);
        match judge(&self.before, &self.after, self.report.window) {
            Outlook::Harmful(reason) => Some((CanaryState::RolledBack, reason)),
            Outlook::Fine { .. } if self.report.watched < self.report.window => None,
            Outlook::Fine { more: Some(more) } if self.report.watched < self.report.longest => {
                self.report.reason =
                    format!("watched for longer, because more is asked of the host than before: {more}");
                None
            }
            Outlook::Fine { more } => Some((CanaryState::Promoted, self.praise(more.is_none()))),
        }
    }

    fn praise(&self, comparable: bool) -> String {
        let (before, after) = (&self.report.before, &self.report.after);
        let watched = self.report.watched.0 as f64 / 1e6;
        if let Some(other) = self.report.disturbed {
            return format!(
                "no fault in {watched:.1} s; the {other} policy changed during the trial, so nothing was compared"
            );
        }
        if self.before.len() < perf::FEWEST_BEFORE {
            let baseline = if self.before.is_empty() { "no baseline" } else { "too short a baseline" };
            return format!("no fault in {watched:.1} s; there was {baseline} to compare with");
        }
        let ms = |t: Micros| t.0 as f64 / 1e3;
        let load = if comparable { "" } else { ", under more load than before" };
        format!(
            "no fault in {watched:.1} s{load}: ITL p50 {:.1} ms (before {:.1}), TTFT p50 {:.1} ms ({:.1}), {:.0} tokens/s ({:.0})",
            ms(after.itl_p50),
            ms(before.itl_p50),
            ms(after.ttft_p50),
            ms(before.ttft_p50),
            after.tokens_per_second,
            before.tokens_per_second
        )
    }
}

/// What can fail a canary with this baseline.
fn what_counts(before: &[Slice]) -> String {
    let seconds = perf::summarize(before).busy.0 as f64 / 1e6;
    match before.len() {
        0 => "only faults can fail it; nothing ran under the same policies before, so there is no baseline"
            .to_owned(),
        short if short < perf::FEWEST_BEFORE => format!(
            "only faults and refusals can fail it; {seconds:.1} s of work before it are too short a baseline"
        ),
        _ => format!("compared with {seconds:.1} s of work before it"),
    }
}

impl<P: Policy + ?Sized> Slot<P> {
    /// Puts the live policy, which was just swapped in, on trial.
    pub fn watch(&mut self, cx: &mut Context<'_>, trial: Trial) {
        let canary = Canary::new(self.kind, self.info(), trial, cx.now);
        cx.events.push(Event::Canary(Box::new(canary.report.clone())));
        self.canary = Some(canary);
    }

    pub fn on_trial(&self) -> bool {
        self.canary.is_some()
    }

    /// The other slot whose policy changed during the trial since the last call.
    pub fn disturbance(&self, now: &Company) -> Option<PolicyKind> {
        let canary = self.canary.as_ref()?;
        let mut others = PolicyKind::ALL.into_iter().filter(|&kind| kind != self.kind);
        others.find(|&kind| canary.company[kind as usize] != now[kind as usize])
    }

    /// Continues the trial without what was measured so far.
    pub fn disturb_canary(&mut self, cx: &mut Context<'_>, other: PolicyKind, company: Company, seen: u64) {
        let Some(canary) = &mut self.canary else { return };
        canary.disturb(other, company, seen);
        cx.events.push(Event::Canary(Box::new(canary.report.clone())));
    }

    /// Looks at what was measured since the last look. True if the canary was removed.
    pub fn judge_canary(&mut self, cx: &mut Context<'_>, recorder: &perf::Recorder) -> bool {
        let Some((state, reason)) = self.canary.as_mut().and_then(|c| c.look(recorder)) else { return false };
        let harmful = state == CanaryState::RolledBack;
        if harmful {
            self.take_out(cx, Change::Verdict, reason);
        } else {
            self.end_canary(cx, state, &reason);
        }
        harmful
    }

    /// Ends the trial. The caller decides which policy is live.
    pub fn end_canary(&mut self, cx: &mut Context<'_>, state: CanaryState, reason: &str) -> bool {
        let Some(canary) = self.canary.take() else { return false };
        let report = canary.end(state, reason, cx.now);
        cx.events.push(Event::Canary(Box::new(report.clone())));
        self.last_canary = Some(report);
        true
    }

    /// The running trial, or the last one.
    pub fn canary_report(&self) -> Option<CanaryReport> {
        self.canary.as_ref().map(|c| c.report.clone()).or_else(|| self.last_canary.clone())
    }
}
