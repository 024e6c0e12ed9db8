//! `cache-aware`: longest cached prefix first.
//!
//! Serving requests with a shared prefix in a row, while the pool still holds it, computes the prefix once
//! where order of arrival would evict and recompute it. SGLang's `lpm` order (Zheng et al., NeurIPS 2024,
//! section 3) does this and shows that it equals a depth-first walk of the prefix tree. This policy adds what
//! `lpm` lacks under load, a bound on how long a request with nothing cached may be overtaken. As under
//! `continuous`, a sequence whose prefix is being computed waits for it.

use std::cmp::Reverse;

use infer_policy_sdk::{
    Micros, Patience, Plan, Planner, Policy, Scheduler, Sequence, Starts, Step, export_policy,
};
use serde::{Deserialize, Serialize};

/// The policy's configuration.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How long a sequence may be overtaken by those with more of their prompts cached.
    pub patience_ms: u64,
    /// How long a sequence waits for a prefix that another one is computing.
    pub prefix_wait_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { patience_ms: 2_000, prefix_wait_ms: Starts::PREFIX_WAIT_MS }
    }
}

/// Longest cached prefix first, with bounded overtaking.
pub struct CacheAware {
    patience: Patience,
    starts: Starts,
}

impl Policy for CacheAware {
    type Config = Config;
    const NAME: &'static str = "cache-aware";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Continuous batching, longest cached prefix first, so that requests with a \
         shared prefix are served in a row. No request is overtaken for longer than the patience.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "patience_ms": {
                "type": "integer", "minimum": 0, "default": 2000,
                "description": "How long a sequence may be overtaken by those with longer cached prefixes; at most 60 % of the host's starvation bound counts"
            },
            "prefix_wait_ms": {
                "type": "integer", "minimum": 0, "default": 3000,
                "description": "How long a sequence waits for a prefix that another one is computing; 0 never waits"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        Ok(Self {
            patience: Patience::new(Micros::from_millis(config.patience_ms)),
            starts: Starts::new(Starts::WATERMARK, config.prefix_wait_ms)?,
        })
    }
}

impl Scheduler for CacheAware {
    fn schedule(&mut self, step: &Step) -> Plan {
        let mut planner = Planner::new(step);
        if planner.go_on() == 0 && planner.slots_left() > 0 {
            let order = self.patience.order(step, |s| Reverse(cached_tokens(s)));
            self.starts.start(order, step, &mut planner);
        }
        self.patience.note(step, planner.started());
        planner.finish()
    }
}

/// The part of its prompt that is cached or will be: a sequence that waits for a prefix counts as having it.
fn cached_tokens(waiting: Sequence<'_>) -> u32 {
    waiting.computed_tokens().max(waiting.pending_tokens())
}

export_policy!(scheduler: CacheAware);

#[cfg(test)]
mod tests;
