//! The second level of the prefix cache: what blocks held that were evicted for room. The driver keeps the bytes, slot by
//! slot.
//!
//! Both levels are one tree. A slot follows the slot or the block that holds the tokens before its own, and is found as a
//! block is: by hash, with the same predecessor, scope and tokens. A block that came back leaves its slot as it was, its
//! *twin*: evicting it once more copies nothing. When all slots are used, the least recently used one that no other
//! follows goes, so whatever is left can be found. What a policy, an operator or a retention forgets is forgotten here
//! too, with all that follows it.
//!
//! Deliberately absent: bytes, and whose blocks come back when (`engine/offload`).

mod check;
mod pool;

use std::collections::BTreeSet;

use super::index::{Content, Index, Scope};
use crate::batch::OffloadCopy;
use crate::ids::{AdapterId, BlockId, Micros, OffloadSlot, SessionId};
use crate::list::{Links, Lru, NONE};

/// What a slot or a block follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parent {
    /// Nothing: it is a first block.
    None,
    /// A block without a twin.
    Block(u32),
    Slot(u32),
}

/// What a slot remembers of its block beside the content.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept {
    pub session: SessionId,
    /// As in `Block`.
    pub ttl: Option<Micros>,
    pub expires: Micros,
}

impl Kept {
    /// When it is over, if its time is limited.
    fn end(&self) -> Option<Micros> {
        self.ttl.filter(|ttl| ttl.0 > 0).map(|_| self.expires)
    }
}

#[derive(Debug)]
struct Slot {
    parent: Parent,
    first_child: u32,
    /// The block that holds the same; `NONE` if it isn't in the pool.
    twin: u32,
    hash: u64,
    scope: Scope,
    kept: Kept,
}

impl Slot {
    fn vacant() -> Self {
        let (scope, kept) = (Scope::default(), Kept::default());
        Self { parent: Parent::None, first_child: NONE, twin: NONE, hash: 0, scope, kept }
    }
}

#[derive(Debug)]
pub(crate) struct Offload {
    block_size: u32,
    total: u32,
    /// Those that were ever used.
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// A slot's number in place of a block's.
    index: Index,
    /// Used slots by their last use.
    order: Lru,
    siblings: Links,
    /// Slots without a twin whose time is limited.
    expiry: BTreeSet<(Micros, u32)>,
    /// The slot that holds the same as a block.
    twins: Vec<u32>,
    /// The first slot that follows a block without a twin.
    below: Vec<u32>,
    /// For the next batch.
    copies: Vec<OffloadCopy>,
}

impl Offload {
    pub fn new(block_size: u32, blocks: u32, total: u32) -> Self {
        Self {
            block_size,
            total,
            slots: Vec::new(),
            free: Vec::new(),
            index: Index::new(block_size, total),
            order: Lru::new(total),
            siblings: Links::default(),
            expiry: BTreeSet::new(),
            twins: vec![NONE; blocks as usize],
            below: vec![NONE; blocks as usize],
            copies: Vec::new(),
        }
    }

    pub fn total(&self) -> u32 {
        self.total
    }

    pub fn used(&self) -> u32 {
        self.order.len()
    }

    /// The slot with this content.
    fn find(&self, content: &Content<'_>) -> Option<u32> {
        self.find_behind(self.place(content.parent), content.hash, content.scope, content.tokens)
    }

    fn find_behind(&self, parent: Parent, hash: u64, scope: Scope, tokens: &[u32]) -> Option<u32> {
        let same = |&at: &u32| {
            let slot = &self.slots[at as usize];
            slot.hash == hash
                && slot.parent == parent
                && slot.scope == scope
                && self.index.tokens(BlockId(at)) == tokens
        };
        self.index.candidates(hash).map(|id| id.0).find(same)
    }

    /// By what slots name a block that they follow.
    fn place(&self, block: Option<BlockId>) -> Parent {
        match block {
            None => Parent::None,
            Some(BlockId(block)) => match self.twins[block as usize] {
                NONE => Parent::Block(block),
                twin => Parent::Slot(twin),
            },
        }
    }

    /// Whether any slot follows this block.
    pub fn follows(&self, BlockId(block): BlockId) -> bool {
        match self.twins[block as usize] {
            NONE => self.below[block as usize] != NONE,
            twin => self.slots[twin as usize].first_child != NONE,
        }
    }

    /// A block holds this from now on.
    pub fn attach(&mut self, BlockId(block): BlockId, content: &Content<'_>) {
        debug_assert_eq!((self.twins[block as usize], self.below[block as usize]), (NONE, NONE));
        let Some(at) = self.find(content) else { return };
        debug_assert_eq!(self.slots[at as usize].twin, NONE);
        self.stop_clock(at);
        self.slots[at as usize].twin = block;
        self.twins[block as usize] = at;
    }

    /// Takes what a block holds that is evicted.
    pub fn put(&mut self, BlockId(block): BlockId, content: &Content<'_>, kept: Kept) {
        let at = match std::mem::replace(&mut self.twins[block as usize], NONE) {
            NONE => self.fill(block, content),
            twin => {
                self.order.remove(twin);
                twin
            }
        };
        self.order.push_back(at);
        let slot = &mut self.slots[at as usize];
        (slot.twin, slot.kept) = (NONE, kept);
        self.start_clock(at);
    }

