//! `session`: a conversation's blocks stay until its next turn is overdue; the rest goes first.
//!
//! A conversation comes back, a one-off prompt mostly doesn't, and recency can't tell them apart: in the
//! minute in which a user reads an answer, a hundred other requests pass. So blocks of a session are pinned
//! for a while after its last turn (cf. the retention priorities of TensorRT-LLM's KV cache reuse, and
//! CachedAttention, Gao et al. 2024), as long as all pins together keep within a budget; beyond it the least
//! recently used session loses its pins. Pinned means last, not never: memory that is needed is freed.
//!
//! A block that several sessions share belongs to the one that used it last. When a session will come back is
//! not predicted. After a swap every cached session starts with its full time.

use std::collections::{BTreeMap, BTreeSet};

use infer_policy_sdk::{
    BlockId, BlockMap, Event, EventKind, Events, IdleTree, Micros, Policy, PrefixCache, SessionId, TenantId,
    export_policy,
};
use serde::{Deserialize, Serialize};

/// The policy's configuration.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Seconds after its last turn in which a session's blocks are pinned.
    pub ttl_s: u32,
    /// Share of the pool that may be pinned.
    pub budget: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { ttl_s: 600, budget: 0.5 }
    }
}

/// Ids of different tenants have nothing to do with each other.
type Owner = (TenantId, SessionId);

/// Least recently used first, sessions last.
pub struct Session {
    config: Config,
    /// Pinned ones last, then by when a block became idle.
    idle: IdleTree<(bool, u64)>,
    clock: u64,
    owners: BlockMap<Option<Owner>>,
    pins: BTreeMap<Owner, Pin>,
    /// Pins by when they were used last.
    by_use: BTreeSet<(u64, Owner)>,
    pinned_blocks: usize,
}

/// The idle blocks of a session.
#[derive(Default)]
struct Pin {
    used: u64,
    at: Micros,
    held: usize,
    /// Blocks that are or were the session's; `owners` says which: cheaper than a set, and swept now and
    /// then.
    blocks: Vec<BlockId>,
}

impl Policy for Session {
    type Config = Config;
    const NAME: &'static str = "session";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Pins the prefixes of conversations for a while after their last turn, \
         within a budget; everything else is evicted first.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "ttl_s": {
                "type": "integer", "minimum": 0, "default": 600,
                "description": "Seconds after its last turn in which a session's blocks are pinned"
            },
            "budget": {
                "type": "number", "minimum": 0, "maximum": 1, "default": 0.5,
                "description": "Share of the pool that may be pinned"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        if !(0.0..=1.0).contains(&config.budget) {
            return Err(format!("`budget` must be from 0 to 1, not {}", config.budget));
        }
        Ok(Self {
            config,
            idle: IdleTree::default(),
            clock: 0,
            owners: BlockMap::default(),
            pins: BTreeMap::new(),
            by_use: BTreeSet::new(),
            pinned_blocks: 0,
        })
    }
}

impl PrefixCache for Session {
    fn observe(&mut self, events: &Events) -> Vec<BlockId> {
        let mut now = Micros::ZERO;
        for event in events.iter() {
            now = now.max(event.at);
            self.disown(event.block);
            match event.kind {
                EventKind::Idle => {
                    self.clock += 1;
                    let pinned = event.session != SessionId(0) && self.pin(&event);
                    self.idle.insert(event.block, event.parent, (pinned, self.clock));
                }
                EventKind::Stored | EventKind::Reused | EventKind::Dropped => {
                    self.idle.remove(event.block);
                }
            }
        }
        self.expire(now);
        let budget = (f64::from(events.memory.total_blocks) * self.config.budget) as usize;
        while self.pinned_blocks > budget {
            self.unpin_oldest();
        }
        Vec::new()
    }

    fn evict(&mut self, now: Micros, need: u32) -> Vec<BlockId> {
        self.expire(now);
        self.idle.order().take(need as usize).map(|(_, block)| block).collect()
    }
}

impl Session {
    /// Pins an idle block for its session. False if its number is out of bounds.
    fn pin(&mut self, event: &Event) -> bool {
        let Some(owner) = self.owners.get_mut(event.block) else { return false };
        let session = (event.tenant, event.session);
        *owner = Some(session);
        let pin = self.pins.entry(session).or_default();
        if self.by_use.last().is_none_or(|(_, newest)| *newest != session) {
            self.by_use.remove(&(pin.used, session));
            self.by_use.insert((self.clock, session));
            pin.used = self.clock;
        }
        pin.at = event.at;
        pin.held += 1;
        pin.blocks.push(event.block);
        if pin.blocks.len() > 2 * pin.held + 64 {
            let owners = &self.owners;
            pin.blocks.retain(|block| owners.get(*block) == Some(&Some(session)));
            pin.blocks.sort_unstable();
            pin.blocks.dedup();
        }
        self.pinned_blocks += 1;
        true
    }

    /// The block no longer belongs to a session.
    fn disown(&mut self, block: BlockId) {
        let Some(session) = self.owners.get_mut(block).and_then(Option::take) else { return };
        let Some(pin) = self.pins.get_mut(&session) else { return };
        self.pinned_blocks -= 1;
        pin.held -= 1;
        if pin.held == 0 {
            self.by_use.remove(&(pin.used, session));
            self.pins.remove(&session);
        }
    }

    fn expire(&mut self, now: Micros) {
        let ttl = Micros::from_millis(u64::from(self.config.ttl_s) * 1_000);
        while let Some((_, session)) = self.by_use.first()
            && self.pins.get(session).is_none_or(|pin| pin.at.plus(ttl) <= now)
        {
            self.unpin_oldest();
        }
    }

    /// The blocks of the least recently used session move to where they would be without it.
    fn unpin_oldest(&mut self) {
        let Some((_, session)) = self.by_use.pop_first() else { return };
        let Some(pin) = self.pins.remove(&session) else { return };
        self.pinned_blocks -= pin.held;
        for block in pin.blocks {
            if let Some(owner) = self.owners.get_mut(block).filter(|owner| **owner == Some(session)) {
                *owner = None;
                if let Some((_, used)) = self.idle.key(block) {
                    self.idle.set_key(block, (false, used));
                }
            }
        }
    }
}

export_policy!(prefix_cache: Session);

#[cfg(test)]
mod tests;
