//! Policies that fail, starve, are swapped, and come back.

mod common;

use std::sync::{Arc, Mutex};

use common::info;
use common::scripted::{Admission, Bench, Scheduler, VOCAB, fcfs, prompt, request, small, trap};
use infer_core::engine::Policies;
use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, AnyPolicy, FaultKind, Load, Plan, Policy, PolicyFault, PolicyInfo,
    PolicyKind, Pressure, SchedulerPolicy, StepView, Verdict,
};
use infer_core::testing::solo;
use infer_core::{
    DeviceFault, DeviceFaultKind, EngineConfig, Event, FinishReason, Limits, Micros, Request, SequenceId,
    TenantId,
};

#[test]
fn strikes_bring_the_previous_policy_back_and_then_the_builtin() {
    let mut bench = Bench::scheduled(small(), |_| Err(trap()));
    let report = bench.swap_scheduler("second", |_| Err(trap()));
    assert_eq!((&*report.from, &*report.to, report.restored), ("scripted", "second", false));
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
    assert_eq!(slot.faults, 6);
    assert_eq!(bench.engine.take_retired().len(), 2);
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

/// A policy that records its restarts and states.
struct Noted {
    name: &'static str,
    log: Arc<Mutex<Vec<String>>>,
    broken: bool,
}

impl Policy for Noted {
    fn info(&self) -> Arc<PolicyInfo> {
        info(self.name)
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        Ok(b"memories".to_vec())
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), PolicyFault> {
        self.log.lock().unwrap().push(format!("import {}", String::from_utf8_lossy(state)));
        Ok(())
    }

    fn restart(&mut self) -> Result<(), PolicyFault> {
        self.log.lock().unwrap().push("restart".into());
        if self.broken { Err(PolicyFault::new(FaultKind::Setup, "no instance")) } else { Ok(()) }
    }
}

impl SchedulerPolicy for Noted {
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        if step.number == 2 { Err(trap()) } else { Ok(fcfs(step)) }
    }
}

#[test]
fn a_policy_is_restarted_after_a_fault_and_removed_if_that_fails() {
    for broken in [false, true] {
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut bench = Bench::new(small());
        let policy = Noted { name: "noted", log: log.clone(), broken };
        bench.engine.swap(AnyPolicy::Scheduler(Box::new(policy)), bench.now);
        bench.submit(request(prompt(1, 9), 6));
        bench.run();
        assert_eq!(*log.lock().unwrap(), ["restart"]);
        let faults: &[FaultKind] =
            if broken { &[FaultKind::Trap, FaultKind::Setup] } else { &[FaultKind::Trap] };
        assert_eq!(bench.faults(), faults);
        let last = if broken { "builtin-fcfs" } else { "noted" };
        assert_eq!(bench.changes().last(), Some(&last));
    }
}

#[test]
fn only_a_successor_of_the_same_name_imports_the_state() {
    for (name, restored) in [("noted", true), ("another", false)] {
        let log = Arc::new(Mutex::new(Vec::new()));
        let policy = |name| Noted { name, log: log.clone(), broken: false };
        let mut bench = Bench::new(small());
        bench.engine.swap(AnyPolicy::Scheduler(Box::new(policy("noted"))), bench.now);
        let report = bench.engine.swap(AnyPolicy::Scheduler(Box::new(policy(name))), bench.now);
        assert_eq!(report.restored, restored);
        assert_eq!(log.lock().unwrap().len(), usize::from(restored));
        assert!(report.retired.is_some(), "the one before the previous is needed no more");
        let back = bench.engine.rollback(PolicyKind::Scheduler, bench.now).expect("there is a previous one");
        assert_eq!((&*back.from, &*back.to), (name, "noted"));
        assert!(bench.engine.rollback(PolicyKind::Scheduler, bench.now).is_none());
    }
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

/// A state that can't be exported.
const SPOILT: u8 = 255;

/// A scheduler whose state is one number, and which records imports.
#[derive(Clone, Default)]
struct Keeper {
    state: Arc<Mutex<u8>>,
    given: Arc<Mutex<Vec<u8>>>,
    fails: Arc<Mutex<bool>>,
}

impl Policy for Keeper {
    fn info(&self) -> Arc<PolicyInfo> {
        info("keeper")
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        match *self.state.lock().unwrap() {
            SPOILT => Err(trap()),
            state => Ok(vec![state]),
        }
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), PolicyFault> {
        self.given.lock().unwrap().extend(state);
        *self.state.lock().unwrap() = state[0];
        Ok(())
    }
}

impl SchedulerPolicy for Keeper {
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        if std::mem::take(&mut *self.fails.lock().unwrap()) { Err(trap()) } else { Ok(fcfs(step)) }
    }
}

