//! Hits: what is found, who shares it, how it is counted, and what becomes of it while a sequence waits or is
//! preempted.

use std::sync::Arc;

use infer_core::config::Limits;
use infer_core::testing::solo;
use infer_core::{AdapterId, EngineConfig, Event, FinishReason, PrefixEvent, Request, TenantId};

use crate::common::scripted::{Bench, VOCAB, fcfs, of_session, prompt, request, small, started};

#[test]
fn each_start_is_classified_once_by_its_hit() {
    let first = prompt(1, 18);
    let mut bench = Bench::new(small());
    let id = bench.submit(of_session(7, first.clone(), 9));
    bench.run();
    assert_eq!(started(&bench, id), (PrefixEvent::MissFull, 0, 18));
    let history: Vec<u32> = first.iter().copied().chain(bench.tokens(id)).collect();

    let next_turn: Vec<u32> = history.iter().copied().chain(prompt(9, 5)).collect();
    let shared: Vec<u32> = first[..8].iter().copied().chain(prompt(3, 5)).collect();
    for (session, prompt, expected) in [
        // 18 + 9 tokens, of which the last was never computed: six full blocks.
        (7, next_turn, (PrefixEvent::ConversationalHit, 24, 8)),
        (0, shared, (PrefixEvent::CrossRequestHit, 8, 5)),
        (8, first, (PrefixEvent::FullHitNoPrefillNeeded, 18, 0)),
        (7, prompt(5, 9), (PrefixEvent::ConversationalMissUnexpectedPrompt, 0, 9)),
        (0, prompt(6, 9), (PrefixEvent::MissFull, 0, 9)),
    ] {
        let request = of_session(session, prompt, 2);
        let id = bench.submit(request.clone());
        bench.run();
        assert_eq!(started(&bench, id), expected);
        assert_eq!(bench.tokens(id), solo(&request, VOCAB));
    }
    let counters = bench.engine.snapshot(bench.now).counters;
    assert_eq!(counters.prefix_events, [1, 1, 2, 1, 1]);
    assert_eq!(counters.prefix_cached_tokens, [24, 8, 0, 18, 0]);
    assert_eq!(counters.prefix_prefilled_tokens, [8, 5, 27, 0, 9]);
    // Shorter than a block, which nothing can share.
    bench.submit(of_session(0, prompt(7, 3), 2));
    bench.run();
    let counters = bench.engine.snapshot(bench.now).counters;
    assert_eq!((counters.prefix_events[2], counters.prefix_eligible), (3, [1, 1, 2, 1, 1]));
}

#[test]
fn a_tenant_is_served_the_prompt_tokens_that_were_computed_for_it() {
    let mut bench = Bench::new(EngineConfig { prompt_cache_entries: 0, ..small() });
    for _ in 0..2 {
        bench.submit(request(prompt(1, 13), 3));
        bench.run();
    }
    let snapshot = bench.engine.snapshot(bench.now);
    assert_eq!((snapshot.counters.prompt_tokens, snapshot.counters.prefix_hits), (26, 12));
    assert_eq!(snapshot.tenants.iter().map(|tenant| tenant.prompt_tokens).sum::<u64>(), 14);
}

#[test]
fn prompts_are_counted_when_they_start() {
    let mut bench =
        Bench::new(EngineConfig { limits: Limits { max_running: 1, ..small().limits }, ..small() });
    for seed in [1, 2] {
        bench.submit(request(prompt(seed, 9), 4));
    }
    bench.step();
    assert_eq!(bench.engine.snapshot(bench.now).counters.prompt_tokens, 9, "the other one waits");
    bench.run();
    assert_eq!(bench.engine.snapshot(bench.now).counters.prompt_tokens, 18);
}

#[test]
fn tenants_salts_and_adapters_share_nothing() {
    let mut bench = Bench::new(EngineConfig { prompt_cache_entries: 8, ..small() });
    let of = |(tenant, salt, adapter)| Request {
        tenant: TenantId(tenant),
        cache_salt: salt,
        adapter: AdapterId(adapter),
        ..request(prompt(1, 13), 2)
    };
    let scopes = [(0, 0, 0), (1, 0, 0), (0, 5, 0), (1, 5, 0), (0, 0, 1), (0, 0, 2), (1, 5, 1)];
    for (event, cached, computed) in
        [(PrefixEvent::MissFull, 0, 13), (PrefixEvent::FullHitNoPrefillNeeded, 13, 0)]
    {
        for scope in scopes {
            let id = bench.submit(of(scope));
            bench.run();
            assert_eq!(started(&bench, id), (event, cached, computed), "{scope:?}");
            assert_eq!(bench.tokens(id), solo(&of(scope), VOCAB), "{scope:?}");
        }
    }
}

