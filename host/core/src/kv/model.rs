//! The pool and the prefix index against the simplest model of them: a map from whole prefixes to their
//! holders. After any operations in any order, a prefix is found exactly where the model has it.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::Blocks;
use super::blocks::Fate;
use super::index::{ChainHash, Content, Scope};
use crate::ids::{BlockId, Micros, SessionId, TenantId};
use crate::sequence::SeqIx;

const TOTAL: u32 = 7;
const OWNERS: u32 = 3;

/// Blocks of two tokens, so that equal prefixes are frequent.
type Path = Vec<[u32; 2]>;

#[derive(Clone, Debug)]
enum Act {
    /// Computes another block, if one can be allocated.
    Grow(u32, [u32; 2]),
    /// Starts with the cached part of this prefix.
    Start(u32, u32, Path),
    /// Ends; this many blocks are kept, for this long.
    End(u32, usize, u64),
    /// This many blocks are needed.
    Evict(u32),
    /// Time passes.
    Wait(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let token = || [0..2u32, 0..2u32];
    let owner = || 0..OWNERS;
    prop_oneof![
        4 => (owner(), token()).prop_map(|(owner, tokens)| Act::Grow(owner, tokens)),
        3 => (owner(), 0..2u32, prop::collection::vec(token(), 0..4))
            .prop_map(|(owner, tenant, path)| Act::Start(owner, tenant, path)),
        2 => (owner(), 0..5usize, 0..4u64).prop_map(|(owner, keep, ttl)| Act::End(owner, keep, ttl * 10)),
        1 => (1..TOTAL).prop_map(Act::Evict),
        1 => (1..30u64).prop_map(Act::Wait),
    ]
}

struct World {
    blocks: Blocks,
    chain: ChainHash,
    now: Micros,
    /// Each owner's tenant, prefix and blocks.
    owners: Vec<(u32, Path, Vec<BlockId>)>,
    /// Every prefix that is held or cached, and its holders.
    known: BTreeMap<(u32, Path), BTreeSet<u32>>,
}

fn scope(tenant: u32) -> Scope {
    Scope { tenant: TenantId(tenant), ..Scope::default() }
}

impl World {
    fn new() -> Self {
        Self {
            blocks: Blocks::new(2, TOTAL),
            chain: ChainHash::new([3, 4]),
            now: Micros(1),
            owners: vec![(0, Vec::new(), Vec::new()); OWNERS as usize],
            known: BTreeMap::new(),
        }
    }

    fn hash(&self, tenant: u32, path: &[[u32; 2]]) -> u64 {
        path.iter().fold(self.chain.root(scope(tenant)), |before, tokens| self.chain.block(before, tokens))
    }

    /// The blocks of the longest part of a prefix that the index knows.
    fn find(&self, tenant: u32, path: &[[u32; 2]]) -> Vec<BlockId> {
        let mut found = Vec::new();
        for end in 1..=path.len() {
            let content = Content {
                hash: self.hash(tenant, &path[..end]),
                parent: found.last().copied(),
                scope: scope(tenant),
                tokens: &path[end - 1],
            };
            let Some(block) = self.blocks.find(&content) else { break };
            found.push(block);
        }
        found
    }

    fn apply(&mut self, act: &Act) {
        let session = SessionId(0);
        match act {
            Act::Grow(owner, tokens) => {
                let ix = SeqIx(*owner);
                if self.blocks.free() == 0 && self.blocks.drop_oldest(1, Fate::Forgotten, self.now) == 0 {
                    return;
                }
                self.forget();
                let own = self.blocks.allocate(ix, self.now).expect("one is free");
                let (tenant, path, table) = &mut self.owners[*owner as usize];
                let parent = table.last().copied();
                path.push(*tokens);
                let (tenant, path) = (*tenant, path.clone());
                let content =
                    Content { hash: self.hash(tenant, &path), parent, scope: scope(tenant), tokens };
                let other = self.blocks.commit(own, &content, session, self.now);
                assert_eq!(other.is_some(), self.known.contains_key(&(tenant, path.clone())), "{path:?}");
                let block = match other {
                    Some(other) => {
                        self.blocks.take(other, ix, session, self.now);
                        self.blocks.release(own, ix, self.now);
                        other
                    }
                    None => own,
                };
                self.owners[*owner as usize].2.push(block);
                self.known.entry((tenant, path)).or_default().insert(*owner);
            }
            Act::Start(owner, tenant, path) => {
                if !self.owners[*owner as usize].2.is_empty() {
                    return;
                }
                let found = self.find(*tenant, path);
                for (at, &block) in found.iter().enumerate() {
                    self.blocks.take(block, SeqIx(*owner), session, self.now);
                    let prefix = (*tenant, path[..=at].to_vec());
                    self.known.get_mut(&prefix).expect("what is found is known").insert(*owner);
                }
                self.owners[*owner as usize] = (*tenant, path[..found.len()].to_vec(), found);
            }
            Act::End(owner, keep, ttl) => {
                let (tenant, path, table) = std::mem::take(&mut self.owners[*owner as usize]);
                for (at, &block) in table.iter().enumerate().rev() {
                    if at < *keep {
                        self.blocks.retain_for(block, Micros(*ttl));
                    }
                    self.blocks.release(block, SeqIx(*owner), self.now);
                    self.known.get_mut(&(tenant, path[..=at].to_vec())).expect("it held it").remove(owner);
                    if at >= *keep {
                        self.blocks.drop_leaf(block, self.now);
                    }
                }
            }
            Act::Evict(want) => {
                let idle = self.known.values().filter(|holders| holders.is_empty()).count() as u32;
                let could = self.blocks.free() + idle;
                self.blocks.drop_oldest(*want, Fate::Forgotten, self.now);
                assert!(self.blocks.free() >= could.min(*want), "cached blocks can always be dropped");
            }
            Act::Wait(us) => {
                self.now = self.now.plus(Micros(*us));
                self.blocks.expire(self.now);
            }
        }
        self.forget();
    }

    /// A dropped block must have no holders, and nothing that follows it may stay.
    fn forget(&mut self) {
        let gone: Vec<_> = self
            .known
            .keys()
            .filter(|(tenant, path)| self.find(*tenant, path).len() < path.len())
            .cloned()
            .collect();
        for prefix in gone {
            let holders = self.known.remove(&prefix).expect("it was known");
            assert!(holders.is_empty(), "{prefix:?} is dropped and held by {holders:?}");
        }
    }

    fn check(&self) {
        let tables = self.owners.iter().enumerate();
        self.blocks.check(tables.map(|(at, (_, _, table))| (SeqIx(at as u32), &table[..])));
        assert_eq!(self.blocks.free() as usize, TOTAL as usize - self.known.len(), "free blocks");
        for ((tenant, path), holders) in &self.known {
            let found = self.find(*tenant, path);
            assert_eq!(found.len(), path.len(), "{path:?} of {tenant} is found");
            let block = self.blocks.get(*found.last().expect("no prefix is empty"));
            assert_eq!(block.refs as usize, holders.len(), "holders of {path:?}");
            assert_eq!(block.depth as usize + 1, path.len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_prefix_is_found_exactly_where_the_model_has_it(acts in prop::collection::vec(act(), 1..60)) {
        let mut world = World::new();
        for act in &acts {
            world.apply(act);
            world.check();
        }
        for owner in 0..OWNERS {
            world.apply(&Act::End(owner, 0, 0));
        }
        world.apply(&Act::Evict(TOTAL));
        prop_assert_eq!(world.blocks.free(), TOTAL, "nothing is lost");
    }
}
