//! What is found in the cache: hits, their classification, and waiting for a prefix that is being computed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use crate::common::scripted::{
    Ask, Bench, Say, VOCAB, fcfs, of_session, prompt, request, scripted, small, started,
};
use infer_core::config::Limits;
use infer_core::policy::Retention;
use infer_core::testing::{SplitMix, solo};
use infer_core::{AdapterId, EngineConfig, Event, FinishReason, Micros, PrefixEvent, Request, TenantId};

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

/// `head` blocks of four tokens that all prompts begin with, then `len` tokens of their own.
fn behind_a_head(head: u32, seed: u32, len: u32) -> Vec<u32> {
    prompt(1, 4 * head).into_iter().chain(prompt(seed, len)).collect()
}

/// Runs a turn. Returns how it started, and its prompt and output, which the next turn continues.
fn play(bench: &mut Bench, session: u64, prompt: Vec<u32>) -> ((PrefixEvent, u32, u32), Vec<u32>) {
    let id = bench.submit(of_session(session, prompt.clone(), 6));
    bench.run();
    let history = prompt.into_iter().chain(bench.tokens(id)).collect();
    (started(bench, id), history)
}

fn and(history: &[u32], seed: u32, len: u32) -> Vec<u32> {
    history.iter().copied().chain(prompt(seed, len)).collect()
}

#[test]
fn sessions_with_a_common_head_are_told_apart() {
    let mut bench = Bench::new(EngineConfig { prompt_cache_entries: 0, ..small() });
    let (event, first) = play(&mut bench, 7, behind_a_head(3, 2, 9));
    assert_eq!(event, (PrefixEvent::MissFull, 0, 21));
    let (event, second) = play(&mut bench, 8, behind_a_head(3, 3, 9));
    assert_eq!(event, (PrefixEvent::CrossRequestHit, 12, 9), "session 7 computed the head");
    // 21 + 6 tokens, of which the last was never computed.
    let (event, third) = play(&mut bench, 8, and(&second, 4, 5));
    assert_eq!(event, (PrefixEvent::ConversationalHit, 24, 8));
    assert_eq!(play(&mut bench, 8, and(&third, 5, 5)).0.0, PrefixEvent::ConversationalHit);
    // A later message differs: what the session computed before it is found.
    assert_eq!(play(&mut bench, 8, and(&second, 6, 5)).0, (PrefixEvent::ConversationalHit, 24, 8));
    // Nothing but the head is as before, or another session's continuation.
    assert_eq!(
        play(&mut bench, 8, behind_a_head(3, 9, 9)).0.0,
        PrefixEvent::ConversationalMissUnexpectedPrompt
    );
    let (event, _) = play(&mut bench, 8, and(&first, 5, 5));
    assert_eq!(event, (PrefixEvent::ConversationalMissUnexpectedPrompt, 24, 8));
    // That is now what the session continues.
    let (event, _) = play(&mut bench, 8, and(&first, 5, 9));
    assert_eq!(event.0, PrefixEvent::ConversationalHit);
    // A prompt that ends in the head finds nothing of its session's, and one in another session neither.
    assert_eq!(play(&mut bench, 8, behind_a_head(2, 9, 2)).0, (PrefixEvent::CrossRequestHit, 8, 2));
    assert_eq!(play(&mut bench, 9, and(&second, 6, 5)).0.0, PrefixEvent::CrossRequestHit);
}

#[test]
fn a_prompt_sent_again_finds_what_its_session_computed() {
    let mut bench = Bench::new(EngineConfig { prompt_cache_entries: 0, ..small() });
    play(&mut bench, 7, behind_a_head(3, 2, 9));
    let again = behind_a_head(3, 3, 9);
    play(&mut bench, 8, again.clone());
    assert_eq!(play(&mut bench, 8, again.clone()).0, (PrefixEvent::ConversationalHit, 20, 1));
    assert_eq!(play(&mut bench, 8, again).0, (PrefixEvent::ConversationalHit, 20, 1));
    // The head and two blocks of it, then another text.
    assert_eq!(play(&mut bench, 8, and(&behind_a_head(3, 3, 8), 9, 5)).0.0, PrefixEvent::ConversationalHit);
}

