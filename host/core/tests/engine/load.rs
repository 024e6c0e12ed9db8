//! What admission is shown of a request and of the host's load.

use std::sync::{Arc, Mutex};

use crate::common::scripted::{Admission, Bench, Scheduler, fcfs, prompt, request, small};
use infer_core::engine::Policies;
use infer_core::policy::{AdmissionRequest, Load, Plan, StepView, Verdict};
use infer_core::request::RefusalReason;
use infer_core::{EngineConfig, Event, Refusal, SequenceId};

#[test]
fn promised_blocks_cover_admitted_sequences_at_their_longest() {
    let loads = Arc::new(Mutex::new(Vec::new()));
    let seen = loads.clone();
    let admission = Admission(move |_: &_, load: &Load| {
        let row =
            (load.running, load.admitted, load.waiting_tokens, load.promised_blocks, load.tenant_waiting);
        assert_eq!((load.waiting, load.preempted), (load.admitted, 0), "none is held");
        seen.lock().unwrap().push(row);
        Ok(Verdict::Admit)
    });
    let policies = Policies { admission: Box::new(admission), ..Policies::builtin() };
    let limits = infer_core::Limits { max_running: 1, ..small().limits };
    let mut bench = Bench::with(EngineConfig { limits, ..small() }, policies);
    // Eight tokens and nine to come: the last needs no slot, so four blocks.
    bench.submit(request(prompt(1, 8), 9));
    bench.submit(request(prompt(2, 8), 9));
    bench.step();
    bench.submit(request(prompt(3, 8), 9));
    let expected = [(0, 0, 0, 0, 0), (0, 1, 17, 4, 1), (1, 1, 17, 2 + 4, 1)];
    assert_eq!(*loads.lock().unwrap(), expected);
}

#[test]
fn expected_blocks_lie_between_the_next_tokens_and_the_promised_blocks() {
    let loads = Arc::new(Mutex::new(Vec::new()));
    let seen = loads.clone();
    // Requests for one token only ask.
    let admission = Admission(move |request: &AdmissionRequest, load: &Load| {
        seen.lock().unwrap().push(*load);
        let refusal =
            Refusal { reason: RefusalReason::Other, message: "a probe".to_owned(), retry_after_ms: 0 };
        Ok(if request.max_new_tokens == 1 { Verdict::Refuse(refusal) } else { Verdict::Admit })
    });
    let policies = Policies { admission: Box::new(admission), ..Policies::builtin() };
    let limits = infer_core::Limits { max_running: 1, ..small().limits };
    let mut bench = Bench::with(EngineConfig { limits, ..small() }, policies);
    let probe = |bench: &mut Bench| {
        bench.engine.submit(request(prompt(9, 1), 1), bench.now).unwrap_err();
        loads.lock().unwrap().pop().unwrap()
    };
    // Nothing is known, so the limit is expected: ten tokens in three blocks.
    bench.submit(request(prompt(1, 8), 3));
    let load = probe(&mut bench);
    assert_eq!((load.expected_blocks, load.promised_blocks), (3, 3));
    bench.run();
    // The same is expected of those that come, and up to 37 tokens are promised to each.
    bench.submit(request(prompt(2, 8), 30));
    bench.submit(request(prompt(3, 8), 30));
    let load = probe(&mut bench);
    assert_eq!((load.expected_blocks, load.promised_blocks), (2 * 3, 2 * 10));
    let mut whole = Vec::new();
    for generated in 1..30 {
        bench.step();
        let load = probe(&mut bench);
        assert_eq!((load.running, load.admitted), (1, 1));
        let held = load.memory.total_blocks - load.memory.free_blocks - load.memory.cached_blocks;
        let next = (8 + generated as u32).div_ceil(4).saturating_sub(held) + 2;
        assert!((next..=load.promised_blocks).contains(&load.expected_blocks), "{generated}: {load:?}");
        whole.push(held + load.expected_blocks - 3);
    }
    whole.dedup();
    // Outputs of 3, 6, 12, 24 and 30 tokens. Where much is left of one, the waiting one's 3 blocks are free before its
    // end, and the most is what both hold for the next tokens.
    assert_eq!(whole, [3, 4, 5, 6, 7, 8, 9, 10]);
}

#[test]
fn what_is_expected_of_a_held_request_is_what_is_known_when_it_is_asked_about() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    let admission = Admission(move |request: &AdmissionRequest, load: &Load| {
        let calls = &mut *seen.lock().unwrap();
        calls.push((request.id.0, request.expected_tokens, load.expected_output_tokens));
        Ok(if load.running + load.admitted == 0 { Verdict::Admit } else { Verdict::Wait })
    });
    let policies = Policies { admission: Box::new(admission), ..Policies::builtin() };
    let mut bench = Bench::with(small(), policies);
    bench.submit(request(prompt(1, 4), 3));
    bench.submit(request(prompt(2, 4), 20));
    bench.submit(request(prompt(3, 4), 2));
    bench.run();
    bench.engine.check_invariants();
    let mut calls = asked.lock().unwrap().clone();
    calls.dedup();
    // The second asks for 20 tokens until the first has ended after three.
    assert_eq!(calls.first(), Some(&(1, 3, 0)));
    assert_eq!(calls[1], (2, 20, 3), "the call about a new request doesn't count it");
    let first = |expected| calls.iter().find(|&&(id, tokens, _)| id == 2 && tokens == expected);
    assert_eq!(first(3), Some(&(2, 3, 3 + 2)), "{calls:?}");
    assert!(calls.contains(&(3, 2, 2)), "at most its limit: {calls:?}");
}

