//! A prefix cache in miniature: a pool of blocks with contents, really shared, and the rules of the interface
//! around a policy. Plays scenarios and reports what they found cached.
//!
//! Prompts are whole blocks, and nothing is generated: what matters to a prefix-cache policy is which
//! prefixes are used again. What a request computes is in the index at once and in use until it ends.

mod check;

use std::collections::{BTreeMap, BTreeSet};

pub use check::check_prefix_cache;

use crate::{
    BlockId, Ended, Event, EventKind, Events, Hit, Memory, Micros, PrefixCache, SequenceId, SessionId,
    TenantId,
};

const NONE: u32 = u32::MAX;

/// A request: its prompt is a chain of block contents, and equal chains share their blocks.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    /// The tenant that pays. Tenants share nothing with each other.
    pub tenant: TenantId,
    /// The conversation.
    pub session: SessionId,
    /// What the report counts it under.
    pub kind: &'static str,
    /// Content of each block.
    pub prompt: Vec<u64>,
}

impl Turn {
    /// A request without a session, with the first blocks of a text: requests of one text have a common
    /// prefix, those of different texts share nothing.
    pub fn new(kind: &'static str, text: u32, blocks: u32) -> Self {
        let prompt = (0..blocks).map(|at| u64::from(text) << 32 | u64::from(at)).collect();
        Self { kind, prompt, ..Self::default() }
    }
}

/// A request between its start and its end.
#[derive(Debug)]
pub struct Started {
    turn: Turn,
    id: SequenceId,
    table: Vec<u32>,
    reused: u32,
}

/// What one kind of requests found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests.
    pub requests: u64,
    /// Tokens of their prompts.
    pub prompt_tokens: u64,
    /// Of these, computed because they weren't cached.
    pub computed_tokens: u64,
    /// Tokens that the computed ones attended to: the part of the work that grows with depth.
    pub attended_tokens: u64,
}

impl Tally {
    /// Share of prompt tokens that were cached, in percent.
    pub fn hit_percent(&self) -> u64 {
        100 - (self.computed_tokens * 100).checked_div(self.prompt_tokens).unwrap_or(0)
    }
}

/// The host. Panics if the policy breaks a rule. Stricter than a host in one point: no block may be named
/// before what follows it, although a host would drop that first by itself.
#[derive(Debug)]
pub struct CacheHost<P> {
    policy: P,
    block_size: u32,
    now: Micros,
    blocks: Vec<Block>,
    free: Vec<u32>,
    index: BTreeMap<(TenantId, u32, u64), u32>,
    /// Idle blocks by when they became idle.
    idle: BTreeMap<u64, u32>,
    clock: u64,
    events: Events,
    last_id: u64,
    /// The last turn of each conversation, up to the first block that the conversation computed.
    left: BTreeMap<(TenantId, SessionId), Vec<u64>>,
    /// The same of the turns that haven't ended.
    open: BTreeMap<(TenantId, SessionId, SequenceId), Vec<u64>>,
    tallies: BTreeMap<&'static str, Tally>,
    shortfalls: u64,
}

#[derive(Clone, Debug, Default)]
struct Block {
    stored: bool,
    content: u64,
    parent: u32,
    followers: u32,
    depth: u32,
    users: u32,
    tenant: TenantId,
    session: SessionId,
    /// Its index in `idle`.
    idle: Option<u64>,
    /// How long it is kept once it is idle; `None` for no limit.
    ttl: Option<Micros>,
    since: Micros,
}

impl<P: PrefixCache> CacheHost<P> {
    /// A host with an empty pool.
    pub fn new(policy: P, block_size: u32, total_blocks: u32) -> Self {
        Self {
            policy,
            block_size,
            now: Micros::ZERO,
            blocks: vec![Block::default(); total_blocks as usize],
            free: (0..total_blocks).rev().collect(),
            index: BTreeMap::new(),
            idle: BTreeMap::new(),
            clock: 0,
            events: Events::default(),
            last_id: 0,
            left: BTreeMap::new(),
            open: BTreeMap::new(),
            tallies: BTreeMap::new(),
            shortfalls: 0,
        }
    }

