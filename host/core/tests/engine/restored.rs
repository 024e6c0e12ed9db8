//! A new engine takes back what an earlier one had cached.

use std::sync::{Arc, Mutex};

use crate::common::scripted::{
    Ask, Bench, Say, VOCAB, of_session, prompt, request, scripted, small, started,
};
use crate::common::{Mirror, RandomScheduler};
use infer_core::engine::Policies;
use infer_core::policy::Retention;
use infer_core::testing::{SplitMix, solo};
use infer_core::{
    AdapterId, BlockId, CachedBlock, EngineConfig, Executor, Micros, PrefixEvent, Request, TenantId,
};

/// What one process leaves to the next: the list, and the content of its blocks.
type Left = (Vec<CachedBlock>, Vec<Vec<u8>>);

fn leave(bench: &mut Bench) -> Left {
    let list = bench.engine.cached_blocks(bench.now);
    let mut contents = Vec::new();
    for block in &list {
        let mut bytes = vec![0; bench.executor.block_bytes()];
        bench.executor.read_block(block.id, &mut bytes).unwrap();
        contents.push(bytes);
    }
    (list, contents)
}

fn take_back(bench: &mut Bench, (list, contents): &Left) -> Vec<Option<BlockId>> {
    let places = bench.engine.restore_cache(list, bench.now);
    for (place, bytes) in places.iter().zip(contents) {
        if let Some(id) = place {
            bench.executor.write_block(*id, bytes).unwrap();
        }
    }
    bench.engine.check_invariants();
    places
}

/// Another process has other keys.
fn next_process() -> EngineConfig {
    EngineConfig { hash_key: [3, 4], ..small() }
}

#[test]
fn a_restored_prefix_is_found_and_gives_the_same_tokens() {
    let mut before = Bench::new(small());
    let first = before.submit(request(prompt(1, 18), 5));
    before.run();
    let left = leave(&mut before);
    assert_eq!(left.0.len(), 5, "22 tokens are computed: five full blocks of four");
    let parents: Vec<_> = left.0.iter().map(|block| block.parent).collect();
    assert_eq!(parents, [None, Some(0), Some(1), Some(2), Some(3)]);

    let mut after = Bench::new(next_process());
    assert!(take_back(&mut after, &left).iter().all(Option::is_some));
    let again = after.submit(request(prompt(1, 18), 5));
    let longer = [prompt(1, 18), before.tokens(first)[..3].to_vec(), prompt(9, 4)].concat();
    let next_turn = after.submit(request(longer.clone(), 5));
    let other = after.submit(request(prompt(2, 18), 5));
    after.run();
    assert_eq!(started(&after, again), (PrefixEvent::CrossRequestHit, 16, 2));
    assert_eq!(started(&after, next_turn), (PrefixEvent::CrossRequestHit, 20, 5));
    assert_eq!(started(&after, other), (PrefixEvent::MissFull, 0, 18));
    assert_eq!(after.tokens(again), before.tokens(first));
    assert_eq!(after.tokens(next_turn), solo(&request(longer, 5), VOCAB));
}

#[test]
fn blocks_of_running_sequences_are_listed_too() {
    let mut before = Bench::new(small());
    before.submit(request(prompt(1, 18), 40));
    before.step();
    before.step();
    let list = before.engine.cached_blocks(before.now);
    assert_eq!(list.len(), 4);
    assert!(list.iter().all(|block| block.unused == Micros::ZERO));
}

