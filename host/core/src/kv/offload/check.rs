//! What holds of the second level and the pool together.

use super::{Offload, Parent};
use crate::ids::BlockId;
use crate::kv::blocks::Blocks;
use crate::list::NONE;

impl Offload {
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
