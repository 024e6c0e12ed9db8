//! What the cache has for each waiting sequence, kept up to date without scanning all of them.
//!
//! A waiting sequence watches two things: the hash that would extend its hit, and the last block of its hit.
//! Only sequences whose watch fires are reexamined, so a step's cost doesn't grow with the queue. Hashes that
//! running sequences are computing are announced here too.

use std::collections::VecDeque;

use crate::detmap::DetMap;
use crate::ids::BlockId;
use crate::list::{Links, NONE};
use crate::sequence::{HitState, SeqIx};

/// All watches.
#[derive(Debug)]
pub(crate) struct Watches {
    by_hash: DetMap<u64, u32>,
    hash_links: Links,
    by_block: Vec<u32>,
    block_links: Links,
    /// Number of waiting sequences whose hit includes a block.
    through: Vec<u32>,
    /// How many running sequences are computing the block with this hash.
    announced: DetMap<u64, u32>,
    stale: VecDeque<SeqIx>,
    /// Blocks of hits became used or unused.
    pub idle_changed: bool,
}

impl Watches {
    pub fn new(total_blocks: u32) -> Self {
        Self {
            by_hash: DetMap::default(),
            hash_links: Links::default(),
            by_block: vec![NONE; total_blocks as usize],
            block_links: Links::default(),
            through: vec![0; total_blocks as usize],
            announced: DetMap::default(),
            stale: VecDeque::new(),
            idle_changed: false,
        }
    }

    /// Starts watching: `next` would make the hit longer (0: nothing can).
    pub fn watch(&mut self, ix: SeqIx, hit: &mut HitState, next: u64) {
        debug_assert!(!hit.watching);
        self.hash_links.grow(ix.0 as usize + 1);
        self.block_links.grow(ix.0 as usize + 1);
        hit.watching = true;
        hit.watched_hash = next;
        if next != 0 {
            self.hash_links.push_front(self.by_hash.entry_or(next, NONE), ix.0);
        }
        self.watch_frontier(ix, hit);
        for block in &hit.chain {
            self.through[block.0 as usize] += 1;
        }
    }

    fn watch_frontier(&mut self, ix: SeqIx, hit: &HitState) {
        if let Some(last) = hit.chain.last() {
            self.block_links.push_front(&mut self.by_block[last.0 as usize], ix.0);
        }
    }

    /// Stops watching; the hit stays as it is.
    pub fn unwatch(&mut self, ix: SeqIx, hit: &mut HitState) {
        if !std::mem::take(&mut hit.watching) {
            return;
        }
        if hit.watched_hash != 0 {
            let head = self.by_hash.get_mut(&hit.watched_hash).expect("the watched hash has a list");
            self.hash_links.remove(head, ix.0);
            if *head == NONE {
                self.by_hash.remove(&hit.watched_hash);
            }
        }
        if let Some(last) = hit.chain.last() {
            self.block_links.remove(&mut self.by_block[last.0 as usize], ix.0);
        }
        for block in &hit.chain {
            self.through[block.0 as usize] -= 1;
        }
    }

    /// The first sequence whose hit ends in `block`.
    pub fn first_ending_in(&self, block: BlockId) -> Option<SeqIx> {
        let head = self.by_block[block.0 as usize];
        (head != NONE).then_some(SeqIx(head))
    }

    /// Removes the last block of this hit, which is gone.
    pub fn shorten(&mut self, ix: SeqIx, hit: &mut HitState) {
        let last = *hit.chain.last().expect("the hit has a last block");
        self.block_links.remove(&mut self.by_block[last.0 as usize], ix.0);
        self.through[last.0 as usize] -= 1;
        hit.chain.pop();
        hit.full = None;
        self.watch_frontier(ix, hit);
    }

    /// Calls `ring` for every sequence that watches a hash.
    pub fn each_watching(&self, hash: u64, mut ring: impl FnMut(SeqIx)) {
        let mut at = self.by_hash.get(&hash).copied().unwrap_or(NONE);
        while at != NONE {
            ring(SeqIx(at));
            at = self.hash_links.next(at);
        }
    }

    pub fn is_watched(&self, block: BlockId) -> bool {
        self.through[block.0 as usize] > 0
    }

    /// Adds a sequence to the list of those to reexamine.
    pub fn mark(&mut self, ix: SeqIx, hit: &mut HitState) {
        if !std::mem::replace(&mut hit.stale, true) {
            self.stale.push_back(ix);
        }
    }

    pub fn pop_stale(&mut self) -> Option<SeqIx> {
        self.stale.pop_front()
    }

    pub fn has_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    pub fn announce(&mut self, hash: u64) {
        *self.announced.entry_or(hash, 0) += 1;
    }

    pub fn withdraw(&mut self, hash: u64) {
        let count = self.announced.get_mut(&hash).expect("what is withdrawn was announced");
        *count -= 1;
        if *count == 0 {
            self.announced.remove(&hash);
        }
    }

    pub fn is_announced(&self, hash: u64) -> bool {
        self.announced.get(&hash).is_some()
    }

    /// Asserts that nothing is left behind when no sequence is alive.
    pub fn assert_empty(&self) {
        assert_eq!((self.by_hash.len(), self.announced.len()), (0, 0), "watches and announcements");
        assert!(self.through.iter().all(|&n| n == 0) && self.by_block.iter().all(|&h| h == NONE));
    }
}