#[test]
fn a_smaller_pool_takes_what_was_used_last() {
    let mut before = Bench::new(small());
    let prompts: Vec<_> = (1..5).map(|seed| prompt(seed, 17)).collect();
    for prompt in &prompts {
        before.submit(request(prompt.clone(), 1));
        before.run();
    }
    // The first one is used again.
    before.submit(request([prompts[0].clone(), prompt(8, 3)].concat(), 1));
    before.run();
    let left = leave(&mut before);
    let mut after = Bench::new(EngineConfig { total_blocks: 9, ..next_process() });
    let places = take_back(&mut after, &left);
    assert_eq!(places.iter().flatten().count(), 9);
    assert_eq!(after.engine.snapshot(after.now).memory.cached, 9);
    let probe = |bench: &mut Bench, prompt: &[u32]| {
        let id = bench.submit(request(prompt.to_vec(), 1));
        bench.run();
        started(bench, id).1
    };
    assert_eq!(probe(&mut after, &prompts[0]), 16);
    let mut other = Bench::new(EngineConfig { total_blocks: 9, ..next_process() });
    take_back(&mut other, &left);
    assert_eq!(probe(&mut other, &prompts[3]), 16, "the next to last to be used");
    let mut other = Bench::new(EngineConfig { total_blocks: 9, ..next_process() });
    take_back(&mut other, &left);
    assert_eq!(probe(&mut other, &prompts[1]), 0);
}

#[test]
fn tenants_salts_and_adapters_stay_apart() {
    let of = |(tenant, salt, adapter)| Request {
        tenant: TenantId(tenant),
        cache_salt: salt,
        adapter: AdapterId(adapter),
        ..request(prompt(1, 17), 1)
    };
    let mut before = Bench::new(small());
    let scopes = [(1, 0, 0), (2, 7, 0), (1, 0, 3)];
    for scope in scopes {
        before.submit(of(scope));
    }
    before.run();
    let left = leave(&mut before);
    assert_eq!(left.0.len(), 12);
    for scope in [(1, 0, 0), (2, 7, 0), (1, 0, 3), (2, 0, 0), (1, 7, 0), (0, 0, 0), (1, 0, 1), (2, 7, 3)] {
        let mut after = Bench::new(next_process());
        take_back(&mut after, &left);
        let id = after.submit(of(scope));
        after.run();
        let cached = if scopes.contains(&scope) { 16 } else { 0 };
        assert_eq!(started(&after, id).1, cached, "tenant, salt and adapter: {scope:?}");
    }
}

/// A policy that retains four blocks for half a second.
fn retain() -> Policies {
    scripted(|ask| {
        Ok(match ask {
            Ask::Retain(_) => Say::Retain(Retention { keep_tokens: 16, ttl: Micros(500_000) }),
            _ => Say::Default,
        })
    })
}

#[test]
fn a_retention_goes_on_where_it_stopped() {
    let mut before = Bench::with(small(), retain());
    before.submit(request(prompt(1, 17), 1));
    before.run();
    // No step, so the engine was told of no time since then.
    before.now = before.now.plus(Micros(200_000));
    let mut left = leave(&mut before);
    assert_eq!(left.0.len(), 4);
    let mut after = Bench::with(next_process(), retain());
    take_back(&mut after, &left);
    let end = after.engine.next_wake().expect("the retention ends");
    let more = end.since(after.now);
    assert!(more.0 > 290_000 && more.0 <= 300_000, "{more:?}");
    after.now = end;
    after.step();
    assert_eq!(after.engine.snapshot(after.now).memory.cached, 0);

    // Time that passed between the two counts, and what follows a forgotten block goes with it.
    left.0[1].unused = Micros(500_000);
    let mut after = Bench::with(next_process(), retain());
    let places = take_back(&mut after, &left);
    assert_eq!(places.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false, false]);
}

#[test]
fn restarts_do_not_renew_a_retention() {
    let mut bench = Bench::with(small(), retain());
    bench.submit(request(prompt(1, 17), 1));
    bench.run();
    bench.now = bench.now.plus(Micros(100_000));
    bench.step();
    let mut left = leave(&mut bench);
    let first = left.0[0].unused;
    for restart in 1..4 {
        let mut bench = Bench::with(EngineConfig { hash_key: [restart, 7], ..small() }, retain());
        take_back(&mut bench, &left);
        bench.now = bench.now.plus(Micros(100_000));
        bench.step();
        left = leave(&mut bench);
        let expected = first.plus(Micros(100_000 * restart));
        assert!(left.0.iter().all(|block| block.unused == expected), "restart {restart}: {:?}", left.0);
        assert_eq!(left.0.len(), 4);
    }
    let mut bench = Bench::with(next_process(), retain());
    take_back(&mut bench, &left);
    let end = bench.engine.next_wake().expect("the retention ends");
    assert!(end.since(bench.now).0 <= 100_000, "{end:?}");
}

