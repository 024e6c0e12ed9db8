//! Starts the shortest prompt first, and lets nobody be overtaken for too long.
//!
//! Short requests get their first token sooner that way. Left alone, long ones would never start under load,
//! and the host would take the policy out for it; so whoever has been overtaken for `patience_ms` goes first,
//! in the order of arrival, and is not overtaken any more.

use infer_policy_sdk::{Micros, Patience, Plan, Planner, Policy, Scheduler, Starts, Step, export_policy};
use serde::{Deserialize, Serialize};

/// What the policy can be configured with. `deny_unknown_fields` makes the host refuse a misspelt key.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How long shorter prompts may go first.
    pub patience_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { patience_ms: 1_000 }
    }
}

/// The policy. What it remembers isn't worth carrying over a swap, so it exports no state.
pub struct ShortestFirst {
    /// Who was overtaken, and for how long.
    patience: Patience,
    /// Starts sequences in an order of our choice: room for the whole prompt, shared prefixes.
    starts: Starts,
}

impl Policy for ShortestFirst {
    type Config = Config;
    const NAME: &'static str = env!("CARGO_PKG_NAME"); // state moves between policies of one name
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str =
        "Starts the shortest prompt first; who was overtaken for long goes first.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "patience_ms": {
                "type": "integer", "minimum": 0, "default": 1000,
                "description": "How long shorter prompts may go first; at most 60 % of the host's starvation bound counts"
            }
        }
    }"#;

    /// An error here refuses the policy with its text; the one in force stays.
    fn new(config: Config) -> Result<Self, String> {
        let patience = Patience::new(Micros::from_millis(config.patience_ms));
        Ok(Self { patience, starts: Starts::default() })
    }
}

impl Scheduler for ShortestFirst {
    /// Asked before every step. The planner counts tokens, places and memory, so that the plan keeps the
    /// host's limits; the policy only says whom it wants.
    fn schedule(&mut self, step: &Step) -> Plan {
        let mut planner = Planner::new(step);
        // What runs goes on, decodes first. Where memory is short somebody gives way, and then nobody starts.
        if planner.go_on() == 0 {
            // Those that were overtaken for too long in the order of arrival, then the others by length.
            let order = self.patience.order(step, |sequence| sequence.remaining_tokens());
            self.starts.start(order, step, &mut planner);
        }
        // Who started, and so who was overtaken.
        self.patience.note(step, planner.started());
        planner.finish()
    }
}

// A component where one is built, and nothing elsewhere: tests run natively too.
export_policy!(scheduler: ShortestFirst);

#[cfg(test)]
mod tests;
