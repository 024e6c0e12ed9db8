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

use std::collections::BTreeSet;

use super::blocks::Blocks;
use super::index::{Content, Index, Scope};
use super::{Kv, must_compute_all, scope_of};
use crate::batch::OffloadCopy;
use crate::ids::{BlockId, Micros, OffloadSlot, SessionId};
use crate::list::{Links, Lru, NONE};
use crate::sequence::Sequence;

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

    /// Asserts that each slot is free or found once, and follows what is found.
    pub fn check(&self, blocks: &Blocks) {
        let mut free = vec![false; self.slots.len()];
        for &at in &self.free {
            assert!(!std::mem::replace(&mut free[at as usize], true), "slot {at} is twice on the free list");
            assert!(!self.order.contains(at), "slot {at} is free and used");
        }
        assert_eq!(self.free.len() + self.order.len() as usize, self.slots.len(), "slots, free and used");
        let mut timed = 0;
        for at in self.order.iter() {
            let slot = &self.slots[at as usize];
            let known = self.index.candidates(slot.hash).filter(|id| id.0 == at).count();
            assert_eq!(known, 1, "slot {at} in the index");
            match slot.parent {
                Parent::None => {}
                Parent::Block(block) => {
                    assert!(blocks.get(BlockId(block)).indexed, "slot {at} hangs in the air");
                    assert_eq!(self.twins[block as usize], NONE, "slot {at} follows the twin");
                }
                Parent::Slot(before) => assert!(self.order.contains(before), "slot {at} hangs in the air"),
            }
            timed += usize::from(slot.twin == NONE && slot.kept.end().is_some());
            if slot.twin != NONE {
                let twin = blocks.get(BlockId(slot.twin));
                let parent = (twin.parent != NONE).then_some(BlockId(twin.parent));
                assert!(twin.indexed && twin.hash == slot.hash && twin.scope == slot.scope, "slot {at}");
                assert_eq!(self.place(parent), slot.parent, "slot {at} and its twin follow the same");
                assert_eq!(self.twins[slot.twin as usize], at);
                let tokens = blocks.index.tokens(BlockId(slot.twin));
                assert_eq!(self.index.tokens(BlockId(at)), tokens, "slot {at} and its twin");
            }
        }
        assert_eq!(timed, self.expiry.len(), "slots with a limited time");
        for (block, (&twin, &below)) in self.twins.iter().zip(&self.below).enumerate() {
            let found = blocks.get(BlockId(block as u32)).indexed;
            assert!(found || (twin == NONE && below == NONE), "block {block} can't be found");
            assert!(twin == NONE || (below == NONE && self.slots[twin as usize].twin == block as u32));
            assert!(below == NONE || self.slots[below as usize].parent == Parent::Block(block as u32));
        }
    }
}

impl Kv {
    /// Slots of the second level, all and used ones.
    pub fn offload_slots(&self) -> (u32, u32) {
        self.blocks.offload.as_ref().map_or((0, 0), |offload| (offload.total(), offload.used()))
    }

    /// Takes the copies that the next batch must make. Their order matters.
    pub fn take_copies(&mut self, to: &mut Vec<OffloadCopy>) {
        if let Some(offload) = &mut self.blocks.offload {
            to.append(&mut offload.copies);
        }
    }

    /// How many copies wait for a batch.
    pub fn copies(&self) -> u32 {
        self.blocks.offload.as_ref().map_or(0, |offload| offload.copies.len() as u32)
    }

    /// Forgets the second level, but doesn't stop using it.
    pub fn empty_offload(&mut self) {
        if let Some(offload) = &mut self.blocks.offload {
            offload.clear();
        }
    }

    /// It failed: nothing goes there or comes from there any more.
    pub fn end_offload(&mut self) {
        self.blocks.offload = None;
    }

    /// How many slots continue a waiting sequence's hit, as far as it could use them and the policy wants its hits.
    pub fn offloaded(&self, sequence: &Sequence) -> u32 {
        self.continuing(sequence).count() as u32
    }

    /// Whether any does.
    pub fn goes_on(&self, sequence: &Sequence) -> bool {
        self.continuing(sequence).next().is_some()
    }

    fn continuing<'a>(&'a self, sequence: &'a Sequence) -> impl Iterator<Item = u32> + 'a {
        let size = self.block_size() as usize;
        let hit = &sequence.hit;
        let refused = self.cached_tokens(sequence) > hit.answer;
        let offload = self.blocks.offload.as_ref().filter(|_| !refused && !must_compute_all(sequence));
        let mut parent = offload.map_or(Parent::None, |offload| offload.place(hit.chain.last().copied()));
        // The last token is computed in any case.
        let end = ((sequence.tokens.len() - 1) / size).min(sequence.hashes.len());
        (hit.chain.len()..end).map_while(move |at| {
            let (hash, tokens) = (sequence.hashes[at], &sequence.tokens[at * size..(at + 1) * size]);
            // What is being computed will be found without a copy.
            let offload = offload.filter(|_| !self.watches.is_announced(hash))?;
            let slot = offload.find_behind(parent, hash, scope_of(sequence), tokens)?;
            parent = Parent::Slot(slot);
            Some(slot)
        })
    }

