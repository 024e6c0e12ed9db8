//! Policies on trial: worse ones are removed, equally good ones stay, and no request notices either.

mod common;

use common::scripted::{Admission, Bench, Scheduler, fcfs, prompt, request, small, trap};
use common::site::{Site, Traffic};
use infer_core::builtin::FirstComeFirstServed;
use infer_core::engine::Policies;
use infer_core::policy::{AnyPolicy, FaultKind, Load, Plan, PolicyFault, PolicyKind, StepView, Verdict};
use infer_core::request::RefusalReason;
use infer_core::trial::{CanaryReport, CanaryState};
use infer_core::{Change, Engine, Event, FinishReason, Micros, Refusal, SequenceId};

const WINDOW: Micros = Micros(10_000_000);

fn site(seed: u64, traffic: Traffic) -> Site {
    Site::new(seed, traffic, FirstComeFirstServed::default())
}

/// Puts a scheduler on trial after a time with the built-in, and continues to serve.
fn try_out(
    site: Site,
    schedule: impl FnMut(&StepView) -> Result<Plan, PolicyFault> + Send + 'static,
) -> (Site, CanaryReport) {
    try_out_for(site, [12.0, 50.0], schedule)
}

fn try_out_for(
    mut site: Site,
    seconds: [f64; 2],
    schedule: impl FnMut(&StepView) -> Result<Plan, PolicyFault> + Send + 'static,
) -> (Site, CanaryReport) {
    site.serve(seconds[0]);
    let policy = AnyPolicy::Scheduler(Box::new(Scheduler("candidate", schedule)));
    let report = site.bench.engine.canary(policy, WINDOW, site.bench.now).expect("no other slot is on trial");
    assert_eq!((&*report.from, &*report.to), ("builtin-fcfs", "candidate"));
    site.serve(seconds[1]);
    site.finish();
    let canary = site.bench.engine.snapshot(site.bench.now).policies[0].canary.clone().expect("on trial");
    (site, canary)
}

/// Removes rows from the built-in's plan.
fn without(step: &StepView, mut leave_out: impl FnMut(SequenceId) -> bool) -> Plan {
    let mut plan = fcfs(step);
    let mut kept = plan.run.iter().map(|&id| !leave_out(id)).collect::<Vec<_>>().into_iter();
    let mut also = kept.clone();
    plan.run.retain(|_| kept.next().unwrap());
    plan.tokens.retain(|_| also.next().unwrap());
    plan.wake = step.now;
    plan
}

fn is_rolled_back(site: &Site, canary: &CanaryReport, change: Change, reason: &str) {
    assert_eq!(canary.state, CanaryState::RolledBack, "{canary:#?}");
    assert!(canary.reason.contains(reason), "{}", canary.reason);
    let changes: Vec<_> = site
        .bench
        .events
        .iter()
        .filter_map(|event| match event {
            Event::PolicyChanged { to, change, reason, .. } => Some((to.as_str(), *change, reason.clone())),
            _ => None,
        })
        .collect();
    assert_eq!(changes.len(), 2);
    assert_eq!(changes[0], ("candidate", Change::Canary, "canary".to_owned()));
    assert_eq!(changes[1], ("builtin-fcfs", change, canary.reason.clone()));
    site.check_streams();
}

#[test]
fn a_canary_that_doubles_the_time_between_tokens_is_removed_and_no_token_is_lost() {
    for traffic in [Traffic::BURSTS, Traffic::HEAVY] {
        let mut turn = 0;
        let (site, canary) = try_out(site(1, traffic), move |step| {
            turn += 1;
            Ok(without(step, |id| step.running.id.contains(&id.0) && (id.0 + turn) % 2 == 0))
        });
        is_rolled_back(&site, &canary, Change::Verdict, "ITL");
        assert!(canary.after.itl_p50.0 as f64 > 1.4 * canary.before.itl_p50.0 as f64, "{canary:#?}");
        assert!(canary.watched <= WINDOW, "it is seen within the window");
        let mut without_it = self::site(1, traffic);
        without_it.serve(62.0);
        without_it.finish();
        let streams = |site: &Site| {
            let tokens = site.requests.iter().map(|(id, _)| (*id, site.bench.tokens(*id)));
            tokens.collect::<std::collections::BTreeMap<_, _>>()
        };
        let (with, without_it) = (streams(&site), streams(&without_it));
        assert!(with.iter().all(|(id, tokens)| without_it.get(id).is_none_or(|other| tokens == other)));
    }
}

