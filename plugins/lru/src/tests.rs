//! The order of eviction, against events as a host sends them and against a slow model of the same.

use std::collections::BTreeMap;

use infer_policy_sdk::testing::{Rng, check_config, check_prefix_cache, for_seeds};
use infer_policy_sdk::{Ended, Event, EventKind, Hit, SessionId, TenantId};

use super::*;

fn event(at: u64, kind: EventKind, block: u32, parent: Option<u32>, depth: u32) -> Event {
    Event {
        at: Micros(at),
        kind,
        block: BlockId(block),
        parent: parent.map(BlockId),
        depth,
        tenant: TenantId(0),
        session: SessionId(0),
    }
}

/// Events of one kind for a whole chain, first block to last.
fn chain(at: u64, kind: EventKind, blocks: &[u32]) -> Vec<Event> {
    let parents = std::iter::once(None).chain(blocks.iter().copied().map(Some));
    blocks
        .iter()
        .zip(parents)
        .zip(0..)
        .map(|((block, parent), depth)| event(at, kind, *block, parent, depth))
        .collect()
}

fn observe(policy: &mut Lru, events: &[Event]) {
    let mut columns = Events::default();
    events.iter().for_each(|event| columns.push(*event));
    assert!(policy.observe(&columns).is_empty(), "it drops nothing unasked");
}

fn evict(policy: &mut Lru, need: u32) -> Vec<u32> {
    policy.evict(Micros(0), need).into_iter().map(|block| block.0).collect()
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<Lru>();
}

#[test]
fn everything_is_reused_and_kept() {
    let mut policy = Lru::default();
    let hit = Hit { prompt_tokens: 100, cached_tokens: 48, ..Hit::default() };
    assert_eq!(policy.reuse(&hit), 48);
    let ended = Ended { prompt_tokens: 100, generated_tokens: 20, ..Ended::default() };
    assert_eq!(policy.retain(&ended), infer_policy_sdk::Retention { keep_tokens: 120, ttl: Micros::ZERO });
}

#[test]
fn the_least_recently_used_goes_first_and_leaves_before_roots() {
    let mut policy = Lru::default();
    observe(&mut policy, &chain(10, EventKind::Idle, &[1, 2, 3]));
    observe(&mut policy, &chain(20, EventKind::Idle, &[7, 8]));
    assert_eq!(evict(&mut policy, 4), [3, 2, 1, 8]);
    assert_eq!(evict(&mut policy, 99), [3, 2, 1, 8, 7], "naming is not dropping");
}

#[test]
fn a_chain_reported_last_block_first_keeps_that_order() {
    let mut policy = Lru::default();
    let mut events = chain(10, EventKind::Idle, &[1, 2, 3]);
    events.reverse();
    observe(&mut policy, &events);
    assert_eq!(evict(&mut policy, 3), [3, 2, 1]);
}

#[test]
fn a_branch_is_evicted_before_a_trunk_in_use() {
    let mut policy = Lru::default();
    // Two conversations share blocks 1 and 2. One ends at 10, the other at 30 and frees the trunk too.
    observe(&mut policy, &[event(10, EventKind::Idle, 3, Some(2), 2)]);
    observe(&mut policy, &chain(30, EventKind::Idle, &[1, 2, 4]));
    assert_eq!(evict(&mut policy, 2), [3, 4]);
}

#[test]
fn blocks_in_use_or_dropped_are_not_named() {
    let mut policy = Lru::default();
    observe(&mut policy, &chain(10, EventKind::Idle, &[1, 2]));
    observe(&mut policy, &chain(11, EventKind::Idle, &[5, 6]));
    observe(&mut policy, &chain(12, EventKind::Reused, &[1, 2]));
    observe(&mut policy, &[event(13, EventKind::Dropped, 6, Some(5), 1)]);
    assert_eq!(evict(&mut policy, 9), [5]);
    observe(&mut policy, &chain(20, EventKind::Idle, &[1, 2]));
    assert_eq!(evict(&mut policy, 9), [5, 2, 1]);
}

#[test]
fn after_a_swap_the_events_give_the_order() {
    let mut policy = Lru::default();
    let mut events = chain(10, EventKind::Idle, &[3, 2, 1]);
    events.extend(chain(20, EventKind::Idle, &[9]));
    observe(&mut policy, &events);
    assert_eq!(evict(&mut policy, 4), [1, 2, 3, 9]);
}

#[test]
fn block_numbers_out_of_bounds_are_left_to_the_host() {
    let mut policy = Lru::default();
    observe(
        &mut policy,
        &[event(1, EventKind::Idle, u32::MAX - 1, None, 0), event(2, EventKind::Idle, 4, None, 0)],
    );
    observe(&mut policy, &[event(3, EventKind::Dropped, u32::MAX - 1, None, 0)]);
    assert_eq!(evict(&mut policy, u32::MAX), [4]);
}

#[test]
fn it_matches_a_slow_model() {
    for_seeds(0..200, |rng| {
        let (mut policy, mut model, mut at) = (Lru::default(), Model::default(), 0);
        for _ in 0..rng.between(1, 400) {
            at += u64::from(rng.between(0, 1));
            let events = random_events(rng, at);
            observe(&mut policy, &events);
            events.iter().for_each(|event| model.observe(event));
            let need = rng.between(0, 12);
            assert_eq!(evict(&mut policy, need), model.evict(need as usize));
        }
        assert!(policy.order.len() <= 2 * policy.idle + 64, "what doesn't count is swept");
    });
}

#[test]
fn numbers_start_again_without_changing_the_order() {
    let mut policy = Lru::default();
    observe(&mut policy, &chain(1, EventKind::Idle, &[1, 2]));
    policy.last_turn = u32::MAX;
    observe(&mut policy, &chain(2, EventKind::Idle, &[3]));
    assert_eq!(evict(&mut policy, 3), [2, 1, 3]);
    assert_eq!(policy.last_turn, 3);
}

/// Sorted by when a block became idle.
#[derive(Default)]
struct Model {
    idle: BTreeMap<u32, u64>,
    turn: u64,
}

impl Model {
    fn observe(&mut self, event: &Event) {
        self.turn += 1;
        match event.kind {
            EventKind::Idle => self.idle.insert(event.block.0, self.turn),
            EventKind::Stored | EventKind::Reused | EventKind::Dropped => self.idle.remove(&event.block.0),
        };
    }

    fn evict(&self, need: usize) -> Vec<u32> {
        let mut order: Vec<(u64, u32)> = self.idle.iter().map(|(block, turn)| (*turn, *block)).collect();
        order.sort_unstable();
        order.into_iter().take(need).map(|(_, block)| block).collect()
    }
}

/// Events of single blocks, so that no two of them are a chain.
fn random_events(rng: &mut Rng, at: u64) -> Vec<Event> {
    let kinds = [EventKind::Stored, EventKind::Reused, EventKind::Idle, EventKind::Idle, EventKind::Dropped];
    (0..rng.between(0, 8))
        .map(|_| event(at, kinds[rng.between(0, 4) as usize], rng.between(0, 60), None, 0))
        .collect()
}

#[test]
fn keeps_the_rules_of_the_interface() {
    check_prefix_cache(Lru::default);
}
