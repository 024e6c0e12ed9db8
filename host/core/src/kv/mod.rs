//! The KV pool as the engine sees it: blocks, their content index, kept prompts, and what they mean for
//! waiting sequences.
//!
//! This file ties the parts together; each part knows only itself. Deliberately absent: policies.

mod blocks;
pub mod cached;
mod check;
pub mod feed;
mod hits;
mod index;
mod inspect;
mod life;
#[cfg(test)]
mod model;
mod offload;
mod prompts;
mod sessions;
mod tree;

pub(crate) use blocks::{Block, Blocks, Fate};
pub(crate) use life::Keep;
pub(crate) use sessions::Continuity;

use crate::config::EngineConfig;
use crate::ids::{BlockId, LogitsSlot, Micros, SessionId, TenantId};
use crate::kv::hits::Watches;
use crate::kv::index::{ChainHash, Content, Scope};
use crate::kv::offload::Offload;
use crate::kv::prompts::Prompts;
use crate::kv::sessions::{Sessions, Turn};
use crate::request::Request;
use crate::sequence::{HitState, SeqIx, Sequence, Slab};

#[derive(Debug)]
pub(crate) struct Kv {
    pub blocks: Blocks,
    sessions: Sessions,
    prompts: Prompts,
    watches: Watches,
    chain: ChainHash,
    /// Whether content is indexed at all.
    sharing: bool,
    rung: Vec<SeqIx>,
    shrunk: Vec<SeqIx>,
}

impl Kv {
    pub fn new(config: &EngineConfig) -> Self {
        let entries = if config.prefix_caching { config.prompt_cache_entries } else { 0 };
        let mut blocks = Blocks::new(config.block_size, config.total_blocks);
        if config.prefix_caching && config.offload_slots > 0 {
            let offload = Offload::new(config.block_size, config.total_blocks, config.offload_slots);
            blocks.offload = Some(Box::new(offload));
        }
        Self {
            blocks,
            sessions: Sessions::default(),
            prompts: Prompts::new(entries, config.prompt_cache_ttl),
            watches: Watches::new(config.total_blocks),
            chain: ChainHash::new(config.hash_key),
            sharing: config.prefix_caching,
            rung: Vec::new(),
            shrunk: Vec::new(),
        }
    }

    pub fn block_size(&self) -> u32 {
        self.blocks.block_size
    }

    /// Everything that can be found by content, parents before children.
    pub fn indexed(&self) -> Vec<feed::KvBlock> {
        let hash = |parent: u32| (parent != crate::list::NONE).then(|| self.blocks.get(BlockId(parent)).hash);
        let mut all: Vec<_> = self.blocks.iter().filter(|(_, block)| block.indexed).collect();
        all.sort_by_key(|(_, block)| block.depth);
        let told = |(id, block): (BlockId, &Block)| {
            let parent = (block.parent != crate::list::NONE).then_some(BlockId(block.parent));
            let tokens = self.blocks.index.tokens(id);
            let content = Content { hash: block.hash, parent, scope: block.scope, tokens };
            feed::KvBlock::new(&content, hash(block.parent))
        };
        all.into_iter().map(told).collect()
    }

