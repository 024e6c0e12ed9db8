//! `continuous`: every step admits and retires. The default scheduler.
//!
//! Running sequences continue first (decodes, then prompts in chunks), then waiting sequences start in the
//! order of the queue while slots, tokens and memory last. No sequence is overtaken, except one that waits
//! for a prefix that another is computing. Priorities and deadlines are deliberately ignored.
//!
//! Iteration-level scheduling is Orca's (Yu et al., OSDI 2022), prompt chunks beside decodes are
//! Sarathi-Serve's (Agrawal et al., OSDI 2024). Sarathi fixes the tokens of a step in advance to keep its
//! time within a target; this policy learns their number from past steps.

use infer_policy_sdk::{Micros, Plan, Planner, Policy, Scheduler, Starts, Step, StepTime, export_policy};
use serde::{Deserialize, Serialize};

/// The policy's configuration.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Share of the pool that a start leaves alone, so that it doesn't cause a preemption right away.
    pub watermark: f64,
    /// How long a sequence waits for a prefix that another one is computing.
    pub prefix_wait_ms: u64,
    /// Longest time that a step with decodes should take; 0 for no target.
    pub step_target_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { watermark: Starts::WATERMARK, prefix_wait_ms: Starts::PREFIX_WAIT_MS, step_target_ms: 0 }
    }
}

/// Continuous batching, first come first served.
pub struct Continuous {
    starts: Starts,
    step_target: Option<Micros>,
    step_time: StepTime,
}

impl Policy for Continuous {
    type Config = Config;
    const NAME: &'static str = "continuous";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Continuous batching: every step admits and retires, decodes go first, \
         prompts are computed in chunks, first come first served.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "watermark": {
                "type": "number", "minimum": 0, "maximum": 0.5, "default": 0.01,
                "description": "Share of the pool that starting a sequence leaves free"
            },
            "prefix_wait_ms": {
                "type": "integer", "minimum": 0, "default": 3000,
                "description": "How long a sequence waits for a prefix that another one is computing; 0 never waits"
            },
            "step_target_ms": {
                "type": "integer", "minimum": 0, "default": 0,
                "description": "How long a step with decodes should take; prompt chunks shrink to meet it. 0 sets no target"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        let target = Micros::from_millis(config.step_target_ms);
        Ok(Self {
            starts: Starts::new(config.watermark, config.prefix_wait_ms)?,
            step_target: (target > Micros::ZERO).then_some(target),
            step_time: StepTime::default(),
        })
    }

    fn export_state(&mut self) -> Vec<u8> {
        self.step_time.to_bytes()
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), String> {
        // Versions without a target had no state.
        if !state.is_empty() {
            self.step_time = StepTime::from_bytes(state)?;
        }
        Ok(())
    }
}

impl Scheduler for Continuous {
    fn schedule(&mut self, step: &Step) -> Plan {
        // Also without a target, so that a swap that sets one finds what was learned.
        self.step_time.learn(step);
        let mut planner = Planner::new(step);
        if let Some(most) = self.prompt_tokens_on_time(step) {
            planner.limit_prompt_tokens(most);
        }
        if planner.go_on() == 0 {
            self.starts.start(step.waiting.iter(), step, &mut planner);
        }
        planner.finish()
    }
}

impl Continuous {
    /// Prompt tokens that keep a step on time; `None` if no sequence waits for its next token, or nothing is
    /// known yet. Always a block, and a token for each running prompt: a target that the decodes alone exceed
    /// stops no prompt.
    fn prompt_tokens_on_time(&self, step: &Step) -> Option<u32> {
        let target = self.step_target?;
        let decodes = step.running.iter().filter(|s| s.is_decoding()).count();
        if decodes == 0 {
            return None;
        }
        let prompts = u32::try_from(step.running.len() - decodes).unwrap_or(u32::MAX);
        let decodes = u32::try_from(decodes).unwrap_or(u32::MAX);
        let most = self.step_time.prompt_tokens_within(target, decodes)?;
        Some(most.max(step.memory.block_size).max(prompts).max(1))
    }
}

export_policy!(scheduler: Continuous);

#[cfg(test)]
mod tests;
