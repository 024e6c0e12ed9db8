//! A canary in a slot: in force, watched, and out at the first fault or when clients are worse off.
//!
//! Deliberately absent: what worse means (`perf::judge`), and where the measurements come from.

use std::sync::Arc;

use super::{Change, Context, Slot};
use crate::event::Event;
use crate::ids::Micros;
use crate::perf::{self, Outlook, Slice, judge};
use crate::policy::{Policy, PolicyInfo, PolicyKind};
use crate::trial::{CanaryReport, CanaryState};

/// A window is extended to at most so many times its length where the load isn't comparable.
const LONGEST: u64 = 4;

pub(super) struct Canary {
    report: CanaryReport,
    before: Vec<Slice>,
    after: Vec<Slice>,
    /// Slices that the recorder had closed up to the last look.
    seen: u64,
}

/// What a trial starts from.
pub(crate) struct Trial {
    /// Who comes back should the policy fail.
    pub previous: Arc<PolicyInfo>,
    /// How much time with work in it the trial lasts.
    pub window: Micros,
    /// What was measured before.
    pub before: Vec<Slice>,
    /// Slices that the recorder has closed so far.
    pub seen: u64,
}

impl Canary {
    fn new(kind: PolicyKind, policy: Arc<PolicyInfo>, trial: Trial, since: Micros) -> Self {
        let Trial { previous, window, before, seen } = trial;
        let report = CanaryReport {
            kind,
            policy,
            previous,
            state: CanaryState::Watching,
            reason: "it is watched".to_owned(),
            since,
            ended: Micros::NEVER,
            window,
            watched: Micros::ZERO,
            before: perf::summarize(&before),
            after: perf::summarize(&[]),
        };
        Self { report, before, after: Vec::new(), seen }
    }

    fn end(mut self, state: CanaryState, reason: &str, now: Micros) -> CanaryReport {
        self.report.after = perf::summarize(&self.after);
        self.report.state = state;
        self.report.reason = reason.to_owned();
        self.report.ended = now;
        self.report
    }

    /// Takes in what was measured since the last look. What follows from it, where anything does.
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
            Outlook::Fine { comparable } => {
                let longest = self.report.window.0.saturating_mul(LONGEST);
                let done = comparable || self.before.is_empty() || self.report.watched.0 >= longest;
                done.then(|| (CanaryState::Promoted, self.praise(comparable)))
            }
        }
    }

    fn praise(&self, comparable: bool) -> String {
        let (before, after) = (&self.report.before, &self.report.after);
        let watched = self.report.watched.0 as f64 / 1e6;
        if self.before.is_empty() {
            return format!("no fault in {watched:.1} s; there was nothing before it to compare with");
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

impl<P: Policy + ?Sized> Slot<P> {
    /// The policy in force, which just came, is on trial from now on.
    pub fn watch(&mut self, cx: &mut Context<'_>, trial: Trial) {
        let canary = Canary::new(self.kind, self.info(), trial, cx.now);
        cx.events.push(Event::Canary(Box::new(canary.report.clone())));
        self.canary = Some(canary);
    }

    pub fn on_trial(&self) -> bool {
        self.canary.is_some()
    }

    /// Looks at what was measured since the last look. True where the canary was taken out.
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

    /// The trial is over. Who is in force is the caller's concern.
    pub fn end_canary(&mut self, cx: &mut Context<'_>, state: CanaryState, reason: &str) -> bool {
        let Some(canary) = self.canary.take() else { return false };
        let report = canary.end(state, reason, cx.now);
        cx.events.push(Event::Canary(Box::new(report.clone())));
        self.last_canary = Some(report);
        true
    }

    /// The trial that lasts, or the last one.
    pub fn canary_report(&self) -> Option<CanaryReport> {
        self.canary.as_ref().map(|c| c.report.clone()).or_else(|| self.last_canary.clone())
    }
}
