//! `cost-aware`: evicts what is cheapest to lose, by how likely it returns and what it costs to compute again.
//!
//! GreedyDual-Size-Frequency (Cherkasova 1998) over blocks: a block's value is its uses times its cost, on
//! top of a clock that rises to the value of the last eviction. So values need no aging: the clock overtakes
//! what isn't used. All blocks have one size, so size drops out. Uses count half after a half-life, because a
//! clock that only evictions drive stands still while memory suffices. Cost grows with depth: a deep block's
//! tokens attend to all tokens before it.
//!
//! A sequence that resumes after a preemption uses its blocks once more, and no event tells that from another
//! request's use. So when memory is so short that sequences are preempted, their blocks count for more than
//! their requests.
//!
//! A block is judged once no idle block follows it, so everything that depends on it is gone and its value is
//! its own. All numbers are integers: native and Wasm must agree to the last bit.

use infer_policy_sdk::{
    BlockId, BlockMap, EventKind, Events, IdleTree, Micros, Policy, PrefixCache, export_policy,
};
use serde::{Deserialize, Serialize};

/// One use, and the cost of a block at the start of a prefix.
const ONE: u64 = 1 << 12;

/// The policy's configuration.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Seconds after which a use counts half.
    pub half_life_s: u32,
    /// Context length in tokens at which attention costs as much as the rest of the model; 0 ignores depth.
    pub attention_tokens: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { half_life_s: 300, attention_tokens: 8_192 }
    }
}

/// How much a block was used, as of a time.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    weight: u64,
    at: Micros,
}

/// Least value first.
pub struct CostAware {
    config: Config,
    uses: BlockMap<Uses>,
    /// By value; among equal ones, the first to become idle first.
    idle: IdleTree<(u64, u64)>,
    /// The value of what was evicted last.
    clock: u64,
    last_turn: u64,
}

impl Policy for CostAware {
    type Config = Config;
    const NAME: &'static str = "cost-aware";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Evicts what is cheapest to lose: blocks that are rarely used and quick to \
         recompute.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "half_life_s": {
                "type": "integer", "minimum": 1, "default": 300,
                "description": "Seconds after which a use counts half"
            },
            "attention_tokens": {
                "type": "integer", "minimum": 0, "default": 8192,
                "description": "Tokens of context at which attention costs as much as the rest; 0 for never"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        if config.half_life_s == 0 {
            return Err("`half_life_s` must be at least 1".to_owned());
        }
        Ok(Self { config, uses: BlockMap::default(), idle: IdleTree::default(), clock: 0, last_turn: 0 })
    }
}

impl PrefixCache for CostAware {
    fn observe(&mut self, events: &Events) -> Vec<BlockId> {
        for event in events.iter() {
            self.idle.remove(event.block);
            let half_life = Micros::from_millis(u64::from(self.config.half_life_s) * 1_000);
            let Some(uses) = self.uses.get_mut(event.block) else { continue };
            match event.kind {
                EventKind::Stored => *uses = Uses { weight: ONE, at: event.at },
                EventKind::Reused => {
                    uses.weight = decayed(*uses, event.at, half_life).saturating_add(ONE);
                    uses.at = event.at;
                }
                EventKind::Dropped => *uses = Uses::default(),
                EventKind::Idle => {
                    if uses.weight == 0 {
                        // After a swap: it was used once at least.
                        *uses = Uses { weight: ONE, at: event.at };
                    }
                    let weight = decayed(*uses, event.at, half_life);
                    let worth = weight.saturating_mul(self.cost(event.depth, events.memory.block_size));
                    self.last_turn += 1;
                    let key = (self.clock.saturating_add(worth), self.last_turn);
                    self.idle.insert(event.block, event.parent, key);
                }
            }
        }
        Vec::new()
    }

    fn evict(&mut self, _now: Micros, need: u32) -> Vec<BlockId> {
        let names: Vec<_> = self.idle.order().take(need as usize).collect();
        self.clock = names.iter().map(|((value, _), _)| *value).fold(self.clock, u64::max);
        names.into_iter().map(|(_, block)| block).collect()
    }
}

impl CostAware {
    /// What a block at this depth costs to compute: 1 and, in the same unit, its share of attention.
    fn cost(&self, depth: u32, block_size: u32) -> u64 {
        let before = u64::from(depth) * u64::from(block_size);
        let attention = before.saturating_mul(ONE).checked_div(u64::from(self.config.attention_tokens));
        ONE.saturating_add(attention.unwrap_or(0))
    }
}

/// What uses count at a later time: half after each half-life, and on a straight line in between.
fn decayed(uses: Uses, now: Micros, half_life: Micros) -> u64 {
    let age = now.since(uses.at).0;
    let whole = u32::try_from(age / half_life.0).unwrap_or(u32::MAX);
    let halved = uses.weight.checked_shr(whole).unwrap_or(0);
    let rest = u128::from(halved) * u128::from(age % half_life.0) / u128::from(2 * half_life.0);
    halved - u64::try_from(rest).unwrap_or(halved)
}

export_policy!(prefix_cache: CostAware);

#[cfg(test)]
mod tests;
