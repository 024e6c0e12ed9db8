//! What comes back from the second level, for whom, and what is never there.

use infer_core::policy::Retention;
use infer_core::{AdapterId, Micros, Request, TenantId};

use super::{Tiered, next_turn, tiny, turn};
use crate::common::scripted::{Ask, Say, scripted};

#[test]
fn a_conversation_that_was_evicted_comes_back() {
    for (slots, found) in [(0, 16), (2, 20), (16, 28)] {
        let mut host = Tiered::after(tiny(slots), 1..3);
        let id = host.ask(next_turn(1));
        assert_eq!(host.cached(id), found, "{slots} slots");
        assert_eq!(host.counters().onloaded_blocks * 4, u64::from(found - 16));
        assert!(host.counters().evicted_blocks > 3);
    }
}

#[test]
fn conversations_that_take_turns_are_never_computed_again() {
    let mut host = Tiered::after(tiny(64), 1..5);
    let computed = host.executor.inner.computed;
    for seed in 1..5 {
        let id = host.ask(next_turn(seed));
        assert_eq!(host.cached(id), 28, "{seed}");
    }
    // Eight tokens of each prompt are new, and two of the three generated ones are computed.
    assert_eq!(host.executor.inner.computed - computed, 4 * (8 + 2));
    let copied = host.counters().offloaded_blocks;
    for seed in 1..5 {
        host.ask(next_turn(seed));
    }
    let again = host.counters().offloaded_blocks - copied;
    assert!(again <= 12, "what came back has its slot still: {again}");
}

#[test]
fn the_tenants_salts_and_adapters_of_the_second_level_stay_apart() {
    let of = |(tenant, salt, adapter), request| Request {
        tenant: TenantId(tenant),
        cache_salt: salt,
        adapter: AdapterId(adapter),
        ..request
    };
    let own = (1, 5, 3);
    for other in [(2, 5, 3), (1, 0, 3), (1, 5, 0), (1, 5, 2), (0, 0, 0)] {
        let mut host = Tiered::new(tiny(64));
        for seed in 1..4 {
            host.ask(of(own, turn(seed)));
        }
        let id = host.ask(of(other, next_turn(1)));
        assert_eq!(host.cached(id), 0, "tenant, salt, adapter: {other:?}");
        let id = host.ask(of(own, next_turn(1)));
        assert_eq!(host.cached(id), 28, "its own");
    }
}

#[test]
fn a_forgotten_adapter_leaves_nothing_in_the_second_level_either() {
    let of = |adapter, request| Request { adapter: AdapterId(adapter), ..request };
    for other in [0, 2] {
        let mut host = Tiered::new(tiny(64));
        // In turns, so that either has blocks of both levels and some of the second alone.
        for seed in 1..4 {
            for adapter in [1, other] {
                host.ask(of(adapter, turn(seed)));
            }
        }
        let (cached, used) = (host.engine.memory().cached, host.used_slots());
        let forgotten = host.engine.forget_adapter(AdapterId(1), host.now);
        host.engine.check_invariants();
        assert!(forgotten.offloaded > 0, "{forgotten:?}");
        let left = (host.engine.memory().cached, host.used_slots());
        assert_eq!(left, (cached - forgotten.cached, used - forgotten.offloaded));
        let id = host.ask(of(1, next_turn(1)));
        assert_eq!(host.cached(id), 0, "beside {other}");
        let id = host.ask(of(other, next_turn(1)));
        assert_eq!(host.cached(id), 28, "{other} has its own still");
    }
}

#[test]
fn an_emptied_cache_has_no_second_level_either() {
    let mut host = Tiered::after(tiny(16), 1..3);
    let (cached, used) = (host.engine.memory().cached, host.used_slots());
    assert!(used > 0);
    let emptied = host.engine.empty_cache(host.now);
    assert_eq!((emptied.cached, emptied.offloaded), (cached, used), "both levels are counted");
    assert_eq!(host.used_slots(), 0);
    let id = host.ask(next_turn(1));
    assert_eq!(host.cached(id), 0);
}

#[test]
fn what_a_policy_forgets_is_not_evicted() {
    let policies = scripted(|ask| {
        Ok(match ask {
            Ask::Retain(_) => Say::Retain(Retention { keep_tokens: 0, ttl: Micros(0) }),
            _ => Say::Default,
        })
    });
    let mut host = Tiered::with(tiny(16), policies);
    host.ask(turn(1));
    host.ask(turn(2));
    assert_eq!((host.used_slots(), host.engine.memory().cached), (0, 0));
}

#[test]
fn a_retention_ends_in_the_second_level() {
    let policies = scripted(|ask| {
        Ok(match ask {
            Ask::Retain(_) => Say::Retain(Retention { keep_tokens: u32::MAX, ttl: Micros(500_000) }),
            _ => Say::Default,
        })
    });
    let mut host = Tiered::with(tiny(16), policies);
    host.ask(turn(1));
    host.ask(turn(2));
    assert!(host.used_slots() > 0);
    while host.engine.memory().cached > 0 || host.used_slots() > 0 {
        host.now = host.engine.next_wake().expect("a retention ends");
        assert!(host.now < Micros(2_000_000), "all of them are over");
        assert!(host.engine.begin_step(host.now).is_none());
    }
    let id = host.ask(next_turn(1));
    assert_eq!(host.cached(id), 0);
}
