//! Conversations through floods of strangers, and what pins cost.

use infer_policy_sdk::parse_config;
use infer_policy_sdk::testing::{CacheHost, Tally, Turn, check_config, check_prefix_cache};
use policy_lru::Lru;

use super::*;

fn policy(config: &str) -> Session {
    Session::new(parse_config(config).unwrap()).unwrap()
}

fn host(config: &str) -> CacheHost<Session> {
    CacheHost::new(policy(config), 16, 100)
}

/// A conversation's turn: its text so far.
fn said(session: u32, blocks: u32) -> Turn {
    Turn { session: SessionId(u64::from(session)), ..Turn::new("conversation", session, blocks) }
}

fn stranger(number: u32) -> Turn {
    Turn::new("stranger", 1_000 + number, 8)
}

const SECOND: Micros = Micros(1_000_000);

#[test]
fn configuration_matches_its_schema() {
    check_config::<Session>();
    let error = Session::new(parse_config(r#"{"budget": 1.5}"#).unwrap()).err().unwrap();
    assert!(error.contains("`budget`"), "{error}");
}

#[test]
fn keeps_the_rules_of_the_interface() {
    check_prefix_cache(|| policy("{}"));
    check_prefix_cache(|| policy(r#"{"ttl_s": 100, "budget": 0.2}"#));
}

/// Four conversations of ten turns each; forty strangers pass between two turns.
fn flood<P: PrefixCache>(policy: P) -> (Tally, Tally) {
    let mut host = CacheHost::new(policy, 16, 100);
    for round in 1..=10 {
        for session in 1..=4 {
            host.play(&said(session, round));
        }
        for number in 0..40 {
            host.play(&stranger(round * 100 + number));
            host.wait(SECOND);
        }
    }
    (host.tally("conversation"), host.tally("stranger"))
}

#[test]
fn conversations_survive_a_flood_of_strangers() {
    let (lru, strangers) = flood(Lru::default());
    let (own, same_strangers) = flood(policy("{}"));
    assert_eq!(lru.hit_percent(), 0, "40 x 8 blocks evict everything");
    assert_eq!(own.computed_tokens, 4 * 10 * 16, "each turn computes its own block alone");
    assert_eq!(own.hit_percent(), 82);
    assert_eq!(strangers, same_strangers, "requests that never come back lose nothing");
}

#[test]
fn an_expired_session_is_treated_like_any_other() {
    let mut host = host(r#"{"ttl_s": 60}"#);
    host.play(&said(1, 20));
    host.wait(Micros(61 * SECOND.0));
    for number in 0..10 {
        host.play(&stranger(number));
    }
    assert_eq!(host.cached(&said(1, 20)), 20, "80 blocks fit beside it");
    for number in 10..13 {
        host.play(&stranger(number));
    }
    assert_eq!(host.cached(&said(1, 20)), 0, "it was used before all strangers");
    assert_eq!(host.cached(&stranger(3)), 8);
}

#[test]
fn over_the_budget_the_session_used_longest_ago_loses_its_pin() {
    let mut host = host("{}");
    for session in 1..=3 {
        host.play(&said(session, 20));
    }
    host.play(&said(1, 20));
    for number in 0..20 {
        host.play(&stranger(number));
    }
    let cached = [1, 2, 3].map(|session| host.cached(&said(session, 20)));
    assert_eq!(cached, [20, 0, 20], "two fit the budget of 50 blocks");
}

#[test]
fn pinned_blocks_are_evicted_when_nothing_else_is_left() {
    let mut host = host(r#"{"budget": 1}"#);
    for session in 1..=4 {
        host.play(&said(session, 25));
    }
    host.play(&Turn::new("stranger", 99, 60));
    assert_eq!([1, 2, 3, 4].map(|session| host.cached(&said(session, 25))), [0, 0, 15, 25]);
    assert_eq!(host.shortfalls(), 0);
}

#[test]
fn equal_session_ids_of_different_tenants_are_different_sessions() {
    let mut policy = policy("{}");
    let mut events = Events::default();
    events.memory.total_blocks = 100;
    for (block, tenant) in [(1, 1), (2, 2)] {
        events.push(Event {
            at: SECOND,
            kind: EventKind::Idle,
            block: BlockId(block),
            parent: None,
            depth: 0,
            tenant: TenantId(tenant),
            session: SessionId(7),
        });
    }
    policy.observe(&events);
    assert_eq!(policy.pins.len(), 2);
    let reused = Events { kind: vec![1, 1], ..events };
    policy.observe(&reused);
    assert!(policy.pins.is_empty() && policy.by_use.is_empty() && policy.pinned_blocks == 0, "in use");
}

#[test]
fn stale_pins_are_swept() {
    let mut policy = policy("{}");
    let mut events = Events::default();
    events.memory.total_blocks = 100;
    for _ in 0..1_000 {
        for kind in [EventKind::Idle, EventKind::Reused] {
            for block in 1..=2 {
                events.push(Event {
                    at: SECOND,
                    kind,
                    block: BlockId(block),
                    parent: None,
                    depth: 0,
                    tenant: TenantId(1),
                    session: SessionId(7),
                });
            }
            // One of them stays: the pin survives.
            if kind == EventKind::Reused {
                events.kind.pop();
                events.kind.push(EventKind::Idle as u8);
            }
        }
    }
    policy.observe(&events);
    let pin = &policy.pins[&(TenantId(1), SessionId(7))];
    assert_eq!((pin.held, policy.pinned_blocks), (1, 1));
    assert!(pin.blocks.len() <= 2 * pin.held + 64 + 1, "{} entries", pin.blocks.len());
}

#[test]
fn a_swap_keeps_conversations_warm() {
    let mut host = host("{}");
    host.play(&said(1, 20));
    host.play(&stranger(0));
    host.swap(policy("{}"));
    for number in 1..30 {
        host.play(&stranger(number));
    }
    assert_eq!(host.cached(&said(1, 20)), 20);
}
