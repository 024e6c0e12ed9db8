//! `fair`: every tenant gets its share of the tokens, whatever the others send.
//!
//! The Virtual Token Counter of Sheng et al. (OSDI 2024, "Fairness in Serving Large Language Models"): a
//! counter per tenant rises by the tokens that it is served, weighted as prompt or output and divided by the
//! tenant's weight. The waiting tenant with the smallest counter is next; one tenant's requests keep their
//! order of arrival. A tenant that comes back from having nothing queued is lifted to the smallest counter of
//! the queued ones, so that no tenant saves up a claim while idle.
//!
//! As in the paper, work is conserved and no sequence is preempted for fairness. A prompt counts when it
//! starts, before it is computed, or one step would start many of one tenant. The paper's bound holds: the
//! services of two tenants that both have requests queued differ by at most `2 U`, where `U` is the larger of
//! `input_weight` times the longest prompt and `output_weight` times the pool's size in tokens, because
//! beyond its turn a tenant only gets what its running sequences still generate.
//!
//! One exception, for the host's watchdog: a tenant that had no start for most of the starvation bound, while
//! others' later requests did, gets its turn. Only very unequal weights make this visible.

mod accounts;

use infer_policy_sdk::{Plan, Planner, Policy, Scheduler, Starts, Step, export_policy};
use serde::{Deserialize, Serialize};

use crate::accounts::{Accounts, Prices};

/// The policy's configuration.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What a prompt token counts.
    pub input_weight: u32,
    /// What an output token counts.
    pub output_weight: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { input_weight: 1, output_weight: 2 }
    }
}

/// Virtual token counters.
pub struct Fair {
    accounts: Accounts,
    starts: Starts,
}

impl Policy for Fair {
    type Config = Config;
    const NAME: &'static str = "fair";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Continuous batching, fair between tenants by their weights: the tenant that \
         was served the fewest tokens is next (Virtual Token Counter), first come first served within a tenant.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "input_weight": {
                "type": "integer", "minimum": 1, "default": 1,
                "description": "What a prompt token that is computed counts"
            },
            "output_weight": {
                "type": "integer", "minimum": 1, "default": 2,
                "description": "What a generated token counts"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        for (key, weight) in [("input_weight", config.input_weight), ("output_weight", config.output_weight)]
        {
            if weight == 0 {
                return Err(format!("`{key}` must be at least 1"));
            }
        }
        let prices = Prices { input: config.input_weight, output: config.output_weight };
        Ok(Self { accounts: Accounts::new(prices), starts: Starts::default() })
    }

    fn export_state(&mut self) -> Vec<u8> {
        self.accounts.to_bytes()
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), String> {
        self.accounts.read(state)
    }
}

impl Scheduler for Fair {
    fn schedule(&mut self, step: &Step) -> Plan {
        self.accounts.observe(step);
        let mut planner = Planner::new(step);
        if planner.go_on() == 0 && planner.slots_left() > 0 {
            self.starts.start(self.accounts.order(step), step, &mut planner);
        }
        self.accounts.note(step, planner.started());
        planner.finish()
    }
}

export_policy!(scheduler: Fair);

#[cfg(test)]
mod tests;
