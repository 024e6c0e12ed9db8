//! Who gets in: limits, the bounded queue, and those whom the policy tells to wait.

mod common;

use std::sync::{Arc, Mutex};

use common::scripted::{Admission, Bench, Scheduler, fcfs, prompt, request, small};
use infer_core::engine::Policies;
use infer_core::policy::{AdmissionRequest, Load, Plan, StepView, Verdict};
use infer_core::request::RefusalReason;
use infer_core::{EngineConfig, Event, FailureCause, FinishReason, Refusal, Request, SequenceId, StepOutput};

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
fn what_fits_the_pool_exactly_runs_to_its_end() {
    let mut bench = Bench::new(EngineConfig { total_blocks: 8, ..small() });
    let id = bench.submit(request(prompt(1, 23), 10));
    bench.run();
    assert_eq!(bench.tokens(id).len(), 10);
}

#[test]
fn a_full_queue_refuses_exactly_what_is_too_much() {
    let mut bench = Bench::new(EngineConfig { max_waiting: 5, ..small() });
    bench.submit(request(prompt(1, 4), 4));
    // The device is busy with the first one; nobody else can start.
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
fn a_draining_engine_takes_nothing_and_finishes_what_it_has() {
    let mut bench = Bench::new(small());
    let id = bench.submit(request(prompt(1, 4), 4));
    bench.engine.drain();
    let refusal = bench.engine.submit(request(prompt(2, 4), 4), bench.now).unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::Draining);
    bench.run();
    assert_eq!(bench.tokens(id).len(), 4);
}

/// Whether it is open, and whom it was asked about.
type Gate = Arc<Mutex<(bool, Vec<u64>)>>;

/// Admits while the gate is open, else tells to wait; notes who was asked about.
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
fn held_requests_come_in_by_priority_then_arrival() {
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
fn who_is_held_for_longer_becomes_as_urgent_as_those_who_come() {
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
fn among_equally_urgent_ones_the_tenant_with_least_in_sight_comes_in_first() {
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

#[test]
fn a_newcomer_does_not_overtake_those_who_are_held() {
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
fn a_held_request_can_be_refused_later_and_taken_back() {
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
fn the_load_promises_what_was_admitted_at_its_longest() {
    let loads = Arc::new(Mutex::new(Vec::new()));
    let seen = loads.clone();
    let admission = Admission(move |_: &_, load: &Load| {
        let row =
            (load.running, load.admitted, load.waiting_tokens, load.promised_blocks, load.tenant_waiting);
        assert_eq!((load.waiting, load.preempted), (load.admitted, 0), "nobody is held");
        seen.lock().unwrap().push(row);
        Ok(Verdict::Admit)
    });
    let policies = Policies { admission: Box::new(admission), ..Policies::builtin() };
    let limits = infer_core::Limits { max_running: 1, ..small().limits };
    let mut bench = Bench::with(EngineConfig { limits, ..small() }, policies);
    // Eight tokens and nine to come: the last needs no place, so four blocks.
    bench.submit(request(prompt(1, 8), 9));
    bench.submit(request(prompt(2, 8), 9));
    bench.step();
    bench.submit(request(prompt(3, 8), 9));
    let expected = [(0, 0, 0, 0, 0), (0, 1, 17, 4, 1), (1, 1, 17, 2 + 4, 1)];
    assert_eq!(*loads.lock().unwrap(), expected);
}

#[test]
fn a_request_says_how_much_of_its_hit_nobody_uses() {
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
    // Two of its four full blocks are used by one that shares the first eight tokens alone.
    let shared: Vec<u32> = prompt(1, 8).into_iter().chain(prompt(3, 5)).collect();
    bench.submit(request(shared, 9));
    bench.step();
    bench.submit(request(prompt(1, 17), 2));
    bench.submit(request(prompt(1, 18), 2));
    assert_eq!(*hits.lock().unwrap(), [(0, 0), (8, 2), (16, 2), (18, 2)]);
}

#[test]
fn who_gave_way_and_waits_to_go_on_is_counted_apart() {
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