#[test]
fn the_load_counts_what_is_known_by_now_of_every_held_request() {
    // More than are renewed in one step.
    const HELD: u64 = 150;
    let shown = Arc::new(Mutex::new(0));
    let seen = shown.clone();
    let admission = Admission(move |request: &AdmissionRequest, load: &Load| {
        *seen.lock().unwrap() = load.expected_output_tokens;
        let refusal =
            || Refusal { reason: RefusalReason::Other, message: "only asks".into(), retry_after_ms: 0 };
        Ok(match request.id.0 {
            1 | 2 => Verdict::Admit,
            3..=152 => Verdict::Wait,
            _ => Verdict::Refuse(refusal()),
        })
    });
    let policies = Policies { admission: Box::new(admission), ..Policies::builtin() };
    let mut bench = Bench::with(EngineConfig { max_waiting: 200, ..small() }, policies);
    bench.submit(request(prompt(1, 4), 2));
    bench.submit(request(prompt(2, 4), 32));
    for seed in 10..10 + HELD as u32 {
        bench.submit(request(prompt(seed, 4), 20));
    }
    let load_of_another = |bench: &mut Bench| {
        assert!(bench.engine.submit(request(prompt(3, 4), 7), bench.now).is_err());
        *shown.lock().unwrap()
    };
    assert_eq!(load_of_another(&mut bench), 2 + 32 + HELD * 20, "nothing is known");
    while !bench.events.iter().any(|event| matches!(event, Event::Finished { .. })) {
        assert!(bench.step());
    }
    // The first ended after two tokens, and the second has as many.
    for (steps, renewed) in [(1, 64), (2, 128), (3, HELD), (4, HELD)] {
        bench.step();
        let left = 32 - 2 - steps;
        assert_eq!(load_of_another(&mut bench), left + renewed * 2 + (HELD - renewed) * 20, "{steps}");
    }
}

#[test]
fn idle_blocks_count_the_unused_part_of_a_hit() {
    let hits = Arc::new(Mutex::new(Vec::new()));
    let seen = hits.clone();
    let admission = Admission(move |request: &AdmissionRequest, _: &_| {
        seen.lock().unwrap().push((request.cached_tokens, request.idle_blocks));
        Ok(Verdict::Admit)
    });
    let policies = Policies { admission: Box::new(admission), ..Policies::builtin() };
    let mut bench = Bench::with(small(), policies);
    bench.submit(request(prompt(1, 18), 2));
    bench.run();
    // Two of its four full blocks are used by a request that shares only the first eight tokens.
    let shared: Vec<u32> = prompt(1, 8).into_iter().chain(prompt(3, 5)).collect();
    bench.submit(request(shared, 9));
    bench.step();
    bench.submit(request(prompt(1, 17), 2));
    bench.submit(request(prompt(1, 18), 2));
    assert_eq!(*hits.lock().unwrap(), [(0, 0), (8, 2), (16, 2), (18, 2)]);
}

#[test]
fn preempted_sequences_are_counted_apart() {
    let loads = Arc::new(Mutex::new(Vec::new()));
    let seen = loads.clone();
    let admission = Admission(move |_: &_, load: &Load| {
        seen.lock().unwrap().push((load.running, load.admitted, load.preempted, load.waiting));
        Ok(Verdict::Admit)
    });
    let scheduler = Scheduler("preempts once", |step: &StepView| {
        let preempt = if step.number == 2 {
            step.running.id.iter().copied().map(SequenceId).collect()
        } else {
            Vec::new()
        };
        Ok(if preempt.is_empty() { fcfs(step) } else { Plan { preempt, ..Plan::default() } })
    });
    let policies =
        Policies { admission: Box::new(admission), scheduler: Box::new(scheduler), ..Policies::builtin() };
    let mut bench = Bench::with(small(), policies);
    bench.submit(request(prompt(1, 8), 9));
    bench.step();
    assert!(!bench.step(), "all give way");
    bench.submit(request(prompt(2, 8), 9));
    bench.submit(request(prompt(3, 8), 9));
    assert_eq!(*loads.lock().unwrap(), [(0, 0, 0, 0), (0, 0, 1, 0), (0, 1, 1, 1)]);
}

#[test]
fn load_tells_what_is_left_of_prompts_that_have_started() {
    let left = Arc::new(Mutex::new(Vec::new()));
    let seen = left.clone();
    let admission = Admission(move |_: &AdmissionRequest, load: &Load| {
        seen.lock().unwrap().push((load.waiting_prompt_tokens, load.started_prompt_tokens));
        Ok(Verdict::Admit)
    });
    let policies = Policies { admission: Box::new(admission), ..Policies::builtin() };
    let limits = infer_core::Limits { prefill_chunk: 4, ..small().limits };
    let mut bench = Bench::with(EngineConfig { limits, ..small() }, policies);
    bench.submit(request(prompt(1, 10), 9));
    for round in 0..3 {
        bench.step();
        bench.submit(request(prompt(2 + round, 2), 2));
    }
    // Four of ten were computed, then eight, then all; the short prompts each take one step.
    assert_eq!(*left.lock().unwrap(), [(0, 0), (0, 6), (0, 2), (0, 0)]);
}
