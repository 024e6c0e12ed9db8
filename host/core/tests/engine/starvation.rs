//! Policies that let requests wait for too long, as the watchdog counts it, and waits that are no policy's fault.

use crate::common::scripted::{Admission, Bench, Scheduler, VOCAB, fcfs, prompt, request, small, trap};
use infer_core::engine::Policies;
use infer_core::policy::{AnyPolicy, FaultKind, Plan, PolicyFault, PolicyKind, StepView, Verdict};
use infer_core::testing::solo;
use infer_core::trial::CanaryState;
use infer_core::{EngineConfig, FinishReason, Limits, Micros, Request, SequenceId, TenantId};

fn watched() -> EngineConfig {
    EngineConfig { starvation_bound: Micros(50_000), ..small() }
}

#[test]
fn a_scheduler_that_runs_nothing_is_removed() {
    for wake in [Micros::NEVER, Micros(0), Micros(u64::MAX - 1)] {
        let mut bench = Bench::scheduled(watched(), move |_| Ok(Plan { wake, ..Plan::default() }));
        let request = request(prompt(1, 9), 3);
        let id = bench.submit(request.clone());
        bench.run();
        assert_eq!(bench.tokens(id), solo(&request, VOCAB));
        assert_eq!(bench.faults(), [FaultKind::Starvation]);
        assert_eq!(bench.changes(), ["builtin-fcfs"]);
    }
}

#[test]
fn a_running_sequence_left_idle_takes_its_scheduler_out() {
    let mut bench = Bench::scheduled(watched(), |step| {
        let mut plan = fcfs(step);
        if let Some(at) = plan.run.iter().position(|&id| id == SequenceId(1) && step.running.id.contains(&1))
        {
            plan.run.remove(at);
            plan.tokens.remove(at);
        }
        Ok(plan)
    });
    bench.submit(request(prompt(1, 9), 9));
    bench.submit(request(prompt(2, 9), 100));
    bench.run();
    assert_eq!(bench.faults(), [FaultKind::Starvation]);
}

#[test]
fn a_scheduler_that_throws_its_results_away_is_removed() {
    let mut bench = Bench::scheduled(EngineConfig { prefix_caching: false, ..watched() }, |step| {
        let mut plan = fcfs(step);
        plan.tokens.iter_mut().for_each(|t| *t = 1);
        plan.preempt = step.running.id.iter().map(|&id| SequenceId(id)).collect();
        let mut waits =
            plan.run.iter().map(|id| step.waiting.id.contains(&id.0)).collect::<Vec<_>>().into_iter();
        plan.run.retain(|_| waits.next().unwrap());
        plan.tokens.truncate(plan.run.len());
        Ok(plan)
    });
    let requests: Vec<_> = (1..3).map(|i| request(prompt(i, 9), 3)).collect();
    let ids: Vec<_> = requests.iter().map(|r| bench.submit(r.clone())).collect();
    // A step that only preempts runs nothing; so one of the two always waits.
    bench.run();
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(bench.tokens(*id), solo(request, VOCAB));
    }
    assert_eq!(bench.faults(), [FaultKind::Starvation]);
}

/// Submits one request every other step while `bench` runs.
fn stream_in(bench: &mut Bench, of: impl Fn(u32) -> Request) {
    for turn in 0..150u32 {
        if turn.is_multiple_of(2) {
            let _ = bench.engine.submit(of(turn), bench.now);
        }
        bench.step();
    }
    bench.run();
}

/// Starts waiting sequences in this order of preference, one slot at a time.
fn preferring(
    prefer: impl Fn(&StepView, usize) -> u64 + Send + 'static,
) -> impl FnMut(&StepView) -> Result<Plan, PolicyFault> + Send {
    move |step| {
        let mut plan = fcfs(step);
        plan.tokens.retain({
            let mut at = 0;
            let run = plan.run.clone();
            move |_| {
                at += 1;
                step.running.id.contains(&run[at - 1].0)
            }
        });
        plan.run.retain(|id| step.running.id.contains(&id.0));
        let best = (0..step.waiting.len()).min_by_key(|&at| prefer(step, at));
        if let Some(at) = best
            && step.running.len() < step.limits.max_running as usize
        {
            plan.run.push(SequenceId(step.waiting.id[at]));
            let left = step.waiting.prompt_tokens[at] - step.waiting.computed_tokens[at];
            plan.tokens.push(left.min(4));
        }
        Ok(plan)
    }
}

