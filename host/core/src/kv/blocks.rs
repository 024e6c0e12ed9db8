//! The block pool: who holds which block, what stands in it, and what nobody holds but is kept.
//!
//! A block is free (holds nothing), used (some table holds it) or cached (no table holds it, its
//! prefix is in the tree). Blocks in the tree point to their parents; a table that holds a block of
//! the tree holds its ancestors too, so below a cached block everything is cached, and cached
//! blocks can always be dropped from the leaves upwards.
//! What policies and waiting sequences must hear about is noted here and taken by `Kv`.

use std::collections::BTreeSet;

use super::index::{Content, Index, Scope};
use crate::ids::{BlockId, Micros, SessionId};
use crate::list::{Links, Lru, NONE};
use crate::policy::{CacheEventKind, CacheEvents, Memory};
use crate::sequence::SeqIx;

#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    /// Tables that hold it.
    pub refs: u32,
    /// Steps being planned that copy from it: it must not be dropped, though nobody holds it.
    pub pins: u32,
    /// Exclusive or of the holders: the holder itself where there is one.
    holders: u32,
    /// Its full content is in the index.
    pub indexed: bool,
    /// Prompt-cache entries whose prompt ends in it.
    pub entries: u32,
    pub parent: u32,
    first_child: u32,
    pub depth: u32,
    pub hash: u64,
    pub scope: Scope,
    /// The last sequence's session.
    pub session: SessionId,
    pub last_used: Micros,
    /// How long it is kept after its last use; `None` until a policy has said so, zero for no limit.
    ttl: Option<Micros>,
    /// When it is forgotten, while it is cached and has a limit.
    expires: Micros,
}

impl Block {
    /// Whether its prefix can be found.
    pub fn in_tree(&self) -> bool {
        self.indexed || self.entries > 0
    }

    /// The only sequence that holds it.
    pub fn sole_holder(&self) -> Option<SeqIx> {
        (self.refs == 1).then_some(SeqIx(self.holders))
    }
}

/// What happened in the pool since `Kv` last looked.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Hashes that became, or ceased to be, cached or announced.
    pub changed: Vec<u64>,
    /// Blocks that left the tree, leaves first.
    pub dropped: Vec<BlockId>,
    /// Those of them in which kept prompts ended.
    pub ended: Vec<BlockId>,
    /// Blocks of the tree that came into use or went out of it.
    pub toggled: Vec<BlockId>,
    /// Sequences whose number of unshared blocks changed.
    pub sole: Vec<SeqIx>,
}

#[derive(Debug)]
pub(crate) struct Blocks {
    pub block_size: u32,
    blocks: Vec<Block>,
    free: Vec<u32>,
    idle: Lru,
    /// Idle blocks that copies pin.
    pinned_idle: u32,
    siblings: Links,
    pub index: Index,
    expiry: BTreeSet<(Micros, u32)>,
    /// Blocks that only this sequence holds, by place.
    sole: Vec<u32>,
    pub notes: Notes,
    /// For the prefix-cache policy.
    pub events: CacheEvents,
}

impl Blocks {
    pub fn new(block_size: u32, total: u32) -> Self {
        let mut siblings = Links::default();
        siblings.grow(total as usize);
        let fresh = Block { parent: NONE, first_child: NONE, ..Block::default() };
        Self {
            block_size,
            blocks: vec![fresh; total as usize],
            free: (0..total).rev().collect(),
            idle: Lru::new(total),
            pinned_idle: 0,
            siblings,
            index: Index::new(block_size, total),
            expiry: BTreeSet::new(),
            sole: Vec::new(),
            notes: Notes::default(),
            events: CacheEvents::default(),
        }
    }

    pub fn memory(&self) -> Memory {
        Memory {
            block_size: self.block_size,
            total_blocks: self.blocks.len() as u32,
            free_blocks: self.free.len() as u32,
            cached_blocks: self.idle.len(),
        }
    }

    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Blocks that can be had in the step being planned.
    pub fn available(&self) -> u32 {
        self.free() + self.idle.len() - self.pinned_idle
    }

    pub fn get(&self, block: BlockId) -> &Block {
        &self.blocks[block.0 as usize]
    }

    pub fn iter(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        self.blocks.iter().enumerate().map(|(at, b)| (BlockId(at as u32), b))
    }

    pub fn is_idle(&self, block: BlockId) -> bool {
        self.idle.contains(block.0)
    }

    /// Blocks that nobody else holds.
    pub fn sole_blocks(&self, owner: SeqIx) -> u32 {
        self.sole.get(owner.0 as usize).copied().unwrap_or(0)
    }

