//! Which prefixes are reused, kept and evicted. The host owns blocks, hashes and reference counts.

use crate::Policy;
use crate::types::{BlockId, Memory, Micros, SequenceId, SessionId, TenantId};

/// Decides about cached prefixes. The defaults reuse and keep everything.
pub trait PrefixCache: Policy {
    /// How many of `hit.cached_tokens` to reuse.
    fn reuse(&mut self, hit: &Hit) -> u32 {
        hit.cached_tokens
    }

    /// What to keep of a sequence that ended.
    fn retain(&mut self, ended: &Ended) -> Retention {
        Retention { keep_tokens: ended.total_tokens(), ttl: Micros::ZERO }
    }

    /// Receives what happened to cached blocks and returns idle blocks to drop now.
    fn observe(&mut self, events: &Events) -> Vec<BlockId>;

    /// Returns at least `need` idle blocks in the order in which to drop them. A block implies the blocks
    /// that follow it, the last of them first; [`IdleTree`](crate::IdleTree) never names a block before
    /// those.
    fn evict(&mut self, now: Micros, need: u32) -> Vec<BlockId>;
}

/// A waiting sequence whose prompt starts with cached blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hit {
    /// Now.
    pub now: Micros,
    /// Which sequence.
    pub id: SequenceId,
    /// The tenant that pays.
    pub tenant: TenantId,
    /// The conversation it continues.
    pub session: SessionId,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Leading tokens that the pool holds.
    pub cached_tokens: u32,
    /// They include blocks that the same session computed, in an earlier turn or in one that isn't over.
    pub same_session: bool,
}

/// A sequence that ended and whose blocks can be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Now.
    pub now: Micros,
    /// Which sequence.
    pub id: SequenceId,
    /// The tenant that paid.
    pub tenant: TenantId,
    /// The conversation.
    pub session: SessionId,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Tokens it generated.
    pub generated_tokens: u32,
    /// Prompt tokens that it found cached.
    pub reused_tokens: u32,
    /// The pool.
    pub memory: Memory,
}

impl Ended {
    /// Prompt and output.
    pub fn total_tokens(&self) -> u32 {
        self.prompt_tokens.saturating_add(self.generated_tokens)
    }
}

/// How much of an ended sequence is kept, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Leading tokens to keep, rounded down to whole blocks; 0 keeps nothing.
    pub keep_tokens: u32,
    /// Forgotten this long after its last use; zero for no limit.
    pub ttl: Micros,
}

/// What happened to cached blocks, oldest first, as equally long columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "`Event` documents each of them")]
pub struct Events {
    /// The pool as it is now.
    pub memory: Memory,
    pub at: Vec<u64>,
    pub kind: Vec<u8>,
    pub block: Vec<u32>,
    pub parent: Vec<u32>,
    pub depth: Vec<u32>,
    pub tenant: Vec<u32>,
    pub session: Vec<u64>,
}

/// One event of one cached block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Micros,
    /// What.
    pub kind: EventKind,
    /// To which block.
    pub block: BlockId,
    /// The preceding block of its prefix; `None` for the first one.
    pub parent: Option<BlockId>,
    /// Position in its prefix, 0 for the first block.
    pub depth: u32,
    /// The tenant whose prefix it is.
    pub tenant: TenantId,
    /// The conversation that left it.
    pub session: SessionId,
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A full block entered the index.
    Stored,
    /// A sequence took it from the cache.
    Reused,
    /// No sequence uses it any more. After start-up and after a swap the host reports every cached
    /// block so, least recently used first.
    Idle,
    /// It left the index.
    Dropped,
}

impl EventKind {
    const ALL: [Self; 4] = [Self::Stored, Self::Reused, Self::Idle, Self::Dropped];
}

impl Events {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.block.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.block.is_empty()
    }

    /// The events, oldest first. Kinds that this SDK doesn't know are left out: a newer host may have more.
    pub fn iter(&self) -> impl Iterator<Item = Event> + '_ {
        (0..self.len()).filter_map(|row| {
            let kind = *EventKind::ALL.get(usize::from(self.kind[row]))?;
            Some(Event {
                at: Micros(self.at[row]),
                kind,
                block: BlockId(self.block[row]),
                parent: Some(BlockId(self.parent[row])).filter(|parent| parent.0 != u32::MAX),
                depth: self.depth[row],
                tenant: TenantId(self.tenant[row]),
                session: SessionId(self.session[row]),
            })
        })
    }

    /// Appends one; for tests and simulators.
    pub fn push(&mut self, event: Event) {
        self.at.push(event.at.0);
        self.kind.push(event.kind as u8);
        self.block.push(event.block.0);
        self.parent.push(event.parent.map_or(u32::MAX, |parent| parent.0));
        self.depth.push(event.depth);
        self.tenant.push(event.tenant.0);
        self.session.push(event.session.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_they_were_pushed_and_unknown_kinds_are_left_out() {
        let event = Event {
            at: Micros(7),
            kind: EventKind::Idle,
            block: BlockId(3),
            parent: None,
            depth: 0,
            tenant: TenantId(1),
            session: SessionId(9),
        };
        let child = Event { block: BlockId(4), parent: Some(BlockId(3)), depth: 1, ..event };
        let mut events = Events::default();
        events.push(event);
        events.push(child);
        events.push(event);
        events.kind[2] = 200;
        assert_eq!(events.iter().collect::<Vec<_>>(), [event, child]);
    }
}