    /// What requests of a kind found so far.
    pub fn tally(&self, kind: &str) -> Tally {
        self.tallies.get(kind).copied().unwrap_or_default()
    }

    /// How often the policy named less than was needed though enough was idle.
    pub fn shortfalls(&self) -> u64 {
        self.shortfalls
    }

    /// The pool.
    pub fn memory(&self) -> Memory {
        Memory {
            block_size: self.block_size,
            total_blocks: self.blocks.len() as u32,
            free_blocks: self.free.len() as u32,
            cached_blocks: self.idle.len() as u32,
        }
    }

    /// Leading blocks of a prompt that the pool holds.
    pub fn cached(&self, turn: &Turn) -> u32 {
        self.find(turn).len() as u32
    }

    /// Lets time pass and drops what has outlived its retention.
    pub fn wait(&mut self, time: Micros) {
        self.now = self.now.plus(time);
        let old = |block: &Block| block.ttl.is_some_and(|ttl| block.since.plus(ttl) <= self.now);
        let expired: Vec<u32> =
            self.idle.values().copied().filter(|b| old(&self.blocks[*b as usize])).collect();
        for block in expired {
            if self.blocks[block as usize].idle.is_some() {
                self.drop_subtree(block);
            }
        }
        self.flush();
    }

    /// Starts and ends a request. Panics if the pool is too small for it.
    pub fn play(&mut self, turn: &Turn) {
        let started = self.start(turn).expect("the pool can hold the prompt");
        self.end(started);
    }

    /// Starts a request: reuses what is cached, makes room for the rest and computes it. `None` if that much
    /// isn't free or idle.
    pub fn start(&mut self, turn: &Turn) -> Option<Started> {
        self.last_id += 1;
        let id = SequenceId(self.last_id);
        let chain = self.find(turn);
        let reused = self.ask_reuse(turn, id, chain.len() as u32);
        let mut table: Vec<u32> = chain[..reused as usize].to_vec();
        table.iter().for_each(|block| self.take(*block, turn.session));
        let want = turn.prompt.len() - table.len();
        if self.free.len() + self.idle.len() < want {
            table.iter().rev().for_each(|block| self.release(*block));
            self.flush();
            return None;
        }
        self.make_room(want as u32);
        for content in &turn.prompt[table.len()..] {
            let block = self.store(*content, table.last().copied().unwrap_or(NONE), turn);
            table.push(block);
        }
        self.flush();
        if let Some(own) = turn.prompt.get(..=reused as usize) {
            self.open.insert((turn.tenant, turn.session, id), own.to_vec());
        }
        self.count(turn, reused);
        Some(Started { turn: turn.clone(), id, table, reused })
    }

    /// Ends a request and keeps the part of it that the policy decides.
    pub fn end(&mut self, started: Started) {
        let Started { turn, id, table, reused } = started;
        let retention = self.policy.retain(&Ended {
            now: self.now,
            id,
            tenant: turn.tenant,
            session: turn.session,
            prompt_tokens: table.len() as u32 * self.block_size,
            generated_tokens: 0,
            reused_tokens: reused * self.block_size,
            memory: self.memory(),
        });
        self.open.remove(&(turn.tenant, turn.session, id));
        let reused = reused as usize;
        let left = self.left.entry((turn.tenant, turn.session)).or_default();
        if left.is_empty() || !turn.prompt.starts_with(left) || reused < left.len() {
            *left = turn.prompt.get(..=reused).unwrap_or_default().to_vec();
        }
        let kept = (retention.keep_tokens / self.block_size) as usize;
        for (at, &block) in table.iter().enumerate().rev() {
            self.blocks[block as usize].ttl = Some(retention.ttl).filter(|ttl| *ttl > Micros::ZERO);
            self.release(block);
            let left = &self.blocks[block as usize];
            if at >= kept && left.idle.is_some() && left.followers == 0 {
                self.drop_subtree(block);
            }
        }
        self.flush();
    }

