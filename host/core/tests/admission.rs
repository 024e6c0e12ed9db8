//! Admission: limits, the bounded queue, and requests that the policy defers.

mod common;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use common::scripted::{Admission, Bench, Scheduler, fcfs, prompt, request, small};
use infer_core::engine::Policies;
use infer_core::policy::{AdmissionRequest, Load, Memory, Plan, StepView, Verdict};
use infer_core::request::RefusalReason;
use infer_core::testing::SplitMix;
use infer_core::{
    EngineConfig, Event, FailureCause, FinishReason, Micros, Refusal, Request, SequenceId, StepOutput,
    TenantId,
};

#[test]
fn requests_over_a_limit_are_refused_with_what_is_missing() {
    let config = EngineConfig { total_blocks: 8, ..small() };
    for (prompt_len, output, reason, says) in [
        (0, 4, RefusalReason::Other, "at least one prompt token"),
        (4, 0, RefusalReason::Other, "one token to generate"),
        (100, 29, RefusalReason::TooLong, "exceed the limit of 128"),
        (30, 10, RefusalReason::Memory, "needs 10 KV blocks, 2 more than the pool of 8"),
    ] {
        let mut bench = Bench::new(config.clone());
        let refusal = bench.engine.submit(request(prompt(1, prompt_len), output), bench.now).unwrap_err();
        assert_eq!(refusal.reason, reason);
        assert!(refusal.message.contains(says), "{}", refusal.message);
        assert_eq!(refusal.retry_after_ms, 0, "trying again can't help");
    }
}

#[test]
fn a_request_that_fits_the_pool_exactly_runs_to_its_end() {
    let mut bench = Bench::new(EngineConfig { total_blocks: 8, ..small() });
    let id = bench.submit(request(prompt(1, 23), 10));
    bench.run();
    assert_eq!(bench.tokens(id).len(), 10);
}

#[test]
fn a_full_queue_refuses_exactly_the_excess() {
    let mut bench = Bench::new(EngineConfig { max_waiting: 5, ..small() });
    bench.submit(request(prompt(1, 4), 4));
    // The device is busy with the first one; no other can start.
    let batch = bench.engine.begin_step(bench.now).unwrap();
    let answers: Vec<_> = (2..10).map(|i| bench.engine.submit(request(prompt(i, 4), 4), bench.now)).collect();
    assert_eq!(answers.iter().filter(|a| a.is_ok()).count(), 5);
    for refusal in answers.into_iter().filter_map(Result::err) {
        assert_eq!(refusal.reason, RefusalReason::QueueFull);
        assert!(refusal.message.contains("at most 5"), "{}", refusal.message);
        assert!(refusal.retry_after_ms >= 1_000);
    }
    let output = StepOutput { sampled: vec![Some(1)], ..StepOutput::default() };
    bench.engine.finish_step(batch, Ok(&output), bench.now);
    bench.run();
    let finished = bench.events.iter().filter(|e| matches!(e, Event::Finished { .. })).count();
    assert_eq!(finished, 6);
}

#[test]
fn a_draining_engine_admits_nothing_and_finishes_its_requests() {
    let mut bench = Bench::new(small());
    let id = bench.submit(request(prompt(1, 4), 4));
    bench.engine.drain();
    let refusal = bench.engine.submit(request(prompt(2, 4), 4), bench.now).unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::Draining);
    bench.run();
    assert_eq!(bench.tokens(id).len(), 4);
}

/// Whether it is open, and the requests that it was called for.
type Gate = Arc<Mutex<(bool, Vec<u64>)>>;

/// Admits while the gate is open and answers `wait` otherwise; records the calls.
fn gated(config: EngineConfig) -> (Bench, Gate) {
    let gate = Arc::new(Mutex::new((false, Vec::new())));
    let seen = gate.clone();
    let admission = Admission(move |request: &AdmissionRequest, _: &_| {
        let mut seen = seen.lock().unwrap();
        seen.1.push(request.id.0);
        Ok(if seen.0 { Verdict::Admit } else { Verdict::Wait })
    });
    (Bench::with(config, Policies { admission: Box::new(admission), ..Policies::builtin() }), gate)
}

