//! A hash map with a fixed hasher and point lookups only, so nothing can depend on its order.
//!
//! Keys are numbers that the engine made itself (ids, keyed hashes), so a client cannot choose them
//! to collide. Deliberately absent: iteration.

use std::hash::{BuildHasherDefault, Hash, Hasher};

#[allow(clippy::disallowed_types, reason = "the hasher is fixed and the order is never seen")]
type Inner<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<MixHasher>>;

/// A map that can be queried but not iterated.
#[derive(Debug)]
pub(crate) struct DetMap<K, V>(Inner<K, V>);

impl<K, V> Default for DetMap<K, V> {
    fn default() -> Self {
        Self(Inner::default())
    }
}

impl<K: Eq + Hash, V> DetMap<K, V> {
    pub fn get(&self, key: &K) -> Option<&V> {
        self.0.get(key)
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.0.get_mut(key)
    }

    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.0.insert(key, value)
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.0.remove(key)
    }

    pub fn entry_or(&mut self, key: K, value: V) -> &mut V {
        self.0.entry(key).or_insert(value)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Folded multiplication: enough for ids and for hashes that are uniform already.
#[derive(Default)]
pub(crate) struct MixHasher(u64);

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(self.0 ^ value) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }
}