#[test]
fn a_canary_that_starts_late_or_runs_few_at_a_time_is_removed() {
    let (late, canary) = try_out(site(2, Traffic::BURSTS), |step| {
        let due = step.now.0 / 1_000 % 600 < 20;
        Ok(without(step, |id| !due && step.waiting.id.contains(&id.0)))
    });
    is_rolled_back(&late, &canary, Change::Verdict, "TTFT");
    let (few, canary) = try_out_for(site(3, Traffic::OVERLOAD), [5.0, 8.0], |step| {
        Ok(without(step, |id| {
            let at = step.running.id.iter().position(|&r| r == id.0);
            at.is_none() && step.running.len() >= 2
        }))
    });
    is_rolled_back(&few, &canary, Change::Verdict, "tokens/s");
}

#[test]
fn a_canary_that_starves_a_request_is_removed() {
    let (running, canary) = try_out(site(4, Traffic::HEAVY), |step| {
        let first = step.running.id.first().copied();
        Ok(without(step, |id| Some(id.0) == first))
    });
    is_rolled_back(&running, &canary, Change::Fault, "starvation");
    // Tenant 1 never starts.
    let (tenant, canary) = try_out(site(5, Traffic::HEAVY), |step| {
        Ok(without(step, |id| {
            step.waiting.id.iter().position(|&w| w == id.0).is_some_and(|at| step.waiting.tenant[at] == 1)
        }))
    });
    is_rolled_back(&tenant, &canary, Change::Fault, "starvation");
}

#[test]
fn the_first_fault_ends_a_trial() {
    for kind in [FaultKind::Trap, FaultKind::Deadline, FaultKind::InvalidDecision] {
        let mut turn = 0;
        let (site, canary) = try_out(site(6, Traffic::BURSTS), move |step| {
            turn += 1;
            match kind {
                FaultKind::InvalidDecision if turn == 50 => {
                    Ok(Plan { run: vec![SequenceId(1 << 40)], tokens: vec![1], ..Plan::default() })
                }
                FaultKind::Deadline if turn == 50 => Err(PolicyFault::new(kind, "too slow")),
                _ if turn == 50 => Err(trap()),
                _ => Ok(fcfs(step)),
            }
        });
        is_rolled_back(&site, &canary, Change::Fault, kind.name());
        assert_eq!(site.bench.faults(), [kind]);
        assert!(canary.watched < WINDOW);
    }
}

#[test]
fn the_same_policy_stays_under_bursts_whatever_they_are() {
    let seeds = std::env::var("SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    for seed in 0..seeds {
        for traffic in [Traffic::BURSTS, Traffic { rise: 0.4, ..Traffic::BURSTS }] {
            let (site, canary) = try_out(site(seed, traffic), |step| Ok(fcfs(step)));
            assert_eq!(canary.state, CanaryState::Promoted, "seed {seed}: {canary:#?}");
            assert!(canary.watched >= WINDOW && canary.watched.0 <= 4 * WINDOW.0 + 1_000_000);
            assert_eq!(site.bench.changes(), ["candidate"]);
            site.check_streams();
        }
    }
}

#[test]
fn the_same_policy_is_accepted_on_a_saturated_host() {
    for seed in 0..4 {
        for (traffic, seconds) in [
            (Traffic { rates: [100.0; 2], ..Traffic::HEAVY }, [12.0, 50.0]),
            (Traffic { rates: [135.0; 2], ..Traffic::HEAVY }, [12.0, 50.0]),
            (Traffic { rates: [60.0; 2], rise: 2.0, ..Traffic::HEAVY }, [12.0, 30.0]),
            (Traffic::OVERLOAD, [5.0, 15.0]),
        ] {
            let (_, canary) = try_out_for(site(seed, traffic), seconds, |step| Ok(fcfs(step)));
            // It may still be watched, because the load keeps growing.
            assert_ne!(canary.state, CanaryState::RolledBack, "seed {seed}: {canary:#?}");
        }
    }
}