#[test]
fn a_forgotten_adapter_leaves_nothing_and_takes_nothing_of_others() {
    let mut bench = Bench::new(EngineConfig { prompt_cache_entries: 8, ..small() });
    let of = |adapter, seed| Request { adapter: AdapterId(adapter), ..request(prompt(seed, 13), 2) };
    for (adapter, seed) in [(0, 1), (1, 1), (1, 2), (2, 1)] {
        bench.submit(of(adapter, seed));
        bench.run();
    }
    let memory = |bench: &mut Bench| bench.engine.snapshot(bench.now).memory;
    let before = memory(&mut bench);
    let forgotten = bench.engine.forget_adapter(AdapterId(1), bench.now);
    let after = memory(&mut bench);
    assert!(forgotten.cached > 0 && forgotten.offloaded == 0, "{forgotten:?}");
    assert_eq!(
        (after.cached, after.free),
        (before.cached - forgotten.cached, before.free + forgotten.cached)
    );
    assert_eq!(bench.engine.forget_adapter(AdapterId(1), bench.now).cached, 0, "all of it is gone");
    bench.engine.check_invariants();
    for (adapter, seed, cached) in [(0, 1, 13), (2, 1, 13), (1, 1, 0), (1, 2, 0)] {
        let id = bench.submit(of(adapter, seed));
        bench.run();
        assert_eq!(started(&bench, id).1, cached, "adapter {adapter}, prompt {seed}");
        assert_eq!(bench.tokens(id), solo(&of(adapter, seed), VOCAB), "adapter {adapter}, prompt {seed}");
    }
}

#[test]
fn sequences_of_one_batch_of_prompts_with_other_adapters_share_nothing() {
    let mut bench = Bench::new(small());
    let shared: Arc<[u32]> = prompt(1, 13).into();
    let of = |adapter| Request {
        adapter: AdapterId(adapter),
        prompt: Arc::clone(&shared),
        ..request(prompt(1, 13), 2)
    };
    let ids = bench.engine.submit_all(vec![of(0), of(1), of(1)], bench.now).expect("there is room");
    bench.run();
    for (id, adapter) in ids.into_iter().zip([0, 1, 1]) {
        assert_eq!(bench.tokens(id), solo(&of(adapter), VOCAB), "{id:?}");
    }
}

#[test]
fn prefix_caching_can_be_off() {
    let mut bench = Bench::new(EngineConfig { prefix_caching: false, ..small() });
    for _ in 0..2 {
        let id = bench.submit(request(prompt(1, 13), 2));
        bench.run();
        assert_eq!(started(&bench, id), (PrefixEvent::MissFull, 0, 13));
    }
    let memory = bench.engine.snapshot(bench.now).memory;
    assert_eq!((memory.free, memory.cached), (memory.total, 0));
}

#[test]
fn a_preempted_sequence_finds_its_own_blocks_again() {
    let mut at = 0;
    let mut bench = Bench::scheduled(small(), move |step| {
        at += 1;
        let mut plan = fcfs(step);
        if at == 6 {
            plan.preempt = plan.run.drain(..).collect();
            plan.tokens.clear();
        }
        Ok(plan)
    });
    let request = request(prompt(1, 13), 12);
    let id = bench.submit(request.clone());
    bench.run();
    assert_eq!(bench.tokens(id), solo(&request, VOCAB));
    let usage = bench.events.iter().find_map(|e| match e {
        Event::Finished { reason: FinishReason::Length, usage, .. } => Some(*usage),
        _ => None,
    });
    let usage = usage.expect("it ends");
    assert_eq!((usage.preemptions, usage.cached_tokens), (1, 0));
    assert!(usage.prefilled_tokens < 13 + 5, "only what stood in no full block is computed again");
}

#[test]
fn hits_of_hundreds_of_waiting_sequences_may_vanish_at_once() {
    // All wait for one slot with the same prompt, cached as a whole; then a long sequence needs the memory.
    // Plans made from the view stay right.
    for (hold, prompt_cache_entries, output) in [(5, 4, 40), (13, 4, 40), (13, 1, 40), (13, 1, 1)] {
        let config = EngineConfig {
            prompt_cache_entries,
            limits: infer_core::Limits { max_running: 1, ..small().limits },
            total_blocks: 16,
            max_waiting: 600,
            ..small()
        };
        let mut bench = Bench::new(config);
        let shared = prompt(1, 13);
        bench.submit(request(shared.clone(), 1));
        bench.run();
        let long = bench.submit(Request { priority: 1, ..request(prompt(2, 20), output) });
        bench.step();
        let ids: Vec<_> = (0..400).map(|_| bench.submit(request(shared[..hold].to_vec(), 1))).collect();
        bench.run();
        assert_eq!(bench.faults(), [], "prompts of {hold}, {prompt_cache_entries} kept");
        assert_eq!(bench.tokens(long).len(), output as usize);
        let alone = solo(&request(shared[..hold].to_vec(), 1), VOCAB);
        assert!(ids.iter().all(|&id| bench.tokens(id) == alone));
    }
}
