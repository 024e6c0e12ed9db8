//! The order of eviction, on a pool in miniature and on events as a host sends them.

use infer_policy_sdk::testing::{CacheHost, Turn, check_config, check_prefix_cache};

use super::*;

fn host(total_blocks: u32) -> CacheHost<LeastRecentlyUsed> {
    CacheHost::new(LeastRecentlyUsed::default(), 16, total_blocks)
}

/// This many blocks of a text.
fn turn(text: u32, blocks: u32) -> Turn {
    Turn::new("any", text, blocks)
}

/// How many blocks of each text the pool holds.
fn cached<const N: usize>(host: &CacheHost<LeastRecentlyUsed>, texts: [u32; N]) -> [u32; N] {
    texts.map(|text| host.cached(&turn(text, 9)))
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<LeastRecentlyUsed>();
}

#[test]
fn keeps_the_rules_of_the_interface() {
    check_prefix_cache(LeastRecentlyUsed::default);
}

#[test]
fn the_least_recently_used_block_goes_first_and_the_deepest_of_a_prefix_before_the_rest() {
    let mut host = host(6);
    host.play(&turn(1, 2));
    host.play(&turn(2, 2));
    host.play(&turn(1, 2));
    host.play(&turn(3, 3));
    assert_eq!(cached(&host, [1, 2, 3]), [2, 1, 3]);
}

#[test]
fn blocks_in_use_are_not_named() {
    let mut host = host(6);
    let runs = host.start(&turn(1, 2)).expect("there is room");
    host.play(&turn(2, 4));
    host.play(&turn(3, 4));
    assert_eq!(cached(&host, [1, 2, 3]), [2, 0, 4]);
    host.end(runs);
}

#[test]
fn a_swap_keeps_the_order() {
    let mut host = host(6);
    for text in [1, 2, 3] {
        host.play(&turn(text, 2));
    }
    host.swap(LeastRecentlyUsed::default());
    host.play(&turn(4, 3));
    assert_eq!(cached(&host, [1, 2, 3, 4]), [0, 1, 2, 3]);
}