    /// A free block for `owner`; `None` where there is none (evict first).
    pub fn allocate(&mut self, owner: SeqIx, now: Micros) -> Option<BlockId> {
        let at = self.free.pop()?;
        let block = &mut self.blocks[at as usize];
        debug_assert!(block.refs == 0 && !block.in_tree());
        block.refs = 1;
        block.holders = owner.0;
        block.last_used = now;
        self.count_sole(owner, 1);
        Some(BlockId(at))
    }

    /// Lets `owner` share a block of the tree.
    pub fn take(&mut self, id: BlockId, owner: SeqIx, session: SessionId, now: Micros) {
        self.hold(id, owner, now);
        self.blocks[id.0 as usize].session = session;
        self.tell(CacheEventKind::Reused, id, now);
    }

    fn hold(&mut self, id: BlockId, owner: SeqIx, now: Micros) {
        let block = &mut self.blocks[id.0 as usize];
        debug_assert!(block.in_tree(), "only blocks of the tree are shared");
        block.refs += 1;
        let before = block.holders;
        block.holders ^= owner.0;
        block.last_used = now;
        match block.refs {
            1 => {
                debug_assert_eq!(before, 0);
                self.idle.remove(id.0);
                self.pinned_idle -= u32::from(block.pins > 0);
                self.expiry.remove(&(block.expires, id.0));
                self.notes.toggled.push(id);
                self.count_sole(owner, 1);
            }
            2 => self.count_sole(SeqIx(before), -1),
            _ => {}
        }
    }

    /// Takes `owner`'s hold back. Release a table from its end: leaves become idle first.
    pub fn release(&mut self, id: BlockId, owner: SeqIx, now: Micros) {
        let block = &mut self.blocks[id.0 as usize];
        assert!(block.refs > 0, "block {id:?} is held");
        block.refs -= 1;
        block.holders ^= owner.0;
        block.last_used = now;
        match block.refs {
            0 => {
                self.count_sole(owner, -1);
                if self.blocks[id.0 as usize].in_tree() {
                    self.rest(id, now);
                } else {
                    self.forget(id);
                }
            }
            1 => {
                let left = SeqIx(block.holders);
                self.count_sole(left, 1);
            }
            _ => {}
        }
    }

    /// A block of the tree that nobody holds any more becomes cached.
    fn rest(&mut self, id: BlockId, now: Micros) {
        let block = &mut self.blocks[id.0 as usize];
        debug_assert_eq!(block.holders, 0);
        self.idle.push_back(id.0);
        self.pinned_idle += u32::from(block.pins > 0);
        if let Some(ttl) = block.ttl
            && ttl.0 > 0
        {
            block.expires = now.plus(ttl);
            self.expiry.insert((block.expires, id.0));
        }
        self.notes.toggled.push(id);
        self.tell(CacheEventKind::Idle, id, now);
    }

    /// Puts a block that nobody holds and nothing finds on the free list.
    fn forget(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        debug_assert!(block.refs == 0 && block.pins == 0 && !block.in_tree() && block.first_child == NONE);
        *block = Block { parent: NONE, first_child: NONE, last_used: block.last_used, ..Block::default() };
        self.free.push(id.0);
    }

    /// Puts a full block, whose tokens are computed, into the index. Returns the block that stands
    /// there already with the same content; `id` is then left as it was.
    pub fn commit(
        &mut self,
        id: BlockId,
        content: &Content<'_>,
        session: SessionId,
        now: Micros,
    ) -> Option<BlockId> {
        if let Some(other) = self.find(content) {
            debug_assert_ne!(other, id);
            return Some(other);
        }
        self.enter(id, content.parent, content.scope, session, now);
        let block = &mut self.blocks[id.0 as usize];
        block.indexed = true;
        block.hash = content.hash;
        self.index.insert(content.hash, id, content.tokens);
        self.notes.changed.push(content.hash);
        None
    }

    /// Puts a prompt's last block into the tree, if it isn't there, because a kept prompt ends in it.
    pub fn add_entry(
        &mut self,
        id: BlockId,
        parent: Option<BlockId>,
        scope: Scope,
        session: SessionId,
        now: Micros,
    ) {
        self.enter(id, parent, scope, session, now);
        self.blocks[id.0 as usize].entries += 1;
    }

    /// A kept prompt no longer ends in this block.
    pub fn remove_entry(&mut self, id: BlockId, now: Micros) {
        let block = &mut self.blocks[id.0 as usize];
        assert!(block.entries > 0, "block {id:?} ends a kept prompt");
        block.entries -= 1;
        if block.in_tree() {
            return;
        }
        let used = block.refs > 0;
        self.leave(id, now);
        if !used {
            self.unrest(id);
            self.forget(id);
        }
    }

