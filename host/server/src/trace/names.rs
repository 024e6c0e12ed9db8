//! Names of blocks, tenants and sessions in a recording: equal content has equal names, which mean nothing outside of
//! the recording.
//!
//! A block's name is a keyed hash (SipHash, with the recording's key) of its tokens and of the name before it. If a
//! prompt continues the output of an earlier request, which no prompt held before, the recording names that request.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash};

use infer_api::trace::Shares;

/// Blocks with output that are remembered.
const ANSWERED: usize = 1 << 18;
/// Sessions whose last turn is remembered.
const SESSIONS: usize = 1 << 16;
/// Bits of a name: exact as a double, which many JSON readers use.
const NAME_BITS: u32 = 52;

/// Tenant, salt and adapter: the cache that a prompt finds its prefix in.
pub(super) type Scope = (u32, u64, u32);

/// The names of a recording.
pub(super) struct Names {
    key: RandomState,
    block_size: usize,
    tenants: HashMap<u32, u32>,
    answered: Bounded<u64, Answered>,
    sessions: Bounded<u64, Turn>,
}

/// A prompt as it is recorded.
pub(super) struct Named {
    pub blocks: Vec<u64>,
    pub whole: u64,
    pub shares: Option<Shares>,
    /// The request, with the time of its end, without whose output this prompt could not have been sent.
    pub after: Option<(u64, u64)>,
}

/// The request whose tokens reach to the end of a block, and when it ended.
#[derive(Clone, Copy)]
struct Answered {
    shares: Shares,
    ended: Option<u64>,
}

/// The last turn of a session.
#[derive(Clone, Copy)]
struct Turn {
    id: u64,
    ended: u64,
    /// Lengths and names of its text, with and without its last token: later prompts omit end tokens.
    ends: [(u32, u64); 2],
}

impl Names {
    pub fn new(block_size: u32) -> Self {
        Self {
            key: RandomState::new(),
            block_size: block_size.max(1) as usize,
            tenants: HashMap::new(),
            answered: Bounded::new(ANSWERED),
            sessions: Bounded::new(SESSIONS),
        }
    }

    /// Returns a tenant's number, counted in the order of first mention: tenants with terms, then first requests.
    pub fn tenant(&mut self, tenant: u32) -> u32 {
        let next = self.tenants.len() as u32;
        *self.tenants.entry(tenant).or_insert(next)
    }

    /// Returns a session's name, which differs between tenants. 0 stays 0.
    pub fn session(&self, tenant: u32, session: u64) -> u64 {
        if session == 0 { 0 } else { self.name("session", (tenant, session)) }
    }

    /// Names a prompt and finds what it shares with earlier requests. Different scopes share nothing.
    pub fn prompt(&mut self, id: u64, scope: Scope, session: u64, tokens: &[u32]) -> Named {
        let blocks = self.blocks(scope, tokens);
        let known = |name: &u64| self.answered.get(name).copied();
        let by_block = blocks.iter().rev().find_map(known);
        let turn = self.sessions.get(&session);
        let goes_on = |&(length, name): &(u32, u64)| {
            length as usize <= tokens.len() && self.end(scope, &blocks, &tokens[..length as usize]) == name
        };
        let by_turn = turn.and_then(|turn| {
            let (tokens, _) = *turn.ends.iter().find(|end| goes_on(end))?;
            Some(Shares { id: turn.id, tokens })
        });
        let by_block_after = by_block.and_then(|answered| Some((answered.shares.id, answered.ended?)));
        let after = turn.map(|turn| (turn.id, turn.ended)).or(by_block_after);
        let by_block = by_block.map(|answered| answered.shares);
        let shares = by_turn.into_iter().chain(by_block).max_by_key(|shares| shares.tokens);
        if let Some(shares) = shares {
            // The block in which the prompt leaves the other's output is new, and from here on this request's.
            let at = shares.tokens as usize / self.block_size;
            if !(shares.tokens as usize).is_multiple_of(self.block_size)
                && let Some(&name) = blocks.get(at)
            {
                self.answer(name, id, at, None);
            }
        }
        Named { whole: self.end(scope, &blocks, tokens), blocks, shares, after }
    }

    /// Notes that a request ended. `tokens` holds its prompt and its output.
    pub fn ended(&mut self, id: u64, scope: Scope, session: u64, prompt: usize, tokens: &[u32], ended: u64) {
        let blocks = self.blocks(scope, tokens);
        for (at, &name) in blocks.iter().enumerate().skip(prompt / self.block_size) {
            self.answer(name, id, at, Some(ended));
        }
        if session != 0 && !tokens.is_empty() {
            let end = |length: usize| (length as u32, self.end(scope, &blocks, &tokens[..length]));
            let ends = [end(tokens.len()), end(tokens.len() - 1)];
            self.sessions.insert(session, Turn { id, ended, ends });
        }
    }

    fn answer(&mut self, name: u64, id: u64, at: usize, ended: Option<u64>) {
        if self.answered.get(&name).is_none() {
            let tokens = ((at + 1) * self.block_size) as u32;
            self.answered.insert(name, Answered { shares: Shares { id, tokens }, ended });
        }
    }

    fn blocks(&self, scope: Scope, tokens: &[u32]) -> Vec<u64> {
        let mut name = self.name("scope", scope);
        let chain = tokens.chunks_exact(self.block_size).map(|block| {
            name = self.name("block", (name, block));
            name
        });
        chain.collect()
    }