#[test]
fn held_requests_are_admitted_by_priority_then_arrival() {
    let (mut bench, gate) =
        gated(EngineConfig { limits: infer_core::Limits { max_running: 1, ..small().limits }, ..small() });
    for (seed, priority) in [(1, 0), (2, 5), (3, 0), (4, 5)] {
        let mut request = request(prompt(seed, 4), 1);
        request.priority = priority;
        bench.submit(request);
    }
    assert!(bench.engine.begin_step(bench.now).is_none());
    assert_eq!(bench.engine.snapshot(bench.now).queue.held, 4);
    gate.lock().unwrap().0 = true;
    gate.lock().unwrap().1.clear();
    bench.run();
    assert_eq!(gate.lock().unwrap().1, [2, 4, 1, 3], "asked about in this order");
}

#[test]
fn held_requests_age_into_higher_priorities() {
    for (priority, after_s, first) in
        [(0, 1, 1), (1, 4, 2), (1, 6, 1), (-1, 0, 1), (20, 99, 2), (20, 101, 1), (i32::MAX, 101, 1)]
    {
        let (mut bench, gate) = gated(small());
        bench.submit(request(prompt(1, 4), 1));
        bench.now.0 += after_s * 1_000_000;
        bench.submit(Request { priority, ..request(prompt(2, 4), 1) });
        *gate.lock().unwrap() = (true, Vec::new());
        bench.run();
        assert_eq!(gate.lock().unwrap().1, [first, 3 - first], "{priority} after {after_s} s");
    }
}

#[test]
fn among_equally_urgent_requests_the_tenant_with_least_visible_work_comes_first() {
    let (mut bench, gate) =
        gated(EngineConfig { limits: infer_core::Limits { max_running: 1, ..small().limits }, ..small() });
    for (seed, tenant) in [(1, 7), (2, 7), (3, 7), (4, 9), (5, 9), (6, 7)] {
        let mut request = request(prompt(seed, 4), 3);
        request.tenant = infer_core::TenantId(tenant);
        bench.submit(request);
    }
    gate.lock().unwrap().0 = true;
    gate.lock().unwrap().1.clear();
    bench.run();
    assert_eq!(gate.lock().unwrap().1, [1, 4, 2, 5, 3, 6], "they take turns; within a tenant by arrival");
}

/// A held request: its tenant, its priority, when it arrives.
#[derive(Clone, Copy, Debug)]
struct Waits(u32, i32, u64);

/// The requests that a policy is called for in turn, by their index in `held`, once all of them have arrived.
/// Each tenant of `running` has a running sequence meanwhile.
fn turns(running: &[u32], held: &[Waits]) -> Vec<usize> {
    let (mut bench, gate) = gated(EngineConfig { max_waiting: 64, total_blocks: 512, ..small() });
    gate.lock().unwrap().0 = true;
    for (seed, &tenant) in running.iter().enumerate() {
        bench.submit(Request { tenant: TenantId(tenant), ..request(prompt(seed as u32, 4), 99) });
    }
    bench.step();
    gate.lock().unwrap().0 = false;
    let (began, mut first) = (bench.now, None);
    for &Waits(tenant, priority, at_s) in held {
        bench.now = began.plus(Micros(at_s * 1_000_000));
        let id = bench.submit(Request { tenant: TenantId(tenant), priority, ..request(prompt(9, 4), 99) });
        first.get_or_insert(id.0);
    }
    *gate.lock().unwrap() = (true, Vec::new());
    bench.step();
    let asked = gate.lock().unwrap().1.clone();
    asked.into_iter().map(|id| (id - first.unwrap()) as usize).collect()
}

