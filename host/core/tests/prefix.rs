//! What is found in the cache, what that is called, who waits for it, and what is kept.

mod common;

use std::sync::{Arc, Mutex};

use common::scripted::{Ask, Bench, PrefixCache, Say, Scheduler, VOCAB, fcfs, prompt, request, small};
use common::{Mirror, RandomPrefixCache};
use infer_core::config::Limits;
use infer_core::engine::Policies;
use infer_core::policy::{
    AnyPolicy, CacheEventKind, CacheEvents, Ended, FaultKind, Hit, Memory, Plan, Policy, PolicyFault,
    PolicyInfo, PolicyKind, PrefixCachePolicy, Retention, StepView,
};
use infer_core::testing::solo;
use infer_core::trial::ShadowState;
use infer_core::{
    BlockId, EngineConfig, Event, FinishReason, Micros, PrefixEvent, Request, SequenceId, SessionId, TenantId,
};

fn started(bench: &Bench, of: SequenceId) -> (PrefixEvent, u32, u32) {
    let found = bench.events.iter().find_map(|e| match e {
        Event::Started { id, prefix, cached_tokens, prefill_tokens } if *id == of => {
            Some((*prefix, *cached_tokens, *prefill_tokens))
        }
        _ => None,
    });
    found.expect("it started")
}

fn of_session(session: u64, prompt: Vec<u32>, output: u32) -> Request {
    Request { session: SessionId(session), ..request(prompt, output) }
}