#[test]
fn each_choice_may_be_continued() {
    use PrefixEvent::{ConversationalHit, CrossRequestHit};
    // Of a prompt without a block behind the head, and of one with a block that the session computes.
    for (len, events) in [(1, [CrossRequestHit, ConversationalHit]), (6, [ConversationalHit; 2])] {
        for continued in 0..3 {
            let mut bench = Bench::new(small());
            play(&mut bench, 7, behind_a_head(3, 2, 1));
            let ask = behind_a_head(3, 2, len);
            let choice = |seed| {
                let mut request = of_session(8, ask.clone(), 9);
                (request.sampling.temperature, request.sampling.seed) = (1.0, seed);
                request
            };
            let ids = bench.engine.submit_all([1, 2, 3].map(choice).to_vec(), bench.now).expect("admitted");
            bench.run();
            let outputs = [0, 1, 2].map(|at| bench.tokens(ids[at]));
            assert!(outputs[0] != outputs[1] && outputs[1] != outputs[2]);
            let history: Vec<u32> = ask.iter().chain(&outputs[continued]).copied().collect();
            let (first, history) = play(&mut bench, 8, and(&history, 9, 5));
            let second = play(&mut bench, 8, and(&history, 9, 5)).0;
            assert_eq!([first.0, second.0], events, "{len} tokens, choice {continued}");
        }
    }
}

#[test]
fn a_preempted_turn_is_known_by_what_it_found_at_first() {
    let mut bench = Bench::scheduled(EngineConfig { prompt_cache_entries: 0, ..small() }, |step| {
        let mut plan = fcfs(step);
        if step.number == 9 {
            plan.preempt = plan.run.drain(..).collect();
            plan.tokens.clear();
        }
        Ok(plan)
    });
    play(&mut bench, 7, behind_a_head(3, 2, 9));
    let (event, history) = play(&mut bench, 8, behind_a_head(3, 3, 9));
    assert_eq!(event, (PrefixEvent::CrossRequestHit, 12, 9));
    assert!(bench.events.iter().any(|e| matches!(e, Event::Preempted { .. })));
    assert_eq!(play(&mut bench, 8, and(&history, 4, 5)).0.0, PrefixEvent::ConversationalHit);
    assert_eq!(
        play(&mut bench, 8, behind_a_head(3, 9, 9)).0.0,
        PrefixEvent::ConversationalMissUnexpectedPrompt
    );
}

/// Turns may overlap: what the first one computed is there for the second before the first is over.
#[test]
fn what_a_turn_computed_is_its_conversations_before_it_is_over() {
    use PrefixEvent::{ConversationalHit, ConversationalMissUnexpectedPrompt, CrossRequestHit};
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    let policies = scripted(move |ask| {
        if let Ask::Reuse(hit) = ask {
            told.lock().unwrap().push(hit.same_session);
        }
        Ok(Say::Default)
    });
    let mut bench = Bench::with(EngineConfig { prompt_cache_entries: 0, ..small() }, policies);
    play(&mut bench, 7, behind_a_head(3, 2, 9));
    let asked = behind_a_head(3, 3, 9);
    let running = bench.submit(of_session(8, asked.clone(), 40));
    bench.step();
    assert_eq!(started(&bench, running), (CrossRequestHit, 12, 9));
    for (session, prompt, expected) in [
        // Another session's, and none's.
        (9, and(&asked, 6, 5), (CrossRequestHit, 20, 6)),
        (0, and(&asked, 7, 5), (CrossRequestHit, 20, 6)),
        // Only the head, which session 7 computed.
        (8, behind_a_head(3, 9, 9), (CrossRequestHit, 12, 9)),
        // That is the last turn that is over now, and this one continues the one that isn't.
        (8, and(&asked, 4, 5), (ConversationalHit, 20, 6)),
        (8, behind_a_head(3, 5, 9), (ConversationalMissUnexpectedPrompt, 12, 9)),
    ] {
        let id = bench.submit(of_session(session, prompt, 1));
        bench.step();
        assert_eq!(started(&bench, id), expected, "session {session}");
    }
    assert!((1..40).contains(&bench.tokens(running).len()), "it still runs");
    assert_eq!(*seen.lock().unwrap(), [false, false, false, false, true, false]);
    bench.run();
}

