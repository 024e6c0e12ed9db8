//! Requests of a tenant that admission holds as a whole: its own wait behind them, and those of others pass.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::common::scripted::{Admission, Bench, prompt, request, small};
use infer_core::engine::Policies;
use infer_core::policy::{AdmissionRequest, Load, Verdict};
use infer_core::request::SequenceState;
use infer_core::testing::SplitMix;
use infer_core::{Engine, EngineConfig, Event, FinishReason, Limits, Micros, Request, SequenceId, TenantId};

/// The calls so far, as `(tenant, id)`.
type Calls = Arc<Mutex<Vec<(u32, u64)>>>;

fn deciding(
    config: EngineConfig,
    mut decide: impl FnMut(&AdmissionRequest, &Load) -> Verdict + Send + 'static,
) -> (Bench, Calls) {
    let calls = Calls::default();
    let seen = calls.clone();
    let admission = Admission(move |request: &AdmissionRequest, load: &Load| {
        seen.lock().unwrap().push((request.tenant.0, request.id.0));
        Ok(decide(request, load))
    });
    (Bench::with(config, Policies { admission: Box::new(admission), ..Policies::builtin() }), calls)
}

/// At most `cap` sequences of each tenant in flight.
fn capped(config: EngineConfig, cap: u32) -> (Bench, Calls) {
    deciding(config, move |_, load| match load.tenant_in_flight < cap {
        true => Verdict::Admit,
        false => Verdict::WaitTenant,
    })
}

fn of(tenant: u32, seed: u32, output: u32) -> Request {
    Request { tenant: TenantId(tenant), ..request(prompt(seed, 4), output) }
}

fn started(bench: &Bench) -> Vec<u64> {
    let id = |e: &Event| if let Event::Started { id, .. } = e { Some(id.0) } else { None };
    bench.events.iter().filter_map(id).collect()
}

/// Held sequences, and those in flight, of each tenant.
fn by_tenant(engine: &mut Engine, now: Micros) -> BTreeMap<u32, (u32, u32)> {
    let mut all = BTreeMap::<u32, (u32, u32)>::new();
    for request in &engine.snapshot(now).requests {
        let counts = all.entry(request.tenant.0).or_default();
        *(if request.state == SequenceState::Held { &mut counts.0 } else { &mut counts.1 }) += 1;
    }
    all
}

#[test]
fn a_tenant_that_waits_holds_its_own_requests_and_no_others() {
    let (mut bench, _) = capped(small(), 1);
    for (seed, tenant) in [(1, 7), (2, 7), (3, 7), (4, 9), (5, 8)] {
        bench.submit(of(tenant, seed, 3));
    }
    assert_eq!(bench.engine.snapshot(bench.now).queue.held, 2, "the second and third of tenant 7");
    bench.step();
    assert_eq!(started(&bench), [1, 4, 5]);
    bench.run();
    assert_eq!(started(&bench), [1, 4, 5, 2, 3], "in order of arrival, one at a time");
}

#[test]
fn requests_never_overtake_an_equally_urgent_one_of_their_tenant() {
    // Only tenant 7's long request is held until nothing of it runs.
    let (mut bench, calls) = deciding(small(), |request, load| {
        let long = request.tenant.0 == 7 && request.max_new_tokens > 5;
        if long && load.running > 0 { Verdict::WaitTenant } else { Verdict::Admit }
    });
    bench.submit(of(9, 1, 5));
    bench.step();
    bench.submit(of(7, 2, 9));
    let behind = bench.submit(of(7, 3, 2));
    let urgent = bench.submit(Request { priority: 1, ..of(7, 4, 2) });
    bench.submit(of(8, 5, 2));
    let held: Vec<_> = bench
        .engine
        .snapshot(bench.now)
        .requests
        .iter()
        .filter(|request| request.state == SequenceState::Held)
        .map(|request| request.id.0)
        .collect();
    assert_eq!(held, [2, behind.0], "more urgent ones and other tenants' pass");
    calls.lock().unwrap().clear();
    bench.step();
    assert!(!calls.lock().unwrap().iter().any(|call| call.1 == behind.0), "it isn't asked about");
    bench.run();
    assert_eq!(started(&bench), [1, urgent.0, 5, 2, behind.0]);
}