    /// Makes up to `most` slots that continue a waiting sequence's hit cached blocks in free ones, and returns those. The
    /// next batch fills them.
    pub fn bring_in(&mut self, sequence: &Sequence, most: u32, now: Micros) -> Vec<BlockId> {
        let size = self.block_size() as usize;
        let slots: Vec<u32> = self.continuing(sequence).take(most as usize).collect();
        let mut came = Vec::with_capacity(slots.len());
        let mut parent = sequence.hit.chain.last().copied();
        for (at, &slot) in (sequence.hit.chain.len()..).zip(&slots) {
            let Some(offload) = &self.blocks.offload else { break };
            let kept = offload.slots[slot as usize].kept;
            let content = Content {
                hash: sequence.hashes[at],
                parent,
                scope: scope_of(sequence),
                tokens: &sequence.tokens[at * size..(at + 1) * size],
            };
            let Some(block) = self.blocks.adopt(&content, kept.session, now) else { break };
            came.push((block, slot, kept));
            parent = Some(block);
        }
        if let Some(offload) = &mut self.blocks.offload {
            let copy =
                |&(block, slot, _): &(BlockId, u32, Kept)| OffloadCopy::In { slot: OffloadSlot(slot), block };
            offload.copies.extend(came.iter().map(copy));
            // As in the pool, what follows is older than what it follows.
            for &(_, slot, _) in came.iter().rev() {
                offload.order.remove(slot);
                offload.order.push_back(slot);
            }
        }
        for &(block, _, kept) in came.iter().rev() {
            let left = kept.end().map(|end| end.since(now));
            self.blocks.rest_as(block, kept.ttl, left, now);
        }
        // Policies and lists of what is cached count on it that no block is used later than the one that it follows.
        if !came.is_empty() {
            for &block in sequence.hit.chain.iter().rev() {
                if !self.blocks.is_idle(block) {
                    break;
                }
                self.blocks.touch(block, now);
            }
        }
        came.into_iter().map(|(block, ..)| block).collect()
    }

    /// A batch that was to make these copies is lost: forgets whatever it may not have copied.
    pub fn forget_copies(&mut self, copies: &[OffloadCopy], now: Micros) {
        for copy in copies {
            // A block that nobody finds was evicted again, and used anew.
            if let OffloadCopy::In { block, .. } = *copy
                && self.blocks.get(block).in_tree()
            {
                self.blocks.unlearn(block, now);
            }
        }
        if let Some(offload) = &mut self.blocks.offload {
            for copy in copies {
                if let OffloadCopy::Out { slot, .. } = *copy
                    && offload.order.contains(slot.0)
                {
                    offload.remove_all(slot.0);
                }
            }
        }
        self.forget_ended();
    }

