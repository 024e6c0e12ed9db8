//! `srpt`: shortest remaining processing time first.
//!
//! The sequence with the least left to compute starts first: the part of its prompt that isn't cached, and
//! its expected output, which its client says or the host learns per tenant. Schrage (1968) shows that the
//! order minimises mean latency if remaining times are known and preemption is free; Shahout et al. (ICLR
//! 2025, "Don't Stop Me Now") use it with predicted lengths for language models and limit preemption, which
//! isn't free there: keys and values have to be kept or computed again. Here a running sequence is never
//! preempted for a shorter one.
//!
//! What the host expects of an output is what its client says, or else its tenant's mean, and at most the request's
//! limit. So most of the gain comes from clients that say how much they will get, or ask for little more than that.
//!
//! Long requests pay for the short ones' gain. How long they may be overtaken is bounded, so under lasting
//! overload this comes close to order of arrival.

use infer_policy_sdk::{
    Micros, Patience, Plan, Planner, Policy, Scheduler, Sequence, Starts, Step, export_policy,
};
use serde::{Deserialize, Serialize};

/// The policy's configuration.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How long a sequence may be overtaken by shorter ones.
    pub patience_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { patience_ms: 3_000 }
    }
}

/// Shortest remaining processing time first, without preemption.
pub struct Srpt {
    patience: Patience,
    starts: Starts,
}

impl Policy for Srpt {
    type Config = Config;
    const NAME: &'static str = "srpt";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Continuous batching, shortest remaining processing time first: least \
         uncached prompt and expected output. Running sequences are not preempted for it. No request is \
         overtaken for longer than the patience.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "patience_ms": {
                "type": "integer", "minimum": 0, "default": 3000,
                "description": "How long a sequence may be overtaken by shorter ones; at most 60 % of the host's starvation bound counts"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        Ok(Self {
            patience: Patience::new(Micros::from_millis(config.patience_ms)),
            starts: Starts::default(),
        })
    }
}

impl Scheduler for Srpt {
    fn schedule(&mut self, step: &Step) -> Plan {
        let mut planner = Planner::new(step);
        if planner.go_on() == 0 && planner.slots_left() > 0 {
            let order = self.patience.order(step, remaining);
            self.starts.start(order, step, &mut planner);
        }
        self.patience.note(step, planner.started());
        planner.finish()
    }
}

/// Tokens that it will probably still compute.
fn remaining(sequence: Sequence<'_>) -> u64 {
    let output = sequence.expected_tokens().saturating_sub(sequence.generated_tokens());
    u64::from(sequence.remaining_tokens()) + u64::from(output)
}

export_policy!(scheduler: Srpt);

#[cfg(test)]
mod tests;
