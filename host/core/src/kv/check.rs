//! The pool's invariants: free + cached + used = total, each block's count equals the tables that hold it,
//! and what the index names exists. Asserted after each step of a debug build.

use super::blocks::Blocks;
use crate::ids::BlockId;
use crate::list::NONE;
use crate::sequence::SeqIx;

impl Blocks {
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
        if let Some(offload) = &self.offload {
            offload.check(self);
        }
    }
}
