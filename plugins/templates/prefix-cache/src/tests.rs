//! The order of eviction, on events as a host sends them.

use infer_policy_sdk::testing::{check_config, for_seeds};
use infer_policy_sdk::{Event, SessionId, TenantId};

use super::*;

/// Events of one kind for a whole prefix, first block to last.
fn prefix(at: u64, kind: EventKind, blocks: &[u32]) -> Vec<Event> {
    let parents = std::iter::once(None).chain(blocks.iter().copied().map(|block| Some(BlockId(block))));
    let event = |((block, parent), depth)| Event {
        at: Micros(at),
        kind,
        block: BlockId(block),
        parent,
        depth,
        tenant: TenantId(0),
        session: SessionId(0),
    };
    blocks.iter().copied().zip(parents).zip(0..).map(event).collect()
}

fn observe(policy: &mut LeastRecentlyUsed, events: &[Event]) {
    let mut columns = Events::default();
    events.iter().for_each(|event| columns.push(*event));
    assert!(policy.observe(&columns).is_empty(), "it drops nothing unasked");
}

fn evict(policy: &mut LeastRecentlyUsed, need: u32) -> Vec<u32> {
    policy.evict(Micros::ZERO, need).into_iter().map(|block| block.0).collect()
}

#[test]
fn its_configuration_is_what_its_schema_says() {
    check_config::<LeastRecentlyUsed>();
}

#[test]
fn what_was_used_longest_ago_goes_first_and_the_deepest_of_a_prefix_before_the_rest() {
    let mut policy = LeastRecentlyUsed::default();
    observe(&mut policy, &prefix(20, EventKind::Idle, &[1, 2]));
    observe(&mut policy, &prefix(10, EventKind::Idle, &[5, 4, 3]));
    assert_eq!(evict(&mut policy, 4), [3, 4, 5, 2]);
    assert_eq!(evict(&mut policy, 99), [3, 4, 5, 2, 1], "naming is not dropping");
}

#[test]
fn what_is_used_again_or_gone_is_not_named() {
    let mut policy = LeastRecentlyUsed::default();
    observe(&mut policy, &prefix(10, EventKind::Idle, &[1, 2, 3]));
    observe(&mut policy, &prefix(20, EventKind::Reused, &[1]));
    observe(&mut policy, &prefix(30, EventKind::Dropped, &[3]));
    assert_eq!(evict(&mut policy, 9), [2]);
}

#[test]
fn any_block_number_is_survived() {
    for_seeds(0..100, |rng| {
        let mut policy = LeastRecentlyUsed::default();
        let blocks = [rng.between(0, 5), rng.between(0, u32::MAX)];
        observe(&mut policy, &prefix(1, EventKind::Idle, &blocks));
        let named = evict(&mut policy, u32::MAX);
        assert!(named.contains(&blocks[0]), "{named:?} of {blocks:?}");
    });
}
