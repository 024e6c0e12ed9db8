//! The content index: from a block's chain hash to the blocks that may hold that content.
//!
//! The chain hash (keyed SipHash over the parent's hash and the tokens) only picks the bucket. A hit
//! is what has the same parent block and the same tokens, so a collision can neither leak one
//! client's text to another nor corrupt a stream; the key keeps clients from making collisions.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::ids::{BlockId, TenantId};
use crate::list::NONE;

/// Whose cache it is. Part of the first block's hash, compared on every hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    pub tenant: TenantId,
    pub salt: u64,
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

    /// Names a whole prompt whose last full block has hash `before`. Never 0, never a block's hash.
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
