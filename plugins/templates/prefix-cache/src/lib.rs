//! Drops what was used longest ago: least recently used.
//!
//! The host owns the blocks and tells this policy what happens to them; the policy keeps a note of the idle
//! ones, those that no sequence uses but whose prefix could be found again. When memory is short it is asked
//! which of them may go. Reusing and keeping everything is what `PrefixCache` does by default.

use std::cmp::Reverse;

use infer_policy_sdk::{BlockId, EventKind, Events, Micros, NoConfig, Policy, PrefixCache, export_policy};

/// Blocks beyond this are left to the host, so that no block number makes the notes outgrow memory.
const MAX_BLOCKS: usize = 1 << 20;

/// An idle block: since when, and its position in its prefix.
#[derive(Clone, Copy)]
struct Idle {
    since: Micros,
    depth: u32,
}

/// The policy. Its notes are made again from the host's events after a swap, so it exports no state.
#[derive(Default)]
pub struct LeastRecentlyUsed {
    /// By block number; `None` where a block is in use or holds nothing.
    idle: Vec<Option<Idle>>,
}

impl Policy for LeastRecentlyUsed {
    type Config = NoConfig;
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Keeps every prefix; what was used longest ago is dropped first.";

    fn new(_config: NoConfig) -> Result<Self, String> {
        Ok(Self::default())
    }
}

impl PrefixCache for LeastRecentlyUsed {
    /// Told what happened since the last call. Answers with idle blocks to drop at once; here none.
    fn observe(&mut self, events: &Events) -> Vec<BlockId> {
        for event in events.iter() {
            match event.kind {
                EventKind::Idle => self.note(event.block, Some(Idle { since: event.at, depth: event.depth })),
                EventKind::Stored | EventKind::Reused | EventKind::Dropped => self.note(event.block, None),
            }
        }
        Vec::new()
    }

    /// Names at least `need` idle blocks, first to go first. Dropping a block drops what follows it in its
    /// prefix, so of blocks that became idle together the deepest go first.
    fn evict(&mut self, _now: Micros, need: u32) -> Vec<BlockId> {
        let mut candidates: Vec<_> = (0..)
            .zip(&self.idle)
            .filter_map(|(block, idle)| idle.map(|idle| (idle.since, Reverse(idle.depth), BlockId(block))))
            .collect();
        let need = need as usize;
        if need < candidates.len() {
            // Finds the first `need` of them without sorting them all.
            candidates.select_nth_unstable(need);
            candidates.truncate(need);
        }
        candidates.sort_unstable();
        candidates.into_iter().map(|(_, _, block)| block).collect()
    }
}

impl LeastRecentlyUsed {
    fn note(&mut self, block: BlockId, idle: Option<Idle>) {
        let index = block.0 as usize;
        if index >= MAX_BLOCKS {
            return;
        }
        if index >= self.idle.len() {
            self.idle.resize(index + 1, None);
        }
        self.idle[index] = idle;
    }
}

export_policy!(prefix_cache: LeastRecentlyUsed);

#[cfg(test)]
mod tests;