#[test]
fn a_trial_ends_by_hand_too() {
    let on_trial = || {
        let mut site = site(7, Traffic::BURSTS);
        site.serve(3.0);
        let policy = AnyPolicy::Scheduler(Box::new(Scheduler("candidate", |s: &StepView| Ok(fcfs(s)))));
        site.bench.engine.canary(policy, WINDOW, site.bench.now).unwrap();
        site.serve(1.0);
        site
    };
    let report = |site: &mut Site| site.bench.engine.snapshot(site.bench.now).policies[0].clone();

    let mut site = on_trial();
    assert!(report(&mut site).trial);
    let promoted = site.bench.engine.promote(PolicyKind::Scheduler, site.bench.now).expect("on trial");
    assert_eq!((&*promoted.from, &*promoted.to), ("builtin-fcfs", "candidate"));
    let slot = report(&mut site);
    assert!(!slot.trial && slot.policy.name == "candidate" && slot.previous.is_some());
    assert_eq!(slot.canary.unwrap().state, CanaryState::Promoted);
    assert!(site.bench.engine.promote(PolicyKind::Scheduler, site.bench.now).is_none());

    let mut site = on_trial();
    site.bench.engine.rollback(PolicyKind::Scheduler, site.bench.now).expect("there is a previous one");
    let slot = report(&mut site);
    assert_eq!((&*slot.policy.name, slot.canary.unwrap().state), ("builtin-fcfs", CanaryState::RolledBack));

    // A policy that replaces a canary has the proved one behind it, not the canary.
    let mut site = on_trial();
    site.bench.swap_scheduler("third", |step| Ok(fcfs(step)));
    let slot = report(&mut site);
    assert_eq!((&*slot.policy.name, &*slot.previous.unwrap().name), ("third", "builtin-fcfs"));
    assert_eq!(slot.canary.unwrap().state, CanaryState::RolledBack);

    // One at a time.
    let mut site = on_trial();
    let admission = AnyPolicy::Admission(Policies::builtin().admission);
    let (_, other) = site.bench.engine.canary(admission, WINDOW, site.bench.now).unwrap_err();
    assert_eq!(other, PolicyKind::Scheduler);
    site.finish();
    site.check_streams();
}

/// Nothing runs once everything is refused, and clients retry: neither delays the trial's end.
#[test]
fn an_admission_canary_that_refuses_everything_is_removed() {
    for rates in [Traffic::BURSTS.rates, [60.0, 400.0]] {
        let mut site = site(10, Traffic::BURSTS);
        site.serve(12.0);
        let refusal = Refusal { reason: RefusalReason::Rate, message: "no".into(), retry_after_ms: 1_000 };
        let refuse = Admission(move |_: &_, _: &_| Ok(Verdict::Refuse(refusal.clone())));
        let policy = AnyPolicy::Admission(Box::new(refuse));
        site.bench.engine.canary(policy, WINDOW, site.bench.now).expect("no other slot is on trial");
        site.traffic.rates = rates;
        site.serve(12.0);
        let slot =
            site.bench.engine.snapshot(site.bench.now).policies[PolicyKind::Admission as usize].clone();
        let canary = slot.canary.expect("it was on trial");
        assert_eq!(canary.state, CanaryState::RolledBack, "{canary:#?}");
        assert!(canary.reason.contains("% of the requests are refused, up from 0%"), "{}", canary.reason);
        assert_eq!(slot.policy.name, "builtin-accept");
        let refused = std::mem::take(&mut site.refused);
        assert!(refused > 20, "{refused}");
        site.finish();
        site.check_streams();
    }
}

#[test]
fn an_idle_host_accepts_no_canary_and_one_without_a_baseline_compares_nothing() {
    let mut site = site(8, Traffic { rates: [0.001; 2], ..Traffic::BURSTS });
    let policy = AnyPolicy::Scheduler(Box::new(Scheduler("candidate", |s: &StepView| Ok(fcfs(s)))));
    site.bench.engine.canary(policy, WINDOW, site.bench.now).unwrap();
    site.serve(500.0);
    let canary = site.bench.engine.snapshot(site.bench.now).policies[0].canary.clone().unwrap();
    assert_eq!(canary.state, CanaryState::Watching);
    let (_, canary) = {
        let mut site = self::site(9, Traffic::BURSTS);
        let policy = AnyPolicy::Scheduler(Box::new(Scheduler("candidate", |s: &StepView| Ok(fcfs(s)))));
        site.bench.engine.canary(policy, WINDOW, site.bench.now).unwrap();
        site.serve(30.0);
        let canary = site.bench.engine.snapshot(site.bench.now).policies[0].canary.clone().unwrap();
        (site, canary)
    };
    assert_eq!(canary.state, CanaryState::Promoted);
    assert!(canary.reason.contains("no baseline to compare with"), "{}", canary.reason);
    assert_eq!(canary.longest, WINDOW, "there is nothing to wait for");
}

#[test]
fn a_canary_that_is_watched_for_longer_says_why_and_for_how_long() {
    let rising = Traffic { rates: [20.0; 2], rise: 1.0, ..Traffic::HEAVY };
    let (_, canary) = try_out_for(site(15, rising), [12.0, 20.0], |step| Ok(fcfs(step)));
    assert_eq!(canary.state, CanaryState::Watching, "{canary:#?}");
    assert!(canary.watched > WINDOW && canary.watched < canary.longest, "{canary:#?}");
    assert_eq!(canary.longest, Micros(4 * WINDOW.0));
    let (why, numbers) = canary.reason.split_once(": ").expect("a reason");
    assert_eq!(why, "watched for longer, because more is asked of the host than before");
    assert!(numbers.contains(" requests/s, up from "), "{numbers}");
}

