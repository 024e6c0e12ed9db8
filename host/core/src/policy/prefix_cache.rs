//! Which prefixes are reused, kept and evicted. The engine owns blocks, hashes and counts.

use crate::ids::{BlockId, Micros, SequenceId, SessionId, TenantId};
use crate::policy::{FaultKind, Memory, Policy, PolicyFault};

/// Most rows of one `observe` call: a few milliseconds of the slowest shipped policy.
pub(crate) const ROWS_PER_OBSERVE: usize = 2_048;

/// Decides about cached prefixes. See `wit/prefix-cache.wit` for when each is called.
pub trait PrefixCachePolicy: Policy {
    /// How many of `hit.cached_tokens` to reuse.
    fn reuse(&mut self, hit: &Hit) -> Result<u32, PolicyFault>;

    /// What to keep of a sequence that ended.
    fn retain(&mut self, ended: &Ended) -> Result<Retention, PolicyFault>;

    /// Receives what happened to cached blocks and returns idle blocks to drop now.
    fn observe(&mut self, events: &CacheEvents) -> Result<Vec<BlockId>, PolicyFault>;

    /// Like `observe`, but in pieces that a policy can process within one call's limit however much happened:
    /// after a swap that is every cached block. Each piece's answer is checked before the next is sent. A
    /// named block counts unless a later piece mentions it, because that row may have put it to use.
    fn observe_all(&mut self, events: &CacheEvents) -> Result<Vec<BlockId>, PolicyFault> {
        let total = events.memory.total_blocks;
        if events.len() <= ROWS_PER_OBSERVE {
            return self.observe(events).and_then(|names| of_the_pool(names, total));
        }
        let mut names = Vec::new();
        let mut named = vec![false; total as usize];
        for from in (0..events.len()).step_by(ROWS_PER_OBSERVE) {
            let piece = events.piece(from, ROWS_PER_OBSERVE);
            for &block in &piece.block {
                if let Some(named) = named.get_mut(block as usize) {
                    *named = false;
                }
            }
            // Until it receives the event that a block is gone, a policy may name it again.
            let again = of_the_pool(self.observe(&piece)?, total)?;
            names.extend(
                again.into_iter().filter(|name| !std::mem::replace(&mut named[name.0 as usize], true)),
            );
        }
        names.retain(|name| std::mem::take(&mut named[name.0 as usize]));
        Ok(names)
    }

    /// Returns at least `need` idle blocks in the order in which to drop them.
    fn evict(&mut self, now: Micros, need: u32) -> Result<Vec<BlockId>, PolicyFault>;
}

/// Blocks that a policy names, if they are no more than the pool has.
pub(crate) fn of_the_pool(names: Vec<BlockId>, total_blocks: u32) -> Result<Vec<BlockId>, PolicyFault> {
    let message = if names.len() > total_blocks as usize {
        format!("it names {} blocks of a pool of {total_blocks}", names.len())
    } else if let Some(BlockId(name)) = names.iter().find(|name| name.0 >= total_blocks) {
        format!("it drops block {name} of a pool of {total_blocks}")
    } else {
        return Ok(names);
    };
    Err(PolicyFault::new(FaultKind::InvalidDecision, message))
}

/// A waiting sequence whose prompt starts with cached blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the WIT documents each field")]
pub struct Hit {
    pub now: Micros,
    pub id: SequenceId,
    pub tenant: TenantId,
    pub session: SessionId,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub same_session: bool,
}

/// A sequence that ended and whose blocks can be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the WIT documents each field")]
pub struct Ended {
    pub now: Micros,
    pub id: SequenceId,
    pub tenant: TenantId,
    pub session: SessionId,
    pub prompt_tokens: u32,
    pub generated_tokens: u32,
    pub reused_tokens: u32,
    pub memory: Memory,
}

/// How much of an ended sequence is kept, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Leading tokens to keep, rounded down to whole blocks.
    pub keep_tokens: u32,
    /// Expires this long after its last use; 0 for no limit.
    pub ttl: Micros,
}

/// What happened to cached blocks, oldest first, as columns of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the WIT documents each column")]
pub struct CacheEvents {
    pub memory: Memory,
    pub at: Vec<u64>,
    pub kind: Vec<u8>,
    pub block: Vec<u32>,
    pub parent: Vec<u32>,
    pub depth: Vec<u32>,
    pub tenant: Vec<u32>,
    pub session: Vec<u64>,
}

impl CacheEvents {
    /// Rows.
    pub fn len(&self) -> usize {
        self.at.len()
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    /// Empties it, keeping the buffers.
    pub fn clear(&mut self) {
        self.at.clear();
        self.kind.clear();
        self.block.clear();
        self.parent.clear();
        self.depth.clear();
        self.tenant.clear();
        self.session.clear();
    }

    /// At most `rows` rows from `from` on.
    pub(crate) fn piece(&self, from: usize, rows: usize) -> Self {
        let to = self.len().min(from + rows);
        Self {
            memory: self.memory,
            at: self.at[from..to].to_vec(),
            kind: self.kind[from..to].to_vec(),
            block: self.block[from..to].to_vec(),
            parent: self.parent[from..to].to_vec(),
            depth: self.depth[from..to].to_vec(),
            tenant: self.tenant[from..to].to_vec(),
            session: self.session[from..to].to_vec(),
        }
    }

    /// Appends the rows of `other` from `from` on.
    pub fn extend_from(&mut self, other: &Self, from: usize) {
        self.at.extend_from_slice(&other.at[from..]);
        self.kind.extend_from_slice(&other.kind[from..]);
        self.block.extend_from_slice(&other.block[from..]);
        self.parent.extend_from_slice(&other.parent[from..]);
        self.depth.extend_from_slice(&other.depth[from..]);
        self.tenant.extend_from_slice(&other.tenant[from..]);
        self.session.extend_from_slice(&other.session[from..]);
    }
}

/// Values of `CacheEvents::kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CacheEventKind {
    /// A full block entered the index.
    Stored = 0,
    /// A sequence took it from the cache.
    Reused = 1,
    /// No sequence uses it any more.
    Idle = 2,
    /// It left the index.
    Dropped = 3,
}
