//! The host's memory in miniature: counts of blocks, and prefixes that several sequences share.

use std::collections::BTreeMap;

/// A pool of blocks that are counted, not named.
#[derive(Clone, Debug)]
pub struct Pool {
    pub block_size: u32,
    pub total: u32,
    pub free: u32,
    /// Per shared prefix: how many sequences use each of its cached blocks. Never grows along a prefix, so
    /// unused blocks are at its end.
    prefixes: BTreeMap<u64, Vec<u32>>,
}

/// The blocks of one running sequence.
#[derive(Clone, Debug, Default)]
pub struct Held {
    pub prefix: u64,
    /// Leading blocks that are the prefix's.
    pub shared: u32,
    pub own: u32,
}

impl Pool {
    pub fn new(block_size: u32, total: u32) -> Self {
        Self { block_size, total, free: total, prefixes: BTreeMap::new() }
    }

    /// Cached blocks that no sequence uses.
    pub fn cached(&self) -> u32 {
        self.prefixes.values().map(|blocks| idle(blocks)).sum()
    }

    /// Cached blocks of a prefix, at most `most`, and how many of them no sequence uses.
    pub fn find(&self, prefix: u64, most: u32) -> (u32, u32) {
        let blocks = self.prefixes.get(&prefix).map_or(&[][..], Vec::as_slice);
        let found = &blocks[..blocks.len().min(most as usize)];
        (found.len() as u32, idle(found))
    }

    /// Takes up to `most` blocks of a prefix.
    pub fn pin(&mut self, prefix: u64, most: u32) -> Held {
        let blocks = self.prefixes.entry(prefix).or_default();
        let shared = blocks.len().min(most as usize);
        blocks[..shared].iter_mut().for_each(|users| *users += 1);
        Held { prefix, shared: shared as u32, own: 0 }
    }

    /// Gives `held` this many more blocks, dropping cached ones if necessary. False if there are too few.
    pub fn grow(&mut self, held: &mut Held, blocks: u32) -> bool {
        while self.free < blocks {
            let Some(prefix) = self.prefixes.values_mut().find(|prefix| idle(prefix) > 0) else {
                return false;
            };
            prefix.pop();
            self.free += 1;
        }
        self.free -= blocks;
        held.own += blocks;
        true
    }

    /// Shares what `held` has computed of its prefix, up to `blocks`, unless another one did before it.
    pub fn share(&mut self, held: &mut Held, blocks: u32) {
        let prefix = self.prefixes.entry(held.prefix).or_default();
        while held.shared < blocks && held.shared as usize == prefix.len() {
            prefix.push(1);
            held.shared += 1;
            held.own -= 1;
        }
    }

    pub fn release(&mut self, held: &Held) {
        self.free += held.own;
        let prefix = self.prefixes.entry(held.prefix).or_default();
        prefix[..held.shared as usize].iter_mut().for_each(|users| *users -= 1);
    }

    /// Panics unless every block is free, cached or held.
    pub fn check<'a>(&self, held: impl Iterator<Item = &'a Held>) {
        let own: u32 = held.map(|held| held.own).sum();
        let shared: usize = self.prefixes.values().map(Vec::len).sum();
        assert_eq!(self.free + own + shared as u32, self.total, "blocks are lost or made: {self:?}");
    }
}

fn idle(blocks: &[u32]) -> u32 {
    blocks.iter().filter(|users| **users == 0).count() as u32
}
