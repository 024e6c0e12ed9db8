//! The second level as the pool uses it: which slots continue a hit, and what becomes of copies.

use super::{Kept, Parent};
use crate::batch::OffloadCopy;
use crate::ids::{BlockId, Micros, OffloadSlot};
use crate::kv::index::Content;
use crate::kv::{Kv, must_compute_all, scope_of};
use crate::sequence::Sequence;

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