#[test]
fn a_restart_continues_from_the_last_state_exported_or_imported() {
    let [old, new] = [Keeper::default(), Keeper::default()];
    let scheduler = |keeper: &Keeper| AnyPolicy::Scheduler(Box::new(keeper.clone()));
    let fail = |bench: &mut Bench, keeper: &Keeper| {
        keeper.given.lock().unwrap().clear();
        *keeper.fails.lock().unwrap() = true;
        bench.submit(request(prompt(1, 9), 4));
        bench.run();
        std::mem::take(&mut *keeper.given.lock().unwrap())
    };
    let mut bench = Bench::new(small());
    bench.engine.swap(scheduler(&old), bench.now);
    assert_eq!(fail(&mut bench, &old), [], "it never exported anything");
    *old.state.lock().unwrap() = 1;
    assert!(bench.engine.swap(scheduler(&new), bench.now).restored);
    assert_eq!(fail(&mut bench, &new), [1], "what it took over");
    *new.state.lock().unwrap() = 2;
    assert!(bench.engine.rollback(PolicyKind::Scheduler, bench.now).expect("the first").restored);
    assert_eq!(fail(&mut bench, &old), [2], "and not what it exported before it left, nor twice");
    *old.state.lock().unwrap() = 3;
    bench.engine.shadow(scheduler(&new), bench.now);
    *new.state.lock().unwrap() = 4;
    bench.engine.promote(PolicyKind::Scheduler, bench.now).expect("the shadow");
    assert_eq!(fail(&mut bench, &new), [4], "what it had when it was promoted");
}

