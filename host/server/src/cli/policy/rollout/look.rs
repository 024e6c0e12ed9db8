//! Looks at hosts: what their slots run, and whether they were restarted meanwhile.

use infer_api::admin::{Policies, PolicySlot, State};
use reqwest::Method;

use super::{POLL, Rollout, say};
use crate::cli::Failure;
use crate::cli::admin::parse;
use crate::cli::policy::several::in_time;

/// Looks in a row that may fail before a host counts as gone.
const FAILED_LOOKS: u32 = 5;

/// What else than this rollout changes a host, as far as is known.
pub(super) const SOMEBODY: &str = "somebody else has changed it";

impl Rollout<'_> {
    /// Looks at the slot of a host, several times if it doesn't answer: a lost connection is no lost host.
    pub(super) async fn look(&self, at: usize) -> Result<PolicySlot, String> {
        let mut failures = 0;
        let policies = loop {
            match self.all_slots(at).await {
                Ok(policies) => break policies,
                Err(why) => {
                    failures += 1;
                    if failures >= FAILED_LOOKS {
                        return Err(why);
                    }
                    let name = &self.hosts[at].name;
                    say(format!("{name}: doesn't answer ({failures} of {FAILED_LOOKS}): {why}"));
                }
            }
            tokio::time::sleep(POLL).await;
        };
        self.own_slot(&policies).cloned().ok_or_else(|| format!("it has no {} slot", self.args.kind.name()))
    }

    /// Whether it is known that a host was restarted since the preflight.
    async fn is_restarted(&self, at: usize) -> bool {
        let host = &self.hosts[at].host;
        let state = in_time(host, host.ask(Method::GET, "/admin/state", None)).await;
        let state = state.and_then(|state| parse::<State>(state).map_err(Failure::message));
        state.is_ok_and(|state| self.plan.steps[at].is_another_run(&state.host.run))
    }

    /// Why a host has lost the policy, with its restart, which explains more than what it runs since.
    pub(super) async fn gone(&self, at: usize, why: String) -> String {
        if self.is_restarted(at).await { format!("it was restarted meanwhile, and {why}") } else { why }
    }

    /// What else than this rollout changes a host.
    pub(super) async fn changed_by(&self, at: usize) -> &'static str {
        if self.is_restarted(at).await { "it was restarted meanwhile" } else { SOMEBODY }
    }

    pub(super) async fn all_slots(&self, at: usize) -> Result<Policies, String> {
        let host = &self.hosts[at].host;
        let policies = in_time(host, host.ask(Method::GET, "/admin/policies", None)).await?;
        parse(policies).map_err(Failure::message)
    }

    pub(super) fn own_slot<'a>(&self, policies: &'a Policies) -> Option<&'a PolicySlot> {
        policies.slots.iter().find(|slot| slot.kind == self.args.kind.name())
    }
}