    /// Another policy takes over and receives what is cached.
    pub fn swap(&mut self, policy: P) {
        self.policy = policy;
        self.events = Events::default();
        for block in self.idle.values().copied().collect::<Vec<_>>() {
            self.tell(EventKind::Idle, block);
        }
        self.flush();
    }

    /// Drops cached blocks until this many are free.
    pub fn make_room(&mut self, want: u32) {
        while !self.events.is_empty() {
            self.flush();
        }
        let want = want as usize;
        if self.free.len() >= want {
            return;
        }
        let need = (want - self.free.len()) as u32;
        let names = self.policy.evict(self.now, need);
        let mut named = BTreeSet::new();
        let mut followers: BTreeMap<u32, u32> = BTreeMap::new();
        for block in &names {
            self.check_idle(*block);
            assert!(named.insert(*block), "block {} is named twice", block.0);
            let known = &self.blocks[block.0 as usize];
            let went = followers.get(&block.0).copied().unwrap_or(0);
            assert_eq!(went, known.followers, "block {} is named before a block that follows it", block.0);
            *followers.entry(known.parent).or_default() += 1;
        }
        for block in names {
            if self.free.len() < want && self.blocks[block.0 as usize].idle.is_some() {
                self.drop_subtree(block.0);
            }
        }
        self.shortfalls += u64::from(self.free.len() < want);
        while self.free.len() < want {
            let leaf = |block: &u32| self.blocks[*block as usize].followers == 0;
            let oldest = self.idle.values().copied().find(leaf).expect("enough is idle");
            self.drop_subtree(oldest);
        }
        self.flush();
    }

    /// Panics unless every block is free, idle or in use, and found where it should be.
    pub fn check(&self) {
        let used = self.blocks.iter().filter(|block| block.users > 0).count();
        assert_eq!(self.free.len() + self.idle.len() + used, self.blocks.len(), "blocks are lost or made");
        let mut followers = vec![0; self.blocks.len()];
        for (at, block) in self.blocks.iter().enumerate().filter(|(_, block)| block.stored) {
            assert_eq!(self.index[&(block.tenant, block.parent, block.content)], at as u32);
            assert_eq!(block.users == 0, block.idle.is_some(), "block {at}");
            if block.parent != NONE {
                let parent = &self.blocks[block.parent as usize];
                assert!(parent.stored && parent.users >= block.users, "block {at} hangs in the air");
                followers[block.parent as usize] += 1;
            }
        }
        assert!(self.blocks.iter().zip(followers).all(|(block, count)| block.followers == count));
        assert_eq!(self.index.len(), self.idle.len() + used, "what isn't free can be found");
    }

    fn find(&self, turn: &Turn) -> Vec<u32> {
        let mut chain = Vec::new();
        for content in &turn.prompt {
            let parent = chain.last().copied().unwrap_or(NONE);
            let Some(block) = self.index.get(&(turn.tenant, parent, *content)) else { break };
            chain.push(*block);
        }
        chain
    }

    fn ask_reuse(&mut self, turn: &Turn, id: SequenceId, cached: u32) -> u32 {
        if cached == 0 {
            return 0;
        }
        let hit = Hit {
            now: self.now,
            id,
            tenant: turn.tenant,
            session: turn.session,
            prompt_tokens: turn.prompt.len() as u32 * self.block_size,
            cached_tokens: cached * self.block_size,
            same_session: self.continues(turn, &turn.prompt[..cached as usize]),
        };
        let tokens = self.policy.reuse(&hit);
        assert!(
            tokens <= hit.cached_tokens,
            "it reuses {tokens} tokens, but {} are cached",
            hit.cached_tokens
        );
        tokens / self.block_size
    }

    /// Whether the cached part of a prompt includes blocks that its session computed.
    fn continues(&self, turn: &Turn, cached: &[u64]) -> bool {
        let Turn { tenant, session, .. } = *turn;
        let ids = (tenant, session, SequenceId(0))..=(tenant, session, SequenceId(u64::MAX));
        let mut own = self.open.range(ids).map(|(_, own)| own).chain(self.left.get(&(tenant, session)));
        session != SessionId(0) && own.any(|own| !own.is_empty() && cached.starts_with(own))
    }