    /// Returns the name of the whole of `tokens`, given those of its full blocks.
    fn end(&self, scope: Scope, blocks: &[u64], tokens: &[u32]) -> u64 {
        let full = tokens.len() / self.block_size;
        let before = if full == 0 { self.name("scope", scope) } else { blocks[full - 1] };
        self.name("end", (before, &tokens[full * self.block_size..]))
    }

    /// Hashes to a name, which is never 0.
    fn name(&self, of: &str, what: impl Hash) -> u64 {
        (self.key.hash_one((of, what)) >> (64 - NAME_BITS)).max(1)
    }
}

/// A map that drops its oldest entries.
struct Bounded<K, V> {
    map: HashMap<K, V>,
    order: VecDeque<K>,
    most: usize,
}

impl<K: Copy + Eq + Hash, V> Bounded<K, V> {
    fn new(most: usize) -> Self {
        Self { map: HashMap::new(), order: VecDeque::new(), most }
    }

    fn get(&self, key: &K) -> Option<&V> {
        self.map.get(key)
    }

    fn insert(&mut self, key: K, value: V) {
        if self.map.insert(key, value).is_none() {
            self.order.push_back(key);
        }
        if self.map.len() > self.most
            && let Some(first) = self.order.pop_front()
        {
            self.map.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: Scope = (0, 0, 0);

    fn text(from: u32, tokens: u32) -> Vec<u32> {
        (from..from + tokens).collect()
    }

    #[test]
    fn only_equal_prefixes_have_equal_names() {
        let mut names = Names::new(4);
        let first = names.prompt(1, SCOPE, 0, &text(0, 10));
        let longer = names.prompt(2, SCOPE, 0, &text(0, 14));
        assert_eq!((first.blocks.len(), longer.blocks.len()), (2, 3));
        assert_eq!(first.blocks, longer.blocks[..2]);
        assert_ne!(first.whole, longer.whole);
        assert_eq!(first.whole, names.prompt(3, SCOPE, 0, &text(0, 10)).whole);
        assert_ne!(first.blocks, names.prompt(4, (1, 0, 0), 0, &text(0, 10)).blocks, "another tenant");
        assert_ne!(first.blocks, names.prompt(6, (0, 0, 1), 0, &text(0, 10)).blocks, "another adapter");
        assert_ne!(first.blocks, Names::new(4).prompt(1, SCOPE, 0, &text(0, 10)).blocks, "another recording");
        let shifted = [text(9, 4), text(4, 4)].concat();
        assert_ne!(first.blocks[1], names.prompt(5, SCOPE, 0, &shifted).blocks[1], "after another block");
    }

    #[test]
    fn prompt_that_continues_an_output_names_its_request_with_and_without_a_session() {
        let mut names = Names::new(4);
        names.prompt(1, SCOPE, 7, &text(0, 6));
        names.ended(1, SCOPE, 7, 6, &text(0, 11), 50);
        let next = names.prompt(2, SCOPE, 7, &[text(0, 11), text(90, 5)].concat());
        assert_eq!(next.shares, Some(Shares { id: 1, tokens: 11 }));
        assert_eq!(next.after, Some((1, 50)));
        let without_end = names.prompt(3, SCOPE, 7, &[text(0, 10), text(80, 5)].concat());
        assert_eq!(without_end.shares, Some(Shares { id: 1, tokens: 10 }));
        // Without a session only whole blocks can be compared: two of four tokens.
        let stranger = names.prompt(4, SCOPE, 0, &[text(0, 11), text(70, 5)].concat());
        assert_eq!((stranger.shares, stranger.after), (Some(Shares { id: 1, tokens: 8 }), Some((1, 50))));
        // Request 2 leaves the output of request 1 within its third block, which is therefore request 2's.
        let follower = names.prompt(5, SCOPE, 0, &[text(0, 11), text(90, 9)].concat());
        assert_eq!(follower.shares, Some(Shares { id: 2, tokens: 12 }));
        assert_eq!(names.prompt(6, SCOPE, 0, &text(0, 6)).shares, None, "prompts are shared by block names");
    }

    #[test]
    fn sessions_of_two_tenants_with_the_same_id_are_distinct() {
        let mut names = Names::new(4);
        let ask = |names: &mut Names, id: u64, tenant: u32, tokens: &[u32]| {
            let session = names.session(tenant, 1);
            names.prompt(id, (tenant, 0, 0), session, tokens)
        };
        let end = |names: &mut Names, id: u64, tenant: u32, tokens: &[u32]| {
            let session = names.session(tenant, 1);
            names.ended(id, (tenant, 0, 0), session, 6, tokens, 50 + id);
        };
        ask(&mut names, 1, 0, &text(0, 6));
        end(&mut names, 1, 0, &text(0, 11));
        let other = ask(&mut names, 2, 1, &text(0, 6));
        assert_eq!((other.shares, other.after), (None, None));
        end(&mut names, 2, 1, &text(0, 9));
        let next = ask(&mut names, 3, 0, &text(0, 15));
        assert_eq!(next.shares, Some(Shares { id: 1, tokens: 11 }), "the other's turn is not in between");
        assert_eq!(next.after, Some((1, 51)));
        assert_eq!((names.session(0, 0), names.session(1, 0)), (0, 0));
    }
}
