//! Scans, promotions, and what a position in a queue survives.

use infer_policy_sdk::testing::{CacheHost, Tally, Turn, check_config, check_prefix_cache};
use infer_policy_sdk::{Event, SessionId, TenantId, parse_config};
use policy_lru::Lru;

use super::*;

fn policy(config: &str) -> S3Fifo {
    S3Fifo::new(parse_config(config).unwrap()).unwrap()
}

fn host() -> CacheHost<S3Fifo> {
    CacheHost::new(policy("{}"), 16, 100)
}

fn turn(text: u32, blocks: u32) -> Turn {
    Turn::new("any", text, blocks)
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<S3Fifo>();
    let error = S3Fifo::new(parse_config(r#"{"small": -1}"#).unwrap()).err().unwrap();
    assert!(error.contains("`small`"), "{error}");
}

#[test]
fn keeps_the_rules_of_the_interface() {
    check_prefix_cache(|| policy("{}"));
    check_prefix_cache(|| policy(r#"{"small": 0.6}"#));
}

/// Eight documents that are asked about again and again, while a crawler reads many others once.
fn scan<P: PrefixCache>(policy: P) -> Tally {
    let mut host = CacheHost::new(policy, 16, 100);
    for round in 0..10 {
        for document in 0..8 {
            host.play(&Turn::new("document", document, 8));
            host.play(&Turn::new("document", document, 8));
        }
        for page in 0..20 {
            host.play(&Turn::new("crawler", 100 + round * 20 + page, 10));
        }
    }
    assert_eq!(host.tally("crawler").hit_percent(), 0);
    host.tally("document")
}

#[test]
fn a_scan_does_not_evict_what_is_used() {
    let (lru, own) = (scan(Lru::default()), scan(policy("{}")));
    assert_eq!(lru.hit_percent(), 50, "each round finds nothing of the one before");
    assert_eq!(own.computed_tokens, 8 * 8 * 16, "each document is computed once");
    assert_eq!(own.hit_percent(), 95);
}

#[test]
fn newcomers_go_in_the_order_in_which_they_came() {
    let mut host = host();
    for text in 0..10 {
        host.play(&turn(text, 10));
    }
    host.play(&turn(20, 15));
    assert_eq!([0, 1, 2].map(|text| host.cached(&turn(text, 10))), [0, 5, 10], "and leaves before roots");
}

#[test]
fn a_use_moves_a_block_only_when_it_is_judged() {
    let mut host = host();
    for text in 0..10 {
        host.play(&turn(text, 10));
    }
    host.play(&turn(0, 10));
    host.play(&turn(20, 10));
    assert_eq!(
        [0, 1].map(|text| host.cached(&turn(text, 10))),
        [10, 0],
        "spared, and the next one is evicted"
    );
    for text in 21..40 {
        host.play(&turn(text, 10));
    }
    assert_eq!(host.cached(&turn(0, 10)), 10, "the main queue is safe while newcomers come");
}

#[test]
fn unused_blocks_leave_the_main_queue_eventually() {
    let mut host = host();
    for text in 0..9 {
        host.play(&turn(text, 10));
        host.play(&turn(text, 10));
    }
    // The next generation: asked about four times each, while the old one isn't any more.
    for text in 50..80 {
        for _ in 0..4 {
            host.play(&turn(text, 10));
        }
    }
    let old: u32 = (0..9).map(|text| host.cached(&turn(text, 10))).sum();
    assert!(old <= 10, "{old} blocks of the old generation are left");
}

#[test]
fn those_before_a_promoted_block_come_along() {
    let mut policy = policy("{}");
    let mut host = |kind: EventKind, block: u32, parent: u32| {
        let mut events = Events::default();
        events.push(Event {
            at: Micros(1),
            kind,
            block: BlockId(block),
            parent: Some(BlockId(parent)).filter(|parent| parent.0 > 0),
            depth: block,
            tenant: TenantId(0),
            session: SessionId(0),
        });
        policy.observe(&events);
    };
    for (block, parent) in [(1, 0), (2, 1)] {
        host(EventKind::Stored, block, parent);
    }
    host(EventKind::Reused, 2, 1);
    for (block, parent) in [(2, 1), (1, 0), (3, 0)] {
        host(EventKind::Idle, block, parent);
    }
    assert_eq!(policy.evict(Micros(1), 1), [BlockId(3)]);
    let queues = [1, 2, 3].map(|block| policy.idle.key(BlockId(block)).unwrap().0);
    assert_eq!(queues, [Queue::Main, Queue::Main, Queue::Small]);
    assert_eq!(policy.evict(Micros(1), 9), [3, 2, 1].map(BlockId), "all of them when all must go");
    assert_eq!(policy.idle.len(), 3, "naming is not dropping");
}

#[test]
fn calls_stay_short_even_if_everything_was_used() {
    let mut policy = policy("{}");
    let mut events = Events::default();
    for kind in [EventKind::Stored, EventKind::Reused, EventKind::Idle] {
        for block in 0..3 * MOST_MOVES as u32 {
            events.push(Event {
                at: Micros(1),
                kind,
                block: BlockId(block),
                parent: None,
                depth: 0,
                tenant: TenantId(0),
                session: SessionId(0),
            });
        }
    }
    policy.observe(&events);
    let before = policy.last_turn;
    assert_eq!(policy.evict(Micros(1), 2).len(), 2);
    assert_eq!(policy.last_turn - before, MOST_MOVES);
}

#[test]
fn after_a_swap_all_begin_on_probation_in_the_order_of_use() {
    let mut host = host();
    for text in 0..10 {
        host.play(&turn(text, 10));
    }
    host.play(&turn(0, 10));
    host.swap(policy("{}"));
    host.play(&turn(20, 20));
    assert_eq!([0, 1, 2, 3].map(|text| host.cached(&turn(text, 10))), [10, 0, 0, 10]);
}