#[test]
fn the_policy_is_told_of_every_block_over_several_steps() {
    let config = EngineConfig { total_blocks: 6_000, max_seq_len: 20_000, ..small() };
    let mut before = Bench::new(config.clone());
    before.submit(request((0..18_001).map(|at| at % VOCAB * 7 % VOCAB).collect::<Vec<_>>(), 1));
    before.run();
    let left = leave(&mut before);
    assert_eq!(left.0.len(), 4_500);

    let mirror = Arc::new(Mutex::new(Mirror::default()));
    let seen = Arc::clone(&mirror);
    let policies = scripted(move |ask| {
        if let Ask::Observe(events) = ask {
            seen.lock().unwrap().absorb(events);
        }
        Ok(Say::Default)
    });
    let mut after = Bench::with(EngineConfig { hash_key: [5, 6], ..config }, policies);
    take_back(&mut after, &left);
    after.submit(request(prompt(1, 4), 8));
    after.run();
    assert_eq!(after.faults(), []);
    let cached = after.engine.snapshot(after.now).memory.cached;
    assert!(cached > 4_500);
    assert_eq!(mirror.lock().unwrap().idle.len() as u32, cached);
}

#[test]
fn nonsense_is_not_restored() {
    let block = |parent, tokens: &[u32]| CachedBlock {
        id: BlockId(0),
        parent,
        tokens: tokens.into(),
        tenant: TenantId(0),
        salt: 0,
        adapter: AdapterId::NONE,
        ttl: None,
        unused: Micros::ZERO,
    };
    let list = [
        block(None, &[1, 2, 3, 4]),
        block(None, &[1, 2, 3, 4]),
        block(Some(1), &[5, 6, 7, 8]),
        block(Some(7), &[5, 6, 7, 8]),
        block(Some(4), &[5, 6, 7, 8]),
        block(None, &[1, 2, 3]),
        block(Some(0), &[5, 6, 7, 8]),
    ];
    let mut bench = Bench::new(small());
    let places = bench.engine.restore_cache(&list, bench.now);
    bench.engine.check_invariants();
    let taken: Vec<_> = places.iter().map(Option::is_some).collect();
    assert_eq!(taken, [true, false, false, false, false, false, true]);

    let off = EngineConfig { prefix_caching: false, ..small() };
    assert_eq!(Bench::new(off).engine.restore_cache(&list, Micros(1)), [None; 7]);
}

/// Whatever the pool held, and however large the next one is, every stream has the tokens that it has alone.
#[test]
fn streams_are_the_same_after_any_restart() {
    for seed in 0..60 {
        let mut rng = SplitMix(seed);
        let blocks = [40, 24, 64, 33];
        let mut left: Left = (Vec::new(), Vec::new());
        for (life, total_blocks) in blocks.into_iter().enumerate() {
            let config = EngineConfig { total_blocks, hash_key: [seed, life as u64], ..small() };
            let scheduler = Box::new(RandomScheduler { rng: SplitMix(rng.below(1 << 40)), evil: 0 });
            let mut bench = Bench::with(config, Policies { scheduler, ..Policies::builtin() });
            take_back(&mut bench, &left);
            let mut asked = Vec::new();
            for _ in 0..rng.between(3, 12) {
                let tenant = TenantId(rng.below(2) as u32);
                let turns = rng.below(3) as u32;
                let prompt = (0..=turns).flat_map(|turn| prompt(turn + rng.below(2) as u32, 9)).collect();
                let request =
                    Request { tenant, ..of_session(rng.below(3), prompt, rng.between(1, 6) as u32) };
                asked.push((bench.submit(request.clone()), request));
                for _ in 0..rng.below(4) {
                    bench.step();
                }
            }
            if rng.chance(50) {
                bench.run();
                for (id, request) in &asked {
                    assert_eq!(bench.tokens(*id), solo(request, VOCAB), "seed {seed}, life {life}");
                }
            }
            left = leave(&mut bench);
        }
    }
}
