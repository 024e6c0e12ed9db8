//! The effects on the pool of a sequence's start, progress and end.

use super::blocks::{Block, Fate};
use super::index::Content;
use super::prompts::Entry;
use super::tree::Place;
use super::{Kv, scope_of};
use crate::batch::BlockCopy;
use crate::ids::{AdapterId, BlockId, LogitsSlot, Micros};
use crate::list::NONE;
use crate::sequence::{SeqIx, Sequence, Slab};

/// How much of an ended sequence stays.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keep {
    /// All that is indexed: it was preempted or failed, and no policy was called.
    Indexed,
    /// This many leading tokens, for this long after their last use.
    Leading { tokens: u32, ttl: Micros },
}

impl Kv {
    /// Reserves the hit of a waiting sequence before anything else is allocated. The partial last block of a
    /// whole prompt is pinned, not taken: it will be copied.
    pub fn take_hit(&mut self, slab: &mut Slab, ix: SeqIx, now: Micros) {
        let reused = self.reusable_tokens(&slab[ix]);
        self.unwatch(slab, ix);
        let sequence = &mut slab[ix];
        debug_assert!(sequence.table.is_empty());
        let full = reused / self.block_size();
        let hit = &mut sequence.hit;
        for &block in &hit.chain[..full as usize] {
            self.blocks.take(block, ix, sequence.request.session, now);
            sequence.table.push(block);
        }
        sequence.computed = reused;
        sequence.reused = reused;
        sequence.committed = full;
        sequence.logits_from = None;
        if reused == sequence.tokens.len() as u32 {
            let slot = hit.full.expect("a whole prompt is cached only with its logits");
            sequence.logits_from = Some(slot);
            self.prompts.read(slot, now);
            if let Some(source) = self.copy_source(slot) {
                self.blocks.pin(source);
            }
        }
        sequence.hit.chain.clear();
        sequence.hit.full = None;
    }

    /// The partial block that a hit on `slot` must copy; `None` if the prompt ends with a full block.
    fn copy_source(&self, slot: LogitsSlot) -> Option<BlockId> {
        let entry = self.prompts.live(slot);
        (!entry.tail.is_empty()).then_some(entry.block)
    }

    /// The copy that a sequence answered by kept logits needs into its own, last block.
    pub fn copy_for(&mut self, sequence: &Sequence) -> Option<BlockCopy> {
        let slot = sequence.logits_from?;
        let from = self.copy_source(slot)?;
        let to = *sequence.table.last().expect("the copy has a block");
        Some(BlockCopy { from, to, tokens: sequence.prompt_len % self.block_size() })
    }

    /// The copy is in the batch: its source may be dropped.
    pub fn unpin_source(&mut self, sequence: &Sequence) {
        if let Some(source) = sequence.logits_from.and_then(|slot| self.copy_source(slot)) {
            self.blocks.unpin(source);
        }
    }

    /// Undoes `take_hit` because the plan's tail was cut. `no_copy`: there was no block for the copy that
    /// kept logits need, which may not change for as long as it waits for them.
    pub fn give_back_hit(&mut self, slab: &mut Slab, ix: SeqIx, no_copy: bool, now: Micros) {
        self.unpin_source(&slab[ix]);
        let sequence = &mut slab[ix];
        let whole = sequence.logits_from.take().is_some();
        sequence.hit.no_full |= whole && no_copy;
        self.release_table(sequence, ix, now);
        self.watch(slab, ix);
    }

    /// Allocates until the table holds `tokens` tokens. The caller has checked that the blocks are free.
    pub fn grow(&mut self, sequence: &mut Sequence, ix: SeqIx, tokens: u32, now: Micros) {
        let need = self.blocks_for(tokens) as usize;
        while sequence.table.len() < need {
            let block = self.blocks.allocate(ix, now).expect("the plan was cut to what memory holds");
            sequence.table.push(block);
        }
        sequence.usage.peak_blocks = sequence.usage.peak_blocks.max(sequence.table.len() as u32);
    }

    /// Frees the blocks behind those that hold computed tokens.
    pub fn shrink(&mut self, sequence: &mut Sequence, ix: SeqIx, now: Micros) {
        while sequence.table.len() > self.blocks_for(sequence.computed) as usize {
            let block = sequence.table.pop().expect("it holds more than nothing");
            self.blocks.release(block, ix, now);
        }
    }

