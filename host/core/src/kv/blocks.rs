//! The block pool: holders and contents of blocks, and the blocks that are cached.
//!
//! A block is free (empty), used (some table holds it) or cached (no table holds it, its prefix is in the
//! tree). Blocks in the tree point to their parents; a table that holds a block of the tree holds its
//! ancestors too, so below a cached block everything is cached, and cached blocks can always be dropped from
//! the leaves upwards. Changes that policies and waiting sequences need are noted here and taken by `Kv`.

use std::collections::BTreeSet;

use super::feed::KvEvent;
use super::index::{Index, Scope};
use super::offload::Offload;
use crate::ids::{BlockId, Micros, SessionId};
use crate::list::{Links, Lru, NONE};
use crate::policy::{CacheEventKind, CacheEvents, Memory};
use crate::sequence::SeqIx;

#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    /// Tables that hold it.
    pub refs: u32,
    /// Planned steps that copy from it: it must not be dropped, although no table holds it.
    pub pins: u32,
    /// Xor of the holders' indexes: the holder itself if there is one.
    holders: u32,
    /// Its full content is in the index.
    pub indexed: bool,
    /// Prompt-cache entries whose prompt ends in it.
    pub entries: u32,
    pub parent: u32,
    pub(super) first_child: u32,
    pub depth: u32,
    pub hash: u64,
    pub scope: Scope,
    /// The last sequence's session.
    pub session: SessionId,
    pub last_used: Micros,
    /// How long it is kept after its last use; `None` until a policy decides, zero for no limit.
    pub(super) ttl: Option<Micros>,
    /// When it expires, while it is cached and has a limit.
    pub(super) expires: Micros,
    /// How often a prompt found it since it was filled, for operators.
    pub(super) uses: u32,
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

    /// Adds what happens to it to the events of a policy, under its id.
    fn tell(&self, events: &mut CacheEvents, kind: CacheEventKind, id: BlockId, now: Micros) {
        events.at.push(now.0);
        events.kind.push(kind as u8);
        events.block.push(id.0);
        events.parent.push(self.parent);
        events.depth.push(self.depth);
        events.tenant.push(self.scope.tenant.0);
        events.session.push(self.session.0);
    }
}

/// What happened in the pool since `Kv` last looked.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Hashes that became cached, and those that were announced or withdrawn.
    pub changed: Vec<u64>,
    /// Prompts whose logits are no longer kept, by key.
    pub lost: Vec<u64>,
    /// Blocks that left the tree, leaves first.
    pub dropped: Vec<BlockId>,
    /// Those of them in which kept prompts ended.
    pub ended: Vec<BlockId>,
    /// Blocks of the tree that became used or unused.
    pub toggled: Vec<BlockId>,
    /// Sequences whose number of unshared blocks changed.
    pub sole: Vec<SeqIx>,
}

#[derive(Debug)]
pub(crate) struct Blocks {
    pub block_size: u32,
    pub(super) blocks: Vec<Block>,
    pub(super) free: Vec<u32>,
    pub(super) idle: Lru,
    /// Idle blocks that copies pin.
    pub(super) pinned_idle: u32,
    pub(super) siblings: Links,
    pub index: Index,
    pub(super) expiry: BTreeSet<(Micros, u32)>,
    /// Number of blocks that only this sequence holds, by slab index.
    pub(super) sole: Vec<u32>,
    pub notes: Notes,
    /// For the prefix-cache policy.
    pub events: CacheEvents,
    /// Changes for a mirror of the index; `None` while there is no mirror.
    pub feed: Option<Vec<KvEvent>>,
    /// Where blocks go that are evicted for room; `None` if they are lost.
    pub offload: Option<Box<Offload>>,
}

/// What becomes of the content of a block that is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nobody wants it any more, here or in the second level.
    Forgotten,
    /// There was no room for it. The second level takes it, if there is one.
    Evicted,
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
            feed: None,
            offload: None,
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

    /// Blocks that can be allocated in the step being planned.
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

    /// Blocks that no other sequence holds.
    pub fn sole_blocks(&self, owner: SeqIx) -> u32 {
        self.sole.get(owner.0 as usize).copied().unwrap_or(0)
    }

    /// Allocates a free block for `owner`; `None` if there is none (evict first).
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
        let block = &mut self.blocks[id.0 as usize];
        block.session = session;
        block.uses = block.uses.saturating_add(1);
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

    /// Releases `owner`'s hold. Release a table from its end, so that leaves become idle first.
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

    /// A block of the tree without holders becomes cached.
    pub(super) fn rest(&mut self, id: BlockId, now: Micros) {
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

    /// A cached block counts as used now, for here and for the policy, but is kept no longer for it.
    pub(super) fn touch(&mut self, id: BlockId, now: Micros) {
        self.idle.remove(id.0);
        self.idle.push_back(id.0);
        self.blocks[id.0 as usize].last_used = now;
        self.tell(CacheEventKind::Idle, id, now);
    }

    /// Puts a block without holders that can't be found on the free list.
    pub(super) fn forget(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        debug_assert!(block.refs == 0 && block.pins == 0 && !block.in_tree() && block.first_child == NONE);
        *block = Block { parent: NONE, first_child: NONE, last_used: block.last_used, ..Block::default() };
        self.free.push(id.0);
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

    /// Every cached block as `idle`, least recently used first.
    pub fn idle_events(&self, now: Micros) -> CacheEvents {
        let mut events = CacheEvents::default();
        for at in self.idle.iter() {
            self.blocks[at as usize].tell(&mut events, CacheEventKind::Idle, BlockId(at), now);
        }
        events
    }

    /// All cached blocks for a policy with outdated knowledge: first what is not cached, then what is.
    pub fn resync_events(&self, now: Micros) -> CacheEvents {
        let mut events = CacheEvents::default();
        for (id, block) in self.iter().filter(|&(id, _)| !self.is_idle(id)) {
            block.tell(&mut events, CacheEventKind::Dropped, id, now);
        }
        events.extend_from(&self.idle_events(now), 0);
        events
    }

    pub(super) fn tell(&mut self, kind: CacheEventKind, id: BlockId, now: Micros) {
        self.blocks[id.0 as usize].tell(&mut self.events, kind, id, now);
    }

    fn count_sole(&mut self, owner: SeqIx, change: i32) {
        let at = owner.0 as usize;
        if self.sole.len() <= at {
            self.sole.resize(at + 1, 0);
        }
        self.sole[at] = self.sole[at].checked_add_signed(change).expect("unshared blocks are counted");
        self.notes.sole.push(owner);
    }
}