fn one_place() -> EngineConfig {
    EngineConfig { limits: Limits { max_running: 1, ..small().limits }, max_waiting: 100, ..watched() }
}

#[test]
fn a_scheduler_that_lets_a_sequence_be_overtaken_for_too_long_is_removed() {
    let mut bench =
        Bench::scheduled(one_place(), preferring(|step, at| u64::from(step.waiting.prompt_tokens[at])));
    bench.submit(request(prompt(1, 20), 2));
    bench.submit(request(prompt(2, 20), 2));
    stream_in(&mut bench, |turn| request(prompt(turn + 3, 3), 2));
    assert_eq!(bench.faults(), [FaultKind::Starvation]);
}

#[test]
fn priorities_shares_overload_and_static_batches_are_not_starvation() {
    let by_priority = preferring(|step, at| (10 - step.waiting.priority[at]) as u64);
    let mut bench = Bench::scheduled(one_place(), by_priority);
    bench.submit(request(prompt(1, 9), 2));
    stream_in(&mut bench, |turn| Request { priority: 5, ..request(prompt(turn + 2, 3), 2) });
    assert_eq!(bench.faults(), []);

    // Tenant 0 was first with many; the tenants take turns.
    let by_share = preferring(|step, at| {
        let tenant = step.waiting.tenant[at] as usize;
        let row = step.tenants.id.iter().position(|&t| t as usize == tenant).unwrap();
        step.tenants.output_tokens_served[row]
    });
    let mut bench = Bench::scheduled(one_place(), by_share);
    for seed in 1..60 {
        bench.submit(request(prompt(seed, 3), 3));
    }
    stream_in(&mut bench, |turn| Request { tenant: TenantId(1), ..request(prompt(turn + 60, 3), 3) });
    assert_eq!(bench.faults(), []);

    // No request joins until all are done.
    let mut bench = Bench::scheduled(watched(), |step| {
        if step.running.is_empty() {
            return Ok(fcfs(step));
        }
        let mut alone = step.clone();
        alone.waiting = Default::default();
        Ok(fcfs(&alone))
    });
    for seed in 1..10 {
        bench.submit(request(prompt(seed, 3), 90));
    }
    bench.run();
    assert_eq!(bench.faults(), []);
}

#[test]
fn only_a_sequence_that_waited_the_whole_time_counts_as_overtaken() {
    let shortest = preferring(|step, at| u64::from(step.waiting.prompt_tokens[at]));
    let mut bench = Bench::scheduled(one_place(), shortest);
    let short = |tenant, seed| Request { tenant: TenantId(tenant), ..request(prompt(seed, 3), 2) };
    let impatient = bench.submit(request(prompt(1, 20), 2));
    bench.submit(short(1, 2));
    bench.step();
    assert!(bench.engine.finish(impatient, FinishReason::Cancelled, bench.now));
    for seed in 3..20 {
        bench.submit(short(1, seed));
        bench.run();
    }
    bench.now.0 += 1_000_000;
    // Another one of its tenant is passed once.
    bench.submit(request(prompt(1, 20), 2));
    bench.submit(short(1, 21));
    bench.run();
    assert_eq!(bench.faults(), []);
}

#[test]
fn a_tenant_counts_as_starved_only_while_none_of_its_sequences_runs() {
    for (output, faults) in [(110, &[][..]), (1, &[FaultKind::Starvation][..])] {
        let config = EngineConfig { limits: Limits { max_running: 2, ..small().limits }, ..one_place() };
        // The other tenant's first, always.
        let mut bench =
            Bench::scheduled(config, preferring(|step, at| u64::from(1 - step.waiting.tenant[at])));
        bench.submit(request(prompt(1, 9), output));
        bench.step();
        bench.submit(request(prompt(2, 9), 2));
        for seed in 3..100 {
            bench.submit(Request { tenant: TenantId(1), ..request(prompt(seed, 3), 1) });
            bench.step();
        }
        assert_eq!(bench.faults(), faults, "{output} tokens");
        bench.run();
    }
}