#[test]
fn a_policy_whose_state_cannot_be_exported_three_times_in_a_row_is_removed() {
    // Far more apart than strikes that add up.
    let config = EngineConfig { max_strikes: 2, strike_window: Micros(1_000), ..small() };
    let serve = |bench: &mut Bench, steps: u32| {
        for _ in 0..steps {
            if !bench.engine.has_work() {
                bench.submit(request(prompt(1, 9), 4));
            }
            bench.step();
        }
    };
    let keeper = Keeper::default();
    let mut bench = Bench::new(config);
    bench.engine.swap(AnyPolicy::Scheduler(Box::new(keeper.clone())), bench.now);
    serve(&mut bench, 500);
    let export = |bench: &mut Bench, state: u8| {
        *keeper.state.lock().unwrap() = state;
        serve(bench, 1_000);
    };
    for state in [1, SPOILT, SPOILT, 2, SPOILT] {
        export(&mut bench, state);
    }
    assert_eq!(
        (bench.faults().len(), bench.changes()),
        (3, vec!["keeper"]),
        "a good one starts the count again"
    );
    assert_eq!(*keeper.given.lock().unwrap(), [1, 1, 2], "each restart winds it back");
    for state in [SPOILT, SPOILT] {
        export(&mut bench, state);
    }
    assert_eq!((bench.faults().len(), bench.changes()), (5, vec!["keeper", "builtin-fcfs"]));
    let reason = bench.events.iter().rev().find_map(|event| match event {
        Event::PolicyChanged { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(reason.unwrap(), "trap: it fell over (3 exports of its state in a row failed)");
}

/// Admits everything, slowly.
struct Slow {
    spent: Micros,
    asked: Arc<Mutex<u32>>,
}

impl Policy for Slow {
    fn info(&self) -> Arc<PolicyInfo> {
        info("slow")
    }

    fn spent(&self) -> Micros {
        self.spent
    }
}

impl AdmissionPolicy for Slow {
    fn admit(&mut self, _: &AdmissionRequest, _: &Load) -> Result<Verdict, PolicyFault> {
        self.spent = self.spent.plus(Micros(15_000));
        *self.asked.lock().unwrap() += 1;
        Ok(Verdict::Admit)
    }

    fn measure(&mut self, _: &Load) -> Result<Pressure, PolicyFault> {
        Ok(Pressure::default())
    }
}

#[test]
fn calls_within_their_limits_may_exceed_the_step_budget_together() {
    let asked = Arc::new(Mutex::new(0));
    // Time that it took before it was live doesn't count.
    let slow = Slow { spent: Micros(9_000_000), asked: Arc::clone(&asked) };
    let mut bench = Bench::new(small());
    bench.engine.swap(AnyPolicy::Admission(Box::new(slow)), bench.now);
    for turn in 1..=3 {
        for seed in 0..10 {
            bench.submit(request(prompt(turn * 10 + seed, 4), 1));
        }
        bench.engine.drain_events(&mut bench.events);
        assert_eq!(bench.faults(), vec![FaultKind::StepBudget; turn as usize], "one for the step");
        assert_eq!(*asked.lock().unwrap(), turn * 7, "the built-in answers the rest");
        bench.run();
    }
    assert_eq!(bench.changes(), ["slow", "builtin-accept"], "these are strikes like others");
    // Six calls a step are none.
    let slow = Slow { spent: Micros(0), asked: Arc::clone(&asked) };
    bench.engine.swap(AnyPolicy::Admission(Box::new(slow)), bench.now);
    for seed in 0..30 {
        bench.submit(request(prompt(seed, 4), 1));
        bench.run();
    }
    assert_eq!(bench.faults().len(), 3);
}

#[test]
fn a_shadow_over_its_step_budget_ends() {
    let mut bench = Bench::new(small());
    let asked = Arc::new(Mutex::new(0));
    let slow = Slow { spent: Micros(9_000_000), asked: Arc::clone(&asked) };
    bench.engine.shadow(AnyPolicy::Admission(Box::new(slow)), bench.now);
    for seed in 0..10 {
        bench.submit(request(prompt(seed, 4), 1));
    }
    bench.run();
    assert_eq!((bench.faults(), *asked.lock().unwrap()), (vec![FaultKind::StepBudget], 7));
    assert_eq!(bench.changes(), Vec::<&str>::new(), "the live one stays");
}

#[test]
fn an_admission_policy_that_admits_nothing_is_removed_eventually() {
    let admission = Box::new(Admission(|_: &_, _: &_| Ok(Verdict::Wait)));
    let mut bench = Bench::with(watched(), Policies { admission, ..Policies::builtin() });
    let request = request(prompt(1, 9), 3);
    let id = bench.submit(request.clone());
    bench.run();
    assert!(bench.now.0 >= 12 * 50_000, "a short wait is a policy's right");
    assert_eq!(bench.tokens(id), solo(&request, VOCAB));
    assert_eq!(bench.faults(), [FaultKind::Starvation]);
    assert_eq!(bench.changes(), ["builtin-accept"]);
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

#[test]
fn a_device_fault_fails_only_the_rows_it_names() {
    for (rows, failed) in [(Some(vec![1]), 1), (None, 3)] {
        let mut bench = Bench::new(small());
        let requests: Vec<_> = (1..4).map(|i| request(prompt(i, 9), 6)).collect();
        let ids: Vec<_> = requests.iter().map(|r| bench.submit(r.clone())).collect();
        bench.step();
        bench.step();
        let message = "out of memory".to_owned();
        bench.executor.fail_next(DeviceFault { kind: DeviceFaultKind::OutOfMemory, message, rows });
        bench.step();
        // The engine still serves, and finds no garbage from the fault.
        let again = requests[1].clone();
        let id = bench.submit(again.clone());
        bench.run();
        assert_eq!(bench.tokens(id), solo(&again, VOCAB));
        let failures = bench
            .events
            .iter()
            .filter(|e| matches!(e, Event::Failed { message, .. } if message == "out of memory"));
        assert_eq!(failures.count(), failed);
        for (id, request) in ids.iter().zip(&requests) {
            let alone = solo(request, VOCAB);
            assert!(alone.starts_with(&bench.tokens(*id)));
        }
        assert_eq!(bench.engine.snapshot(bench.now).counters.device_faults, 1);
    }
}

#[test]
fn a_policy_can_be_handed_over_as_any_policy() {
    let any = AnyPolicy::Scheduler(Box::new(Scheduler("named", |step: &StepView| Ok(fcfs(step)))));
    assert_eq!((any.kind(), &*any.info().name), (PolicyKind::Scheduler, "named"));
}