    /// Whether all that this sequence takes for computed is what it should be; not after `forget_copies`.
    pub fn holds_its_own(&self, sequence: &Sequence) -> bool {
        let known = &sequence.table[..sequence.committed as usize];
        known.iter().all(|&block| self.blocks.get(block).indexed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;
    use crate::kv::blocks::Fate;

    const NOW: Micros = Micros(10);

    fn pool(slots: u32) -> Blocks {
        let mut blocks = Blocks::new(2, 8);
        blocks.offload = Some(Box::new(Offload::new(2, 8, slots)));
        blocks
    }

    fn content(parent: Option<BlockId>, tenant: u32, tokens: &[u32]) -> Content<'_> {
        let scope = Scope { tenant: TenantId(tenant), ..Scope::default() };
        // One hash for all: only the rest tells them apart.
        Content { hash: 7, parent, scope, tokens }
    }

    /// Caches a chain of blocks, each of which repeats its number, and returns them.
    fn cache(blocks: &mut Blocks, tenant: u32, numbers: &[u32]) -> Vec<BlockId> {
        let mut chain: Vec<BlockId> = Vec::new();
        for &number in numbers {
            let tokens = [number; 2];
            let content = content(chain.last().copied(), tenant, &tokens);
            let found = blocks.find(&content).or_else(|| blocks.adopt(&content, SessionId(0), NOW));
            chain.push(found.expect("a block is free"));
        }
        for &id in chain.iter().rev() {
            if !blocks.is_idle(id) {
                blocks.rest_as(id, None, None, NOW);
            }
        }
        blocks.offload.as_ref().unwrap().check(blocks);
        chain
    }

    /// Evicts everything.
    fn evict(blocks: &mut Blocks) {
        blocks.drop_oldest(8, Fate::Evicted, NOW);
        blocks.offload.as_ref().unwrap().check(blocks);
    }

    /// How many leading blocks of a chain the second level has.
    fn found(blocks: &Blocks, tenant: u32, numbers: &[u32]) -> usize {
        let offload = blocks.offload.as_ref().unwrap();
        let scope = Scope { tenant: TenantId(tenant), ..Scope::default() };
        let mut parent = Parent::None;
        let next = |&number: &u32| {
            let slot = offload.find_behind(parent, 7, scope, &[number; 2])?;
            parent = Parent::Slot(slot);
            Some(slot)
        };
        numbers.iter().map_while(next).count()
    }

    fn copies(blocks: &mut Blocks) -> usize {
        std::mem::take(&mut blocks.offload.as_mut().unwrap().copies).len()
    }

    #[test]
    fn evicted_chains_are_found_by_content_and_scope() {
        let mut blocks = pool(8);
        cache(&mut blocks, 1, &[1, 2, 3]);
        cache(&mut blocks, 1, &[1, 4]);
        cache(&mut blocks, 2, &[1]);
        evict(&mut blocks);
        assert_eq!(blocks.offload.as_ref().unwrap().used(), 5);
        for (tenant, numbers, count) in [
            (1, &[1, 2, 3][..], 3),
            (1, &[1, 4], 2),
            (1, &[2, 3], 0),
            (1, &[1, 3], 1),
            (2, &[1, 2], 1),
            (3, &[1], 0),
        ] {
            assert_eq!(found(&blocks, tenant, numbers), count, "{tenant} {numbers:?}");
        }
    }

    #[test]
    fn the_least_recently_used_slot_goes_and_what_follows_goes_first() {
        let mut blocks = pool(4);
        cache(&mut blocks, 1, &[1, 2]);
        evict(&mut blocks);
        cache(&mut blocks, 1, &[5, 6]);
        evict(&mut blocks);
        cache(&mut blocks, 1, &[9]);
        evict(&mut blocks);
        let left = [&[1, 2][..], &[5, 6], &[9]].map(|numbers| found(&blocks, 1, numbers));
        assert_eq!(left, [1, 2, 1]);
        // The first block came back, and is the last to be used.
        cache(&mut blocks, 1, &[1]);
        evict(&mut blocks);
        cache(&mut blocks, 1, &[7]);
        evict(&mut blocks);
        let left = [&[1][..], &[5, 6], &[9], &[7]].map(|numbers| found(&blocks, 1, numbers));
        assert_eq!(left, [1, 1, 1, 1]);
    }

    #[test]
    fn a_block_that_came_back_is_evicted_without_a_copy() {
        let mut blocks = pool(8);
        cache(&mut blocks, 1, &[1, 2]);
        evict(&mut blocks);
        assert_eq!(copies(&mut blocks), 2);
        cache(&mut blocks, 1, &[1, 2, 3]);
        evict(&mut blocks);
        assert_eq!(copies(&mut blocks), 1, "the third is new");
        assert_eq!(found(&blocks, 1, &[1, 2, 3]), 3);
    }

    #[test]
    fn what_is_forgotten_takes_what_follows_with_it() {
        let mut blocks = pool(8);
        let chain = cache(&mut blocks, 1, &[1, 2, 3]);
        // Only the last one is evicted; it follows a block.
        blocks.drop_oldest(6, Fate::Evicted, NOW);
        assert_eq!((blocks.offload.as_ref().unwrap().used(), blocks.free()), (1, 6));
        blocks.drop_leaf(chain[1], NOW);
        assert_eq!(blocks.free(), 6, "something follows it");
        blocks.drop_subtree(chain[0], Fate::Forgotten, NOW);
        assert_eq!((blocks.offload.as_ref().unwrap().used(), blocks.free()), (0, 8));
        // The same if all are evicted, and some came back.
        cache(&mut blocks, 1, &[1, 2, 3]);
        evict(&mut blocks);
        let chain = cache(&mut blocks, 1, &[1, 2]);
        blocks.drop_subtree(chain[1], Fate::Forgotten, NOW);
        blocks.offload.as_ref().unwrap().check(&blocks);
        assert_eq!(found(&blocks, 1, &[1, 2, 3]), 1);
    }

    #[test]
    fn a_retention_goes_on_in_the_second_level() {
        let mut blocks = pool(8);
        let chain = cache(&mut blocks, 1, &[1, 2]);
        let expires = Micros(50);
        for id in chain {
            let block = &mut blocks.blocks[id.0 as usize];
            (block.ttl, block.expires) = (Some(Micros(40)), expires);
            blocks.expiry.insert((expires, id.0));
        }
        evict(&mut blocks);
        assert_eq!(blocks.next_expiry(), Some(expires));
        blocks.expire(Micros(49));
        assert_eq!(found(&blocks, 1, &[1, 2]), 2);
        blocks.expire(expires);
        assert_eq!(blocks.offload.as_ref().unwrap().used(), 0);
        assert_eq!(blocks.next_expiry(), None);
    }

    #[test]
    fn a_block_without_its_content_leaves_a_slot_that_has_it() {
        let mut blocks = pool(8);
        cache(&mut blocks, 1, &[1, 2, 3]);
        evict(&mut blocks);
        let chain = cache(&mut blocks, 1, &[1, 2]);
        blocks.unlearn(chain[0], NOW);
        blocks.offload.as_ref().unwrap().check(&blocks);
        assert_eq!((blocks.free(), found(&blocks, 1, &[1, 2, 3])), (8, 3));
    }
}