#[test]
fn aging_does_not_move_a_flood_ahead_of_a_quiet_tenants_urgent_request() {
    /// What it shows, the tenants with running sequences, the held requests, and their order.
    type Case = (&'static str, &'static [u32], Vec<Waits>, &'static [usize]);
    let flood = [Waits(1, 0, 0), Waits(1, 0, 1)];
    let with = |more: &[Waits]| [&flood, more].concat();
    let cases: [Case; 8] = [
        ("a quiet tenant is first", &[1], with(&[Waits(2, 0, 60)]), &[2, 0, 1]),
        ("also if it is urgent", &[1], with(&[Waits(2, 5, 60)]), &[2, 0, 1]),
        (
            "the flood's age does not lift other requests",
            &[1],
            with(&[Waits(3, 0, 59), Waits(3, 0, 59), Waits(2, 5, 60), Waits(2, 5, 60)]),
            &[4, 5, 2, 0, 3, 1],
        ),
        ("a request that waited is lifted", &[1], with(&[Waits(3, 0, 30), Waits(2, 5, 60)]), &[2, 3, 0, 1]),
        (
            "unless its tenant has more visible work",
            &[1, 3],
            with(&[Waits(3, 0, 30), Waits(2, 5, 60)]),
            &[3, 0, 2, 1],
        ),
        ("without visible work a flood has a turn", &[], with(&[Waits(2, 5, 60)]), &[0, 2, 1]),
        (
            "an urgent flood does not keep others out",
            &[2],
            with(&[Waits(2, 5, 60), Waits(2, 5, 60)]),
            &[0, 1, 2, 3],
        ),
        ("a less urgent request waits for its time", &[1], with(&[Waits(2, -9, 44)]), &[0, 1, 2]),
    ];
    for (what, running, held, order) in cases {
        assert_eq!(turns(running, &held), order, "{what}");
    }
}

#[test]
fn a_higher_priority_never_delays_a_request() {
    for seed in 0..400 {
        let mut rng = SplitMix(seed);
        let running: Vec<u32> = (0..rng.below(4)).map(|_| rng.below(3) as u32).collect();
        let mut at_s = 0;
        let mut held: Vec<Waits> = (0..rng.between(2, 9))
            .map(|_| {
                at_s += [0, 1, 4, 30][rng.below(4) as usize];
                Waits(rng.below(3) as u32, [0, 1, 5][rng.below(3) as usize], at_s)
            })
            .collect();
        let raised = rng.below(held.len() as u64) as usize;
        let place = |held: &[Waits]| {
            let turns = turns(&running, held);
            assert_eq!(turns.len(), held.len(), "seed {seed}: each has a turn");
            turns.iter().position(|&at| at == raised)
        };
        let before = place(&held);
        held[raised].1 += rng.between(1, 4) as i32;
        assert!(place(&held) <= before, "seed {seed}: {raised} of {held:?} beside {running:?}");
    }
}

#[test]
fn a_new_request_does_not_overtake_held_ones() {
    let (mut bench, gate) = gated(small());
    let first = bench.submit(request(prompt(1, 4), 1));
    gate.lock().unwrap().0 = true;
    let second = bench.submit(request(prompt(2, 4), 1));
    assert_eq!(bench.engine.snapshot(bench.now).queue.held, 2);
    bench.run();
    let started: Vec<_> = bench
        .events
        .iter()
        .filter_map(|e| if let Event::Started { id, .. } = e { Some(*id) } else { None })
        .collect();
    assert_eq!(started, [first, second]);
}

#[test]
fn held_requests_are_asked_about_again_on_an_idle_host() {
    let (mut bench, gate) = gated(small());
    bench.submit(request(prompt(1, 4), 1));
    assert!(!bench.step());
    gate.lock().unwrap().0 = true;
    let wake = bench.engine.next_wake().expect("a held request wakes the engine");
    assert!(wake > bench.now);
    bench.now = wake;
    assert!(bench.step());
}

#[test]
fn a_held_request_can_be_refused_later_or_cancelled() {
    let answers = Arc::new(Mutex::new(vec![
        Verdict::Refuse(Refusal {
            reason: RefusalReason::Rate, message: "é".repeat(200), retry_after_ms: 7
        }),
        Verdict::Wait,
        Verdict::Wait,
    ]));
    let admission = Admission(move |_: &_, _: &_| Ok(answers.lock().unwrap().pop().unwrap_or(Verdict::Wait)));
    let policies = Policies { admission: Box::new(admission), ..Policies::builtin() };
    let mut bench = Bench::with(small(), policies);
    let refused = bench.submit(request(prompt(1, 4), 1));
    let cancelled = bench.submit(request(prompt(2, 4), 1));
    bench.now.0 += 100_000;
    bench.step();
    let refusal = bench.events.iter().find_map(|e| match e {
        Event::Refused { id, refusal } if *id == refused => Some(refusal.clone()),
        _ => None,
    });
    assert_eq!(refusal.expect("it is refused").message.len(), 256, "cut at a character");
    assert!(bench.engine.finish(cancelled, FinishReason::Cancelled, bench.now));
    assert!(!bench.engine.has_work());
}

#[test]
fn the_queue_can_be_cleared_and_preempted_ones_do_not_fill_it() {
    let config = EngineConfig { max_waiting: 2, ..small() };
    let mut preempt = false;
    let mut bench = Bench::scheduled(config, move |step| {
        let mut plan = fcfs(step);
        preempt = !preempt && step.running.id.len() == 2;
        if preempt {
            plan.run.clear();
            plan.tokens.clear();
            plan.preempt = step.running.id.iter().map(|&id| infer_core::SequenceId(id)).collect();
        }
        Ok(plan)
    });
    bench.submit(request(prompt(1, 4), 9));
    bench.submit(request(prompt(2, 4), 9));
    bench.step();
    bench.step();
    assert_eq!(bench.engine.snapshot(bench.now).queue.preempted, 2);
    bench.submit(request(prompt(3, 4), 9));
    bench.submit(request(prompt(4, 4), 9));
    assert!(bench.engine.submit(request(prompt(5, 4), 9), bench.now).is_err());
    assert_eq!(bench.engine.clear_queue("cleared", bench.now), 4);
    bench.engine.drain_events(&mut bench.events);
    let failed = bench.events.iter().filter(
        |e| matches!(e, Event::Failed { cause: FailureCause::Cleared, message, .. } if message == "cleared"),
    );
    assert_eq!(failed.count(), 4);
    assert!(!bench.engine.has_work());
    bench.engine.check_invariants();
}

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

/// Tokens left of a rate, and the ids that were charged.
type Purse = Arc<Mutex<(u32, BTreeSet<u64>)>>;

/// Admits what was charged or can be, if it fits the pool, as shipped policies do.
fn charging(config: EngineConfig, purse: u32) -> (Bench, Purse) {
    let purse = Arc::new(Mutex::new((purse, BTreeSet::new())));
    let shared = purse.clone();
    let admission = Admission(move |request: &AdmissionRequest, load: &Load| {
        let tokens = request.prompt_tokens + request.max_new_tokens;
        if tokens > load.memory.total_blocks * load.memory.block_size {
            let message = "it never fits".to_owned();
            return Ok(Verdict::Refuse(Refusal {
                reason: RefusalReason::Memory,
                message,
                retry_after_ms: 0,
            }));
        }
        let mut purse = shared.lock().unwrap();
        if purse.1.contains(&request.id.0) {
            return Ok(Verdict::Admit);
        }
        let Some(left) = purse.0.checked_sub(tokens) else {
            let message = format!("{tokens} of {}", purse.0);
            return Ok(Verdict::Refuse(Refusal { reason: RefusalReason::Rate, message, retry_after_ms: 9 }));
        };
        purse.0 = left;
        purse.1.insert(request.id.0);
        Ok(Verdict::Admit)
    });
    (Bench::with(config, Policies { admission: Box::new(admission), ..Policies::builtin() }), purse)
}

#[test]
fn a_request_of_several_sequences_is_charged_once_as_a_whole_or_not_at_all() {
    // Together they need more than the pool holds, but not at once.
    let (mut bench, purse) = charging(EngineConfig { total_blocks: 8, ..small() }, 95);
    let four = || (1..5).map(|seed| request(prompt(seed, 4), 20)).collect::<Vec<_>>();
    for _ in 0..3 {
        let refusal = bench.engine.submit_all(four(), bench.now).unwrap_err();
        assert_eq!((refusal.reason, &*refusal.message), (RefusalReason::Rate, "96 of 95"));
        assert_eq!(purse.lock().unwrap().0, 95);
    }
    assert!(!bench.engine.has_work());
    purse.lock().unwrap().0 = 100;
    let all = bench.engine.submit_all(four(), bench.now).unwrap();
    assert_eq!(purse.lock().unwrap().0, 4);
    bench.run();
    assert_eq!(all.iter().map(|&id| bench.tokens(id).len()).collect::<Vec<_>>(), [20; 4]);
    let counters = bench.engine.snapshot(bench.now).counters;
    assert_eq!((counters.submitted, counters.refused.iter().sum::<u64>()), (16, 12));
}

#[test]
fn if_one_sequence_is_refused_those_before_it_are_removed() {
    for (at, verdict) in [(0, Verdict::Admit), (2, Verdict::Admit), (2, Verdict::Wait), (4, Verdict::Wait)] {
        let mut asked = 0;
        let said = verdict.clone();
        let admission = Admission(move |_: &_, _: &_| {
            asked += 1;
            let refusal = Refusal { reason: RefusalReason::Other, message: "no".into(), retry_after_ms: 3 };
            // The first call is about all of them.
            Ok(if asked == at + 1 { Verdict::Refuse(refusal) } else { said.clone() })
        });
        let policies = Policies { admission: Box::new(admission), ..Policies::builtin() };
        let mut bench = Bench::with(small(), policies);
        let four = (1..5).map(|seed| request(prompt(seed, 9), 20)).collect();
        let refusal = bench.engine.submit_all(four, bench.now).unwrap_err();
        assert_eq!(refusal.retry_after_ms, 3, "{at} {verdict:?}");
        bench.engine.check_invariants();
        let queue = bench.engine.snapshot(bench.now).queue;
        assert_eq!((queue.waiting, queue.held, bench.engine.has_work()), (0, 0, false), "{at} {verdict:?}");
    }
}

#[test]
fn the_queue_admits_all_sequences_of_a_request_or_none() {
    let mut bench = Bench::new(EngineConfig { max_waiting: 5, ..small() });
    let some = |n: u32| (0..n).map(|seed| request(prompt(seed, 4), 4)).collect::<Vec<_>>();
    bench.engine.submit_all(some(3), bench.now).unwrap();
    let refusal = bench.engine.submit_all(some(3), bench.now).unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::QueueFull);
    assert_eq!(bench.engine.submit_all(some(2), bench.now).unwrap().len(), 2);
    bench.run();
}