    /// Moves kept prompts from a block to another one with the same content.
    pub fn move_entries(&mut self, from: BlockId, to: BlockId, now: Micros) -> u32 {
        let moved = std::mem::take(&mut self.blocks[from.0 as usize].entries);
        if moved > 0 {
            self.blocks[to.0 as usize].entries += moved;
            self.leave(from, now);
        }
        moved
    }

    fn enter(&mut self, id: BlockId, parent: Option<BlockId>, scope: Scope, session: SessionId, now: Micros) {
        let block = &mut self.blocks[id.0 as usize];
        block.session = session;
        if block.in_tree() {
            return;
        }
        block.scope = scope;
        block.parent = parent.map_or(NONE, |p| p.0);
        block.depth = 0;
        if let Some(parent) = parent {
            let above = &mut self.blocks[parent.0 as usize];
            debug_assert!(above.indexed, "a block's parent is indexed before it");
            let depth = above.depth + 1;
            let mut head = above.first_child;
            self.siblings.push_front(&mut head, id.0);
            self.blocks[parent.0 as usize].first_child = head;
            self.blocks[id.0 as usize].depth = depth;
        }
        self.tell(CacheEventKind::Stored, id, now);
    }

    /// Takes a block that has nothing below it out of the tree.
    fn leave(&mut self, id: BlockId, now: Micros) {
        self.tell(CacheEventKind::Dropped, id, now);
        let block = &mut self.blocks[id.0 as usize];
        debug_assert_eq!(block.first_child, NONE, "leaves go first");
        self.notes.dropped.push(id);
        if std::mem::take(&mut block.entries) > 0 {
            self.notes.ended.push(id);
        }
        let parent = std::mem::replace(&mut block.parent, NONE);
        if std::mem::take(&mut block.indexed) {
            self.index.remove(block.hash, id);
        }
        if parent != NONE {
            let mut head = self.blocks[parent as usize].first_child;
            self.siblings.remove(&mut head, id.0);
            self.blocks[parent as usize].first_child = head;
        }
    }

    fn unrest(&mut self, id: BlockId) {
        let block = &self.blocks[id.0 as usize];
        self.idle.remove(id.0);
        self.pinned_idle -= u32::from(block.pins > 0);
        self.expiry.remove(&(block.expires, id.0));
    }

    /// Drops a cached block and what follows it, the last first. Stops at a pinned one.
    /// Returns how many became free.
    pub fn drop_subtree(&mut self, top: BlockId, now: Micros) -> u32 {
        debug_assert!(self.is_idle(top));
        let mut dropped = 0;
        loop {
            let mut at = top;
            while self.blocks[at.0 as usize].first_child != NONE {
                at = BlockId(self.blocks[at.0 as usize].first_child);
            }
            if self.blocks[at.0 as usize].pins > 0 {
                return dropped;
            }
            debug_assert!(self.is_idle(at), "below a cached block everything is cached");
            self.leave(at, now);
            self.unrest(at);
            self.forget(at);
            dropped += 1;
            if at == top {
                return dropped;
            }
        }
    }

    /// Drops the block if nothing follows it. Used where a policy keeps nothing of a sequence.
    pub fn drop_leaf(&mut self, id: BlockId, now: Micros) {
        if self.is_idle(id) && self.get(id).first_child == NONE && self.get(id).pins == 0 {
            self.drop_subtree(id, now);
        }
    }

    /// Drops cached blocks, least recently used first, until `want` are free or none is left.
    pub fn drop_oldest(&mut self, want: u32, now: Micros) -> u32 {
        let mut dropped = 0;
        while self.free() < want {
            let Some(oldest) = self.idle.iter().find(|&b| self.unpinned_leaf(b)) else { break };
            dropped += self.drop_subtree(BlockId(oldest), now);
        }
        dropped
    }

    fn unpinned_leaf(&self, at: u32) -> bool {
        self.blocks[at as usize].pins == 0 && self.blocks[at as usize].first_child == NONE
    }

    /// Drops what its retention has outlived.
    pub fn expire(&mut self, now: Micros) -> u32 {
        let mut dropped = 0;
        while let Some(&(at, block)) = self.expiry.first()
            && at <= now
        {
            dropped += self.drop_subtree(BlockId(block), now);
        }
        dropped
    }

    /// When the next cached block outlives its retention.
    pub fn next_expiry(&self) -> Option<Micros> {
        self.expiry.first().map(|&(at, _)| at)
    }

    /// A block that several sequences retain is kept as long as the most generous of them says.
    pub fn retain_for(&mut self, id: BlockId, ttl: Micros) {
        let block = &mut self.blocks[id.0 as usize];
        block.ttl = Some(match block.ttl {
            Some(Micros(0)) => Micros(0),
            Some(longer) if ttl.0 > 0 => longer.max(ttl),
            _ => ttl,
        });
    }