#[test]
fn a_policy_that_comes_back_is_not_blamed_for_its_successor() {
    let shortest = || preferring(|step, at| u64::from(step.waiting.prompt_tokens[at]));
    // It has a patience of its own, which begins with its own first plan.
    let (mut first_asked, mut plan) = (None, shortest());
    let mut bench = Bench::scheduled(one_place(), move |step| {
        let since = step.now.since(*first_asked.get_or_insert(step.now));
        if since < Micros(30_000) { plan(step) } else { Ok(fcfs(step)) }
    });
    let mut plan = shortest();
    let candidate = move |step: &StepView| if step.now > Micros(45_000) { Err(trap()) } else { plan(step) };
    let policy = AnyPolicy::Scheduler(Box::new(Scheduler("candidate", candidate)));
    bench.engine.canary(policy, Micros(10_000_000), bench.now).expect("no other slot is on trial");
    bench.submit(request(prompt(1, 20), 2));
    bench.submit(request(prompt(2, 3), 2));
    stream_in(&mut bench, |turn| request(prompt(turn + 3, 3), 2));
    assert_eq!(bench.faults(), [FaultKind::Trap]);
    assert_eq!(bench.changes(), ["candidate", "scripted"]);
}

#[test]
fn an_admission_policy_that_admits_nothing_is_removed_eventually() {
    for verdict in [Verdict::Wait, Verdict::WaitTenant] {
        let admission = Box::new(Admission(move |_: &_, _: &_| Ok(verdict.clone())));
        let mut bench = Bench::with(watched(), Policies { admission, ..Policies::builtin() });
        let request = request(prompt(1, 9), 3);
        let id = bench.submit(request.clone());
        bench.run();
        assert!(bench.now.0 >= 12 * 50_000, "a short wait is a policy's right");
        assert_eq!(bench.tokens(id), solo(&request, VOCAB));
        assert_eq!(bench.faults(), [FaultKind::Starvation]);
        assert_eq!(bench.changes(), ["builtin-accept"]);
    }
}

#[test]
fn an_admission_canary_that_admits_nothing_is_rolled_back_after_the_bound() {
    for verdict in [Verdict::Wait, Verdict::WaitTenant] {
        let mut bench = Bench::new(watched());
        let canary = AnyPolicy::Admission(Box::new(Admission(move |_: &_, _: &_| Ok(verdict.clone()))));
        bench.engine.canary(canary, Micros(10_000_000), bench.now).expect("no other slot is on trial");
        let request = request(prompt(1, 9), 3);
        let id = bench.submit(request.clone());
        while !bench.step() {
            assert!(bench.now <= Micros(100_000), "the bound, and the time until the next call about it");
            bench.now = bench.engine.next_wake().expect("a held request wakes the engine");
        }
        assert!(bench.now > Micros(50_000), "no sooner");
        bench.run();
        assert_eq!(bench.tokens(id), solo(&request, VOCAB));
        assert_eq!(bench.faults(), [FaultKind::Starvation]);
        assert_eq!(bench.changes(), ["scripted-admission", "builtin-accept"]);
        let slot = bench.engine.snapshot(bench.now).policies[PolicyKind::Admission as usize].clone();
        let canary = slot.canary.expect("it was on trial");
        assert_eq!(canary.state, CanaryState::RolledBack);
        assert!(canary.reason.contains("was held on an idle host for 50 ms"), "{}", canary.reason);
    }
}

#[test]
fn an_admission_policy_is_not_blamed_for_a_time_in_which_it_held_nothing() {
    let admission = Box::new(Admission(|_: &_, _: &_| Ok(Verdict::Wait)));
    let mut bench = Bench::with(watched(), Policies { admission, ..Policies::builtin() });
    let first = bench.submit(request(prompt(1, 9), 3));
    assert!(!bench.step());
    assert!(bench.engine.finish(first, FinishReason::Cancelled, bench.now));
    // With nothing to do, a driver sleeps.
    bench.now.0 += 20 * 50_000;
    bench.submit(request(prompt(2, 9), 3));
    assert!(!bench.step());
    assert_eq!(bench.faults(), [], "the second has only arrived");
    bench.run();
    assert_eq!(bench.faults(), [FaultKind::Starvation]);
}

#[test]
fn a_slow_device_is_no_starvation() {
    let mut bench = Bench::new(watched());
    for seed in 1..9 {
        bench.submit(request(prompt(seed, 9), 20));
    }
    while bench.engine.has_work() {
        bench.step();
        bench.now.0 += 200_000;
    }
    bench.run();
    assert_eq!(bench.faults(), []);
}
