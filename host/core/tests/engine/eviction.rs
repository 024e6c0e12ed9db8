//! What the prefix-cache policy decides: how much to reuse, what to keep, and what to drop.

use std::sync::{Arc, Mutex};

use crate::common::Mirror;
use crate::common::scripted::{
    Ask, Bench, PrefixCache, Say, VOCAB, prompt, request, scripted, small, started,
};
use infer_core::policy::{CacheEventKind, CacheEvents, FaultKind, Memory, PrefixCachePolicy as _, Retention};
use infer_core::testing::solo;
use infer_core::{BlockId, EngineConfig, Micros, PrefixEvent};

#[test]
fn a_policy_may_reuse_less_and_keep_less() {
    let policies = scripted(|ask| {
        Ok(match ask {
            Ask::Reuse(hit) => Say::Reuse(hit.cached_tokens.min(7)),
            Ask::Retain(_) => Say::Retain(Retention { keep_tokens: 11, ttl: Micros(500_000) }),
            _ => Say::Default,
        })
    });
    let mut bench = Bench::with(small(), policies);
    let id = bench.submit(request(prompt(1, 13), 3));
    bench.run();
    assert_eq!(bench.engine.snapshot(bench.now).memory.cached, 2, "eleven tokens are two full blocks");
    let again = bench.submit(request(prompt(1, 13), 3));
    bench.run();
    assert_eq!(
        started(&bench, again),
        (PrefixEvent::CrossRequestHit, 4, 9),
        "seven tokens are one full block"
    );
    assert_eq!(bench.tokens(again), bench.tokens(id));
    let expiry = bench.engine.next_wake().expect("a retention ends");
    bench.now = expiry;
    assert!(!bench.step());
    assert_eq!(bench.engine.snapshot(bench.now).memory.cached, 0);
}

#[test]
fn the_policys_names_are_evicted_first_and_the_rest_by_age() {
    let mirror = Arc::new(Mutex::new(Mirror::default()));
    let seen = mirror.clone();
    // Names the youngest first, one too few.
    let policies = scripted(move |ask| {
        let mut mirror = seen.lock().unwrap();
        Ok(match ask {
            Ask::Observe(events) => {
                mirror.absorb(events);
                Say::Default
            }
            Ask::Evict(need) => Say::Drop(
                mirror.idle.iter().rev().take(need as usize - 1).map(|&b| infer_core::BlockId(b)).collect(),
            ),
            _ => Say::Default,
        })
    });
    let config = EngineConfig { total_blocks: 12, prompt_cache_entries: 0, ..small() };
    let mut bench = Bench::with(config, policies);
    for seed in 1..9 {
        let request = request(prompt(seed, 13), 3);
        let id = bench.submit(request.clone());
        bench.run();
        assert_eq!(bench.tokens(id), solo(&request, VOCAB));
    }
    assert_eq!(bench.faults(), []);
    let snapshot = bench.engine.snapshot(bench.now);
    assert!(snapshot.counters.evicted_blocks > 10);
    assert_eq!(
        mirror.lock().unwrap().idle.len() as u32,
        snapshot.memory.cached,
        "the policy received everything"
    );
}

#[test]
fn naming_a_block_in_use_is_a_fault_and_drops_nothing() {
    for lie in [infer_core::BlockId(0), infer_core::BlockId(u32::MAX)] {
        let policies = scripted(move |ask| {
            Ok(if let Ask::Observe(_) = ask {
                Say::Drop(vec![infer_core::BlockId(63), lie])
            } else {
                Say::Default
            })
        });
        let mut bench = Bench::with(EngineConfig { max_strikes: 1, ..small() }, policies);
        let request = request(prompt(1, 13), 9);
        let id = bench.submit(request.clone());
        bench.run();
        assert_eq!(bench.faults(), [FaultKind::InvalidDecision]);
        assert_eq!(bench.changes(), ["builtin-lru"]);
        assert_eq!(bench.tokens(id), solo(&request, VOCAB));
    }
}

#[test]
fn drops_from_observe_are_reported_before_evict() {
    let mut mirror = Mirror::default();
    let policies = scripted(move |ask| {
        let oldest = |mirror: &Mirror, n| {
            Say::Drop(mirror.idle.iter().take(n).map(|&b| infer_core::BlockId(b)).collect())
        };
        Ok(match ask {
            Ask::Observe(events) => {
                mirror.absorb(events);
                if mirror.idle.len() > 6 { oldest(&mirror, 1) } else { Say::Default }
            }
            Ask::Evict(need) => oldest(&mirror, need as usize),
            _ => Say::Default,
        })
    });
    let mut bench = Bench::with(EngineConfig { total_blocks: 12, ..small() }, policies);
    for seed in 1..20 {
        bench.submit(request(prompt(seed, 9 + seed), 3));
        bench.run();
    }
    assert_eq!(bench.faults(), []);
}