    fn take(&mut self, at: u32, session: SessionId) {
        let block = &mut self.blocks[at as usize];
        block.users += 1;
        block.session = session;
        if let Some(place) = block.idle.take() {
            self.idle.remove(&place);
        }
        self.tell(EventKind::Reused, at);
    }

    fn release(&mut self, at: u32) {
        let block = &mut self.blocks[at as usize];
        block.users -= 1;
        if block.users == 0 {
            self.clock += 1;
            block.idle = Some(self.clock);
            block.since = self.now;
            self.idle.insert(self.clock, at);
            self.tell(EventKind::Idle, at);
        }
    }

    /// Computes a block. One that is cached although it wasn't reused is taken instead.
    fn store(&mut self, content: u64, parent: u32, turn: &Turn) -> u32 {
        if let Some(&block) = self.index.get(&(turn.tenant, parent, content)) {
            self.take(block, turn.session);
            return block;
        }
        let at = self.free.pop().expect("room was made");
        let depth = self.blocks.get(parent as usize).map_or(0, |parent| parent.depth + 1);
        if let Some(parent) = self.blocks.get_mut(parent as usize) {
            parent.followers += 1;
        }
        self.blocks[at as usize] = Block {
            stored: true,
            content,
            parent,
            depth,
            users: 1,
            tenant: turn.tenant,
            session: turn.session,
            ..Block::default()
        };
        self.index.insert((turn.tenant, parent, content), at);
        self.tell(EventKind::Stored, at);
        at
    }

    fn drop_subtree(&mut self, top: u32) {
        while let Some(follower) = (self.blocks[top as usize].followers > 0)
            .then(|| self.blocks.iter().position(|block| block.stored && block.parent == top))
            .flatten()
        {
            self.drop_subtree(follower as u32);
        }
        self.tell(EventKind::Dropped, top);
        let block = std::mem::take(&mut self.blocks[top as usize]);
        let place = block.idle.expect("what follows an idle block is idle");
        self.idle.remove(&place);
        self.index.remove(&(block.tenant, block.parent, block.content));
        if let Some(parent) = self.blocks.get_mut(block.parent as usize) {
            parent.followers -= 1;
        }
        self.free.push(top);
    }

    fn flush(&mut self) {
        if self.events.is_empty() {
            return;
        }
        let events = std::mem::take(&mut self.events);
        let names = self.policy.observe(&Events { memory: self.memory(), ..events });
        names.iter().for_each(|block| self.check_idle(*block));
        for block in names {
            if self.blocks[block.0 as usize].idle.is_some() {
                self.drop_subtree(block.0);
            }
        }
    }

    fn check_idle(&self, block: BlockId) {
        let known = self.blocks.get(block.0 as usize);
        assert!(known.is_some_and(|known| known.users == 0 && known.stored), "block {} isn't idle", block.0);
    }

    fn tell(&mut self, kind: EventKind, at: u32) {
        let block = &self.blocks[at as usize];
        self.events.push(Event {
            at: self.now,
            kind,
            block: BlockId(at),
            parent: Some(BlockId(block.parent)).filter(|parent| parent.0 != NONE),
            depth: block.depth,
            tenant: block.tenant,
            session: block.session,
        });
    }

    fn count(&mut self, turn: &Turn, reused: u32) {
        let (size, blocks) = (u64::from(self.block_size), turn.prompt.len() as u64);
        let attended: u64 = (u64::from(reused)..blocks).map(|depth| size * (depth * size + size / 2)).sum();
        let tally = self.tallies.entry(turn.kind).or_default();
        tally.requests += 1;
        tally.prompt_tokens += blocks * size;
        tally.computed_tokens += (blocks - u64::from(reused)) * size;
        tally.attended_tokens += attended;
    }
}

#[cfg(test)]
mod tests;
