//! Quiet tenants beside loud ones.

use infer_policy_sdk::testing::{CacheHost, Tally, Turn, check_config, check_prefix_cache, for_seeds};
use infer_policy_sdk::{Event, SessionId, parse_config};
use policy_lru::Lru;

use super::*;

fn policy(config: &str) -> TenantQuota {
    TenantQuota::new(parse_config(config).unwrap()).unwrap()
}

fn turn(kind: &'static str, tenant: u32, text: u32, blocks: u32) -> Turn {
    Turn { tenant: TenantId(tenant), ..Turn::new(kind, text, blocks) }
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<TenantQuota>();
    let error = TenantQuota::new(parse_config(r#"{"slack": 2}"#).unwrap()).err().unwrap();
    assert!(error.contains("`slack`"), "{error}");
}

#[test]
fn keeps_the_rules_of_the_interface() {
    check_prefix_cache(|| policy("{}"));
    check_prefix_cache(|| policy(r#"{"slack": 0.2}"#));
}

/// A quiet tenant repeats its four prompts each round, while a loud one sends three pools' worth.
fn loud_and_quiet<P: PrefixCache>(policy: P) -> (Tally, Tally) {
    let mut host = CacheHost::new(policy, 16, 100);
    for round in 0..10 {
        for text in 0..4 {
            host.play(&turn("quiet", 1, text, 10));
        }
        for text in 0..30 {
            host.play(&turn("loud", 2, 100 + text * (1 + round % 2), 10));
        }
    }
    (host.tally("quiet"), host.tally("loud"))
}

#[test]
fn a_flood_does_not_reach_a_quiet_tenant() {
    let (lru, _) = loud_and_quiet(Lru::default());
    let (own, _) = loud_and_quiet(policy("{}"));
    assert_eq!(lru.hit_percent(), 0);
    assert_eq!(own.computed_tokens, 4 * 10 * 16, "each prompt is computed once");
    assert_eq!(own.hit_percent(), 90);
}

#[test]
fn unused_shares_can_be_filled_by_others() {
    let mut host = CacheHost::new(policy("{}"), 16, 100);
    host.play(&turn("small", 1, 0, 10));
    for text in 0..9 {
        host.play(&turn("large", 2, text, 10));
    }
    let held: u32 = (0..9).map(|text| host.cached(&turn("large", 2, text, 10))).sum();
    assert_eq!(held, 90, "an unclaimed share costs no tenant anything");
}

#[test]
fn holdings_converge_to_equal_shares() {
    let mut host = CacheHost::new(policy("{}"), 16, 90);
    for text in 0..9 {
        host.play(&turn("any", 1, text, 10));
    }
    for text in 0..20 {
        host.play(&turn("any", 2, text, 3));
        host.play(&turn("any", 3, text, 3));
    }
    let held = |tenant| (0..20).map(|text| host.cached(&turn("any", tenant, text, 10))).sum::<u32>();
    let shares = [1, 2, 3].map(held);
    assert_eq!(shares.iter().sum::<u32>(), 90);
    assert!(shares.iter().all(|held| held.abs_diff(30) <= 3), "{shares:?}");
}

#[test]
fn a_single_tenant_gets_lru() {
    for_seeds(0..50, |rng| {
        let mut own = CacheHost::new(policy("{}"), 16, 40);
        let mut lru = CacheHost::new(Lru::default(), 16, 40);
        for _ in 0..100 {
            let turn = turn("any", 7, rng.between(0, 9), rng.between(1, 12));
            own.play(&turn);
            lru.play(&turn);
        }
        assert_eq!(own.tally("any"), lru.tally("any"));
    });
}

#[test]
fn within_the_slack_the_least_recently_used_block_goes_first() {
    for (config, quiet) in [("{}", 30), (r#"{"slack": 0.3}"#, 20)] {
        let mut host = CacheHost::new(policy(config), 16, 100);
        for text in 0..3 {
            host.play(&turn("quiet", 1, text, 10));
        }
        for text in 0..8 {
            host.play(&turn("loud", 2, text, 10));
        }
        let held: u32 = (0..3).map(|text| host.cached(&turn("quiet", 1, text, 10))).sum();
        assert_eq!(held, quiet, "{config}");
    }
}

fn event(kind: EventKind, block: u32, parent: Option<u32>, tenant: u32) -> Event {
    Event {
        at: Micros(1),
        kind,
        block: BlockId(block),
        parent: parent.map(BlockId),
        depth: 0,
        tenant: TenantId(tenant),
        session: SessionId(0),
    }
}

/// What `evict` names, by a search of all leaves for each block.
fn searched(policy: &TenantQuota, need: u32) -> Vec<BlockId> {
    let (idle, held) = (policy.idle.clone(), policy.held.clone());
    let mut left = TenantQuota { idle, held, ..*policy };
    let mut named = Vec::new();
    for _ in 0..need {
        let held = left.held.iter().map(|(tenant, held)| (*held, *tenant));
        let Some((most, loudest)) = held.max() else { break };
        let (all, tenants) = (left.idle.len() as f64, left.held.len() as f64);
        let above = most as f64 > all / tenants + all * left.config.slack;
        let oldest = |only: Option<TenantId>| {
            let mine = left.idle.leaves().filter(|((owner, _), _)| only.is_none_or(|only| only == *owner));
            mine.map(|((_, used), block)| (used, block)).min()
        };
        let furthest = above.then(|| oldest(Some(loudest))).flatten();
        let Some((_, block)) = furthest.or_else(|| oldest(None)) else { break };
        left.take(block);
        named.push(block);
    }
    named
}

#[test]
fn it_names_what_a_search_of_all_leaves_finds() {
    for_seeds(0..300, |rng| {
        let slack = ["0", "0.05", "0.3", "1"][rng.between(0, 3) as usize];
        let mut policy = policy(&format!("{{\"slack\": {slack}}}"));
        for _ in 0..rng.between(1, 6) {
            let mut events = Events::default();
            for _ in 0..rng.between(1, 40) {
                let kind = if rng.one_in(5) { EventKind::Reused } else { EventKind::Idle };
                // Also parents of other tenants, and circles.
                let parent = (!rng.one_in(3)).then(|| rng.between(0, 40));
                events.push(event(kind, rng.between(0, 40), parent, rng.between(1, 5)));
            }
            policy.observe(&events);
            let need = rng.between(1, 45);
            let expected = searched(&policy, need);
            assert_eq!(policy.evict(Micros(1), need), expected, "{need} with slack {slack}");
        }
    });
}

#[test]
fn books_are_balanced_after_naming_everything() {
    let mut policy = policy("{}");
    let mut events = Events::default();
    for (block, tenant) in [(1, 1), (2, 1), (3, 2), (u32::MAX - 1, 3)] {
        events.push(event(EventKind::Idle, block, None, tenant));
    }
    policy.observe(&events);
    assert_eq!(policy.evict(Micros(1), 9), [1, 2, 3].map(BlockId));
    assert_eq!(policy.held, BTreeMap::from([(TenantId(1), 2), (TenantId(2), 1)]));
    events.kind.fill(EventKind::Reused as u8);
    policy.observe(&events);
    assert!(policy.held.is_empty() && policy.idle.is_empty());
}