    /// Announces what this sequence is going to compute.
    pub fn announce(&mut self, slab: &mut Slab, ix: SeqIx) {
        let sequence = &mut slab[ix];
        let (from, to) = (sequence.committed as usize, sequence.hashes.len());
        sequence.pending_end = to as u32;
        sequence.pending_prompt =
            sequence.prompt_key != 0 && sequence.generated == 0 && sequence.logits_from.is_none();
        for at in from..to {
            let hash = slab[ix].hashes[at];
            self.watches.announce(hash);
            self.blocks.notes.changed.push(hash);
        }
        if slab[ix].pending_prompt {
            let key = slab[ix].prompt_key;
            self.watches.announce(key);
            self.blocks.notes.changed.push(key);
        }
    }

    fn withdraw_block(&mut self, slab: &Slab, ix: SeqIx, at: u32) {
        if at < slab[ix].pending_end {
            let hash = slab[ix].hashes[at as usize];
            self.watches.withdraw(hash);
            self.blocks.notes.changed.push(hash);
        }
    }

    /// What this sequence computes will not complete a waiting sequence's prompt.
    pub fn withdraw_prompt(&mut self, slab: &mut Slab, ix: SeqIx) {
        if std::mem::take(&mut slab[ix].pending_prompt) {
            let key = slab[ix].prompt_key;
            self.watches.withdraw(key);
            self.blocks.notes.changed.push(key);
        }
    }

    /// Indexes the blocks that became full. If the same content is indexed already, the block is freed and
    /// the table takes the indexed one: both hold the same keys and values.
    pub fn commit(&mut self, slab: &mut Slab, ix: SeqIx, now: Micros) {
        let size = self.block_size();
        if !self.sharing || (slab[ix].committed + 1) * size > slab[ix].computed {
            return;
        }
        self.hash(&mut slab[ix]);
        while (slab[ix].committed + 1) * size <= slab[ix].computed {
            let at = slab[ix].committed as usize;
            let sequence = &mut slab[ix];
            let own = sequence.table[at];
            let content = Content {
                hash: sequence.hashes[at],
                parent: at.checked_sub(1).map(|before| sequence.table[before]),
                scope: scope_of(sequence),
                tokens: &sequence.tokens[at * size as usize..(at + 1) * size as usize],
            };
            if let Some(other) = self.blocks.commit(own, &content, sequence.request.session, now) {
                if self.blocks.move_entries(own, other, now) > 0 {
                    self.prompts.rebase(own, other);
                }
                self.blocks.take(other, ix, sequence.request.session, now);
                self.blocks.release(own, ix, now);
                sequence.table[at] = other;
            }
            self.withdraw_block(slab, ix, at as u32);
            let sequence = &mut slab[ix];
            self.own_from(sequence, at as u32);
            sequence.committed += 1;
        }
    }

    /// Reserves a slot for the logits of the prompt that is about to be finished, if there is one.
    pub fn reserve_logits(&mut self, sequence: &Sequence, now: Micros) -> Option<LogitsSlot> {
        if sequence.prompt_key == 0 {
            return None;
        }
        let (slot, evicted) = self.prompts.reserve()?;
        if let Some(entry) = evicted {
            self.blocks.remove_entry(entry.block, now);
            self.blocks.notes.lost.push(entry.key);
        }
        Some(slot)
    }

    /// The prompt is computed and `slot` holds its logits: from now on it can be found.
    pub fn keep_prompt(&mut self, slab: &mut Slab, ix: SeqIx, slot: LogitsSlot, now: Micros) {
        self.withdraw_prompt(slab, ix);
        let sequence = &slab[ix];
        let full = (sequence.prompt_len / self.block_size()) as usize;
        let before = full.checked_sub(1).map(|at| sequence.table[at]);
        let (parent, tail) = self.prompt_end(sequence, before);
        let scope = scope_of(sequence);
        if let Some(known) = self.prompts.find(sequence.prompt_key, parent, scope, tail) {
            self.prompts.touch(known, now);
            self.prompts.cancel(slot);
            return;
        }
        let block =
            if tail.is_empty() { parent.expect("a prompt is not empty") } else { sequence.table[full] };
        let entry =
            Entry { key: sequence.prompt_key, scope, parent, block, tail: tail.into(), last_used: now };
        self.blocks.add_entry(block, Place { parent, scope, session: sequence.request.session }, now);
        if let Some(collided) = self.prompts.insert(slot, entry) {
            self.blocks.remove_entry(collided.block, now);
            self.blocks.notes.lost.push(collided.key);
        }
        self.blocks.notes.changed.push(sequence.prompt_key);
    }

