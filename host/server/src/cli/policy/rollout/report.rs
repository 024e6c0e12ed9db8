//! What a rollout prints on stdout: its plan, and what became of it.

use std::time::Duration;

use futures_util::future::join_all;
use infer_api::admin::{Policies, PolicySlot};
use serde_json::{Value, json};

use super::plan::{self, Plan, Step};
use super::{Rollout, RolloutArgs, Stopped};
use crate::cli::Failure;
use crate::cli::admin::print_json;
use crate::cli::hosts::Named;
use crate::cli::policy::several::{table, unsaved};

/// How long hosts may take to say what they run, once the user waits for nothing more.
const GRACE: Duration = Duration::from_secs(1);

/// Prints what would be done.
pub(super) fn show_plan(args: &RolloutArgs, hosts: &[Named], plan: &Plan) -> Result<(), Failure> {
    let steps = || hosts.iter().zip(&plan.steps);
    if args.json {
        let row = |(named, step): (&Named, &Step)| {
            json!({"host": named.name, "admin": named.host.base(), "before": made(&step.before),
                   "action": step.action.words()})
        };
        return print_json(&json!({"hosts": steps().map(row).collect::<Vec<_>>()}));
    }
    let row = |(named, step): (&Named, &Step)| {
        [named.name.clone(), plan::cell(&step.before), step.action.words().to_owned()]
    };
    table(["host", "now", "would be done"], steps().map(row));
    println!("nothing was changed");
    Ok(())
}

/// A policy in JSON.
fn made(slot: &PolicySlot) -> Value {
    json!({"name": slot.name, "sha256": slot.sha256, "config_sha256": slot.config_sha256, "state": slot.state})
}

impl Rollout<'_> {
    /// Prints what happened on each host and what runs there now.
    pub(super) async fn conclude(self, carried_out: Result<(), Stopped>) -> Result<(), Failure> {
        let enough = self.stop.ends();
        let looks = (0..self.hosts.len()).map(|at| self.last_look(at, enough));
        let policies: Vec<Option<Policies>> = join_all(looks).await;
        let slot = |policies: &Option<Policies>| self.own_slot(policies.as_ref()?).cloned();
        let now: Vec<Option<PolicySlot>> = policies.iter().map(slot).collect();
        let all = || self.hosts.iter().zip(&self.plan.steps).zip(now.iter().zip(&self.fates));
        let is_live =
            |slot: &Option<PolicySlot>| slot.as_ref().is_some_and(|slot| self.plan.target.is_live(slot));
        let live = now.iter().filter(|slot| is_live(slot)).count();
        if self.args.json {
            let not_saved = policies.iter().map(|policies| policies.as_ref()?.not_saved.as_ref());
            let rows = all().zip(not_saved).map(|(((named, step), (now, fate)), not_saved)| {
                json!({"host": named.name, "admin": named.host.base(), "before": made(&step.before),
                       "now": now.as_ref().map(made), "outcome": fate.outcome, "detail": fate.detail,
                       "not_saved": not_saved})
            });
            let stopped = carried_out.as_ref().err();
            let stopped = stopped.map(|Stopped { host, why }| json!({"host": host, "why": why}));
            let is_everywhere = stopped.is_none() && live == now.len();
            print_json(&json!({"hosts": rows.collect::<Vec<_>>(), "live_on_all": is_everywhere,
                               "stopped": stopped}))?;
        } else {
            let rows =
                all().map(|((named, step), (now, fate))| plan::row(&named.name, step, now.as_ref(), fate));
            table(["host", "before", "now", "what happened"], rows);
            let said = self.hosts.iter().zip(&policies);
            for line in said.filter_map(|(named, policies)| unsaved(&named.name, policies.as_ref()?)) {
                println!("{line}");
            }
        }
        match carried_out {
            Ok(()) if live == now.len() => Ok(()),
            Ok(()) => Err(Failure::Failed(format!("the policy is live on {live} of {} hosts", now.len()))),
            Err(stopped) => {
                let why = stopped.words();
                Err(Failure::Failed(format!("the rollout stopped: {why}")))
            }
        }
    }

    /// What a host runs, if it says so before the user, who wanted to stop `enough` times, loses patience.
    async fn last_look(&self, at: usize, enough: u32) -> Option<Policies> {
        let impatience = async {
            self.stop.reached(enough).await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            biased;
            policies = self.all_slots(at) => policies.ok(),
            () = impatience => None,
        }
    }
}
