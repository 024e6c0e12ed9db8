//! Caps and times, on a pool with real sharing.

use infer_policy_sdk::testing::{CacheHost, Turn, check_config, check_prefix_cache};
use infer_policy_sdk::{Event, SessionId, TenantId, parse_config};

use super::*;

fn policy(config: &str) -> TtlLru {
    TtlLru::new(parse_config(config).unwrap()).unwrap()
}

fn host(config: &str) -> CacheHost<TtlLru> {
    CacheHost::new(policy(config), 16, 100)
}

fn turn(text: u32, blocks: u32) -> Turn {
    Turn::new("any", text, blocks)
}

const SECOND: Micros = Micros(1_000_000);

#[test]
fn configuration_matches_its_schema() {
    check_config::<TtlLru>();
    let error = TtlLru::new(parse_config(r#"{"max_entries": 0}"#).unwrap()).err().unwrap();
    assert!(error.contains("`max_entries`"), "{error}");
}

#[test]
fn keeps_the_rules_of_the_interface() {
    check_prefix_cache(|| policy("{}"));
    check_prefix_cache(|| policy(r#"{"max_entries": 2, "ttl_s": 60}"#));
}

#[test]
fn beyond_the_cap_the_least_recently_used_entry_is_dropped_whole() {
    let mut host = host(r#"{"max_entries": 3}"#);
    for text in 0..3 {
        host.play(&turn(text, 5));
    }
    host.play(&turn(0, 5));
    host.play(&turn(3, 5));
    let cached = [0, 1, 2, 3].map(|text| host.cached(&turn(text, 5)));
    assert_eq!(cached, [5, 0, 5, 5], "the first was used again since");
    assert_eq!(host.memory().free_blocks, 85);
}

#[test]
fn a_growing_conversation_is_one_entry() {
    let mut host = host(r#"{"max_entries": 1}"#);
    for blocks in 1..10 {
        host.play(&turn(0, blocks));
    }
    assert_eq!(host.cached(&turn(0, 9)), 9);
    assert_eq!(host.tally("any").computed_tokens, 9 * 16, "each turn found all of the one before");
}

#[test]
fn what_entries_share_stays_for_the_last_of_them() {
    let mut host = host(r#"{"max_entries": 2}"#);
    let branch = |text| {
        let prompt = [turn(0, 4).prompt, turn(text, 2).prompt].concat();
        Turn { prompt, ..turn(text, 0) }
    };
    for text in 1..=4 {
        host.play(&branch(text));
    }
    assert_eq!([1, 2, 3, 4].map(|text| host.cached(&branch(text))), [4, 4, 6, 6]);
    host.play(&turn(8, 1));
    host.play(&turn(9, 1));
    assert_eq!(host.cached(&branch(4)), 0, "trunk and all");
}

#[test]
fn a_prefix_expires_a_fixed_time_after_its_last_use() {
    let mut host = host(r#"{"ttl_s": 10}"#);
    host.play(&turn(0, 3));
    host.wait(Micros(9 * SECOND.0));
    host.play(&turn(0, 3));
    host.wait(Micros(9 * SECOND.0));
    assert_eq!(host.cached(&turn(0, 3)), 3, "the second use counts");
    host.wait(SECOND);
    assert_eq!(host.cached(&turn(0, 3)), 0);
    let ended = Ended { prompt_tokens: 5, generated_tokens: 2, ..Ended::default() };
    assert_eq!(policy("{}").retain(&ended), Retention { keep_tokens: 7, ttl: Micros(300 * SECOND.0) });
    assert_eq!(policy(r#"{"ttl_s": 0}"#).retain(&ended).ttl, Micros::ZERO);
}

#[test]
fn blocks_without_a_retention_expire_with_the_first_event_after_their_time() {
    let mut host = host(r#"{"ttl_s": 0}"#);
    host.play(&turn(0, 3));
    host.play(&turn(1, 3));
    host.swap(policy(r#"{"ttl_s": 10}"#));
    host.wait(Micros(5 * SECOND.0));
    host.play(&turn(1, 2));
    host.wait(Micros(4 * SECOND.0));
    host.play(&turn(2, 1));
    assert_eq!([0, 1].map(|text| host.cached(&turn(text, 3))), [3, 3]);
    host.wait(SECOND);
    host.play(&turn(3, 1));
    let cached = [0, 1, 2, 3].map(|text| host.cached(&turn(text, 3)));
    assert_eq!(cached, [0, 2, 1, 1], "blocks used since stay, and as much of a prefix");
}

#[test]
fn the_cap_holds_after_a_swap_too() {
    let mut host = host("{}");
    for text in 0..10 {
        host.play(&turn(text, 3));
    }
    host.swap(policy(r#"{"max_entries": 4}"#));
    let cached: Vec<u32> = (0..10).map(|text| host.cached(&turn(text, 3))).collect();
    assert_eq!(cached, [0, 0, 0, 0, 0, 0, 3, 3, 3, 3]);
}

#[test]
fn without_limits_it_evicts_like_lru() {
    let mut own = CacheHost::new(policy(r#"{"max_entries": 1000, "ttl_s": 0}"#), 16, 30);
    let mut lru = CacheHost::new(policy_lru::Lru::default(), 16, 30);
    for step in 0..200 {
        let turn = turn(step * step % 13, 1 + step % 9);
        own.play(&turn);
        lru.play(&turn);
    }
    assert_eq!(own.tally("any"), lru.tally("any"));
    assert!(own.tally("any").hit_percent() > 0);
}

/// The same thing happens to all of some blocks, which nothing precedes.
fn all(kind: EventKind, at: Micros, blocks: impl IntoIterator<Item = BlockId>) -> Events {
    let mut events = Events::default();
    let (tenant, session) = (TenantId(0), SessionId(0));
    for block in blocks {
        events.push(Event { at, kind, block, parent: None, depth: 0, tenant, session });
    }
    events
}

#[test]
fn a_whole_pool_over_a_limit_is_dropped_in_pieces() {
    let whole = 3 * MAX_NAMED as u32 - 7;
    let at = Micros(10 * SECOND.0);
    for (config, stay) in [(r#"{"ttl_s": 10, "max_entries": 100000}"#, 0), (r#"{"max_entries": 5}"#, 5)] {
        let mut policy = policy(config);
        let mut pieces = vec![policy.observe(&all(EventKind::Idle, Micros::ZERO, (0..whole).map(BlockId)))];
        let elsewhere = all(EventKind::Reused, at, [BlockId(whole)]);
        pieces.push(policy.observe(&elsewhere));
        while let Some(names) = pieces.last().filter(|names| !names.is_empty()) {
            let dropped = all(EventKind::Dropped, at, names.iter().copied());
            pieces.push(policy.observe(&dropped));
        }
        let most = pieces.iter().map(Vec::len).max();
        assert_eq!((most, policy.idle.len()), (Some(MAX_NAMED), stay), "{config}");
    }
}