#[test]
fn a_canary_says_at_once_what_can_fail_it() {
    for (seconds_before, says) in [
        (0.0, "only faults can fail it; nothing ran"),
        (0.6, "only faults and refusals can fail it; 0."),
        (12.0, "compared with "),
    ] {
        let (site, _) = try_out_for(site(14, Traffic::BURSTS), [seconds_before, 1.0], |step| Ok(fcfs(step)));
        let mut reasons = site.bench.events.iter().filter_map(|event| match event {
            Event::Canary(report) => Some(&report.reason),
            _ => None,
        });
        let first = reasons.next().expect("the trial began");
        assert!(first.starts_with(says), "{seconds_before} s: {first}");
    }
}

/// Whatever ends the last request, the time until the next one doesn't count.
#[test]
fn a_host_is_idle_however_its_last_request_ended() {
    type End = fn(&mut Engine, SequenceId, Micros);
    let ends: [(&str, bool, End); 6] = [
        ("cancelled", true, |engine, id, now| assert!(engine.finish(id, FinishReason::Cancelled, now))),
        ("stopped", true, |engine, id, now| assert!(engine.finish(id, FinishReason::Stop, now))),
        ("overdue", true, |engine, id, now| assert!(engine.expire(id, "overdue".into(), now))),
        ("cancelled in the queue", false, |engine, id, now| {
            assert!(engine.finish(id, FinishReason::Cancelled, now));
        }),
        ("overdue in the queue", false, |engine, id, now| assert!(engine.expire(id, "overdue".into(), now))),
        ("cleared", false, |engine, _, now| assert_eq!(engine.clear_queue("cleared", now), 1)),
    ];
    for (how, starts, end) in ends {
        let mut bench = Bench::new(small());
        let policy = AnyPolicy::Scheduler(Box::new(Scheduler("candidate", |s: &StepView| Ok(fcfs(s)))));
        bench.engine.canary(policy, WINDOW, bench.now).expect("no other slot is on trial");
        for seed in 1..5 {
            let id = bench.submit(request(prompt(seed, 9), 40));
            assert!(!starts || bench.step());
            end(&mut bench.engine, id, bench.now);
            bench.now = bench.now.plus(WINDOW);
        }
        bench.step();
        let canary = bench.engine.snapshot(bench.now).policies[0].canary.clone().expect("on trial");
        assert_eq!(canary.state, CanaryState::Watching, "{how}: {}", canary.reason);
    }
}

#[test]
fn a_host_is_idle_once_the_last_held_request_is_refused() {
    let mut asked = 0;
    let admission = Admission(move |_: &_, _: &_| {
        asked += 1;
        let reason = RefusalReason::Rate;
        let refusal = Refusal { reason, message: "no".into(), retry_after_ms: 1_000 };
        Ok(if asked % 2 == 1 { Verdict::Wait } else { Verdict::Refuse(refusal) })
    });
    let mut bench = Bench::with(small(), Policies { admission: Box::new(admission), ..Policies::builtin() });
    let policy = AnyPolicy::Scheduler(Box::new(Scheduler("candidate", |s: &StepView| Ok(fcfs(s)))));
    bench.engine.canary(policy, WINDOW, bench.now).expect("no other slot is on trial");
    for seed in 1..5 {
        bench.submit(request(prompt(seed, 9), 4));
        bench.now = bench.now.plus(Micros(100_000));
        assert!(!bench.step());
        bench.now = bench.now.plus(WINDOW);
    }
    bench.step();
    let canary = bench.engine.snapshot(bench.now).policies[0].canary.clone().expect("on trial");
    assert_eq!(canary.state, CanaryState::Watching, "{}", canary.reason);
}

