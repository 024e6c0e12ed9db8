//! Admission: limits, the bounded queue, and requests that the policy defers. What a policy is shown is tested in `load.rs`,
//! requests of several sequences in `whole_requests.rs`.

use std::sync::{Arc, Mutex};

use crate::common::scripted::{Admission, Bench, fcfs, prompt, request, small};
use infer_core::engine::Policies;
use infer_core::policy::{AdmissionRequest, Verdict};
use infer_core::request::RefusalReason;
use infer_core::testing::SplitMix;
use infer_core::{
    EngineConfig, Event, FailureCause, FinishReason, Micros, Refusal, Request, StepOutput, TenantId,
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
fn a_draining_engine_admits_nothing_until_that_is_taken_back_and_finishes_its_requests() {
    let mut bench = Bench::new(small());
    let id = bench.submit(request(prompt(1, 4), 4));
    bench.engine.drain();
    let refusal = bench.engine.submit(request(prompt(2, 4), 4), bench.now).unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::Draining);
    bench.run();
    assert_eq!(bench.tokens(id).len(), 4);
    bench.engine.undrain();
    let id = bench.submit(request(prompt(2, 4), 4));
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
