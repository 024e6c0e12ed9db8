//! `lru`: reuses and keeps every prefix; when memory is short, the least recently used blocks go first.
//!
//! A prefix is used as a whole, so a block is never used later than the block before it: in the order in
//! which blocks became idle, the leaves of a prefix come before its root, provided ties are broken that way.
//! The order is kept here and rebuilt from the `idle` events that the host sends after a swap. The worth of a
//! prefix (its length, how often it was used) is deliberately ignored.

use std::collections::VecDeque;

use infer_policy_sdk::{BlockId, EventKind, Events, Micros, NoConfig, Policy, PrefixCache, export_policy};

/// Blocks beyond this are left to the host. With this many the table takes 4 MiB, and the order, which
/// doubles before it is swept, 48 MiB while it grows, out of the 64 MiB that a host gives a policy.
const MAX_BLOCKS: usize = 1 << 20;

/// Least recently used first.
#[derive(Default)]
pub struct Lru {
    /// Candidates in the order in which they became idle. An entry counts only while `turn` has its number;
    /// the others are stale and swept now and then.
    order: VecDeque<(BlockId, u32)>,
    /// Per block: number of its entry in `order`, 0 if it is in use or gone.
    turn: Vec<u32>,
    last_turn: u32,
    idle: usize,
}

impl Policy for Lru {
    type Config = NoConfig;
    const NAME: &'static str = "lru";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str =
        "Reuses and keeps every prefix; the least recently used leaves are evicted first.";

    fn new(_config: NoConfig) -> Result<Self, String> {
        Ok(Self::default())
    }
}

impl PrefixCache for Lru {
    fn observe(&mut self, events: &Events) -> Vec<BlockId> {
        // Blocks of one chain that became idle together, first to last.
        let mut chain: Vec<(BlockId, Micros)> = Vec::new();
        for event in events.iter() {
            let follows = |(last, at): &(BlockId, Micros)| event.parent == Some(*last) && event.at == *at;
            if event.kind != EventKind::Idle || !chain.last().is_some_and(follows) {
                self.append(&mut chain);
            }
            match event.kind {
                EventKind::Idle => chain.push((event.block, event.at)),
                EventKind::Stored | EventKind::Reused | EventKind::Dropped => self.remove(event.block),
            }
        }
        self.append(&mut chain);
        self.sweep();
        Vec::new()
    }

    fn evict(&mut self, _now: Micros, need: u32) -> Vec<BlockId> {
        // Blocks stay in the order until the host reports that they are gone.
        while self.order.front().is_some_and(|entry| !self.counts(*entry)) {
            self.order.pop_front();
        }
        let current = self.order.iter().filter(|entry| self.counts(**entry));
        current.take(need as usize).map(|(block, _)| *block).collect()
    }
}

impl Lru {
    /// Puts a chain at the end of the order, its last block first.
    fn append(&mut self, chain: &mut Vec<(BlockId, Micros)>) {
        for (block, _) in chain.drain(..).rev() {
            self.remove(block);
            let index = block.0 as usize;
            if index >= MAX_BLOCKS {
                continue;
            }
            if index >= self.turn.len() {
                self.turn.resize(index + 1, 0);
            }
            if self.last_turn == u32::MAX {
                self.renumber();
            }
            self.last_turn += 1;
            self.turn[index] = self.last_turn;
            self.order.push_back((block, self.last_turn));
            self.idle += 1;
        }
    }

    fn remove(&mut self, block: BlockId) {
        if let Some(turn) = self.turn.get_mut(block.0 as usize)
            && *turn != 0
        {
            *turn = 0;
            self.idle -= 1;
        }
    }

    fn counts(&self, (block, turn): (BlockId, u32)) -> bool {
        self.turn.get(block.0 as usize) == Some(&turn)
    }

    /// Forgets entries that don't count once they are the majority: constant work per event in the long run.
    fn sweep(&mut self) {
        if self.order.len() > 2 * self.idle + 64 {
            let turn = &self.turn;
            self.order.retain(|(block, number)| turn.get(block.0 as usize) == Some(number));
        }
    }

    /// Starts the numbers again from 1, once in four billion events.
    fn renumber(&mut self) {
        let turn = &self.turn;
        self.order.retain(|(block, number)| turn.get(block.0 as usize) == Some(number));
        self.last_turn = 0;
        for (block, number) in &mut self.order {
            self.last_turn += 1;
            *number = self.last_turn;
            self.turn[block.0 as usize] = self.last_turn;
        }
    }
}

export_policy!(prefix_cache: Lru);

#[cfg(test)]
mod tests;
