//! Drops what was used longest ago: least recently used.
//!
//! The host owns the blocks and tells this policy what happens to them. The policy keeps the idle ones, which
//! no sequence uses but whose prefix could be found again. When memory is short it is asked which of them to
//! drop. Reusing and keeping everything is the default of `PrefixCache`.

use infer_policy_sdk::{
    BlockId, EventKind, Events, IdleTree, Micros, NoConfig, Policy, PrefixCache, export_policy,
};

/// The policy. Its notes are made again from the host's events after a swap, so it exports no state.
#[derive(Default)]
pub struct LeastRecentlyUsed {
    /// By a key of the policy's choice, least first. The tree sees to it that no block is named before those
    /// that follow it in its prefix; a worth or a queue would do as well as a turn.
    idle: IdleTree<u64>,
    last_turn: u64,
}

impl Policy for LeastRecentlyUsed {
    type Config = NoConfig;
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Keeps every prefix; the least recently used blocks are dropped first.";

    fn new(_config: NoConfig) -> Result<Self, String> {
        Ok(Self::default())
    }
}

impl PrefixCache for LeastRecentlyUsed {
    /// Receives what happened since the last call. Returns idle blocks to drop at once; here none.
    fn observe(&mut self, events: &Events) -> Vec<BlockId> {
        for event in events.iter() {
            match event.kind {
                // Sequence numbers and not times: after a swap every block is reported as idle now, and only
                // the order says which was used longest ago.
                EventKind::Idle => {
                    self.last_turn += 1;
                    self.idle.insert(event.block, event.parent, self.last_turn);
                }
                EventKind::Stored | EventKind::Reused | EventKind::Dropped => {
                    self.idle.remove(event.block);
                }
            }
        }
        Vec::new()
    }

    /// Returns at least `need` idle blocks in the order in which to drop them. They stay in the tree until
    /// the host reports that they are gone.
    fn evict(&mut self, _now: Micros, need: u32) -> Vec<BlockId> {
        self.idle.order().take(need as usize).map(|(_, block)| block).collect()
    }
}

export_policy!(prefix_cache: LeastRecentlyUsed);

#[cfg(test)]
mod tests;
