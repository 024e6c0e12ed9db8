//! What is found in the second level, what goes first, and what is forgotten.

use super::*;
use crate::ids::TenantId;
use crate::kv::blocks::{Blocks, Fate};

const NOW: Micros = Micros(10);

fn pool(slots: u32) -> Blocks {
    let mut blocks = Blocks::new(2, 8);
    blocks.offload = Some(Box::new(Offload::new(2, 8, slots)));
    blocks
}

fn content(parent: Option<BlockId>, tenant: u32, tokens: &[u32]) -> Content<'_> {
    let scope = Scope { tenant: TenantId(tenant), ..Scope::default() };
    // One hash for all: only the rest tells them apart.
    Content { hash: 7, parent, scope, tokens }
}

/// Caches a chain of blocks, each of which repeats its number, and returns them.
fn cache(blocks: &mut Blocks, tenant: u32, numbers: &[u32]) -> Vec<BlockId> {
    let mut chain: Vec<BlockId> = Vec::new();
    for &number in numbers {
        let tokens = [number; 2];
        let content = content(chain.last().copied(), tenant, &tokens);
        let found = blocks.find(&content).or_else(|| blocks.adopt(&content, SessionId(0), NOW));
        chain.push(found.expect("a block is free"));
    }
    for &id in chain.iter().rev() {
        if !blocks.is_idle(id) {
            blocks.rest_as(id, None, None, NOW);
        }
    }
    blocks.offload.as_ref().unwrap().check(blocks);
    chain
}

/// Evicts everything.
fn evict(blocks: &mut Blocks) {
    blocks.drop_oldest(8, Fate::Evicted, NOW);
    blocks.offload.as_ref().unwrap().check(blocks);
}

/// How many leading blocks of a chain the second level has.
fn found(blocks: &Blocks, tenant: u32, numbers: &[u32]) -> usize {
    let offload = blocks.offload.as_ref().unwrap();
    let scope = Scope { tenant: TenantId(tenant), ..Scope::default() };
    let mut parent = Parent::None;
    let next = |&number: &u32| {
        let slot = offload.find_behind(parent, 7, scope, &[number; 2])?;
        parent = Parent::Slot(slot);
        Some(slot)
    };
    numbers.iter().map_while(next).count()
}

fn copies(blocks: &mut Blocks) -> usize {
    std::mem::take(&mut blocks.offload.as_mut().unwrap().copies).len()
}

#[test]
fn evicted_chains_are_found_by_content_and_scope() {
    let mut blocks = pool(8);
    cache(&mut blocks, 1, &[1, 2, 3]);
    cache(&mut blocks, 1, &[1, 4]);
    cache(&mut blocks, 2, &[1]);
    evict(&mut blocks);
    assert_eq!(blocks.offload.as_ref().unwrap().used(), 5);
    for (tenant, numbers, count) in [
        (1, &[1, 2, 3][..], 3),
        (1, &[1, 4], 2),
        (1, &[2, 3], 0),
        (1, &[1, 3], 1),
        (2, &[1, 2], 1),
        (3, &[1], 0),
    ] {
        assert_eq!(found(&blocks, tenant, numbers), count, "{tenant} {numbers:?}");
    }
}

#[test]
fn the_least_recently_used_slot_goes_and_what_follows_goes_first() {
    let mut blocks = pool(4);
    cache(&mut blocks, 1, &[1, 2]);
    evict(&mut blocks);
    cache(&mut blocks, 1, &[5, 6]);
    evict(&mut blocks);
    cache(&mut blocks, 1, &[9]);
    evict(&mut blocks);
    let left = [&[1, 2][..], &[5, 6], &[9]].map(|numbers| found(&blocks, 1, numbers));
    assert_eq!(left, [1, 2, 1]);
    // The first block came back, and is the last to be used.
    cache(&mut blocks, 1, &[1]);
    evict(&mut blocks);
    cache(&mut blocks, 1, &[7]);
    evict(&mut blocks);
    let left = [&[1][..], &[5, 6], &[9], &[7]].map(|numbers| found(&blocks, 1, numbers));
    assert_eq!(left, [1, 1, 1, 1]);
}

#[test]
fn a_block_that_came_back_is_evicted_without_a_copy() {
    let mut blocks = pool(8);
    cache(&mut blocks, 1, &[1, 2]);
    evict(&mut blocks);
    assert_eq!(copies(&mut blocks), 2);
    cache(&mut blocks, 1, &[1, 2, 3]);
    evict(&mut blocks);
    assert_eq!(copies(&mut blocks), 1, "the third is new");
    assert_eq!(found(&blocks, 1, &[1, 2, 3]), 3);
}

#[test]
fn what_is_forgotten_takes_what_follows_with_it() {
    let mut blocks = pool(8);
    let chain = cache(&mut blocks, 1, &[1, 2, 3]);
    // Only the last one is evicted; it follows a block.
    blocks.drop_oldest(6, Fate::Evicted, NOW);
    assert_eq!((blocks.offload.as_ref().unwrap().used(), blocks.free()), (1, 6));
    blocks.drop_leaf(chain[1], NOW);
    assert_eq!(blocks.free(), 6, "something follows it");
    blocks.drop_subtree(chain[0], Fate::Forgotten, NOW);
    assert_eq!((blocks.offload.as_ref().unwrap().used(), blocks.free()), (0, 8));
    // The same if all are evicted, and some came back.
    cache(&mut blocks, 1, &[1, 2, 3]);
    evict(&mut blocks);
    let chain = cache(&mut blocks, 1, &[1, 2]);
    blocks.drop_subtree(chain[1], Fate::Forgotten, NOW);
    blocks.offload.as_ref().unwrap().check(&blocks);
    assert_eq!(found(&blocks, 1, &[1, 2, 3]), 1);
}

#[test]
fn a_retention_goes_on_in_the_second_level() {
    let mut blocks = pool(8);
    let chain = cache(&mut blocks, 1, &[1, 2]);
    let expires = Micros(50);
    for id in chain {
        let block = &mut blocks.blocks[id.0 as usize];
        (block.ttl, block.expires) = (Some(Micros(40)), expires);
        blocks.expiry.insert((expires, id.0));
    }
    evict(&mut blocks);
    assert_eq!(blocks.next_expiry(), Some(expires));
    blocks.expire(Micros(49));
    assert_eq!(found(&blocks, 1, &[1, 2]), 2);
    blocks.expire(expires);
    assert_eq!(blocks.offload.as_ref().unwrap().used(), 0);
    assert_eq!(blocks.next_expiry(), None);
}

#[test]
fn a_block_without_its_content_leaves_a_slot_that_has_it() {
    let mut blocks = pool(8);
    cache(&mut blocks, 1, &[1, 2, 3]);
    evict(&mut blocks);
    let chain = cache(&mut blocks, 1, &[1, 2]);
    blocks.unlearn(chain[0], NOW);
    blocks.offload.as_ref().unwrap().check(&blocks);
    assert_eq!((blocks.free(), found(&blocks, 1, &[1, 2, 3])), (8, 3));
}
