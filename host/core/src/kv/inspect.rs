//! The pool as operators look at it.

use std::ops::Range;

use super::{Block, Kv};
use crate::ids::{BlockId, Micros};
use crate::inspect::{BlockCells, BlockColumn, BlockDetail, BlockState, CacheTree, PREFIX_BLOCKS, TreeBlock};
use crate::list::NONE;

impl Block {
    fn state(&self) -> BlockState {
        match self.refs {
            0 if !self.in_tree() => BlockState::Free,
            0 if self.ttl.is_some_and(|ttl| ttl.0 > 0) => BlockState::Kept,
            0 => BlockState::Cached,
            1 => BlockState::Used,
            _ => BlockState::Shared,
        }
    }

    fn parent_id(&self) -> Option<BlockId> {
        (self.parent != NONE).then_some(BlockId(self.parent))
    }
}

impl Kv {
    /// The state of each of these blocks and one number per block; for a range, as much of it as the pool
    /// has.
    pub fn cells(&self, places: Range<usize>, column: BlockColumn, now: Micros) -> BlockCells {
        let value = |block: &Block| match column {
            BlockColumn::None => 0,
            BlockColumn::References => block.refs,
            BlockColumn::Tenant => block.scope.tenant.0,
            BlockColumn::AgeSeconds if block.state() == BlockState::Free => 0,
            BlockColumn::AgeSeconds => {
                u32::try_from(now.since(block.last_used).0 / 1_000_000).unwrap_or(u32::MAX)
            }
        };
        let all = &self.blocks.blocks;
        let end = places.end.min(all.len());
        let blocks = &all[places.start.min(end)..end];
        let (states, values) = blocks.iter().map(|block| (block.state(), value(block))).unzip();
        BlockCells { states, values }
    }

    /// One block, without its holders.
    pub fn detail(&self, id: BlockId) -> Option<BlockDetail> {
        if id.0 >= self.blocks.memory().total_blocks {
            return None;
        }
        let block = self.blocks.get(id);
        let mut chain = Vec::new();
        let mut at = block.indexed.then_some(id);
        while let Some(id) = at.filter(|_| chain.len() <= PREFIX_BLOCKS) {
            chain.push(id);
            at = self.blocks.get(id).parent_id();
        }
        let idle = self.blocks.is_idle(id);
        Some(BlockDetail {
            id,
            state: block.state(),
            references: block.refs,
            holders: Vec::new(),
            kept_prompts: block.entries,
            depth: block.depth,
            parent: block.parent_id(),
            hash: block.indexed.then_some(block.hash),
            tenant: block.scope.tenant,
            session: block.session,
            last_used: block.last_used,
            expires: block.ttl.filter(|ttl| ttl.0 > 0 && idle).map(|_| block.expires),
            uses: block.uses,
            prefix: chain.iter().rev().flat_map(|&id| self.blocks.index.tokens(id)).copied().collect(),
        })
    }

    /// Everything that can be found.
    pub fn tree(&self) -> CacheTree {
        let block = |(id, block): (BlockId, &Block)| TreeBlock {
            id,
            parent: block.parent_id(),
            references: block.refs,
            uses: block.uses,
            depth: block.depth,
            tenant: block.scope.tenant,
            session: block.session,
            last_used: block.last_used,
            hash: block.indexed.then_some(block.hash),
        };
        CacheTree {
            enabled: self.sharing,
            blocks: self.blocks.iter().filter(|(_, block)| block.in_tree()).map(block).collect(),
            sessions: self.sessions.len() as u32,
            kept_prompts: self.prompts.iter().count() as u32,
        }
    }
}