    pub fn pin(&mut self, id: BlockId) {
        let idle = self.is_idle(id);
        let block = &mut self.blocks[id.0 as usize];
        self.pinned_idle += u32::from(idle && block.pins == 0);
        block.pins += 1;
    }

    pub fn unpin(&mut self, id: BlockId) {
        let idle = self.is_idle(id);
        let block = &mut self.blocks[id.0 as usize];
        block.pins -= 1;
        self.pinned_idle -= u32::from(idle && block.pins == 0);
    }

    /// The indexed block with this content.
    pub fn find(&self, content: &Content<'_>) -> Option<BlockId> {
        self.index.candidates(content.hash).find(|&id| {
            let block = self.get(id);
            let parent = content.parent.map_or(NONE, |p| p.0);
            block.hash == content.hash
                && block.parent == parent
                && block.scope == content.scope
                && self.index.tokens(id) == content.tokens
        })
    }

    /// Every cached block as `idle`, least recently used first.
    pub fn idle_events(&self, now: Micros) -> CacheEvents {
        let mut events = CacheEvents::default();
        for at in self.idle.iter() {
            push_event(&mut events, CacheEventKind::Idle, BlockId(at), &self.blocks[at as usize], now);
        }
        events
    }

    /// The truth for a policy that may know what is no longer so: what is not cached, then what is.
    pub fn resync_events(&self, now: Micros) -> CacheEvents {
        let mut events = CacheEvents::default();
        for (id, block) in self.iter().filter(|&(id, _)| !self.is_idle(id)) {
            push_event(&mut events, CacheEventKind::Dropped, id, block, now);
        }
        events.extend_from(&self.idle_events(now), 0);
        events
    }

    fn tell(&mut self, kind: CacheEventKind, id: BlockId, now: Micros) {
        push_event(&mut self.events, kind, id, &self.blocks[id.0 as usize], now);
    }

    fn count_sole(&mut self, owner: SeqIx, change: i32) {
        let at = owner.0 as usize;
        if self.sole.len() <= at {
            self.sole.resize(at + 1, 0);
        }
        self.sole[at] = self.sole[at].checked_add_signed(change).expect("unshared blocks are counted");
        self.notes.sole.push(owner);
    }

    /// Asserts what must hold between any two calls, given the tables of all sequences.
    pub fn check<'a>(&self, tables: impl Iterator<Item = (SeqIx, &'a [BlockId])>) {
        let mut refs = vec![0u32; self.blocks.len()];
        let mut sole = vec![0u32; self.sole.len()];
        for (owner, table) in tables {
            for id in table {
                refs[id.0 as usize] += 1;
                if self.get(*id).sole_holder() == Some(owner) {
                    sole[owner.0 as usize] += 1;
                }
            }
        }
        assert_eq!(sole, self.sole, "unshared blocks by sequence");
        let mut free = vec![false; self.blocks.len()];
        for &at in &self.free {
            assert!(!std::mem::replace(&mut free[at as usize], true), "block {at} is twice on the free list");
        }
        let mut used = 0;
        for (id, block) in self.iter() {
            assert_eq!(block.refs, refs[id.0 as usize], "references of {id:?}");
            assert_eq!(block.pins, 0, "{id:?} is pinned between steps");
            used += u32::from(block.refs > 0);
            let states = [free[id.0 as usize], self.is_idle(id), block.refs > 0];
            assert_eq!(
                states.iter().filter(|&&s| s).count(),
                1,
                "{id:?} is free, cached or used: {states:?}"
            );
            assert!(!free[id.0 as usize] || !block.in_tree(), "{id:?} is free and found");
            assert!(!self.is_idle(id) || block.in_tree(), "{id:?} is cached, but can't be found");
            if block.in_tree() && block.parent != NONE {
                let above = self.get(BlockId(block.parent));
                assert!(above.indexed && above.depth + 1 == block.depth, "{id:?} hangs in the air");
                assert!(above.refs >= block.refs, "{id:?} is held without its parent");
            }
            assert_eq!(
                block.indexed,
                self.index.candidates(block.hash).any(|b| b == id),
                "{id:?} in the index"
            );
        }
        assert_eq!(self.free() + self.idle.len() + used, self.blocks.len() as u32);
        assert_eq!(self.pinned_idle, 0);
    }
}

fn push_event(events: &mut CacheEvents, kind: CacheEventKind, id: BlockId, block: &Block, now: Micros) {
    events.at.push(now.0);
    events.kind.push(kind as u8);
    events.block.push(id.0);
    events.parent.push(block.parent);
    events.depth.push(block.depth);
    events.tenant.push(block.scope.tenant.0);
    events.session.push(block.session.0);
}
