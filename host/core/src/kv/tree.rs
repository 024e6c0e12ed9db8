//! The tree of prefixes in the pool: blocks enter it when other requests may find them, and leave it leaves
//! first. Below a cached block everything is cached, so dropping one never reaches a used one.

use super::blocks::{Blocks, Fate};
use super::feed::{KvBlock, KvEvent};
use super::index::{Content, Scope};
use super::offload::Kept;
use crate::ids::{BlockId, Micros, SessionId};
use crate::list::NONE;
use crate::policy::CacheEventKind;

/// Where a block enters the tree, and for whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub parent: Option<BlockId>,
    pub scope: Scope,
    pub session: SessionId,
}

impl Blocks {
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

    /// Indexes a full block whose tokens are computed. Returns the block that is indexed already with the
    /// same content; `id` is then left as it was.
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
        self.enter(id, Place { parent: content.parent, scope: content.scope, session }, now);
        let block = &mut self.blocks[id.0 as usize];
        block.indexed = true;
        block.hash = content.hash;
        self.index.insert(content.hash, id, content.tokens);
        if let Some(offload) = &mut self.offload {
            offload.attach(id, content);
        }
        self.notes.changed.push(content.hash);
        if let Some(feed) = &mut self.feed {
            let parent = content.parent.map(|parent| self.blocks[parent.0 as usize].hash);
            feed.push(KvEvent::Stored(KvBlock::new(content, parent)));
        }
        None
    }

    /// Puts a prompt's last block into the tree, if it isn't there, because a kept prompt ends in it.
    pub fn add_entry(&mut self, id: BlockId, place: Place, now: Micros) {
        self.enter(id, place, now);
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

    fn enter(&mut self, id: BlockId, place: Place, now: Micros) {
        let Place { parent, scope, session } = place;
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

    /// Removes a block without children from the tree.
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
            let hash = block.hash;
            self.index.remove(hash, id);
            if let Some(feed) = &mut self.feed {
                feed.push(KvEvent::Removed { hash });
            }
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

    /// Drops a cached block and the blocks that follow it, the last first. Stops at a pinned one. Returns how
    /// many became free.
    pub fn drop_subtree(&mut self, top: BlockId, fate: Fate, now: Micros) -> u32 {
        debug_assert!(self.is_idle(top));
        let mut dropped = 0;
        loop {
            let at = self.first_leaf(top);
            if self.blocks[at.0 as usize].pins > 0 {
                return dropped;
            }
            debug_assert!(self.is_idle(at), "below a cached block everything is cached");
            self.tell_offload(at, fate);
            self.leave(at, now);
            self.unrest(at);
            self.forget(at);
            dropped += 1;
            if at == top {
                return dropped;
            }
        }
    }

    /// A block of the tree that none follows: the given one, or one behind it.
    fn first_leaf(&self, top: BlockId) -> BlockId {
        let mut at = top;
        while self.blocks[at.0 as usize].first_child != NONE {
            at = BlockId(self.blocks[at.0 as usize].first_child);
        }
        at
    }

    /// A block is about to leave the tree.
    fn tell_offload(&mut self, id: BlockId, fate: Fate) {
        let Some(offload) = &mut self.offload else { return };
        let block = &self.blocks[id.0 as usize];
        if fate == Fate::Forgotten {
            offload.forget(id);
        } else if block.indexed {
            let parent = (block.parent != NONE).then_some(BlockId(block.parent));
            let tokens = self.index.tokens(id);
            let content = Content { hash: block.hash, parent, scope: block.scope, tokens };
            let kept = Kept { session: block.session, ttl: block.ttl, expires: block.expires };
            offload.put(id, &content, kept);
        }
    }

    /// Nobody may find these blocks any more, a block and those that follow it, used ones included: it doesn't hold
    /// what it should.
    pub fn unlearn(&mut self, top: BlockId, now: Micros) {
        loop {
            let at = self.first_leaf(top);
            if let Some(offload) = &mut self.offload {
                offload.detach(at);
            }
            self.leave(at, now);
            if self.blocks[at.0 as usize].refs == 0 {
                self.unrest(at);
                self.forget(at);
            }
            if at == top {
                return;
            }
        }
    }

    /// Drops the block if none follows it. Used if a policy keeps nothing of a sequence.
    pub fn drop_leaf(&mut self, id: BlockId, now: Micros) {
        let leads = self.offload.as_ref().is_some_and(|offload| offload.follows(id));
        if self.is_idle(id) && self.get(id).first_child == NONE && self.get(id).pins == 0 && !leads {
            self.drop_subtree(id, Fate::Forgotten, now);
        }
    }

    /// Drops cached blocks, least recently used first, until `want` are free or none is left.
    pub fn drop_oldest(&mut self, want: u32, fate: Fate, now: Micros) -> u32 {
        let mut dropped = 0;
        while self.free() < want {
            let Some(oldest) = self.idle.iter().find(|&b| self.unpinned_leaf(b)) else { break };
            dropped += self.drop_subtree(BlockId(oldest), fate, now);
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
            dropped += self.drop_subtree(BlockId(block), Fate::Forgotten, now);
        }
        if let Some(offload) = &mut self.offload {
            offload.expire(now);
        }
        dropped
    }

    /// When the next cached block outlives its retention.
    pub fn next_expiry(&self) -> Option<Micros> {
        let own = self.expiry.first().map(|&(at, _)| at);
        let below = self.offload.as_ref().and_then(|offload| offload.next_expiry());
        own.into_iter().chain(below).min()
    }

    /// A block that several sequences retain is kept for the longest of their times.
    pub fn retain_for(&mut self, id: BlockId, ttl: Micros) {
        let block = &mut self.blocks[id.0 as usize];
        block.ttl = Some(match block.ttl {
            Some(Micros(0)) => Micros(0),
            Some(longer) if ttl.0 > 0 => longer.max(ttl),
            _ => ttl,
        });
    }
}
