//! `ttl-lru`: keeps the prefixes of a bounded number of requests, each for a bounded time after its last use.
//!
//! The prefix cache of servers that keep one entry per request, with a cap on entries and a time to live,
//! applied to shared blocks: an entry is an idle block that no other follows, with the blocks before it that
//! no other entry shares. So a conversation is one entry however many turns it has, and a system prompt
//! before a hundred conversations is no entry of its own. What runs is no entry; the cap counts idle blocks
//! only.
//!
//! The host itself drops what a finished request leaves once its time is over, whether anything happens then
//! or not: `retain` names the time. It doesn't call `retain` for other requests. So what a failed
//! request leaves, and what was cached before this policy became live, is dropped with the first
//! event after its time, or with later ones if it is more than a call has time for; on an idle host it may
//! stay until the next event. After a swap all times count from the swap.

use infer_policy_sdk::{
    BlockId, Ended, EventKind, Events, IdleTree, Micros, Policy, PrefixCache, Retention, export_policy,
};
use serde::{Deserialize, Serialize};

/// Blocks named in a call. After a swap a whole pool may be over its time at once.
const MAX_NAMED: usize = 4_096;

/// The policy's configuration.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Entries that are kept.
    pub max_entries: u32,
    /// Seconds after its last use in which an entry is kept; 0 for no limit.
    pub ttl_s: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { max_entries: 100, ttl_s: 300 }
    }
}

/// A cap on entries, a time to live, and the least recently used first.
pub struct TtlLru {
    config: Config,
    /// By when a block became idle; within an instant in the order of the events.
    idle: IdleTree<(Micros, u64)>,
    last_turn: u64,
    now: Micros,
}

impl Policy for TtlLru {
    type Config = Config;
    const NAME: &'static str = "ttl-lru";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Keeps the prefixes of a limited number of requests for a limited time after \
         their last use; the least recently used goes first.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "max_entries": {
                "type": "integer", "minimum": 1, "default": 100,
                "description": "Prefixes of ended requests that are kept"
            },
            "ttl_s": {
                "type": "integer", "minimum": 0, "default": 300,
                "description": "Seconds after its last use in which a prefix is kept; 0 for no limit"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        if config.max_entries == 0 {
            return Err("`max_entries` must be at least 1".to_owned());
        }
        Ok(Self { config, idle: IdleTree::default(), last_turn: 0, now: Micros::ZERO })
    }
}

impl PrefixCache for TtlLru {
    fn retain(&mut self, ended: &Ended) -> Retention {
        Retention { keep_tokens: ended.total_tokens(), ttl: self.ttl() }
    }

    fn observe(&mut self, events: &Events) -> Vec<BlockId> {
        for event in events.iter() {
            self.now = self.now.max(event.at);
            match event.kind {
                EventKind::Idle => {
                    self.last_turn += 1;
                    self.idle.insert(event.block, event.parent, (self.now, self.last_turn));
                }
                EventKind::Stored | EventKind::Reused | EventKind::Dropped => {
                    self.idle.remove(event.block);
                }
            }
        }
        let is_old = |(since, _): (Micros, u64)| since.plus(self.ttl()) <= self.now && self.config.ttl_s > 0;
        let old = self.idle.order().take_while(|(key, _)| is_old(*key)).map(|(_, block)| block);
        // A block that becomes an entry of its own because of this is counted when the host reports what it
        // dropped.
        let entries = self.idle.leaves();
        let over = entries.len().saturating_sub(self.config.max_entries as usize);
        let young = entries.take(over).filter(|(key, _)| !is_old(*key));
        old.chain(young.flat_map(|(_, leaf)| self.idle.branch(leaf))).take(MAX_NAMED).collect()
    }

    fn evict(&mut self, _now: Micros, need: u32) -> Vec<BlockId> {
        self.idle.order().take(need as usize).map(|(_, block)| block).collect()
    }
}

impl TtlLru {
    fn ttl(&self) -> Micros {
        Micros::from_millis(u64::from(self.config.ttl_s) * 1_000)
    }
}

export_policy!(prefix_cache: TtlLru);

#[cfg(test)]
mod tests;