    /// Blocks that hold `tokens` tokens.
    pub fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.blocks.block_size)
    }

    /// Extends a sequence's chain hashes to its tokens.
    pub fn hash(&self, sequence: &mut Sequence) {
        if !self.sharing {
            return;
        }
        let size = self.block_size() as usize;
        let scope = scope_of(sequence);
        while (sequence.hashes.len() + 1) * size <= sequence.tokens.len() {
            let at = sequence.hashes.len();
            let before = sequence.hashes.last().copied().unwrap_or_else(|| self.chain.root(scope));
            sequence.hashes.push(self.chain.block(before, &sequence.tokens[at * size..(at + 1) * size]));
        }
        // Kept logits tell nothing of a hidden state, nor the other way round.
        let wants_logits = !sequence.request.sampling.embeds();
        if self.prompts.enabled() && wants_logits && sequence.prompt_key == 0 {
            let prompt_len = sequence.prompt_len as usize;
            let full = prompt_len / size;
            let before = if full == 0 { self.chain.root(scope) } else { sequence.hashes[full - 1] };
            sequence.prompt_key = self.chain.prompt(before, &sequence.tokens[full * size..prompt_len]);
        }
    }

    /// Leading tokens of a waiting sequence that are cached. The last token to compute is spared only if its
    /// logits are kept.
    pub fn cached_tokens(&self, sequence: &Sequence) -> u32 {
        let len = sequence.tokens.len() as u32;
        if must_compute_all(sequence) {
            return 0;
        }
        if sequence.hit.full.is_some() {
            return len;
        }
        let size = self.block_size();
        (sequence.hit.chain.len() as u32).min((len - 1) / size) * size
    }

    /// What of that the policy lets it have.
    pub fn reusable_tokens(&self, sequence: &Sequence) -> u32 {
        let cached = self.cached_tokens(sequence);
        let allowed = cached.min(sequence.hit.answer);
        if allowed == sequence.tokens.len() as u32 {
            return allowed;
        }
        let size = self.block_size();
        allowed / size * size
    }

    /// Tokens that it would find a little later, if that is more than it would find now.
    pub fn pending_tokens(&self, sequence: &Sequence) -> u32 {
        if must_compute_all(sequence) {
            return 0;
        }
        if sequence.hit.pending > self.reusable_tokens(sequence) { sequence.hit.pending } else { 0 }
    }

    /// Whether a sequence that computes its prompt now will leave nothing to compute to a waiting one.
    pub fn will_answer(&self, computing: &Sequence, waiting: &Sequence) -> bool {
        let hit = &waiting.hit;
        waiting.prompt_key != 0
            && waiting.prompt_key == computing.prompt_key
            && (waiting.generated, computing.generated) == (0, 0)
            && computing.logits_from.is_none()
            && hit.full.is_none()
            && !hit.no_full
            && !must_compute_all(waiting)
    }

    /// Reusable blocks without holders: starting the sequence takes them out of the cached ones.
    pub fn idle_blocks(&self, sequence: &Sequence) -> u32 {
        self.idle_blocks_behind(sequence, self.reusable_tokens(sequence))
    }

    /// Blocks of its first cached `tokens` without holders.
    pub fn idle_blocks_behind(&self, sequence: &Sequence, tokens: u32) -> u32 {
        let chain = &sequence.hit.chain[..(tokens / self.block_size()) as usize];
        chain.iter().rev().take_while(|&&b| self.blocks.get(b).refs == 0).count() as u32
    }

    /// How its prompt, of which so many leading tokens are cached, relates to what its session computed.
    pub fn continuity(&self, sequence: &Sequence, cached: u32) -> Continuity {
        self.sessions.compare(owner_of(sequence), self.prompt_hashes(sequence), cached / self.block_size())
    }

    /// A sequence starts for the first time: of the blocks that it found, it holds its session's as its own.
    pub fn begin_turn(&mut self, sequence: &mut Sequence) {
        let found = sequence.committed;
        if let Some(at) = self.sessions.own(owner_of(sequence), self.prompt_hashes(sequence), found) {
            self.own_from(sequence, at);
        }
    }

    /// A block of this sequence is its session's. If it is the first, other turns know the sequence by it.
    fn own_from(&mut self, sequence: &mut Sequence, at: u32) {
        if at < sequence.own {
            let before = sequence.hashes.get(sequence.own as usize).copied();
            self.sessions.open(owner_of(sequence), before, sequence.hashes[at as usize]);
            sequence.own = at;
        }
    }

    /// Notes what an ending sequence leaves to its session. If it leaves nothing, the earlier note stays. One that ends
    /// while it is preempted leaves at least the first block that it computed.
    pub fn note_turn(&mut self, sequence: &Sequence) {
        let owner = owner_of(sequence);
        let mut left = sequence.committed as usize;
        if let Some(&hash) = sequence.hashes.get(sequence.own as usize) {
            self.sessions.close(owner, hash);
            left = left.max(sequence.own as usize + 1);
        }
        let turn =
            Turn { prompt: self.prompt_hashes(sequence), left: &sequence.hashes[..left], own: sequence.own };
        self.sessions.note(owner, &turn);
    }

    /// Chain hashes of its prompt's full blocks.
    fn prompt_hashes<'a>(&self, sequence: &'a Sequence) -> &'a [u64] {
        let full = (sequence.prompt_len / self.block_size()) as usize;
        &sequence.hashes[..full.min(sequence.hashes.len())]
    }

    /// Looks up what a waiting sequence would find, and watches for changes.
    pub fn watch(&mut self, slab: &mut Slab, ix: SeqIx) {
        self.settle(slab);
        let mut hit = std::mem::take(&mut slab[ix].hit);
        self.watches.unwatch(ix, &mut hit);
        let sequence = &slab[ix];
        let size = self.block_size() as usize;
        while hit.chain.len() < sequence.hashes.len() {
            let at = hit.chain.len();
            let content = Content {
                hash: sequence.hashes[at],
                parent: hit.chain.last().copied(),
                scope: scope_of(sequence),
                tokens: &sequence.tokens[at * size..(at + 1) * size],
            };
            let Some(block) = self.blocks.find(&content) else { break };
            hit.chain.push(block);
        }
        let whole = self.may_hit_whole(sequence, &hit);
        hit.full = if whole { self.find_prompt(sequence, hit.chain.last().copied()) } else { None };
        hit.pending = self.pending(sequence, &hit);
        let next = match sequence.hashes.get(hit.chain.len()) {
            Some(&hash) => hash,
            None if whole => sequence.prompt_key,
            None => 0,
        };
        self.watches.watch(ix, &mut hit, next);
        slab[ix].hit = hit;
    }

    fn may_hit_whole(&self, sequence: &Sequence, hit: &HitState) -> bool {
        sequence.prompt_key != 0
            && sequence.generated == 0
            && !hit.no_full
            && hit.chain.len() == sequence.hashes.len()
    }

    fn find_prompt(&self, sequence: &Sequence, parent: Option<BlockId>) -> Option<LogitsSlot> {
        let (parent, tail) = self.prompt_end(sequence, parent);
        self.prompts.find(sequence.prompt_key, parent, scope_of(sequence), tail)
    }

    /// The block that identifies a prompt's end, and the tokens after it. `last` is its last full block.
    fn prompt_end<'a>(&self, sequence: &'a Sequence, last: Option<BlockId>) -> (Option<BlockId>, &'a [u32]) {
        let size = self.block_size();
        let tail = sequence.prompt_len / size * size;
        (last, &sequence.tokens[tail as usize..sequence.prompt_len as usize])
    }

    fn pending(&self, sequence: &Sequence, hit: &HitState) -> u32 {
        let size = self.block_size();
        let behind = &sequence.hashes[hit.chain.len()..];
        let announced = behind.iter().take_while(|&&hash| self.watches.is_announced(hash)).count();
        let blocks = (hit.chain.len() + announced) as u32;
        let whole = blocks as usize == sequence.hashes.len()
            && sequence.generated == 0
            && !hit.no_full
            && self.watches.is_announced(sequence.prompt_key);
        let len = sequence.tokens.len() as u32;
        if whole {
            len
        } else if announced > 0 {
            blocks.min((len - 1) / size) * size
        } else {
            0
        }
    }

    /// Stops watching: it starts, or it ended.
    pub fn unwatch(&mut self, slab: &mut Slab, ix: SeqIx) {
        let hit = &mut slab[ix].hit;
        self.watches.unwatch(ix, hit);
        hit.stale = false;
    }

    /// Brings hits up to date. Lost blocks are removed from them at once; possible gains fire their watches,
    /// and are looked up later.
    pub fn settle(&mut self, slab: &mut Slab) {
        let mut notes = std::mem::take(&mut self.blocks.notes);
        for block in notes.dropped.drain(..) {
            while let Some(ix) = self.watches.first_ending_in(block) {
                let hit = &mut slab[ix].hit;
                self.watches.shorten(ix, hit);
                self.watches.mark(ix, hit);
                note_shrunk(&mut self.shrunk, ix, hit);
            }
        }
        for key in notes.lost.drain(..) {
            self.watches.each_watching(key, |ix| self.rung.push(ix));
            for ix in self.rung.drain(..) {
                let hit = &mut slab[ix].hit;
                hit.full = None;
                self.watches.mark(ix, hit);
                note_shrunk(&mut self.shrunk, ix, hit);
            }
        }
        for hash in notes.changed.drain(..) {
            self.watches.each_watching(hash, |ix| self.rung.push(ix));
            for ix in self.rung.drain(..) {
                self.watches.mark(ix, &mut slab[ix].hit);
            }
        }
        for block in notes.toggled.drain(..) {
            self.watches.idle_changed |= self.watches.is_watched(block);
        }
        debug_assert!(notes.ended.is_empty(), "kept prompts leave with their blocks");
        self.blocks.notes = notes;
    }

    /// Whether there are changes that `settle` hasn't looked at, or that the view doesn't show yet.
    pub fn is_unsettled(&self) -> bool {
        let notes = &self.blocks.notes;
        !(notes.dropped.is_empty() && notes.lost.is_empty() && self.shrunk.is_empty())
    }

    /// Next waiting sequence whose hit became shorter in `settle`.
    pub fn next_shrunk(&mut self, slab: &mut Slab) -> Option<SeqIx> {
        while let Some(ix) = self.shrunk.pop() {
            if let Some(sequence) = slab.get_mut(ix) {
                sequence.hit.shrunk = false;
                if sequence.is_waiting() {
                    return Some(ix);
                }
            }
        }
        None
    }

    /// The next waiting sequence whose hit may have changed.
    pub fn next_stale(&mut self, slab: &mut Slab) -> Option<SeqIx> {
        while let Some(ix) = self.watches.pop_stale() {
            if let Some(sequence) = slab.get_mut(ix)
                && std::mem::take(&mut sequence.hit.stale)
            {
                return Some(ix);
            }
        }
        None
    }

    /// Whether hits were left to look at.
    pub fn has_stale(&self) -> bool {
        self.watches.has_stale()
    }

    /// Whether `idle_blocks` of some waiting sequence may have changed; clears the flag.
    pub fn take_idle_changed(&mut self) -> bool {
        std::mem::take(&mut self.watches.idle_changed)
    }

    /// When a retention or a kept prompt ends next.
    pub fn next_expiry(&self) -> Option<Micros> {
        [self.blocks.next_expiry(), self.prompts.next_expiry()].into_iter().flatten().min()
    }

    /// Asserts the pool's invariants.
    pub fn check(&self, slab: &Slab) {
        self.blocks.check(slab.iter().map(|(ix, s)| (ix, &s.table[..])));
        let mut entries = vec![0; self.blocks.memory().total_blocks as usize];
        for (slot, entry) in self.prompts.iter() {
            entries[entry.block.0 as usize] += 1;
            let parent = entry.parent.map(|p| self.blocks.get(p));
            assert!(parent.is_none_or(|p| p.indexed), "kept prompt {slot:?} hangs in the air");
        }
        for (id, block) in self.blocks.iter() {
            assert_eq!(block.entries, entries[id.0 as usize], "kept prompts that end in {id:?}");
        }
        if slab.len() == 0 {
            self.watches.assert_empty();
            self.sessions.assert_none_open();
        }
    }
}

/// Adds it once, however many blocks of its hit are gone.
fn note_shrunk(shrunk: &mut Vec<SeqIx>, ix: SeqIx, hit: &mut HitState) {
    if !std::mem::replace(&mut hit.shrunk, true) {
        shrunk.push(ix);
    }
}

/// Whether log-probabilities are wanted of every prompt token: cached blocks don't have them.
fn must_compute_all(sequence: &Sequence) -> bool {
    sequence.generated == 0 && sequence.request.sampling.prompt_logprobs().is_some()
}

/// The owner of a conversation: ids of different tenants are unrelated.
fn owner_of(sequence: &Sequence) -> (TenantId, SessionId) {
    (sequence.request.tenant, sequence.request.session)
}

fn scope_of(sequence: &Sequence) -> Scope {
    let Request { tenant, cache_salt: salt, adapter, .. } = sequence.request;
    Scope { tenant, salt, adapter }
}
