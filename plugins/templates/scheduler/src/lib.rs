//! Starts the shortest prompt first, and lets nobody wait for too long.
//!
//! Short requests get their first token sooner that way. Left alone, long ones would never start under load,
//! and the host would take the policy out for it; so whoever has waited for `patience_ms` goes first, in the
//! order of arrival, and is not overtaken any more.

use infer_policy_sdk::{
    Micros, Plan, Planner, Policy, Scheduler, Sequence, Step, blocks_to_start, export_policy,
};
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

/// The policy. It keeps no state: the host shows everything it knows at every step.
pub struct ShortestFirst {
    patience: Micros,
}

impl Policy for ShortestFirst {
    type Config = Config;
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Starts the shortest prompt first; who has waited for long goes first.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "patience_ms": {
                "type": "integer", "minimum": 0, "default": 1000,
                "description": "How long shorter prompts may go first"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        Ok(Self { patience: Micros::from_millis(config.patience_ms) })
    }
}

impl Scheduler for ShortestFirst {
    /// Asked before every step. The planner counts tokens, places and memory, so that the plan keeps the
    /// host's limits; the policy only says whom it wants.
    fn schedule(&mut self, step: &Step) -> Plan {
        let mut planner = Planner::new(step);
        // What runs goes on. Where memory is short somebody is preempted, and then nobody new starts.
        if planner.go_on() > 0 {
            return planner.finish();
        }
        // The host measures by its own bound; half of it leaves room for the wait until something fits.
        let patience = self.patience.min(Micros(step.starvation_bound.0 / 2));
        let (overdue, mut others): (Vec<_>, Vec<_>) =
            step.waiting.iter().partition(|sequence| step.now.since(sequence.arrived()) >= patience);
        for sequence in overdue {
            if !start(&mut planner, step, sequence) {
                return planner.finish();
            }
        }
        // A stable sort: equally long prompts stay in the order of arrival.
        others.sort_by_key(|sequence| sequence.remaining_tokens());
        for sequence in others {
            if !start(&mut planner, step, sequence) {
                break;
            }
        }
        planner.finish()
    }
}

/// Starts a sequence if its whole prompt fits beside what the others still need; or else it would soon be
/// preempted, and its work be lost.
fn start(planner: &mut Planner<'_>, step: &Step, sequence: Sequence<'_>) -> bool {
    let whole = blocks_to_start(sequence, sequence.remaining_tokens(), step.memory.block_size);
    let alone = step.running.is_empty() && planner.is_empty();
    let fits = whole.saturating_add(planner.promised_blocks()) <= planner.blocks_left();
    (fits || alone) && planner.start(sequence, u32::MAX).is_ok()
}

export_policy!(scheduler: ShortestFirst);

#[cfg(test)]
mod tests;
