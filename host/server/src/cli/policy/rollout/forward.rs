//! Forward: the policy is brought to one host after the other. Those that have it are looked at before the next one.

use std::time::Duration;

use futures_util::future::join_all;
use infer_api::admin::{PolicySlot, SwapAnswer};
use reqwest::Method;

use super::look::SOMEBODY;
use super::plan::{self, Action, Fate, Idleness, Outcome, Step, Verdict, verdict};
use super::{INTERRUPTED, POLL, Rollout, Stopped, say};
use crate::cli::Failure;
use crate::cli::admin::parse;
use crate::cli::hosts::Named;
use crate::cli::policy::path;
use crate::cli::policy::several::Made;

/// A canary's window if none is given, in seconds: what hosts take.
const WINDOW_S: f64 = 30.0;
/// Windows in which a verdict must come: one is extended up to fourfold, and idle time doesn't count.
const WINDOWS: f64 = 20.0;

impl Rollout<'_> {
    /// Brings the policy to one host after the other.
    pub(super) async fn carry_out(&mut self) -> Result<(), Stopped> {
        let plan = self.plan;
        for (at, step) in plan.steps.iter().enumerate() {
            if step.action == Action::Leave {
                continue;
            }
            self.all_keep_it().await?;
            self.bring(at, step).await?;
        }
        self.all_keep_it().await
    }

    /// Brings the policy to a host, and waits for the verdict if it is a canary.
    async fn bring(&mut self, at: usize, step: &Step) -> Result<(), Stopped> {
        self.check_unchanged(at, step).await?;
        let name = &self.hosts[at].name;
        say(format!("{name}: {} ({})", self.args.policy, step.action.words()));
        self.hand_over(at, step).await?;
        if step.action == Action::Now {
            self.fates[at] = Fate::new(Outcome::Live, "swapped at once");
            return Ok(());
        }
        self.await_verdict(at).await
    }

    /// Fails unless a host runs what it ran at the preflight.
    async fn check_unchanged(&mut self, at: usize, step: &Step) -> Result<(), Stopped> {
        let found = tokio::select! {
            biased;
            () = self.stop.reached(1) => return Err(Stopped::interrupted()),
            found = self.look(at) => found,
        };
        match found {
            Ok(slot) if step.is_there(&slot) => Ok(()),
            Ok(slot) => {
                let (found, before) = (Made::of(&slot).words(), Made::of(&step.before).words());
                let by = self.stop.unless(1, self.changed_by(at)).await.unwrap_or(SOMEBODY);
                self.fails(at, format!("runs {found} now, not {before}: {by}"))
            }
            Err(why) => self.fails(at, why),
        }
    }

    /// Swaps the policy in on a host.
    async fn hand_over(&mut self, at: usize, step: &Step) -> Result<(), Stopped> {
        let stop = self.stop.clone();
        let answer = tokio::select! {
            biased;
            answer = self.swap(at, step) => answer,
            () = stop.reached(2) => {
                self.fates[at] = Fate::new(Outcome::Left, "it may still do what was asked");
                return Err(Stopped::interrupted());
            }
        };
        match answer {
            Ok(Ok(answer)) => {
                self.taken.push(at);
                if let Some(canary) = answer.canary {
                    say(format!("{}: the canary is live: {}", self.hosts[at].name, canary.reason));
                }
                Ok(())
            }
            Ok(Err(refusal)) => self.fails(at, refusal),
            Err(failure) => {
                // It may have been swapped all the same.
                self.taken.push(at);
                self.fails(at, failure.message())
            }
        }
    }

    /// Waits until a host has decided about its canary, or for as long as the user wants to wait.
    async fn await_verdict(&mut self, at: usize) -> Result<(), Stopped> {
        let (longest, stop) = (self.longest_wait(), self.stop.clone());
        let watched = tokio::select! {
            biased;
            () = stop.reached(1) => {
                self.fates[at] = Fate::new(Outcome::Undecided, INTERRUPTED);
                return Err(Stopped::interrupted());
            }
            watched = tokio::time::timeout(longest, self.watch(at)) => watched,
        };
        let name = &self.hosts[at].name;
        match watched {
            Ok(Ok(reason)) => {
                say(format!("{name}: stays: {reason}"));
                self.fates[at] = Fate::new(Outcome::Live, reason);
                Ok(())
            }
            Ok(Err(why)) => self.fails(at, why),
            Err(_) => {
                let why = "a window counts only time with work in it (see --wait and --canaries)";
                let why = format!("none within {} s; {why}", longest.as_secs());
                let text = format!("no verdict: {why}");
                let stopped = Stopped { host: Some(name.clone()), why: text };
                self.fates[at] = Fate::new(Outcome::Undecided, why);
                Err(stopped)
            }
        }
    }

    /// Notes that a host failed, which stops the rollout.
    fn fails<T>(&mut self, at: usize, why: String) -> Result<T, Stopped> {
        self.fates[at] = Fate::new(Outcome::Failed, why.clone());
        Err(Stopped { host: Some(self.hosts[at].name.clone()), why })
    }

    /// Fails if a host that has the policy, or had it at first, lost it meanwhile, or if the user wants it to stop.
    async fn all_keep_it(&mut self) -> Result<(), Stopped> {
        let good: Vec<usize> = (0..self.fates.len()).filter(|&at| self.fates[at].is_good()).collect();
        let slots = tokio::select! {
            biased;
            () = self.stop.reached(1) => return Err(Stopped::interrupted()),
            slots = join_all(good.iter().map(|&at| self.look(at))) => slots,
        };
        let mut result = Ok(());
        for (at, slot) in good.into_iter().zip(slots) {
            let why = match slot {
                Ok(slot) if self.plan.target.is_live(&slot) => continue,
                Ok(slot) => match verdict(&slot, &self.plan.target) {
                    Verdict::Gone(why) => {
                        self.stop.unless(1, self.gone(at, why.clone())).await.unwrap_or(why)
                    }
                    Verdict::Watching { .. } | Verdict::Stays(_) => "it is on trial once more".to_owned(),
                },
                Err(why) => why,
            };
            let failed = self.fails(at, format!("lost the policy: {why}"));
            result = result.and(failed);
        }
        result
    }

    async fn swap(&self, at: usize, step: &Step) -> Result<Result<SwapAnswer, String>, Failure> {
        let mut query = vec![("of", step.of())];
        if step.action == Action::Canary {
            query.push(("mode", "canary".to_owned()));
            query.push(("window_s", self.window_s().to_string()));
        }
        if self.args.force {
            query.push(("force", "true".to_owned()));
        }
        let body = self.order.body(&mut query);
        let path = path(self.args.kind, "", query);
        match self.hosts[at].host.order(Method::PUT, &path, Some(body)).await? {
            Ok(answer) => parse(answer).map(Ok),
            Err(refusal) => Ok(Err(refusal)),
        }
    }

    fn window_s(&self) -> f64 {
        self.args.window.unwrap_or(WINDOW_S)
    }

    fn longest_wait(&self) -> Duration {
        let given = self.args.wait.map(|seconds| Duration::from_secs(seconds.into()));
        given.unwrap_or_else(|| Duration::from_secs_f64(self.window_s() * WINDOWS))
    }

    /// Waits for the verdict on a canary. Returns why it stays.
    async fn watch(&self, at: usize) -> Result<String, String> {
        let mut idleness = Idleness::default();
        loop {
            tokio::time::sleep(POLL).await;
            let slot = self.look(at).await?;
            match verdict(&slot, &self.plan.target) {
                Verdict::Stays(reason) => return Ok(reason),
                Verdict::Gone(why) => return Err(self.gone(at, why).await),
                Verdict::Watching { watched_s, window_s } => {
                    if idleness.is_news(watched_s) {
                        self.say_idle(at, &slot, watched_s, window_s);
                    }
                }
            }
        }
    }

    /// Says why nothing happens, and what would help.
    fn say_idle(&self, at: usize, slot: &PolicySlot, watched_s: f64, window_s: f64) {
        let (Named { name, host }, kind) = (&self.hosts[at], self.args.kind.name());
        say(format!(
            "{name}: has no work, and only time with work counts ({watched_s:.1} of {window_s:.1} s), so the host \
             decides nothing until requests come; `infer policy promote {kind} --of {} --admin {}` accepts the canary \
             as it is",
            plan::of_slot(slot),
            host.base()
        ));
    }
}