    /// Copies a block to a slot, which the slots behind the block then follow.
    fn fill(&mut self, block: u32, content: &Content<'_>) -> u32 {
        let at = self.vacate();
        // Only now: the slot that had to go may have been the twin of the preceding block.
        let parent = self.place(content.parent);
        let first_child = std::mem::replace(&mut self.below[block as usize], NONE);
        let mut child = first_child;
        while child != NONE {
            self.slots[child as usize].parent = Parent::Slot(at);
            child = self.siblings.next(child);
        }
        let (hash, scope) = (content.hash, content.scope);
        self.slots[at as usize] = Slot { parent, first_child, hash, scope, ..Slot::vacant() };
        match parent {
            Parent::None => {}
            Parent::Block(before) => self.siblings.push_front(&mut self.below[before as usize], at),
            Parent::Slot(before) => {
                self.siblings.push_front(&mut self.slots[before as usize].first_child, at);
            }
        }
        self.index.insert(hash, BlockId(at), content.tokens);
        self.copies.push(OffloadCopy::Out { block: BlockId(block), slot: OffloadSlot(at) });
        at
    }

    /// A slot to fill.
    fn vacate(&mut self) -> u32 {
        if self.free.is_empty() && (self.slots.len() as u32) < self.total {
            self.slots.push(Slot::vacant());
            self.siblings.grow(self.slots.len());
            return self.slots.len() as u32 - 1;
        }
        if self.free.is_empty() {
            let is_last = |&at: &u32| self.slots[at as usize].first_child == NONE;
            let oldest = self.order.iter().find(is_last).expect("nothing follows the last slots");
            self.remove(oldest);
        }
        self.free.pop().expect("a slot is free")
    }

    /// Forgets a slot that no other follows.
    fn remove(&mut self, at: u32) {
        self.stop_clock(at);
        let slot = std::mem::replace(&mut self.slots[at as usize], Slot::vacant());
        debug_assert_eq!(slot.first_child, NONE, "what follows goes first");
        match slot.parent {
            Parent::None => {}
            Parent::Block(before) => self.siblings.remove(&mut self.below[before as usize], at),
            Parent::Slot(before) => {
                self.siblings.remove(&mut self.slots[before as usize].first_child, at);
            }
        }
        if slot.twin != NONE {
            self.twins[slot.twin as usize] = NONE;
        }
        self.index.remove(slot.hash, BlockId(at));
        self.order.remove(at);
        self.free.push(at);
    }

    /// Forgets a slot and those that follow it.
    fn remove_all(&mut self, top: u32) {
        loop {
            let mut at = top;
            while self.slots[at as usize].first_child != NONE {
                at = self.slots[at as usize].first_child;
            }
            self.remove(at);
            if at == top {
                return;
            }
        }
    }

    /// Forgets what a block holds, and what follows it.
    pub fn forget(&mut self, BlockId(block): BlockId) {
        match self.twins[block as usize] {
            NONE => self.forget_below(block),
            twin => self.remove_all(twin),
        }
    }

    fn forget_below(&mut self, block: u32) {
        while self.below[block as usize] != NONE {
            self.remove_all(self.below[block as usize]);
        }
    }

    /// Forgets what an adapter's blocks held that are not cached any more.
    pub fn forget_adapter(&mut self, adapter: AdapterId) {
        let is_first = |at: &u32| {
            let slot = &self.slots[*at as usize];
            slot.parent == Parent::None && slot.scope.adapter == adapter
        };
        let first: Vec<u32> = self.order.iter().filter(is_first).collect();
        first.into_iter().for_each(|at| self.remove_all(at));
    }

    /// A block doesn't hold what it should: its twin stands alone again.
    pub fn detach(&mut self, BlockId(block): BlockId) {
        match std::mem::replace(&mut self.twins[block as usize], NONE) {
            NONE => self.forget_below(block),
            twin => {
                self.slots[twin as usize].twin = NONE;
                self.start_clock(twin);
            }
        }
    }

    fn start_clock(&mut self, at: u32) {
        if let Some(end) = self.slots[at as usize].kept.end() {
            self.expiry.insert((end, at));
        }
    }

    fn stop_clock(&mut self, at: u32) {
        if let Some(end) = self.slots[at as usize].kept.end() {
            self.expiry.remove(&(end, at));
        }
    }

    /// Forgets what its retention has outlived.
    pub fn expire(&mut self, now: Micros) {
        while let Some(&(end, at)) = self.expiry.first()
            && end <= now
        {
            self.remove_all(at);
        }
    }

    pub fn next_expiry(&self) -> Option<Micros> {
        self.expiry.first().map(|&(end, _)| end)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        let copies = std::mem::take(&mut self.copies);
        *self = Self { copies, ..Self::new(self.block_size, self.twins.len() as u32, self.total) };
    }

    /// Blocks that are cached again, but that no batch has filled yet.
    pub fn coming(&self) -> Vec<BlockId> {
        let block = |copy: &OffloadCopy| match *copy {
            OffloadCopy::In { block, .. } => Some(block),
            OffloadCopy::Out { .. } => None,
        };
        self.copies.iter().filter_map(block).collect()
    }
}

#[cfg(test)]
mod tests;
