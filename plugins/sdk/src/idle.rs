//! Idle blocks in the order in which they should go: what prefix-cache policies have in common.
//!
//! A block is worth nothing without those before it in its prefix, and dropping it drops what follows it. So
//! the only candidates are leaves: idle blocks that no idle block follows. `IdleTree` keeps the leaves sorted
//! by a key of the policy's choice (a time, a queue, a value), and a block whose last follower is removed
//! becomes a leaf with the key that it had all along. A policy chooses only the keys, and never names a block
//! before what follows it.
//!
//! It accepts any event: a parent that is unknown, in use, or part of a cycle costs order, never a panic.
//! Blocks in use aren't in it; a policy that needs those keeps a `BlockMap`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::types::BlockId;

/// Blocks with this number or above are left to the host: at 16 tokens a block, a pool of eight million
/// tokens. Keeps a policy's tables within half of the 64 MiB that a host gives it, whatever numbers it is
/// shown.
const MAX_BLOCKS: usize = 1 << 19;
const PAGE: usize = 1 << 10;

/// A value per block, the default until it is set. Memory grows with the blocks that are touched.
#[derive(Clone, Debug)]
pub struct BlockMap<T> {
    pages: Vec<Vec<T>>,
}

impl<T> Default for BlockMap<T> {
    fn default() -> Self {
        Self { pages: Vec::new() }
    }
}

impl<T: Clone + Default> BlockMap<T> {
    /// The block's value; `None` if neither it nor one near it was ever set.
    pub fn get(&self, block: BlockId) -> Option<&T> {
        let at = block.0 as usize;
        self.pages.get(at / PAGE)?.get(at % PAGE)
    }

    /// The block's value, to be set; `None` if the number is out of bounds.
    pub fn get_mut(&mut self, block: BlockId) -> Option<&mut T> {
        let at = block.0 as usize;
        if at >= MAX_BLOCKS {
            return None;
        }
        if at / PAGE >= self.pages.len() {
            self.pages.resize(at / PAGE + 1, Vec::new());
        }
        let page = &mut self.pages[at / PAGE];
        if page.is_empty() {
            page.resize(PAGE, T::default());
        }
        page.get_mut(at % PAGE)
    }
}

/// Idle blocks, their leaves sorted by key. Each change costs the logarithm of the number of leaves.
#[derive(Clone, Debug)]
pub struct IdleTree<K> {
    nodes: BlockMap<Node<K>>,
    leaves: BTreeSet<(K, BlockId)>,
    len: usize,
}

#[derive(Clone, Debug)]
struct Node<K> {
    /// Set while the block is idle.
    key: Option<K>,
    parent: Option<BlockId>,
    /// Idle blocks that follow it, whether it is idle itself or not.
    followers: u32,
}

/// A block that was removed from the tree, with everything needed to put it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken<K> {
    /// The block.
    pub block: BlockId,
    /// Its key.
    pub key: K,
    /// The block before it in its prefix.
    pub parent: Option<BlockId>,
}

impl<K> Default for Node<K> {
    fn default() -> Self {
        Self { key: None, parent: None, followers: 0 }
    }
}

impl<K> Default for IdleTree<K> {
    fn default() -> Self {
        Self { nodes: BlockMap::default(), leaves: BTreeSet::new(), len: 0 }
    }
}

impl<K: Copy + Ord> IdleTree<K> {
    /// Idle blocks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is idle.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The block's key; `None` if it isn't idle.
    pub fn key(&self, block: BlockId) -> Option<K> {
        self.nodes.get(block)?.key
    }

    /// Adds a block that became idle, or moves one that was idle already to its new position. Does nothing
    /// for a number out of bounds.
    pub fn insert(&mut self, block: BlockId, parent: Option<BlockId>, key: K) {
        self.remove(block);
        // A block that follows itself, or a block that can't be looked up, counts as having no parent.
        let parent = parent.filter(|parent| *parent != block && (parent.0 as usize) < MAX_BLOCKS);
        let Some(node) = self.nodes.get_mut(block) else { return };
        node.key = Some(key);
        node.parent = parent;
        if node.followers == 0 {
            self.leaves.insert((key, block));
        }
        self.len += 1;
        if let Some(above) = parent
            && let Some(node) = self.nodes.get_mut(above)
        {
            node.followers += 1;
            if let (1, Some(key)) = (node.followers, node.key) {
                self.leaves.remove(&(key, above));
            }
        }
    }

