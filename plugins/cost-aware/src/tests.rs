//! Values by hand, and tokens saved on a mix of prefixes.

use infer_policy_sdk::parse_config;
use infer_policy_sdk::testing::{CacheHost, Tally, Turn, check_config, check_prefix_cache};
use policy_lru::Lru;

use super::*;

fn policy(config: &str) -> CostAware {
    CostAware::new(parse_config(config).unwrap()).unwrap()
}

const SECOND: Micros = Micros(1_000_000);

#[test]
fn configuration_matches_its_schema() {
    check_config::<CostAware>();
    let error = CostAware::new(parse_config(r#"{"half_life_s": 0}"#).unwrap()).err().unwrap();
    assert!(error.contains("`half_life_s`"), "{error}");
}

#[test]
fn keeps_the_rules_of_the_interface() {
    check_prefix_cache(|| policy("{}"));
    check_prefix_cache(|| policy(r#"{"half_life_s": 1, "attention_tokens": 16}"#));
}

#[test]
fn uses_count_half_after_each_half_life() {
    let uses = Uses { weight: 4_096, at: SECOND };
    let after =
        |halves: u64, rest: u64| decayed(uses, Micros(SECOND.0 + halves * 1_000 + rest), Micros(1_000));
    assert_eq!([after(0, 0), after(0, 500), after(1, 0), after(1, 500)], [4_096, 3_072, 2_048, 1_536]);
    assert_eq!([after(12, 0), after(13, 0), after(64, 0), after(1 << 40, 0)], [1, 0, 0, 0]);
    assert_eq!(decayed(uses, Micros::ZERO, Micros(1_000)), 4_096, "time that runs backwards ages nothing");
}

#[test]
fn cost_grows_with_depth_as_attention_does() {
    let policy_at = |tokens| policy(&format!(r#"{{"attention_tokens": {tokens}}}"#));
    assert_eq!([0, 64, 128].map(|depth| policy_at(1_024).cost(depth, 16)), [ONE, 2 * ONE, 3 * ONE]);
    assert_eq!(policy_at(0).cost(1_000, 16), ONE);
    assert!(policy_at(1).cost(u32::MAX, u32::MAX) >= ONE);
}

/// In each round four short questions about each of three long documents, then more short prompts, each
/// unique, than the pool holds.
fn mix<P: PrefixCache>(policy: P) -> (Tally, Tally) {
    let mut host = CacheHost::new(policy, 16, 200);
    for round in 0..12 {
        for question in 0..12 {
            let text = Turn::new("document", question / 4, 40);
            let asked = Turn::new("document", 1_000 + 12 * round + question, 2);
            host.play(&Turn { prompt: [text.prompt, asked.prompt].concat(), ..asked });
            host.wait(SECOND);
        }
        for number in 0..50 {
            host.play(&Turn::new("short", 10_000 + 50 * round + number, 4));
            host.wait(SECOND);
        }
    }
    (host.tally("document"), host.tally("short"))
}

#[test]
fn saves_most_of_the_work_on_a_mix_of_deep_and_shallow_prefixes() {
    let (lru, _) = mix(Lru::default());
    let (own, short) = mix(policy("{}"));
    assert_eq!(short.hit_percent(), 0, "requests that never come back have nothing to lose");
    assert_eq!(lru.hit_percent(), 72, "each round computes each document again");
    assert_eq!(own.hit_percent(), 94, "each document is computed once, and each question");
    assert_eq!(own.computed_tokens, (3 * 40 + 12 * 12 * 2) * 16);
    assert!(own.attended_tokens * 2 < lru.attended_tokens, "{own:?} {lru:?}");
}

#[test]
fn of_equally_used_prefixes_the_deep_one_stays() {
    let mut host = CacheHost::new(policy(r#"{"attention_tokens": 256}"#), 16, 100);
    host.play(&Turn::new("deep", 1, 40));
    for text in 10..25 {
        host.play(&Turn::new("shallow", text, 4));
    }
    host.play(&Turn::new("other", 50, 20));
    assert_eq!(host.cached(&Turn::new("deep", 1, 40)), 40, "used first, and worth most");
    assert_eq!(host.cached(&Turn::new("shallow", 10, 4)), 0);
}

#[test]
fn the_clock_overtakes_once_popular_blocks() {
    let mut host = CacheHost::new(policy(r#"{"attention_tokens": 0}"#), 16, 100);
    for _ in 0..8 {
        host.play(&Turn::new("popular", 1, 20));
    }
    let mut passed = 0;
    while host.cached(&Turn::new("popular", 1, 20)) == 20 {
        host.play(&Turn::new("passing", 100 + passed, 10));
        passed += 1;
        assert!(passed < 200, "it stays for ever");
    }
    assert!(passed > 40, "eight uses outlast {passed} prompts, of which eight fit beside it");
}

#[test]
fn naming_does_not_drop_and_a_swap_starts_from_the_order_of_use() {
    let mut host = CacheHost::new(policy(r#"{"attention_tokens": 0}"#), 16, 40);
    for text in 0..4 {
        host.play(&Turn::new("any", text, 10));
    }
    host.swap(policy(r#"{"attention_tokens": 0}"#));
    host.play(&Turn::new("any", 9, 15));
    assert_eq!([0, 1, 2].map(|text| host.cached(&Turn::new("any", text, 10))), [0, 5, 10]);
    assert_eq!(host.shortfalls(), 0);
}