/// Effects of another slot's policy on clients are not attributed to the candidate.
#[test]
fn a_canary_is_not_blamed_for_what_changes_in_another_slot() {
    fn refuse_some() -> AnyPolicy {
        let mut turn = 0;
        AnyPolicy::Admission(Box::new(Admission(move |_: &_, _: &_| {
            turn += 1;
            let refusal =
                Refusal { reason: RefusalReason::Rate, message: "no".into(), retry_after_ms: 1_000 };
            Ok(if turn % 2 == 0 { Verdict::Refuse(refusal) } else { Verdict::Admit })
        })))
    }
    fn fail_late() -> AnyPolicy {
        AnyPolicy::Admission(Box::new(Admission(|_: &_, load: &Load| {
            if load.now < Micros(16_900_000) { Ok(Verdict::Admit) } else { Err(trap()) }
        })))
    }
    const KIND: PolicyKind = PolicyKind::Admission;
    type Change = fn(&mut Engine, Micros);
    // Disturbances before the trial and in the middle of it.
    let changes: [(&str, Change, Change); 4] = [
        ("swapped", |_, _| {}, |engine, now| drop(engine.swap(refuse_some(), now))),
        (
            "promoted",
            |engine, now| drop(engine.shadow(refuse_some(), now)),
            |engine, now| assert!(engine.promote(KIND, now).is_some()),
        ),
        (
            "rolled back",
            |engine, now| drop(engine.swap(refuse_some(), now)),
            |engine, now| assert!(engine.rollback(KIND, now).is_some()),
        ),
        ("struck out", |engine, now| drop(engine.swap(fail_late(), now)), |_, _| {}),
    ];
    for (how, before, change) in changes {
        let mut site = site(11, Traffic::BURSTS);
        before(&mut site.bench.engine, site.bench.now);
        site.serve(12.0);
        let policy = AnyPolicy::Scheduler(Box::new(Scheduler("candidate", |s: &StepView| Ok(fcfs(s)))));
        site.bench.engine.canary(policy, WINDOW, site.bench.now).expect("no other slot is on trial");
        site.serve(5.0);
        change(&mut site.bench.engine, site.bench.now);
        site.serve(1.0);
        let canary = |site: &mut Site| {
            site.bench.engine.snapshot(site.bench.now).policies[0].canary.clone().expect("on trial")
        };
        let disturbed = canary(&mut site);
        assert_eq!(disturbed.state, CanaryState::Watching, "{how}: {disturbed:#?}");
        assert_eq!(disturbed.disturbed, Some(KIND), "{how}");
        assert!(disturbed.watched < Micros(2_000_000), "{how}: the window restarts");
        assert!(disturbed.reason.contains("the admission policy changed"), "{how}: {}", disturbed.reason);
        site.serve(60.0);
        let ended = canary(&mut site);
        assert_eq!(ended.state, CanaryState::Promoted, "{how}: {ended:#?}");
        assert!(ended.reason.contains("nothing was compared"), "{how}: {}", ended.reason);
        let told = site.bench.events.iter().filter(|event| {
            matches!(event, Event::Canary(report) if report.disturbed.is_some() && report.ended == Micros::NEVER)
        });
        assert!(told.count() >= 1, "{how}: it is reported");
        site.finish();
    }
}

#[test]
fn a_canarys_baseline_starts_after_the_last_change_of_any_slot() {
    let mut site = site(12, Traffic::BURSTS);
    site.serve(12.0);
    let refusal = Refusal { reason: RefusalReason::Rate, message: "no".into(), retry_after_ms: 1_000 };
    let refuse = Admission(move |_: &_, _: &_| Ok(Verdict::Refuse(refusal.clone())));
    site.bench.engine.swap(AnyPolicy::Admission(Box::new(refuse)), site.bench.now);
    site.serve(0.2);
    let policy = AnyPolicy::Scheduler(Box::new(Scheduler("candidate", |s: &StepView| Ok(fcfs(s)))));
    site.bench.engine.canary(policy, WINDOW, site.bench.now).expect("no other slot is on trial");
    site.serve(30.0);
    let canary =
        site.bench.engine.snapshot(site.bench.now).policies[0].canary.clone().expect("it was on trial");
    assert_eq!(canary.state, CanaryState::Promoted, "{canary:#?}");
}

/// The candidate's strikes count as usual, whatever else changed.
#[test]
fn a_disturbed_canary_is_still_removed_at_its_first_fault() {
    let mut site = site(13, Traffic::BURSTS);
    site.serve(3.0);
    let policy = Scheduler(
        "candidate",
        |s: &StepView| {
            if s.now > Micros(6_000_000) { Err(trap()) } else { Ok(fcfs(s)) }
        },
    );
    site.bench.engine.canary(AnyPolicy::Scheduler(Box::new(policy)), WINDOW, site.bench.now).unwrap();
    site.serve(1.0);
    site.bench.engine.swap(AnyPolicy::Admission(Policies::builtin().admission), site.bench.now);
    site.serve(10.0);
    let slot = site.bench.engine.snapshot(site.bench.now).policies[0].clone();
    assert_eq!(slot.policy.name, "builtin-fcfs");
    assert_eq!(slot.canary.unwrap().state, CanaryState::RolledBack);
    site.finish();
    site.check_streams();
}
