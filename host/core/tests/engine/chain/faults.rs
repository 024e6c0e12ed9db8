//! Which member is at fault, and what that costs.

use infer_core::engine::Policies;
use infer_core::policy::{AnyPolicy, FaultKind, PolicyFault, Verdict};
use infer_core::{EngineConfig, Event, FinishReason, Micros};

use super::{Log, Member, chain, taken};
use crate::common::scripted::{Bench, prompt, request, small, trap};

#[test]
fn a_failing_member_costs_no_request_and_strikes_remove_the_chain() {
    let log = Log::default();
    let failing = Member::new("b", &log).answers(std::iter::repeat_n((), 3).map(|()| Err(trap())));
    let policy = chain([Member::new("a", &log), failing]);
    let mut bench = Bench::with(small(), Policies { admission: Box::new(policy), ..Policies::builtin() });
    for seed in 0..4 {
        bench.submit(request(prompt(seed, 4), 2));
    }
    bench.run();
    assert_eq!(bench.faults(), [FaultKind::Trap; 3]);
    assert_eq!(bench.changes(), ["builtin-accept"]);
    let finished = |e: &&Event| matches!(e, Event::Finished { reason: FinishReason::Length, .. });
    assert_eq!(bench.events.iter().filter(finished).count(), 4);
    assert_eq!(taken(&log).iter().filter(|line| *line == "b restart").count(), 2);
}

/// The member that the first fault is attributed to, with the message.
fn blamed(bench: &mut Bench) -> (FaultKind, String, String) {
    bench.engine.drain_events(&mut bench.events);
    let fault = bench.events.iter().find_map(|e| match e {
        Event::PolicyFault(fault) => Some(&fault.fault),
        _ => None,
    });
    let fault = fault.expect("there is one");
    let member = fault.member.as_ref().expect("it is a member's");
    (fault.kind, member.name.clone(), fault.message.clone())
}

#[test]
fn a_step_budget_fault_is_attributed_to_the_slowest_member() {
    let log = Log::default();
    // One took far more in earlier steps; then the other one takes too much.
    let early: fn(u8) -> u64 = |before| if before < 90 { 9_000 } else { 100 };
    let late: fn(u8) -> u64 = |before| if before < 90 { 100 } else { 15_000 };
    for (takes_us, slow) in [([early, late], "b"), ([late, early], "a")] {
        for shadow in [false, true] {
            let member = |name, at: usize| Member { takes_us: takes_us[at], ..Member::new(name, &log) };
            let policy = AnyPolicy::Admission(Box::new(chain([member("a", 0), member("b", 1)])));
            let mut bench = Bench::new(small());
            match shadow {
                true => bench.engine.shadow(policy, bench.now),
                false => bench.engine.swap(policy, bench.now),
            };
            for round in 0..10 {
                assert_eq!(bench.faults(), [], "{round}");
                for seed in 0..10 {
                    bench.submit(request(prompt(seed, 4), 2));
                }
                bench.run();
                // Another second: only the step's budget counts.
                bench.now = bench.now.plus(Micros(1_000_000));
            }
            let (kind, member, message) = blamed(&mut bench);
            assert_eq!((kind, &*member), (FaultKind::StepBudget, slow), "shadow: {shadow}");
            assert!(message.starts_with(&format!("{slow}: its calls of one step took 10")), "{message}");
        }
    }
}

#[test]
fn a_starvation_fault_is_attributed_to_the_member_that_held_the_request() {
    let log = Log::default();
    let waits = || Member::new("b", &log).answers(std::iter::repeat_n((), 9_999).map(|()| Ok(Verdict::Wait)));
    let admits = || Member::new("a", &log);
    for members in [[admits(), waits()], [waits(), admits()]] {
        let config = EngineConfig { starvation_bound: Micros(50_000), ..small() };
        let policies = Policies { admission: Box::new(chain(members)), ..Policies::builtin() };
        let mut bench = Bench::with(config, policies);
        bench.submit(request(prompt(1, 4), 2));
        bench.run();
        let (kind, member, message) = blamed(&mut bench);
        assert_eq!((kind, &*member), (FaultKind::Starvation, "b"));
        assert!(message.starts_with("b: request 1 was held on an idle host"), "{message}");
    }
}

#[test]
fn a_removal_names_each_member_that_failed_within_the_window() {
    let log = Log::default();
    let first = Member::new("a", &log).answers([Err(trap()), Err(trap())]);
    let second = Member::new("b", &log).answers([Err(PolicyFault::new(FaultKind::Memory, "too much"))]);
    let list = chain([first, second, Member::new("c", &log)]);
    let mut bench = Bench::with(small(), Policies { admission: Box::new(list), ..Policies::builtin() });
    for seed in 0..3 {
        bench.submit(request(prompt(seed, 4), 2));
    }
    bench.run();
    let culprits: Vec<Vec<_>> = bench
        .events
        .iter()
        .filter_map(|e| if let Event::PolicyFault(fault) = e { Some(&fault.culprits) } else { None })
        .map(|all| all.iter().map(|culprit| (&*culprit.policy.name, &*culprit.reason)).collect())
        .collect();
    let both = vec![("a", "trap: a: it fell over"), ("b", "memory: b: too much")];
    assert_eq!(culprits, [vec![], vec![], both]);
}
