//! Cached blocks as they outlive the engine: listed when it ends, taken back by a new one before its first step.
//!
//! Names of a process (chain hashes, sessions) are left out. Kept prompts stay behind: their logits are the
//! executor's.

use super::Kv;
use super::blocks::{Block, Blocks};
use super::index::{Content, Scope};
use crate::ids::{AdapterId, BlockId, Micros, SessionId, TenantId};
use crate::list::NONE;

/// A full block that can be found by its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedBlock {
    /// Where the pool holds it.
    pub id: BlockId,
    /// Index of the preceding block in the same list, where it comes earlier; `None` for a first block.
    pub parent: Option<usize>,
    /// What it holds, `block_size` tokens.
    pub tokens: Box<[u32]>,
    /// The tenant whose cache it is part of.
    pub tenant: TenantId,
    /// Separates caches of one tenant; 0 for none.
    pub salt: u64,
    /// The adapter that it was computed with. Its number means nothing to another process.
    pub adapter: AdapterId,
    /// How long it is kept after its last use: zero for no limit, `None` if no policy has decided.
    pub ttl: Option<Micros>,
    /// Time since its last use; if its time has no limit, at most since it was restored.
    pub unused: Micros,
}

impl CachedBlock {
    /// Time until it must be forgotten; `None` for never.
    fn left(&self) -> Option<Micros> {
        self.ttl.filter(|ttl| ttl.0 > 0).map(|ttl| Micros(ttl.0.saturating_sub(self.unused.0)))
    }
}

impl Kv {
    /// Everything that can be found, most recently used first. Parents precede their children, so a leading part of the
    /// list is complete, too.
    pub fn cached(&self, now: Micros) -> Vec<CachedBlock> {
        let mut used: Vec<_> =
            self.blocks.iter().filter(|(_, block)| block.indexed && block.refs > 0).collect();
        used.sort_by_key(|(_, block)| block.depth);
        let mut idle: Vec<_> = self.blocks.idle.iter().map(BlockId).collect();
        idle.reverse();
        let idle = idle.into_iter().map(|id| (id, self.blocks.get(id))).filter(|(_, block)| block.indexed);
        // They are indexed, but no batch has filled them.
        let mut empty = self.blocks.offload.as_ref().map_or_else(Vec::new, |offload| offload.coming());
        let filled = |&(id, block): &(BlockId, &Block)| {
            let follows = empty.contains(&id) || empty.contains(&BlockId(block.parent));
            if follows {
                empty.push(id);
            }
            !follows
        };
        let mut places = vec![NONE; self.blocks.memory().total_blocks as usize];
        let listed = |(at, (id, block)): (usize, (BlockId, &Block))| {
            places[id.0 as usize] = at as u32;
            CachedBlock {
                id,
                parent: (block.parent != NONE).then(|| places[block.parent as usize] as usize),
                tokens: self.blocks.index.tokens(id).into(),
                tenant: block.scope.tenant,
                salt: block.scope.salt,
                adapter: block.scope.adapter,
                ttl: block.ttl,
                unused: block.unused(now),
            }
        };
        used.into_iter().chain(idle).filter(filled).enumerate().map(listed).collect()
    }

    /// Makes blocks of such a list cached ones of this empty pool, and returns where: `None` if the pool is full, if their
    /// time is over, if they repeat another one, or if that is so of a preceding block.
    pub fn restore(&mut self, list: &[CachedBlock], now: Micros) -> Vec<Option<BlockId>> {
        let mut places = vec![None; list.len()];
        if !self.sharing {
            return places;
        }
        for (at, block) in list.iter().enumerate() {
            let parent = match block.parent {
                None => None,
                Some(before) => match places[..at].get(before).copied().flatten() {
                    Some(parent) => Some(parent),
                    None => continue,
                },
            };
            let fits = block.tokens.len() == self.block_size() as usize;
            if !fits || block.left() == Some(Micros::ZERO) {
                continue;
            }
            let scope = Scope { tenant: block.tenant, salt: block.salt, adapter: block.adapter };
            let before = parent.map_or_else(|| self.chain.root(scope), |parent| self.blocks.get(parent).hash);
            let hash = self.chain.block(before, &block.tokens);
            let content = Content { hash, parent, scope, tokens: &block.tokens };
            places[at] = self.blocks.adopt(&content, SessionId::default(), now);
        }
        // The order of use is that of the list, and children rest before their parents.
        for (block, place) in list.iter().zip(&places).rev() {
            if let Some(id) = *place {
                self.blocks.rest_as(id, block.ttl, block.left(), now);
            }
        }
        places
    }
}

impl Block {
    /// Time since its last use. One that was restored has spent some of it in another process, so its end tells.
    fn unused(&self, now: Micros) -> Micros {
        match self.ttl {
            _ if self.refs > 0 => Micros::ZERO,
            Some(ttl) if ttl.0 > 0 => ttl.since(self.expires.since(now)),
            _ => now.since(self.last_used),
        }
    }
}

impl Blocks {
    /// Indexes content in a free block; `None` if there is none, or if it is indexed already. The block has no holder yet
    /// and must rest next.
    pub(super) fn adopt(
        &mut self,
        content: &Content<'_>,
        session: SessionId,
        now: Micros,
    ) -> Option<BlockId> {
        if self.find(content).is_some() {
            return None;
        }
        let id = BlockId(self.free.pop()?);
        self.blocks[id.0 as usize].last_used = now;
        self.commit(id, content, session, now);
        Some(id)
    }

    /// An adopted block becomes cached, for `left` from now on if its time is limited.
    pub(super) fn rest_as(&mut self, id: BlockId, ttl: Option<Micros>, left: Option<Micros>, now: Micros) {
        self.rest(id, now);
        let block = &mut self.blocks[id.0 as usize];
        block.ttl = ttl;
        if let Some(left) = left {
            block.expires = now.plus(left);
            self.expiry.insert((block.expires, id.0));
        }
    }
}