    /// The step that was to write these logits failed, or they are not needed.
    pub fn cancel_logits(&mut self, slot: LogitsSlot) {
        self.prompts.cancel(slot);
    }

    /// The batch that read kept logits is done.
    pub fn end_reading(&mut self) {
        self.prompts.end_reading();
    }

    /// A sequence stops running: withdraws its announcements and releases its table.
    pub fn end(&mut self, slab: &mut Slab, ix: SeqIx, keep: Keep, now: Micros) {
        for at in slab[ix].committed..slab[ix].pending_end {
            self.withdraw_block(slab, ix, at);
        }
        slab[ix].pending_end = 0;
        self.withdraw_prompt(slab, ix);
        let sequence = &mut slab[ix];
        let prompt_len = sequence.prompt_len;
        let table = std::mem::take(&mut sequence.table);
        let (tokens, ttl) = match keep {
            Keep::Indexed => (u32::MAX, None),
            Keep::Leading { tokens, ttl } => (tokens, Some(ttl)),
        };
        let kept_blocks = (tokens / self.block_size()) as usize;
        for (at, &block) in table.iter().enumerate().rev() {
            let ends_kept_prompt = self.blocks.get(block).entries > 0 && tokens >= prompt_len;
            let kept = at < kept_blocks || ends_kept_prompt;
            if kept && let Some(ttl) = ttl {
                self.blocks.retain_for(block, ttl);
            }
            self.blocks.release(block, ix, now);
            if !kept {
                self.blocks.drop_leaf(block, now);
            }
        }
        let sequence = &mut slab[ix];
        sequence.table = table;
        sequence.table.clear();
        sequence.computed = 0;
        sequence.committed = 0;
        self.forget_ended();
    }

    fn release_table(&mut self, sequence: &mut Sequence, ix: SeqIx, now: Micros) {
        while let Some(block) = sequence.table.pop() {
            self.blocks.release(block, ix, now);
        }
        sequence.computed = 0;
        sequence.committed = 0;
    }

    /// Drops a cached block and what follows it. Returns how many blocks became free.
    pub fn drop_cached(&mut self, block: BlockId, fate: Fate, now: Micros) -> u32 {
        let dropped = self.blocks.drop_subtree(block, fate, now);
        self.forget_ended();
        dropped
    }

    /// Drops the least recently used until `want` blocks are free.
    pub fn drop_oldest(&mut self, want: u32, fate: Fate, now: Micros) -> u32 {
        let dropped = self.blocks.drop_oldest(want, fate, now);
        self.forget_ended();
        dropped
    }

    /// Drops what is cached of an adapter, here and in the second level. Returns how many blocks became free.
    pub fn forget_adapter(&mut self, adapter: AdapterId, now: Micros) -> u32 {
        let is_first =
            |block: &Block| block.in_tree() && block.parent == NONE && block.scope.adapter == adapter;
        let all = self.blocks.iter().filter(|(id, block)| is_first(block) && self.blocks.is_idle(*id));
        let first: Vec<BlockId> = all.map(|(id, _)| id).collect();
        let dropped: u32 = first.into_iter().map(|id| self.drop_cached(id, Fate::Forgotten, now)).sum();
        if let Some(offload) = &mut self.blocks.offload {
            offload.forget_adapter(adapter);
        }
        dropped
    }

    /// Drops what has outlived its retention or its time as a kept prompt.
    pub fn expire(&mut self, now: Micros) {
        self.blocks.expire(now);
        self.forget_ended();
        while let Some(slot) = self.prompts.expired(now) {
            let entry = self.prompts.remove(slot);
            self.blocks.remove_entry(entry.block, now);
            self.blocks.notes.lost.push(entry.key);
        }
    }

    /// Kept prompts leave together with the blocks they end in.
    pub(super) fn forget_ended(&mut self) {
        while let Some(block) = self.blocks.notes.ended.pop() {
            for slot in self.prompts.ending_in(block) {
                let entry = self.prompts.remove(slot);
                self.blocks.notes.lost.push(entry.key);
            }
        }
    }
}
