//! Starts the shortest prompt first, and limits how long any sequence may be overtaken.
//!
//! Short requests get their first token sooner that way. Without a limit, long ones would never start under
//! load, and the host would remove the policy for it; so a sequence that has been overtaken for `patience_ms`
//! goes first, in order of arrival, and is not overtaken any more.

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

/// The policy. Its memory isn't worth carrying over a swap, so it exports no state.
pub struct ShortestFirst {
    /// Sequences that were overtaken, and for how long.
    patience: Patience,
    /// Starts sequences in an order of our choice: room for the whole prompt, shared prefixes.
    starts: Starts,
}

impl Policy for ShortestFirst {
    type Config = Config;
    const NAME: &'static str = env!("CARGO_PKG_NAME"); // state moves between policies of the same name
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str =
        "Starts the shortest prompt first, except that long-overtaken requests go before it.";
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

    /// An error here refuses the policy with its text; the live one stays.
    fn new(config: Config) -> Result<Self, String> {
        let patience = Patience::new(Micros::from_millis(config.patience_ms));
        Ok(Self { patience, starts: Starts::default() })
    }
}

impl Scheduler for ShortestFirst {
    /// Called before every step. The planner counts tokens, slots and memory, so that the plan keeps the
    /// host's limits; the policy only says which sequences it wants.
    fn schedule(&mut self, step: &Step) -> Plan {
        let mut planner = Planner::new(step);
        // Running sequences continue, decodes first. If that preempts any, none starts.
        if planner.go_on() == 0 {
            // First those that were overtaken for too long, by arrival, then the others by length.
            let order = self.patience.order(step, |sequence| sequence.remaining_tokens());
            self.starts.start(order, step, &mut planner);
        }
        // Notes which sequences started, and so which were overtaken.
        self.patience.note(step, planner.started());
        planner.finish()
    }
}

// Builds the component; elsewhere it does nothing, so that tests run natively too.
export_policy!(scheduler: ShortestFirst);

#[cfg(test)]
mod tests;
