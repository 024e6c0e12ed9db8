//! The content index: from a block's chain hash to the blocks that may hold that content.
//!
//! The chain hash (keyed SipHash over the parent's hash and the tokens) only picks the bucket. A hit must
//! have the same parent block and the same tokens, so a collision can neither leak one client's text to
//! another nor corrupt a stream; the key keeps clients from causing collisions.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::ids::{AdapterId, BlockId, TenantId};
use crate::list::NONE;

/// The tenant, salt and adapter of a cache. Part of the first block's hash, compared on every hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    pub tenant: TenantId,
    pub salt: u64,
    pub adapter: AdapterId,
}

/// What a full block holds, and after what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content<'a> {
    pub hash: u64,
    pub parent: Option<BlockId>,
    pub scope: Scope,
    pub tokens: &'a [u32],
}

/// Makes chain hashes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChainHash {
    key: [u64; 2],
}

impl ChainHash {
    pub fn new(key: [u64; 2]) -> Self {
        Self { key }
    }

    /// The hash before the first block.
    pub fn root(&self, scope: Scope) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.key[0], self.key[1]);
        hasher.write_u32(scope.tenant.0);
        hasher.write_u64(scope.salt);
        hasher.write_u32(scope.adapter.0);
        hasher.finish()
    }

    /// The hash of a block after the one with hash `before`.
    pub fn block(&self, before: u64, tokens: &[u32]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.key[0], self.key[1]);
        hasher.write_u64(before);
        for &token in tokens {
            hasher.write_u32(token);
        }
        hasher.finish()
    }

    /// Identifies a whole prompt whose last full block has hash `before`. Never 0, never a block's hash.
    pub fn prompt(&self, before: u64, tail: &[u32]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(!self.key[0], self.key[1]);
        hasher.write_u64(before);
        for &token in tail {
            hasher.write_u32(token);
        }
        hasher.finish().max(1)
    }
}

/// Buckets of blocks, chained through the blocks themselves: no allocation after the start.
#[derive(Debug)]
pub(crate) struct Index {
    buckets: Vec<u32>,
    next: Vec<u32>,
    /// `block_size` tokens for each block.
    tokens: Vec<u32>,
    block_size: usize,
}

impl Index {
    pub fn new(block_size: u32, total: u32) -> Self {
        let buckets = (total as usize * 2).next_power_of_two();
        Self {
            buckets: vec![NONE; buckets],
            next: vec![NONE; total as usize],
            tokens: vec![0; total as usize * block_size as usize],
            block_size: block_size as usize,
        }
    }

    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// Blocks that may have this hash.
    pub fn candidates(&self, hash: u64) -> impl Iterator<Item = BlockId> + '_ {
        let mut at = self.buckets[self.bucket(hash)];
        std::iter::from_fn(move || {
            let id = (at != NONE).then_some(BlockId(at))?;
            at = self.next[at as usize];
            Some(id)
        })
    }

    pub fn tokens(&self, id: BlockId) -> &[u32] {
        &self.tokens[id.0 as usize * self.block_size..][..self.block_size]
    }

    pub fn insert(&mut self, hash: u64, id: BlockId, tokens: &[u32]) {
        let bucket = self.bucket(hash);
        self.next[id.0 as usize] = std::mem::replace(&mut self.buckets[bucket], id.0);
        self.tokens[id.0 as usize * self.block_size..][..self.block_size].copy_from_slice(tokens);
    }

    pub fn remove(&mut self, hash: u64, id: BlockId) {
        let bucket = self.bucket(hash);
        let after = std::mem::replace(&mut self.next[id.0 as usize], NONE);
        if self.buckets[bucket] == id.0 {
            self.buckets[bucket] = after;
            return;
        }
        let mut at = self.buckets[bucket];
        while self.next[at as usize] != id.0 {
            at = self.next[at as usize];
        }
        self.next[at as usize] = after;
    }
}

#[cfg(test)]
mod tests {
    use super::super::Blocks;
    use super::*;
    use crate::ids::{Micros, SessionId};
    use crate::sequence::SeqIx;

    #[test]
    fn equal_hashes_of_unequal_content_are_told_apart() {
        let mut blocks = Blocks::new(2, 4);
        let now = Micros(0);
        let scope = |tenant, salt| Scope { tenant: TenantId(tenant), salt, adapter: AdapterId::NONE };
        let adapted = Scope { adapter: AdapterId(1), ..scope(1, 0) };
        fn content(parent: Option<BlockId>, scope: Scope, tokens: &[u32]) -> Content<'_> {
            Content { hash: 7, parent, scope, tokens }
        }
        let first = blocks.allocate(SeqIx(0), now).unwrap();
        let second = blocks.allocate(SeqIx(0), now).unwrap();
        let session = SessionId(0);
        assert_eq!(blocks.commit(first, &content(None, scope(1, 0), &[1, 2]), session, now), None);
        assert_eq!(blocks.commit(second, &content(Some(first), scope(1, 0), &[1, 2]), session, now), None);
        for (parent, scope, tokens, found) in [
            (None, scope(1, 0), [1, 2], Some(first)),
            (Some(first), scope(1, 0), [1, 2], Some(second)),
            (Some(second), scope(1, 0), [1, 2], None),
            (None, scope(2, 0), [1, 2], None),
            (None, scope(1, 9), [1, 2], None),
            (None, adapted, [1, 2], None),
            (None, scope(1, 0), [1, 3], None),
        ] {
            assert_eq!(
                blocks.find(&content(parent, scope, &tokens)),
                found,
                "{parent:?} {scope:?} {tokens:?}"
            );
        }
    }

    #[test]
    fn hashes_depend_on_key_scope_order_and_preceding_blocks() {
        let hash = |key, (tenant, salt, adapter), blocks: &[[u32; 2]]| {
            let chain = ChainHash::new([key, 0]);
            let root = chain.root(Scope { tenant: TenantId(tenant), salt, adapter: AdapterId(adapter) });
            blocks.iter().fold(root, |before, tokens| chain.block(before, tokens))
        };
        let all = [
            hash(0, (0, 0, 0), &[[1, 2], [3, 4]]),
            hash(1, (0, 0, 0), &[[1, 2], [3, 4]]),
            hash(0, (1, 0, 0), &[[1, 2], [3, 4]]),
            hash(0, (0, 1, 0), &[[1, 2], [3, 4]]),
            hash(0, (0, 0, 1), &[[1, 2], [3, 4]]),
            hash(0, (0, 0, 0), &[[3, 4], [1, 2]]),
            hash(0, (0, 0, 0), &[[3, 4]]),
        ];
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }
}
