//! What is found in the cache: hits, their classification, and waiting for a prefix that is being computed.

mod common;

use std::sync::{Arc, Mutex};

use common::scripted::{Ask, Bench, Say, VOCAB, fcfs, of_session, prompt, request, scripted, small, started};
use infer_core::config::Limits;
use infer_core::testing::solo;
use infer_core::{EngineConfig, Event, FinishReason, PrefixEvent, Request, TenantId};

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
fn tenants_and_salts_share_nothing() {
    let mut bench = Bench::new(small());
    for (tenant, salt) in [(0, 0), (1, 0), (0, 5), (1, 5)] {
        let request = Request { tenant: TenantId(tenant), cache_salt: salt, ..request(prompt(1, 13), 2) };
        let id = bench.submit(request);
        bench.run();
        assert_eq!(started(&bench, id).0, PrefixEvent::MissFull, "tenant {tenant}, salt {salt}");
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
fn requests_that_arrive_together_see_what_is_being_computed() {
    let shared = prompt(1, 16);
    let with = |seed| shared.iter().copied().chain(prompt(seed, 6)).collect::<Vec<_>>();
    let views = Arc::new(Mutex::new(Vec::new()));
    let seen = views.clone();
    // Starts one at a time, and none that waits for a prefix being computed.
    let mut bench = Bench::scheduled(small(), move |step| {
        let rows = &step.waiting;
        seen.lock().unwrap().push((rows.computed_tokens.clone(), rows.pending_tokens.clone()));
        let mut plan = fcfs(step);
        let keep: Vec<bool> =
            plan.run
                .iter()
                .map(|id| {
                    rows.id.iter().position(|i| *i == id.0).is_none_or(|at| {
                        rows.pending_tokens[at] == 0 && (at == 0 || !step.running.is_empty())
                    })
                })
                .collect();
        let mut kept = keep.iter();
        plan.run.retain(|_| *kept.next().unwrap());
        let mut kept = keep.iter();
        plan.tokens.retain(|_| *kept.next().unwrap());
        Ok(plan)
    });
    let first = bench.submit(request(with(2), 4));
    let second = bench.submit(request(with(3), 4));
    let same = bench.submit(request(with(2), 4));
    bench.run();
    let views = views.lock().unwrap();
    assert_eq!(views[0], (vec![0, 0, 0], vec![0, 0, 0]));
    assert_eq!(
        views[1],
        (vec![16, 16], vec![0, 22]),
        "one block of sixteen is there, the whole prompt will be"
    );
    assert_eq!(started(&bench, first), (PrefixEvent::MissFull, 0, 22));
    assert_eq!(started(&bench, second), (PrefixEvent::CrossRequestHit, 16, 6));
    assert_eq!(started(&bench, same), (PrefixEvent::FullHitNoPrefillNeeded, 22, 0));
}

#[test]
fn the_view_shows_what_starting_takes_and_preempting_frees() {
    let views = Arc::new(Mutex::new(Vec::new()));
    let seen = views.clone();
    let mut bench = Bench::scheduled(small(), move |step| {
        let (r, w) = (&step.running, &step.waiting);
        seen.lock().unwrap().push((r.blocks.clone(), r.freeable_blocks.clone(), w.idle_blocks.clone()));
        Ok(fcfs(step))
    });
    bench.submit(request(prompt(1, 13), 3));
    bench.run();
    views.lock().unwrap().clear();
    let longer: Vec<u32> = prompt(1, 12).into_iter().chain(prompt(2, 3)).collect();
    bench.submit(request(longer.clone(), 8));
    bench.step();
    let other: Vec<u32> = longer[..12].iter().copied().chain(prompt(3, 3)).collect();
    bench.submit(request(other, 8));
    bench.step();
    bench.step();
    let views = views.lock().unwrap();
    assert_eq!(views[0], (vec![], vec![], vec![3]), "three cached blocks without users");
    assert_eq!(views[1], (vec![4], vec![4], vec![0]), "now they have one");
    assert_eq!(views[2], (vec![4, 4], vec![1, 1], vec![]), "three are shared");
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

#[test]
fn a_turn_that_leaves_nothing_keeps_the_earlier_note() {
    let mut bench = Bench::new(small());
    bench.submit(of_session(7, prompt(1, 9), 1));
    bench.run();
    let broken_off = bench.submit(of_session(7, prompt(2, 9), 1));
    bench.step_with(|engine, now| assert!(engine.finish(broken_off, FinishReason::Cancelled, now)));
    let next = bench.submit(of_session(7, prompt(1, 9).into_iter().chain([5; 6]).collect(), 1));
    bench.run();
    assert_eq!(started(&bench, next).0, PrefixEvent::ConversationalHit);
}

#[test]
fn policies_are_told_whether_a_hit_continues_its_session() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    let mut bench = Bench::with(
        small(),
        scripted(move |ask| {
            if let Ask::Reuse(hit) = ask {
                told.lock().unwrap().push((hit.session.0, hit.same_session));
            }
            Ok(Say::Default)
        }),
    );
    let first = prompt(1, 9);
    let longer = || first.iter().copied().chain([5; 6]).collect();
    for (session, prompt) in [(7, first.clone()), (8, longer()), (0, longer()), (7, longer())] {
        bench.submit(of_session(session, prompt, 1));
        bench.run();
    }
    assert_eq!(*seen.lock().unwrap(), [(8, false), (0, false), (7, true)]);
}