/// `wait` still holds all behind it, whatever was passed over before.
#[test]
fn a_plain_wait_holds_other_tenants_too() {
    let (mut bench, calls) = deciding(small(), |request, load| match request.tenant.0 {
        7 if load.running > 0 => Verdict::WaitTenant,
        8 if load.running > 0 => Verdict::Wait,
        _ => Verdict::Admit,
    });
    bench.submit(of(1, 1, 4));
    bench.step();
    for (seed, tenant) in [(2, 7), (3, 8), (4, 9)] {
        bench.submit(of(tenant, seed, 2));
    }
    assert_eq!(bench.engine.snapshot(bench.now).queue.held, 3);
    calls.lock().unwrap().clear();
    bench.step();
    let calls = calls.lock().unwrap().clone();
    assert_eq!(calls, [(7, 2), (8, 3)], "nothing behind the second is asked about");
}

/// What is said of a request behind the one that holds the queue doesn't release its tenant's hold.
#[test]
fn a_plain_wait_holds_others_though_a_request_behind_it_waits_with_its_tenant() {
    let (mut bench, calls) = deciding(small(), |request, load| match request.max_new_tokens {
        _ if load.running == 0 => Verdict::Admit,
        2 => Verdict::Wait,
        3 => Verdict::WaitTenant,
        _ => Verdict::Admit,
    });
    bench.submit(of(1, 1, 4));
    bench.step();
    for (tenant, output) in [(7, 2), (7, 3), (9, 1)] {
        bench.submit(of(tenant, output, output));
    }
    assert_eq!(bench.engine.snapshot(bench.now).queue.held, 3);
    calls.lock().unwrap().clear();
    bench.step();
    assert_eq!(*calls.lock().unwrap(), [(7, 2)], "nothing behind it is asked about");
    bench.run();
    assert_eq!(started(&bench), [1, 2, 3, 4]);
}

/// A tenant that is passed over gets a more urgent request, which holds everything.
#[test]
fn an_urgent_wait_holds_others_though_its_tenant_was_passed_over() {
    let (mut bench, calls) = deciding(small(), |request, load| match (request.tenant.0, request.priority) {
        (7, _) if load.running == 0 => Verdict::Admit,
        (7, 1) => Verdict::Wait,
        (7, _) => Verdict::WaitTenant,
        _ => Verdict::Admit,
    });
    bench.submit(of(1, 1, 4));
    bench.step();
    bench.submit(of(7, 2, 2));
    bench.step();
    let urgent = bench.submit(Request { priority: 1, ..of(7, 3, 2) });
    bench.submit(of(9, 4, 1));
    assert_eq!(bench.engine.snapshot(bench.now).queue.held, 3);
    calls.lock().unwrap().clear();
    bench.step();
    assert_eq!(*calls.lock().unwrap(), [(7, urgent.0)], "nothing behind it is asked about");
    bench.run();
    assert_eq!(started(&bench).len(), 4);
}

/// A round takes several steps if many wait; what changes meanwhile concerns those that were asked about already.
#[test]
fn a_change_during_a_round_begins_another_one() {
    let open = Arc::new(Mutex::new(false));
    let gate = open.clone();
    let config = EngineConfig { max_waiting: 1_000, ..small() };
    let (mut bench, _) = deciding(config, move |request, _| match request.tenant.0 {
        0 => Verdict::Admit,
        1 if *gate.lock().unwrap() => Verdict::Admit,
        _ => Verdict::WaitTenant,
    });
    bench.submit(of(0, 1, 60));
    bench.step();
    let ids: Vec<SequenceId> = (1..=100).map(|tenant| bench.submit(of(tenant, tenant, 1))).collect();
    // Asks about tenants 1 to 64.
    bench.step();
    *open.lock().unwrap() = true;
    assert!(bench.engine.finish(ids[99], FinishReason::Cancelled, bench.now));
    bench.step();
    assert!(!started(&bench).contains(&ids[0].0), "this step asks about the others");
    bench.step();
    assert!(started(&bench).contains(&ids[0].0));
}

