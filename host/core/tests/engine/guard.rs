//! Policies that fail, are swapped, and come back. What they keep meanwhile is in `restart.rs`; those that starve
//! requests are in `starvation.rs`, slow ones in `budget.rs`.

use crate::common::scripted::{Bench, Scheduler, VOCAB, fcfs, prompt, request, small, trap};
use infer_core::policy::{AnyPolicy, FaultKind, PolicyKind, StepView};
use infer_core::testing::solo;
use infer_core::{EngineConfig, Event, Handover, Micros};

#[test]
fn strikes_bring_the_previous_policy_back_and_then_the_builtin() {
    let mut bench = Bench::scheduled(small(), |_| Err(trap()));
    let report = bench.swap_scheduler("second", |_| Err(trap()));
    assert_eq!((&*report.from, &*report.to, report.state), ("scripted", "second", Handover::Cold));
    assert!(report.retired.is_none(), "the first is kept for the way back");
    let request = request(prompt(1, 9), 12);
    let id = bench.submit(request.clone());
    bench.run();
    assert_eq!(bench.tokens(id), solo(&request, VOCAB));
    assert_eq!(bench.faults(), [FaultKind::Trap; 6]);
    assert_eq!(bench.changes(), ["second", "scripted", "builtin-fcfs"]);
    let removed: Vec<bool> = bench
        .events
        .iter()
        .filter_map(|e| if let Event::PolicyFault(f) = e { Some(f.removed) } else { None })
        .collect();
    assert_eq!(removed, [false, false, true, false, false, true]);
    let slot = bench.engine.snapshot(bench.now).policies[0].clone();
    assert!(slot.fallback && slot.previous.is_none() && slot.last_fault.is_some());
    assert_eq!(slot.faults, 0, "they were those of the policies before it");
    assert_eq!(bench.engine.take_retired().len(), 2);
}

#[test]
fn a_new_engines_slot_can_be_left_to_the_builtin_as_if_its_policy_had_been_removed() {
    let mut bench = Bench::scheduled(small(), |_| Err(trap()));
    let removed = bench.engine.leave_to_builtin(PolicyKind::Scheduler).expect("it had a policy");
    assert_eq!(removed.info().name, "scripted");
    let request = request(prompt(1, 9), 12);
    let id = bench.submit(request.clone());
    bench.run();
    assert_eq!(bench.tokens(id), solo(&request, VOCAB));
    let slot = bench.engine.slot(PolicyKind::Scheduler);
    assert!(slot.fallback && slot.previous.is_none() && bench.faults().is_empty());
    // The next policy has no way back but to the built-in.
    bench.swap_scheduler("second", |step| Ok(fcfs(step)));
    assert_eq!(bench.engine.slot(PolicyKind::Scheduler).policy.name, "second");
    assert!(bench.engine.rollback(PolicyKind::Scheduler, bench.now).is_none());
}

#[test]
fn a_slot_shows_the_faults_of_its_live_policy_and_of_no_other() {
    // Fails in its first `times` steps.
    let failing = |mut times: u32| {
        move |step: &StepView| {
            times = times.saturating_sub(1);
            if times > 0 { Err(trap()) } else { Ok(fcfs(step)) }
        }
    };
    let mut bench = Bench::scheduled(EngineConfig { max_strikes: 9, ..small() }, failing(3));
    let shown = |bench: &mut Bench| {
        bench.submit(request(prompt(1, 9), 6));
        bench.run();
        let slot = bench.engine.snapshot(bench.now).policies[0].clone();
        (slot.policy.name.clone(), slot.faults)
    };
    assert_eq!(shown(&mut bench), ("scripted".into(), 2), "each fault restarts it");
    bench.swap_scheduler("second", failing(1));
    assert_eq!(shown(&mut bench), ("second".into(), 0));
    bench.engine.rollback(PolicyKind::Scheduler, bench.now).expect("the first");
    assert_eq!(shown(&mut bench), ("scripted".into(), 2), "it brings its own back");
    let canary = AnyPolicy::Scheduler(Box::new(Scheduler("canary", failing(2))));
    bench.engine.canary(canary, Micros(1_000_000), bench.now).expect("no other slot is on trial");
    assert_eq!(shown(&mut bench), ("scripted".into(), 2), "the canary fell at its first");
    bench.engine.shadow(AnyPolicy::Scheduler(Box::new(Scheduler("shadow", failing(2)))), bench.now);
    assert_eq!(shown(&mut bench), ("scripted".into(), 2), "the shadow fell at its first");
    assert_eq!(bench.faults(), [FaultKind::Trap; 4], "all of them are reported");
}

#[test]
fn faults_outside_the_window_do_not_add_up() {
    let config = EngineConfig { max_strikes: 2, strike_window: Micros(2_500), ..small() };
    let mut bench =
        Bench::scheduled(
            config,
            |step| if step.number.is_multiple_of(4) { Err(trap()) } else { Ok(fcfs(step)) },
        );
    bench.submit(request(prompt(1, 9), 20));
    bench.run();
    assert!(bench.faults().len() >= 4);
    assert!(bench.changes().is_empty());
}

#[test]
fn a_way_back_beyond_the_previous_policy_leads_on_and_not_in_a_circle() {
    let mut bench = Bench::scheduled(small(), |step| Ok(fcfs(step)));
    bench.swap_scheduler("second", |step| Ok(fcfs(step)));
    bench.swap_scheduler("third", |step| Ok(fcfs(step)));
    let request = request(prompt(1, 9), 12);
    let id = bench.submit(request.clone());
    bench.step();
    assert_eq!(bench.engine.rollback(PolicyKind::Scheduler, bench.now).expect("the second").to, "second");
    bench.step();
    let earlier = Scheduler("scripted", |step: &_| Ok(fcfs(step)));
    let report = bench.engine.rollback_to(AnyPolicy::Scheduler(Box::new(earlier)), bench.now);
    assert_eq!((&*report.from, &*report.to), ("second", "scripted"));
    assert!(
        bench.engine.rollback(PolicyKind::Scheduler, bench.now).is_none(),
        "a policy that was rolled back from does not come back"
    );
    bench.run();
    assert_eq!(bench.tokens(id), solo(&request, VOCAB));
    assert_eq!(bench.engine.snapshot(bench.now).policies[0].policy.name, "scripted");
    let last = bench.events.iter().rev().find_map(|e| match e {
        Event::PolicyChanged { change, .. } => Some(change.name()),
        _ => None,
    });
    assert_eq!(last, Some("rollback"));
}

#[test]
fn swaps_between_any_two_steps_change_no_stream() {
    let mut bench = Bench::new(small());
    let requests: Vec<_> = (1..12).map(|i| request(prompt(i, i * 3), 10)).collect();
    let ids: Vec<_> = requests.iter().map(|r| bench.submit(r.clone())).collect();
    let mut turn = 0u32;
    while bench.engine.has_work() {
        bench.step();
        turn += 1;
        let reverse = turn.is_multiple_of(2);
        bench.swap_scheduler("turn", move |step| {
            let mut plan = fcfs(step);
            if reverse {
                plan.run.reverse();
                plan.tokens.reverse();
            }
            Ok(plan)
        });
    }
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(bench.tokens(*id), solo(request, VOCAB));
    }
}

#[test]
fn a_policy_can_be_handed_over_as_any_policy() {
    let any = AnyPolicy::Scheduler(Box::new(Scheduler("named", |step: &StepView| Ok(fcfs(step)))));
    assert_eq!((any.kind(), &*any.info().name), (PolicyKind::Scheduler, "named"));
}