fn scripted(
    answer: impl FnMut(Ask<'_>) -> Result<Say, infer_core::policy::PolicyFault> + Send + 'static,
) -> Policies {
    Policies { prefix_cache: Box::new(PrefixCache(answer)), ..Policies::builtin() }
}

#[test]
fn each_start_is_classified_once_by_what_it_found() {
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
fn the_prompt_cache_is_bounded_and_forgets_what_was_not_used() {
    let config = EngineConfig { prompt_cache_entries: 2, prompt_cache_ttl: Micros(1_000_000), ..small() };
    let ask = |bench: &mut Bench, seed| {
        let id = bench.submit(request(prompt(seed, 9), 1));
        bench.run();
        started(bench, id).0 == PrefixEvent::FullHitNoPrefillNeeded
    };
    let mut bench = Bench::new(config);
    assert!(!ask(&mut bench, 1));
    assert!(!ask(&mut bench, 2));
    assert!(ask(&mut bench, 1), "used, so younger than the other");
    assert!(!ask(&mut bench, 3), "takes the place of the oldest");
    assert!(ask(&mut bench, 1));
    assert!(!ask(&mut bench, 2));
    bench.now.0 += 900_000;
    assert!(ask(&mut bench, 1));
    bench.now.0 += 900_000;
    assert!(ask(&mut bench, 1), "the time counts from the last use");
    bench.now.0 += 1_000_001;
    assert!(!ask(&mut bench, 1));
}

#[test]
fn requests_that_arrive_together_see_what_is_being_computed() {
    let shared = prompt(1, 16);
    let with = |seed| shared.iter().copied().chain(prompt(seed, 6)).collect::<Vec<_>>();
    let views = Arc::new(Mutex::new(Vec::new()));
    let seen = views.clone();
    // Starts one at a time, and nobody for whom something is being computed.
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
fn what_is_cached_is_evicted_as_the_policy_says_and_the_rest_by_age() {
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
        "the policy was told everything"
    );
}

#[test]
fn naming_a_block_in_use_is_a_fault_and_costs_nothing() {
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
fn blocks_in_the_view_say_what_starting_takes_and_preempting_gives() {
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
    assert_eq!(views[0], (vec![], vec![], vec![3]), "three cached blocks that nobody uses");
    assert_eq!(views[1], (vec![4], vec![4], vec![0]), "now somebody does");
    assert_eq!(views[2], (vec![4, 4], vec![1, 1], vec![]), "three are shared");
}

#[test]
fn a_new_prefix_cache_policy_is_told_everything_however_it_is_brought_in() {
    for primed in [false, true] {
        let mut bench = Bench::new(EngineConfig { prompt_cache_entries: 2, total_blocks: 20, ..small() });
        for seed in 1..4 {
            bench.submit(request(prompt(seed, 9), 3));
            bench.run();
        }
        let policy = RandomPrefixCache::new(1, 0);
        let mirror = policy.mirror.clone();
        if primed {
            mirror.lock().unwrap().absorb(&bench.engine.begin_priming());
            for seed in 3..6 {
                bench.submit(request(prompt(seed, 9), 3));
                bench.run();
            }
        }
        bench.engine.swap(AnyPolicy::PrefixCache(Box::new(policy)), bench.now);
        let known = |mirror: &Mutex<Mirror>| mirror.lock().unwrap().idle.len() as u32;
        assert_eq!(known(&mirror), bench.engine.snapshot(bench.now).memory.cached, "primed: {primed}");
        // The previous one goes on hearing what happens, and comes back knowing it.
        bench.engine.swap(AnyPolicy::PrefixCache(Policies::builtin().prefix_cache), bench.now);
        for seed in 6..9 {
            bench.submit(request(prompt(seed, 9), 3));
            bench.run();
        }
        bench.engine.rollback(infer_core::policy::PolicyKind::PrefixCache, bench.now).expect("there is one");
        bench.step();
        assert_eq!(known(&mirror), bench.engine.snapshot(bench.now).memory.cached, "primed: {primed}");
        assert_eq!(bench.faults(), []);
    }
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
fn events_of_kinds_a_policy_knows_are_all_there_is() {
    let kinds = Arc::new(Mutex::new(std::collections::BTreeSet::new()));
    let seen = kinds.clone();
    let policies = scripted(move |ask| {
        if let Ask::Observe(events) = ask {
            seen.lock().unwrap().extend(events.kind.iter().copied());
            let lens = [events.block.len(), events.parent.len(), events.depth.len(), events.tenant.len()];
            assert!(lens.iter().all(|&l| l == events.len()) && events.session.len() == events.len());
            assert!(events.at.is_sorted());
        }
        Ok(Say::Default)
    });
    let mut bench = Bench::with(EngineConfig { total_blocks: 10, ..small() }, policies);
    for seed in [1, 1, 2, 3, 4] {
        bench.submit(request(prompt(seed, 13), 3));
        bench.run();
    }
    let all = [CacheEventKind::Stored, CacheEventKind::Reused, CacheEventKind::Idle, CacheEventKind::Dropped];
    assert_eq!(kinds.lock().unwrap().iter().copied().collect::<Vec<_>>(), all.map(|k| k as u8));
}

#[test]
fn a_policy_that_drops_in_observe_is_told_so_before_it_is_asked_to_evict() {
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
fn a_policy_that_comes_back_in_the_middle_of_a_swap_misses_nothing() {
    let first = RandomPrefixCache::new(1, 0);
    let mirror = first.mirror.clone();
    let policies = Policies { prefix_cache: Box::new(first), ..Policies::builtin() };
    let mut bench = Bench::with(EngineConfig { max_strikes: 1, ..small() }, policies);
    let fails = Arc::new(Mutex::new(false));
    let broken = fails.clone();
    let second = PrefixCache(move |ask: Ask<'_>| match ask {
        Ask::Observe(_) if *broken.lock().unwrap() => Err(common::scripted::trap()),
        _ => Ok(Say::Default),
    });
    bench.engine.swap(AnyPolicy::PrefixCache(Box::new(second)), bench.now);
    let id = bench.submit(request(prompt(1, 13), 9));
    bench.step();
    bench.step();
    *fails.lock().unwrap() = true;
    // Its end is told in the swap's own flush: the second policy fails, the first comes back and leaves.
    bench.engine.finish(id, FinishReason::Cancelled, bench.now);
    bench.engine.swap(AnyPolicy::PrefixCache(Policies::builtin().prefix_cache), bench.now);
    bench
        .engine
        .rollback(infer_core::policy::PolicyKind::PrefixCache, bench.now)
        .expect("the first is there");
    bench.step();
    let cached = bench.engine.snapshot(bench.now).memory.cached;
    assert_eq!((mirror.lock().unwrap().idle.len() as u32, cached), (cached, 4));
}

#[test]
fn what_hundreds_of_waiting_ones_would_find_may_vanish_at_once() {
    // Everybody waits for one place with the same prompt, cached as a whole; then a long sequence
    // needs the memory. Plans made from the view stay right.
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

/// Three long prompts' blocks, of one token each.
fn large_cache(policies: Policies) -> Bench {
    let config =
        EngineConfig { block_size: 1, total_blocks: 20_000, max_seq_len: 5_000, ..EngineConfig::default() };
    let mut bench = Bench::with(config, policies);
    for seed in 1..=3 {
        bench.submit(request(prompt(seed, 4_000), 1));
    }
    bench.run();
    bench
}

/// A policy without a past that is told of a large pool in one step would hold everybody up.
#[test]
fn a_large_cache_is_told_in_pieces_a_step_each() {
    for restarted in [false, true] {
        let told = Arc::new(Mutex::new(Vec::new()));
        let (seen, fails) = (told.clone(), Arc::new(Mutex::new(false)));
        let (broken, mut afresh) = (fails.clone(), !restarted);
        let policy = PrefixCache(move |ask: Ask<'_>| match ask {
            _ if std::mem::take(&mut *broken.lock().unwrap()) => {
                afresh = true;
                Err(common::scripted::trap())
            }
            Ask::Observe(events) => {
                seen.lock().unwrap().push(events.len());
                // Before it has heard all, what it names may be wrong through no fault of its own.
                let names = if afresh && events.len() == 2_048 { vec![BlockId(19_999)] } else { Vec::new() };
                Ok(Say::Drop(names))
            }
            _ => Ok(Say::Default),
        });
        let mut bench = match restarted {
            true => large_cache(Policies { prefix_cache: Box::new(policy), ..Policies::builtin() }),
            false => {
                let mut bench = large_cache(Policies::builtin());
                bench.engine.swap(AnyPolicy::PrefixCache(Box::new(policy)), bench.now);
                bench
            }
        };
        if restarted {
            told.lock().unwrap().clear();
            *fails.lock().unwrap() = true;
            bench.submit(request(prompt(1, 2), 1));
        }
        let cached = bench.engine.snapshot(bench.now).memory.cached as usize;
        assert!(cached >= 12_000);
        let sum = |told: &Vec<usize>| told.iter().sum::<usize>();
        while sum(&told.lock().unwrap()) < cached {
            let before = told.lock().unwrap().len();
            bench.step();
            let told = told.lock().unwrap();
            assert!(told.len() > before, "{} of {cached}", sum(&told));
            assert!(told.len() <= before + 3 && told.iter().all(|&rows| rows <= 2_048), "{told:?}");
            assert!(bench.engine.next_wake().is_some() || sum(&told) >= cached, "it goes on by itself");
        }
        assert_eq!(bench.faults().len(), usize::from(restarted), "{:?}", bench.faults());
    }
}

#[test]
fn no_answer_names_more_blocks_than_the_pool_has() {
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
fn a_previous_policy_that_fails_stays_the_way_back() {
    let mirror = Arc::new(Mutex::new(Mirror::default()));
    let (known, fails) = (mirror.clone(), Arc::new(Mutex::new(false)));
    let broken = fails.clone();
    let policies = scripted(move |ask| match ask {
        Ask::Observe(_) if std::mem::take(&mut *broken.lock().unwrap()) => {
            *known.lock().unwrap() = Mirror::default();
            Err(common::scripted::trap())
        }
        Ask::Observe(events) => {
            known.lock().unwrap().absorb(events);
            Ok(Say::Default)
        }
        _ => Ok(Say::Default),
    });
    let mut bench = Bench::with(small(), policies);
    bench.engine.swap(AnyPolicy::PrefixCache(Policies::builtin().prefix_cache), bench.now);
    *fails.lock().unwrap() = true;
    for turn in 0..400 {
        bench.submit(request(prompt(turn % 40, 40), 1));
        bench.run();
    }
    assert!(!*fails.lock().unwrap(), "it was told, and failed");
    assert_eq!(bench.faults(), [], "it isn't in force");
    bench.engine.rollback(PolicyKind::PrefixCache, bench.now).expect("it is still there");
    bench.step();
    let cached = bench.engine.snapshot(bench.now).memory.cached;
    assert_eq!(mirror.lock().unwrap().idle.len() as u32, cached, "it began afresh");
    assert_eq!(bench.faults(), []);
}

#[test]
fn nobody_waits_for_a_prompt_whose_logits_found_no_place() {
    let views = Arc::new(Mutex::new(Vec::new()));
    let seen = views.clone();
    let mut bench = Bench::scheduled(EngineConfig { prompt_cache_entries: 1, ..small() }, move |step| {
        let rows = &step.waiting;
        let row = |at| (rows.id[at], rows.computed_tokens[at], rows.pending_tokens[at]);
        seen.lock().unwrap().extend((0..rows.len()).map(row));
        Ok(fcfs(step))
    });
    bench.submit(request(prompt(1, 8), 20));
    bench.submit(request(prompt(2, 8), 20));
    bench.step();
    views.lock().unwrap().clear();
    for seed in [1, 2] {
        bench.submit(request(prompt(seed, 8), 1));
    }
    bench.step();
    assert_eq!(*views.lock().unwrap(), [(3, 8, 0), (4, 4, 0)]);
}

#[test]
fn who_is_cut_for_anothers_sake_still_finds_its_whole_prompt() {
    let mut tried = false;
    let scheduler = common::scripted::Scheduler("greedy", move |step: &infer_core::policy::StepView| {
        let rows = &step.waiting;
        if rows.len() < 2 {
            return Ok(fcfs(step));
        }
        let mut plan = infer_core::policy::Plan::default();
        let rows = [(&step.running, 0..step.running.len()), (rows, usize::from(tried)..2)];
        tried = true;
        for (rows, range) in rows {
            for at in range {
                let all = rows.prompt_tokens[at] + rows.generated_tokens[at];
                plan.run.push(infer_core::SequenceId(rows.id[at]));
                plan.tokens.push(all - rows.computed_tokens[at]);
            }
        }
        Ok(plan)
    });
    let policies = Policies { scheduler: Box::new(scheduler), ..Policies::builtin() };
    let mut bench = Bench::with(EngineConfig { total_blocks: 8, ..small() }, policies);
    bench.submit(request(prompt(1, 8), 1));
    bench.run();
    bench.submit(request(prompt(2, 16), 8));
    bench.step();
    let large = bench.submit(request(prompt(3, 14), 1));
    let whole = bench.submit(request(prompt(1, 8), 1));
    bench.step();
    assert_eq!(bench.engine.snapshot(bench.now).counters.cut_rows, 2, "{large:?} needs more than there is");
    bench.run();
    assert_eq!(started(&bench, whole), (PrefixEvent::FullHitNoPrefillNeeded, 8, 0));
    assert_eq!(bench.faults(), []);
}

#[test]
fn what_a_sequence_held_is_reported_also_where_all_of_it_was_cached() {
    let mut bench = Bench::new(small());
    for _ in 0..2 {
        bench.submit(request(prompt(1, 8), 1));
        bench.run();
    }
    let peaks = bench.events.iter().filter_map(|event| match event {
        Event::Finished { usage, .. } => Some((usage.cached_tokens, usage.peak_blocks)),
        _ => None,
    });
    assert_eq!(peaks.collect::<Vec<_>>(), [(0, 2), (8, 2)]);
}

#[test]
fn a_turn_that_leaves_nothing_leaves_what_was_there() {
    let mut bench = Bench::new(small());
    bench.submit(of_session(7, prompt(1, 9), 1));
    bench.run();
    let broken_off = bench.submit(of_session(7, prompt(2, 9), 1));
    bench.step_with(|engine, now| assert!(engine.finish(broken_off, FinishReason::Cancelled, now)));
    let next = bench.submit(of_session(7, prompt(1, 9).into_iter().chain([5; 6]).collect(), 1));
    bench.run();
    assert_eq!(started(&bench, next).0, PrefixEvent::ConversationalHit);
}

/// A cache that hears, and takes its time over hits.
struct SlowCache(RandomPrefixCache, Micros);

impl Policy for SlowCache {
    fn info(&self) -> Arc<PolicyInfo> {
        common::info("slow-cache")
    }

    fn spent(&self) -> Micros {
        self.1
    }
}

impl PrefixCachePolicy for SlowCache {
    fn reuse(&mut self, hit: &Hit) -> Result<u32, PolicyFault> {
        self.1 = self.1.plus(Micros(60_000));
        self.0.reuse(hit)
    }

    fn retain(&mut self, ended: &Ended) -> Result<Retention, PolicyFault> {
        self.0.retain(ended)
    }

    fn observe(&mut self, events: &CacheEvents) -> Result<Vec<BlockId>, PolicyFault> {
        self.0.observe(events)
    }

    fn evict(&mut self, now: Micros, need: u32) -> Result<Vec<BlockId>, PolicyFault> {
        self.0.evict(now, need)
    }
}

#[test]
fn what_happens_while_a_policy_rests_is_told_in_the_next_step() {
    let cache = RandomPrefixCache::new(1, 0);
    let mirror = cache.mirror.clone();
    let policies = Policies { prefix_cache: Box::new(SlowCache(cache, Micros::ZERO)), ..Policies::builtin() };
    let mut bench = Bench::with(EngineConfig { max_strikes: 99, total_blocks: 20, ..small() }, policies);
    for turn in 0..30 {
        for seed in 0..4 {
            bench.submit(request(prompt((turn + seed) % 5, 9 + seed), 2));
        }
        bench.run();
    }
    assert!(bench.faults().len() > 5 && bench.faults().iter().all(|kind| *kind == FaultKind::StepBudget));
    bench.step();
    let cached = bench.engine.snapshot(bench.now).memory.cached;
    assert_eq!(mirror.lock().unwrap().idle.len() as u32, cached);
}

#[test]
fn a_shadow_does_not_answer_for_what_it_is_told_later_because_the_live_one_rests() {
    let mut mirror = Mirror::default();
    let shadow = PrefixCache(move |ask: Ask<'_>| {
        Ok(match ask {
            Ask::Observe(events) => {
                mirror.absorb(events);
                Say::Default
            }
            Ask::Evict(_) => Say::Drop(mirror.idle.iter().copied().map(BlockId).collect()),
            _ => Say::Default,
        })
    });
    // Who runs, a chunk each; everybody where nobody is named.
    let only = Arc::new(Mutex::new(Vec::new()));
    let named = only.clone();
    let scheduler = Scheduler("by name", move |step: &StepView| {
        let run: Vec<SequenceId> = named.lock().unwrap().clone();
        let tokens = vec![16; run.len()];
        Ok(if run.is_empty() { fcfs(step) } else { Plan { run, tokens, ..Plan::default() } })
    });
    let live = SlowCache(RandomPrefixCache::new(1, 0), Micros::ZERO);
    let policies =
        Policies { scheduler: Box::new(scheduler), prefix_cache: Box::new(live), ..Policies::builtin() };
    let mut bench = Bench::with(EngineConfig { max_strikes: 99, total_blocks: 24, ..small() }, policies);
    bench.engine.shadow(AnyPolicy::PrefixCache(Box::new(shadow)), bench.now);
    for (seed, len) in [(1, 13), (2, 41)] {
        bench.submit(request(prompt(seed, len), 3));
        bench.run();
    }
    // While the first computes, two that share its prompt find more at each step, which takes the time of a step. In
    // that step another one takes what was idle, and needs more than is free.
    let [computes, ..] = [(); 3].map(|()| bench.submit(request(prompt(3, 48), 2)));
    let takes = bench.submit(request([prompt(1, 12), prompt(4, 20)].concat(), 2));
    *only.lock().unwrap() = vec![computes];
    bench.step();
    let evicted = bench.engine.snapshot(bench.now).counters.evicted_blocks;
    assert_eq!((bench.faults(), evicted), (vec![], 0));
    *only.lock().unwrap() = vec![computes, takes];
    bench.step();
    let evicted = bench.engine.snapshot(bench.now).counters.evicted_blocks;
    assert_eq!((bench.faults(), evicted > 0), (vec![FaultKind::StepBudget], true));
    only.lock().unwrap().clear();
    bench.run();
    let shadow = bench.engine.snapshot(bench.now).policies[2].shadow.clone().expect("there was one");
    assert_eq!((shadow.state, &*shadow.reason), (ShadowState::Watching, ""));
}

#[test]
fn what_a_policy_named_before_it_heard_of_the_block_again_is_not_its_last_word() {
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

/// A cache that ends when it is given a state, as an instance does that traps.
struct Fragile(RandomPrefixCache, bool);

impl Fragile {
    fn alive(&mut self) -> Result<&mut RandomPrefixCache, PolicyFault> {
        if self.1 { Err(common::scripted::trap()) } else { Ok(&mut self.0) }
    }
}

impl Policy for Fragile {
    fn info(&self) -> Arc<PolicyInfo> {
        common::info("fragile")
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        self.alive().map(|_| vec![1])
    }

    fn import_state(&mut self, _state: &[u8]) -> Result<(), PolicyFault> {
        self.1 = true;
        self.alive().map(|_| ())
    }

    fn restart(&mut self) -> Result<(), PolicyFault> {
        self.1 = false;
        self.0.restart()
    }
}

impl PrefixCachePolicy for Fragile {
    fn reuse(&mut self, hit: &Hit) -> Result<u32, PolicyFault> {
        self.alive()?.reuse(hit)
    }

    fn retain(&mut self, ended: &Ended) -> Result<Retention, PolicyFault> {
        self.alive()?.retain(ended)
    }

    fn observe(&mut self, events: &CacheEvents) -> Result<Vec<BlockId>, PolicyFault> {
        self.alive()?.observe(events)
    }

    fn evict(&mut self, now: Micros, need: u32) -> Result<Vec<BlockId>, PolicyFault> {
        self.alive()?.evict(now, need)
    }
}

#[test]
fn a_policy_that_its_state_ends_is_told_everything_anew() {
    for primed in [false, true] {
        for shadow in [false, true] {
            let mut bench = Bench::new(EngineConfig { prompt_cache_entries: 2, total_blocks: 40, ..small() });
            let serve = |bench: &mut Bench, seeds: std::ops::Range<u32>| {
                for seed in seeds {
                    bench.submit(request(prompt(seed, 9), 3));
                    bench.run();
                }
            };
            let fragile = |seed| {
                let cache = RandomPrefixCache::new(seed, 0);
                (cache.mirror.clone(), AnyPolicy::PrefixCache(Box::new(Fragile(cache, false))))
            };
            let knows_all = |bench: &mut Bench, mirror: &Mutex<Mirror>, what: &str| {
                let cached = bench.engine.snapshot(bench.now).memory.cached;
                let known = mirror.lock().unwrap().idle.len() as u32;
                assert!(known == cached && cached > 0, "{what}: {known} of {cached}, {primed} {shadow}");
            };
            let (first, policy) = fragile(1);
            bench.engine.swap(policy, bench.now);
            serve(&mut bench, 1..4);
            let (second, policy) = fragile(2);
            if primed {
                second.lock().unwrap().absorb(&bench.engine.begin_priming());
                serve(&mut bench, 4..6);
            }
            let report = match shadow {
                true => bench.engine.shadow(policy, bench.now),
                false => bench.engine.swap(policy, bench.now),
            };
            assert!(!report.restored);
            knows_all(&mut bench, &second, "who comes");
            serve(&mut bench, 6..8);
            if !shadow {
                bench.engine.rollback(PolicyKind::PrefixCache, bench.now).expect("the first");
                knows_all(&mut bench, &first, "who comes back");
            }
            // The next one is told everything, whatever the one before it was told.
            let third = RandomPrefixCache::new(3, 0);
            let known = third.mirror.clone();
            bench.engine.swap(AnyPolicy::PrefixCache(Box::new(third)), bench.now);
            knows_all(&mut bench, &known, "who comes next");
            assert_eq!(bench.faults(), []);
        }
    }
}