/// One call of `admit`: the request's id, prompt tokens and longest output; then the running and waiting
/// sequences, in all and of its tenant, and the prompt and expected output tokens of the load.
type Shown = ([u64; 3], [u64; 6]);

#[test]
fn a_whole_request_is_asked_about_on_the_host_that_its_last_sequence_meets() {
    let calls = Arc::new(Mutex::new(Vec::<(Shown, Memory)>::new()));
    let seen = calls.clone();
    let admission = Admission(move |request: &AdmissionRequest, load: &Load| {
        let asked = [request.id.0, u64::from(request.prompt_tokens), u64::from(request.max_new_tokens)];
        let counts = [load.running, load.tenant_running, load.waiting, load.tenant_waiting].map(u64::from);
        let [running, own_running, waiting, own_waiting] = counts;
        let (prompts, outputs) = (load.waiting_prompt_tokens, load.expected_output_tokens);
        let shown = (asked, [running, own_running, waiting, own_waiting, prompts, outputs]);
        seen.lock().unwrap().push((shown, load.memory));
        Ok(Verdict::Admit)
    });
    let policies = Policies { admission: Box::new(admission), ..Policies::builtin() };
    let mut bench = Bench::with(small(), policies);
    bench.submit(request(prompt(1, 8), 9));
    bench.step();
    let three = vec![request(prompt(2, 4), 5); 3];
    bench.engine.submit_all(three, bench.now).unwrap();
    let shown: Vec<Shown> = calls.lock().unwrap().iter().map(|(shown, _)| *shown).collect();
    let each = ([2, 4, 5], [1, 1, 3, 3, 12, 8 + 15]);
    let all = ([2, 12, 15], [1, 1, 2, 0, 0, 8 + 10]);
    assert_eq!(shown, [([1, 8, 9], [0; 6]), all, each, each, each]);
    let calls = calls.lock().unwrap();
    let (ample, real) = (calls[1].1, calls[2].1);
    let used = |memory: Memory| memory.total_blocks - memory.free_blocks - memory.cached_blocks;
    assert_eq!((real.total_blocks, used(ample)), (64, used(real)));
    assert!(ample.free_blocks > ample.total_blocks / 10 * 9 + 7, "nine tenths may be reserved: {ample:?}");
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

#[test]
fn a_whole_request_is_refused_for_the_load_before_anything_is_charged() {
    let purse = Arc::new(Mutex::new((1_000, BTreeSet::new())));
    let shared = purse.clone();
    let mut known = 0;
    // Refuses what has to wait for a slot, and charges for the rest, as `slo` and `token-bucket` do in a list.
    let admission = Admission(move |request: &AdmissionRequest, load: &Load| {
        let is_queued = request.id.0 <= known;
        known = known.max(request.id.0);
        if load.running + load.waiting - u32::from(is_queued) >= load.max_running {
            let refusal =
                Refusal { reason: RefusalReason::Backpressure, message: "late".into(), retry_after_ms: 3 };
            return Ok(Verdict::Refuse(refusal));
        }
        let mut purse = shared.lock().unwrap();
        if purse.1.insert(request.id.0) {
            purse.0 -= request.prompt_tokens + request.max_new_tokens;
        }
        Ok(Verdict::Admit)
    });
    let policies = Policies { admission: Box::new(admission), ..Policies::builtin() };
    let mut bench = Bench::with(small(), policies);
    let some = |n: u32| vec![request(prompt(n, 4), 20); n as usize];
    bench.engine.submit_all(some(3), bench.now).unwrap();
    bench.step();
    let left = 1_000 - 3 * 24;
    assert_eq!(purse.lock().unwrap().0, left);
    for n in [2, 3, 4, 2] {
        bench.engine.submit_all(some(n), bench.now).unwrap_err();
        assert_eq!(purse.lock().unwrap().0, left, "{n} sequences beside three that run in four slots");
    }
    bench.engine.submit_all(some(1), bench.now).unwrap();
    assert_eq!(purse.lock().unwrap().0, left - 24);
}

#[test]
fn a_request_refused_as_a_whole_stores_only_its_first_sequence() {
    let (mut bench, _) = charging(small(), 50);
    let before = bench.submit(request(prompt(1, 4), 1));
    bench.engine.submit_all(vec![request(prompt(2, 9), 20); 8], bench.now).unwrap_err();
    let after = bench.submit(request(prompt(3, 4), 1));
    assert_eq!(after.0, before.0 + 2, "one id went to the refused request");
    let counters = bench.engine.snapshot(bench.now).counters;
    assert_eq!((counters.submitted, counters.refused.iter().sum::<u64>()), (10, 8));
}

#[test]
fn a_whole_request_that_has_to_wait_is_charged_once_wherever_the_waiting_member_is() {
    for waits_first in [true, false] {
        let charges = Arc::new(Mutex::new(Vec::new()));
        let (shared, mut paid) = (charges.clone(), BTreeSet::new());
        let admission = Admission(move |request: &AdmissionRequest, load: &Load| {
            let waits = load.running > 0;
            if !(waits && waits_first) && paid.insert(request.id.0) {
                shared.lock().unwrap().push(request.prompt_tokens + request.max_new_tokens);
            }
            Ok(if waits { Verdict::Wait } else { Verdict::Admit })
        });
        let policies = Policies { admission: Box::new(admission), ..Policies::builtin() };
        let mut bench = Bench::with(small(), policies);
        bench.submit(request(prompt(1, 4), 9));
        bench.step();
        bench.engine.submit_all(vec![request(prompt(2, 4), 6); 3], bench.now).unwrap();
        assert_eq!(bench.engine.snapshot(bench.now).queue.held, 3);
        bench.run();
        assert_eq!(*charges.lock().unwrap(), [13, 30], "waits first: {waits_first}");
    }
}