    /// Removes a block that is in use or gone.
    pub fn remove(&mut self, block: BlockId) -> Option<Taken<K>> {
        let key = self.key(block)?;
        let node = self.nodes.get_mut(block)?;
        node.key = None;
        let parent = node.parent.take();
        if node.followers == 0 {
            self.leaves.remove(&(key, block));
        }
        self.len -= 1;
        if let Some(above) = parent
            && let Some(node) = self.nodes.get_mut(above)
        {
            node.followers -= 1;
            if let (0, Some(key)) = (node.followers, node.key) {
                self.leaves.insert((key, above));
            }
        }
        Some(Taken { block, key, parent })
    }

    /// Undoes `remove`. Put back in the opposite order what was removed.
    pub fn put_back(&mut self, taken: Taken<K>) {
        self.insert(taken.block, taken.parent, taken.key);
    }

    /// Gives an idle block another key.
    pub fn set_key(&mut self, block: BlockId, key: K) {
        if let Some(node) = self.nodes.get_mut(block)
            && let Some(old) = node.key
        {
            node.key = Some(key);
            if node.followers == 0 {
                self.leaves.remove(&(old, block));
                self.leaves.insert((key, block));
            }
        }
    }

    /// The leaves as they are, least key first.
    pub fn leaves(&self) -> impl ExactSizeIterator<Item = (K, BlockId)> + '_ {
        self.leaves.iter().copied()
    }

    /// The first leaf with this key or a larger one.
    pub fn first_leaf_from(&self, key: K) -> Option<(K, BlockId)> {
        self.leaves.range((key, BlockId(0))..).next().copied()
    }

    /// Every idle block, in the order in which they would be dropped if the leaf with the least key always
    /// went first.
    pub fn order(&self) -> impl Iterator<Item = (K, BlockId)> + '_ {
        let mut leaves = self.leaves.iter().copied().peekable();
        // Blocks whose followers are all listed, and how many followers of the others are.
        let mut exposed: BinaryHeap<Reverse<(K, BlockId)>> = BinaryHeap::new();
        let mut gone: BTreeMap<BlockId, u32> = BTreeMap::new();
        std::iter::from_fn(move || {
            let exposed_first = match (exposed.peek(), leaves.peek()) {
                (Some(Reverse(inner)), Some(leaf)) => inner < leaf,
                (inner, _) => inner.is_some(),
            };
            let (key, block) =
                if exposed_first { exposed.pop().map(|Reverse(inner)| inner)? } else { leaves.next()? };
            if let Some(above) = self.above(block)
                && let Some(node) = self.nodes.get(above)
                && let Some(key) = node.key
            {
                let went = gone.entry(above).or_default();
                *went += 1;
                if *went == node.followers {
                    exposed.push(Reverse((key, above)));
                }
            }
            Some((key, block))
        })
    }

    /// A leaf and the idle blocks before it up to where another prefix branches off, last block first: what
    /// nothing else needs.
    pub fn branch(&self, leaf: BlockId) -> impl Iterator<Item = BlockId> + '_ {
        let alone = |block: &BlockId| {
            self.nodes.get(*block).is_some_and(|node| node.key.is_some() && node.followers == 1)
        };
        let start = self.key(leaf).map(|_| leaf);
        std::iter::successors(start, move |block| self.above(*block).filter(alone))
    }

    /// The block before an idle one, idle or not.
    pub fn above(&self, block: BlockId) -> Option<BlockId> {
        self.nodes.get(block)?.parent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::for_seeds;

    fn insert(tree: &mut IdleTree<u64>, block: u32, parent: Option<u32>, key: u64) {
        tree.insert(BlockId(block), parent.map(BlockId), key);
    }

    fn order(tree: &IdleTree<u64>) -> Vec<u32> {
        tree.order().map(|(_, block)| block.0).collect()
    }

    /// A trunk of 1 and 2 that 3 and 4 follow, and a prefix of its own, 9.
    fn fork() -> IdleTree<u64> {
        let mut tree = IdleTree::default();
        for (block, parent, key) in
            [(1, None, 0), (2, Some(1), 1), (3, Some(2), 5), (4, Some(2), 7), (9, None, 6)]
        {
            insert(&mut tree, block, parent, key);
        }
        tree
    }

    #[test]
    fn a_block_comes_after_its_followers_whatever_its_key() {
        let tree = fork();
        assert_eq!(order(&tree), [3, 9, 4, 2, 1]);
        assert_eq!(tree.leaves().map(|(key, _)| key).collect::<Vec<_>>(), [5, 6, 7]);
        assert_eq!(tree.first_leaf_from(6), Some((6, BlockId(9))));
        assert_eq!(tree.len(), 5, "looking changes nothing");
    }

    #[test]
    fn removing_a_leaf_exposes_its_parent_and_can_be_undone() {
        let mut tree = fork();
        let taken: Vec<_> = [4, 3].into_iter().filter_map(|block| tree.remove(BlockId(block))).collect();
        assert_eq!(order(&tree), [2, 1, 9]);
        taken.into_iter().rev().for_each(|block| tree.put_back(block));
        assert_eq!(order(&tree), order(&fork()));
        tree.set_key(BlockId(4), 0);
        tree.set_key(BlockId(2), 8);
        assert_eq!(order(&tree), [4, 3, 9, 2, 1]);
    }

    #[test]
    fn a_branch_ends_where_another_begins() {
        let mut tree = fork();
        let branch = |tree: &IdleTree<u64>, leaf| tree.branch(BlockId(leaf)).map(|b| b.0).collect::<Vec<_>>();
        assert_eq!(branch(&tree, 3), [3]);
        tree.remove(BlockId(3));
        assert_eq!(branch(&tree, 4), [4, 2, 1]);
        tree.remove(BlockId(1));
        assert_eq!(branch(&tree, 4), [4, 2], "1 is in use");
        assert_eq!(branch(&tree, 3), [0; 0], "not idle");
    }

    #[test]
    fn circles_and_numbers_out_of_bounds_do_no_harm() {
        let mut tree = IdleTree::default();
        insert(&mut tree, 1, Some(1), 1);
        insert(&mut tree, 2, Some(3), 2);
        insert(&mut tree, 3, Some(2), 3);
        insert(&mut tree, 4, Some(u32::MAX), 4);
        insert(&mut tree, u32::MAX, None, 5);
        insert(&mut tree, MAX_BLOCKS as u32 - 1, None, 6);
        assert_eq!(order(&tree), [1, 4, MAX_BLOCKS as u32 - 1], "a block in a cycle is no leaf");
        assert_eq!(tree.nodes.pages.iter().filter(|page| !page.is_empty()).count(), 2);
    }

    #[test]
    fn it_orders_like_repeated_searching() {
        for_seeds(0..300, |rng| {
            let mut tree = IdleTree::default();
            let mut idle: BTreeMap<u32, (Option<u32>, u64)> = BTreeMap::new();
            for _ in 0..rng.between(1, 80) {
                let block = rng.between(0, 30);
                if rng.one_in(4) {
                    let removed = tree.remove(BlockId(block));
                    assert_eq!(removed.map(|taken| taken.key), idle.remove(&block).map(|(_, key)| key));
                } else {
                    // A parent with a smaller number: no circles.
                    let parent = (block > 0 && !rng.one_in(4)).then(|| rng.between(0, block - 1));
                    let key = u64::from(rng.between(0, 9));
                    insert(&mut tree, block, parent, key);
                    idle.insert(block, (parent, key));
                }
                assert_eq!(tree.len(), idle.len());
            }
            let mut left = idle.clone();
            let mut expected = Vec::new();
            while let Some((_, block)) = left
                .iter()
                .filter(|(block, _)| !left.values().any(|(parent, _)| *parent == Some(**block)))
                .map(|(block, (_, key))| (*key, *block))
                .min()
            {
                left.remove(&block);
                expected.push(block);
            }
            assert_eq!(order(&tree), expected);
        });
    }
}