#[test]
fn a_turn_that_is_cancelled_while_it_is_preempted_leaves_what_it_computed() {
    let mut bench = Bench::scheduled(EngineConfig { prompt_cache_entries: 0, ..small() }, |step| {
        let mut plan = fcfs(step);
        if step.running.generated_tokens.contains(&3) {
            plan.preempt = plan.run.drain(..).collect();
            plan.tokens.clear();
        }
        Ok(plan)
    });
    let asked = prompt(1, 17);
    let id = bench.submit(of_session(7, asked.clone(), 20));
    let preempted = |bench: &Bench| bench.events.iter().any(|e| matches!(e, Event::Preempted { .. }));
    for _ in 0..10 {
        if !preempted(&bench) {
            bench.step();
        }
    }
    assert!(preempted(&bench));
    let next = bench.submit(of_session(7, and(&asked, 2, 5), 1));
    assert!(bench.engine.finish(id, FinishReason::Cancelled, bench.now));
    bench.run();
    assert_eq!(started(&bench, next), (PrefixEvent::ConversationalHit, 16, 6));
    assert_eq!(play(&mut bench, 7, and(&asked, 3, 5)).0.0, PrefixEvent::ConversationalHit);
}

/// What a session computed is gone, and the head that others computed isn't.
#[test]
fn a_head_alone_is_no_conversational_hit() {
    let keep_the_head = scripted(|ask| {
        Ok(match ask {
            Ask::Retain(_) => Say::Retain(Retention { keep_tokens: 12, ttl: Micros::ZERO }),
            _ => Say::Default,
        })
    });
    let mut bench = Bench::with(EngineConfig { prompt_cache_entries: 0, ..small() }, keep_the_head);
    play(&mut bench, 7, behind_a_head(3, 2, 9));
    let (_, history) = play(&mut bench, 8, behind_a_head(3, 3, 9));
    assert_eq!(play(&mut bench, 8, and(&history, 4, 5)).0, (PrefixEvent::CrossRequestHit, 12, 20));
}

/// Turns of random sessions, which continue a turn, often of their own session, at any point. Returns all events.
fn random_turns(seed: u64) -> Vec<PrefixEvent> {
    let mut rng = SplitMix(seed);
    let mut bench = Bench::new(EngineConfig { total_blocks: 40, prompt_cache_entries: 2, ..small() });
    let mut histories = vec![(0, prompt(1, 12))];
    let (mut last, mut computed) = (BTreeMap::new(), BTreeSet::new());
    let mut all = Vec::new();
    for turn in 0..80 {
        let session = rng.between(1, 4);
        let from = rng.below(histories.len() as u64) as usize;
        let own = histories.iter().rposition(|(of, _)| *of == session).filter(|_| rng.chance(60));
        let history = &histories[own.unwrap_or(from)].1;
        let keep = if rng.chance(70) { history.len() } else { rng.below(history.len() as u64 + 1) as usize };
        let more = if rng.chance(20) && keep > 0 { 0 } else { rng.between(1, 12) as u32 };
        let asked = and(&history[..keep.min(80)], turn, more);
        let ((event, cached, _), history) = play(&mut bench, session, asked.clone());
        let found = cached as usize / 4;
        if event == PrefixEvent::ConversationalHit {
            let own = (0..found).any(|at| computed.contains(&(session, asked[..4 * at + 4].to_vec())));
            assert!(
                own,
                "seed {seed}, turn {turn}: {found} blocks, none of them computed by session {session}"
            );
        }
        if event == PrefixEvent::ConversationalMissUnexpectedPrompt {
            let left: &Vec<u32> = &last[&session];
            assert!(!asked.starts_with(left), "seed {seed}, turn {turn}: it continues the last turn");
        }
        // The last token of the output isn't computed.
        let left = (history.len() - 1) / 4;
        computed.extend((found..left).map(|at| (session, history[..4 * at + 4].to_vec())));
        if asked.len() >= 4 {
            last.insert(session, history[..4 * left].to_vec());
        }
        histories.extend([(session, asked), (session, history)]);
        all.push(event);
    }
    all
}

#[test]
fn events_are_true_of_random_turns_and_the_same_each_time() {
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        let events = random_turns(seed);
        assert_eq!(events, random_turns(seed), "seed {seed}");
        seen.extend(events);
    }
    assert_eq!(seen.len(), PrefixEvent::ALL.len(), "{seen:?}");
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
    // Session 8 finds nothing that it computed until it computes a block itself.
    for (session, prompt) in [
        (7, first.clone()),
        (8, first.clone()),
        (0, first.clone()),
        (8, longer()),
        (7, longer()),
        (8, longer()),
    ] {
        bench.submit(of_session(session, prompt, 1));
        bench.run();
    }
    assert_eq!(*seen.lock().unwrap(), [(8, false), (0, false), (8, false), (7, true), (8, true)]);
}