#[test]
fn an_answer_with_more_blocks_than_the_pool_is_a_fault() {
    let rows = 3 * 2_048;
    let column = vec![0; rows];
    let events = CacheEvents {
        memory: Memory { block_size: 1, total_blocks: 10, free_blocks: 0, cached_blocks: 10 },
        at: vec![0; rows],
        kind: vec![CacheEventKind::Idle as u8; rows],
        block: column.clone(),
        parent: column.clone(),
        depth: column.clone(),
        tenant: column,
        session: vec![0; rows],
    };
    for (names, calls) in [
        ((0..10).collect::<Vec<_>>(), 3),
        (vec![3; 10], 3),
        (vec![3; 11], 1),
        ((0..11).collect(), 1),
        (vec![10], 1),
        (vec![u32::MAX], 1),
    ] {
        let (mut asked, say) = (0, names.clone());
        let mut policy = PrefixCache(|_: Ask<'_>| {
            asked += 1;
            Ok(Say::Drop(say.iter().copied().map(BlockId).collect()))
        });
        let answer = policy.observe_all(&events);
        match answer {
            Ok(answer) => assert!(calls == 3 && answer.len() <= 10, "{names:?}"),
            Err(fault) => assert_eq!((fault.kind, calls), (FaultKind::InvalidDecision, 1), "{names:?}"),
        }
        assert_eq!(asked, calls, "{names:?}");
    }
    let policies = scripted(|ask| {
        Ok(match ask {
            Ask::Evict(_) => Say::Drop(vec![BlockId(0); 11]),
            _ => Say::Default,
        })
    });
    let mut bench = Bench::with(EngineConfig { total_blocks: 10, ..small() }, policies);
    for seed in 1..5 {
        bench.submit(request(prompt(seed, 13), 3));
        bench.run();
    }
    assert_eq!(bench.faults(), [FaultKind::InvalidDecision; 2]);
}

#[test]
fn stale_eviction_answer_is_ignored_for_a_reused_block() {
    let blocks = 2_048;
    let later = [
        (CacheEventKind::Reused, 5),
        (CacheEventKind::Reused, 6),
        (CacheEventKind::Idle, 6),
        (CacheEventKind::Dropped, 7),
    ];
    let rows = (0..blocks).map(|block| (CacheEventKind::Idle, block)).chain(later);
    let (kind, block): (Vec<u8>, Vec<u32>) = rows.map(|(kind, block)| (kind as u8, block)).unzip();
    let column = vec![0; block.len()];
    let events = CacheEvents {
        memory: Memory { block_size: 1, total_blocks: blocks, free_blocks: 0, cached_blocks: blocks },
        at: vec![0; block.len()],
        kind,
        block,
        parent: column.clone(),
        depth: column.clone(),
        tenant: column,
        session: vec![0; blocks as usize + later.len()],
    };
    // Names the first nine that are idle, as it knows at each call.
    let mut mirror = Mirror::default();
    let mut policy = PrefixCache(|ask: Ask<'_>| {
        let Ask::Observe(events) = ask else { return Ok(Say::Default) };
        mirror.absorb(events);
        Ok(Say::Drop(mirror.idle.iter().take(9).copied().map(BlockId).collect()))
    });
    let names = policy.observe_all(&events).expect("within the pool");
    let mut names: Vec<u32> = names.into_iter().map(|name| name.0).collect();
    names.sort_unstable();
    assert_eq!(names, [0, 1, 2, 3, 4, 6, 8, 9, 10], "each once, and none that it knows to be in use or gone");
}

#[test]
fn an_emptied_cache_keeps_what_runs_and_tells_everyone() {
    let mirror = Arc::new(Mutex::new(Mirror::default()));
    let seen = mirror.clone();
    let policies = scripted(move |ask| {
        if let Ask::Observe(events) = ask {
            seen.lock().unwrap().absorb(events);
        }
        Ok(Say::Default)
    });
    let mut bench = Bench::with(small(), policies);
    let first = bench.submit(request(prompt(1, 13), 3));
    bench.run();
    let running = bench.submit(request(prompt(2, 13), 9));
    bench.step();
    let waiting = bench.submit(request(prompt(1, 13), 3));
    let before = bench.engine.snapshot(bench.now);
    assert!(before.memory.cached > 0 && before.memory.used > 0);
    let emptied = bench.engine.empty_cache(bench.now);
    assert_eq!((emptied.cached, emptied.offloaded), (before.memory.cached, 0));
    let after = bench.engine.snapshot(bench.now);
    assert_eq!((after.memory.cached, after.memory.used), (0, before.memory.used));
    assert_eq!(
        after.counters.evicted_blocks,
        before.counters.evicted_blocks + u64::from(before.memory.cached)
    );
    assert_eq!(bench.engine.empty_cache(bench.now).cached, 0);
    bench.run();
    assert_eq!(started(&bench, waiting), (PrefixEvent::MissFull, 0, 13), "its logits are gone, too");
    assert_eq!(bench.tokens(waiting), bench.tokens(first));
    assert_eq!(bench.tokens(running).len(), 9);
    bench.step();
    let cached = bench.engine.snapshot(bench.now).memory.cached;
    assert_eq!(mirror.lock().unwrap().idle.len(), cached as usize, "the policy was told");
}
