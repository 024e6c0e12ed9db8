//! Turns of sessions: which hits continue a conversation, whatever becomes of the turns before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use infer_core::policy::Retention;
use infer_core::testing::SplitMix;
use infer_core::{EngineConfig, Event, FinishReason, Micros, PrefixEvent};

use crate::common::scripted::{Ask, Bench, Say, fcfs, of_session, prompt, scripted, small, started};

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
