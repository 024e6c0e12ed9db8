//! Back: what a stopped rollout undoes.

use futures_util::future::join_all;
use infer_api::admin::SwapAnswer;
use reqwest::Method;

use super::plan::{self, Fate, Outcome, Verdict, verdict};
use super::{Rollout, say};
use crate::cli::Failure;
use crate::cli::admin::parse;
use crate::cli::policy::path;
use crate::cli::policy::several::Made;

impl Rollout<'_> {
    /// Brings back what ran before, on the hosts that still run the policy: on all at once, because one that doesn't
    /// answer must not hold up the others.
    pub(super) async fn roll_back(&mut self) {
        let taken = std::mem::take(&mut self.taken);
        let rollout = &*self;
        let restored = join_all(taken.into_iter().map(|at| async move {
            let fate = tokio::select! {
                biased;
                () = rollout.stop.reached(2) => Some(Fate::new(Outcome::Left, "")),
                fate = rollout.restore(at) => fate,
            };
            if let Some(fate) = &fate {
                say(format!("{}: {}", rollout.hosts[at].name, fate.words()));
            }
            (at, fate)
        }))
        .await;
        for (at, fate) in restored {
            if let Some(fate) = fate {
                self.fates[at] = fate.after(&self.fates[at]);
            }
        }
    }

    /// Rolls a host back. `None` if it is known already why it doesn't run the policy any more.
    async fn restore(&self, at: usize) -> Option<Fate> {
        let left = |why: String| Some(Fate::new(Outcome::Left, why));
        let slot = match self.look(at).await {
            Ok(slot) if !self.plan.target.is_in(&slot) => {
                return match (self.fates[at].outcome, verdict(&slot, &self.plan.target)) {
                    (Outcome::Failed, _) => None,
                    // The verdict came after all.
                    (Outcome::Undecided, Verdict::Gone(why)) => left(self.gone(at, why).await),
                    _ => {
                        let by = self.changed_by(at).await;
                        left(format!("it runs {} now: {by}", Made::of(&slot).words()))
                    }
                };
            }
            Ok(slot) => slot,
            Err(why) => return left(format!("it can't be rolled back: {why}")),
        };
        let of = Some(("of", plan::of_slot(&slot)));
        let path = path(self.args.kind, "/rollback", of);
        let host = &self.hosts[at].host;
        let answer: SwapAnswer = match host.ask(Method::POST, &path, None).await.and_then(parse) {
            Ok(answer) => answer,
            Err(failure) => return left(format!("it can't be rolled back: {}", failure.message())),
        };
        let before = &self.plan.steps[at].before;
        if Made::of_answer(&answer) == Made::of(before) {
            return Some(Fate::new(Outcome::RolledBack, ""));
        }
        // After a restart the host goes back to the policy that is configured.
        Some(match self.bring_back(at, &answer).await {
            Ok(()) => Fate::new(Outcome::RolledBack, ""),
            Err(why) => {
                let (found, before) = (Made::of_answer(&answer).words(), Made::of(before).words());
                let why = format!("{found}, not {before}, which can't be brought back: {why}");
                Fate::new(Outcome::RolledBackToAnother, why)
            }
        })
    }

    /// Swaps in what ran before on a host that a rollback has led to something else.
    async fn bring_back(&self, at: usize, found: &SwapAnswer) -> Result<(), String> {
        let before = &self.plan.steps[at].before;
        let policies = self.all_slots(at).await?;
        let order = plan::by_name(before, &policies)
            .ok_or_else(|| "the host doesn't know it by its name any more".to_owned())?;
        let mut query = vec![("of", plan::of_answer(found))];
        let body = order.body(&mut query);
        let path = path(self.args.kind, "", query);
        let answer = self.hosts[at].host.ask(Method::PUT, &path, Some(body)).await;
        let answer: SwapAnswer = answer.and_then(parse).map_err(Failure::message)?;
        if Made::of_answer(&answer) == Made::of(before) {
            Ok(())
        } else {
            Err(format!("its name leads to {}", Made::of_answer(&answer).words()))
        }
    }
}
