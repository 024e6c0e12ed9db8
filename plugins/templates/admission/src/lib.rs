//! Lets a long prompt in only while the pool has room for it.
//!
//! A long prompt takes many blocks and slows down every step. While the pool is more than half full it waits,
//! and so does what comes after it and is no more urgent: the host holds a queue. What can never fit is
//! refused, and the client is told why.

use infer_policy_sdk::{
    Admission, Load, Policy, Pressure, Reason, Refusal, Request, Verdict, blocks_for, export_policy,
    tokens_in,
};
use serde::{Deserialize, Serialize};

/// What the policy can be configured with. `deny_unknown_fields` makes the host refuse a misspelt key.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Prompts longer than this have to wait while the pool is full.
    pub long_prompt_tokens: u32,
    /// Share of the pool in use, in thousandths, from which they wait.
    pub full_permille: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { long_prompt_tokens: 1_000, full_permille: 500 }
    }
}

/// The policy. It keeps no state: the host shows its load with every request.
pub struct PromptGate {
    config: Config,
}

impl Policy for PromptGate {
    type Config = Config;
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "The queue stops at a long prompt while the pool is full.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "long_prompt_tokens": {
                "type": "integer", "minimum": 1, "default": 1000,
                "description": "Prompts longer than this have to wait while the pool is full"
            },
            "full_permille": {
                "type": "integer", "minimum": 1, "maximum": 1000, "default": 500,
                "description": "Share of the pool in use, in thousandths, from which they wait"
            }
        }
    }"#;

    /// An error names the key and what would be right; the host then refuses the policy.
    fn new(config: Config) -> Result<Self, String> {
        if config.long_prompt_tokens == 0 {
            return Err("`long_prompt_tokens` must be at least 1".to_owned());
        }
        if !(1..=1_000).contains(&config.full_permille) {
            return Err(format!("`full_permille` must be from 1 to 1000, not {}", config.full_permille));
        }
        Ok(Self { config })
    }
}

impl Admission for PromptGate {
    /// Called when a request arrives and, while the verdict is `Wait`, whenever memory or load has changed.
    fn admit(&mut self, request: &Request, load: &Load) -> Verdict {
        let longest = request.prompt_tokens.saturating_add(request.max_new_tokens);
        // The last token is never read again, so it needs no slot.
        let needed = blocks_for(longest.saturating_sub(1), load.memory.block_size);
        if needed > load.memory.total_blocks {
            return Verdict::Refuse(Refusal {
                reason: Reason::Memory,
                message: format!(
                    "the request needs {needed} blocks, the pool has {}",
                    load.memory.total_blocks
                ),
                retry_after_ms: 0,
            });
        }
        let is_long = request.prompt_tokens > self.config.long_prompt_tokens;
        // If nothing runs and no memory is promised, waiting would not change anything.
        let is_idle = load.running == 0 && load.promised_blocks == 0;
        if is_long && !is_idle && used_permille(load) >= self.config.full_permille {
            Verdict::Wait
        } else {
            Verdict::Admit
        }
    }

    /// What consoles, metrics and load balancers read.
    fn measure(&mut self, load: &Load) -> Pressure {
        let available_blocks = load.memory.allocatable_blocks().min(load.memory.total_blocks);
        Pressure {
            level_permille: used_permille(load),
            backpressure: used_permille(load) >= self.config.full_permille,
            reserved_blocks: 0,
            available_blocks,
            max_sequence_tokens: tokens_in(available_blocks, load.memory.block_size),
        }
    }
}

/// Share of the pool that sequences hold, 0 to 1000.
fn used_permille(load: &Load) -> u32 {
    let total = load.memory.total_blocks;
    let used = u64::from(total.saturating_sub(load.memory.allocatable_blocks()));
    u32::try_from(used * 1_000 / u64::from(total.max(1))).unwrap_or(1_000)
}

export_policy!(admission: PromptGate);

#[cfg(test)]
mod tests;