#[test]
fn a_round_goes_on_at_once_on_an_idle_host() {
    let asked = Arc::new(Mutex::new(BTreeMap::new()));
    let last = asked.clone();
    let config = EngineConfig { max_waiting: 1_000, ..small() };
    let (mut bench, _) = deciding(config, move |request, load| {
        last.lock().unwrap().insert(request.tenant.0, load.now);
        Verdict::WaitTenant
    });
    for tenant in 1..=300 {
        bench.submit(of(tenant, tenant, 1));
    }
    let sleep = |bench: &mut Bench| {
        assert!(!bench.step());
        bench.now = bench.engine.next_wake().expect("held requests wake the engine");
    };
    // Every tenant is asked about every 50 ms, and the host sleeps between the rounds.
    let mut wakes = 0;
    while bench.now < Micros(400_000) {
        sleep(&mut bench);
        wakes += 1;
        if bench.now > Micros(60_000) {
            let longest = asked.lock().unwrap().values().map(|&at| bench.now.since(at)).max();
            assert!(
                longest.is_some_and(|longest| longest <= Micros(60_000)),
                "{longest:?} at {:?}",
                bench.now
            );
        }
    }
    assert!((30..60).contains(&wakes), "five for each of eight rounds: {wakes}");
}

/// A step asks about some requests only; the next one goes on where it ended.
#[test]
fn every_tenant_has_its_turn_however_many_wait() {
    let open = Arc::new(Mutex::new(false));
    let gate = open.clone();
    let config = EngineConfig { max_waiting: 1_000, ..small() };
    let (mut bench, _) = deciding(config, move |request, _| match request.tenant.0 {
        0 | 300 if *gate.lock().unwrap() => Verdict::Admit,
        0 => Verdict::Admit,
        _ if *gate.lock().unwrap() => Verdict::WaitTenant,
        _ => Verdict::Wait,
    });
    bench.submit(of(0, 1, 60));
    bench.step();
    let ids: Vec<SequenceId> = (1..=300).map(|tenant| bench.submit(of(tenant, tenant, 1))).collect();
    *open.lock().unwrap() = true;
    // 64 calls of a step.
    for _ in 0..300 / 64 + 2 {
        bench.step();
    }
    assert!(started(&bench).contains(&ids.last().unwrap().0), "{:?}", started(&bench));
}

#[test]
fn caps_hold_and_no_place_stays_empty_while_a_request_for_it_waits() {
    const CAP: u32 = 2;
    for seed in 0..60 {
        let mut rng = SplitMix(seed);
        let limits = Limits { max_running: 16, ..small().limits };
        let (mut bench, _) = capped(EngineConfig { limits, max_waiting: 100, ..small() }, CAP);
        let mut submitted = 0;
        for turn in 0..80 {
            for _ in 0..rng.below(3) {
                let request = of(rng.below(4) as u32, turn, rng.between(1, 6) as u32);
                let priority = rng.below(3) as i32;
                let count = 1 + usize::from(rng.chance(20));
                let requests = vec![Request { priority, ..request }; count];
                submitted += bench.engine.submit_all(requests, bench.now).map_or(0, |ids| ids.len());
            }
            if bench.engine.has_work() {
                // What ended in the last step has freed its place by now.
                bench.step_with(|engine, now| {
                    for (tenant, (held, in_flight)) in by_tenant(engine, now) {
                        assert!(in_flight <= CAP, "seed {seed}, {turn}: {in_flight} of tenant {tenant}");
                        assert!(
                            held == 0 || in_flight == CAP,
                            "seed {seed}, {turn}: {held} of {tenant} wait behind {in_flight}"
                        );
                    }
                });
            }
        }
        bench.run();
        let ended = bench.events.iter().filter(|e| matches!(e, Event::Finished { .. })).count();
        assert_eq!(ended, submitted, "seed {seed}");
    }
}
