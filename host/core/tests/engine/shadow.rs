//! Policies in shadow: called like the live one, compared, and without effect.

use std::sync::{Arc, Mutex};

use crate::common::scripted::{
    Admission, Ask, Bench, PrefixCache, Say, Scheduler, VOCAB, fcfs, prompt, request, small, trap,
};
use crate::common::{RandomPrefixCache, info};
use infer_core::engine::Policies;
use infer_core::policy::{
    AnyPolicy, FaultKind, Plan, Policy, PolicyFault, PolicyInfo, PolicyKind, Retention, SchedulerPolicy,
    StepView, Verdict,
};
use infer_core::request::RefusalReason;
use infer_core::testing::solo;
use infer_core::trial::{DivergenceKind, SHADOW_EXAMPLES, ShadowReport, ShadowState};
use infer_core::{Event, Handover, Micros, Refusal, Request, SequenceId};

fn requests() -> Vec<Request> {
    (1..12).map(|i| request(prompt(i, i * 3), 10)).collect()
}

fn report(bench: &mut Bench, kind: PolicyKind) -> ShadowReport {
    let slots = bench.engine.snapshot(bench.now).policies;
    slots.into_iter().find(|s| s.kind == kind).unwrap().shadow.expect("there was one")
}

/// Serves the requests with `shadow` beside the built-in; every stream must be the same as alone.
fn serve_beside(shadow: AnyPolicy) -> (Bench, ShadowReport) {
    let mut bench = Bench::new(small());
    let kind = shadow.kind();
    let started = bench.engine.shadow(shadow, bench.now);
    assert!(started.from.starts_with("builtin"));
    let requests = requests();
    let ids: Vec<_> = requests.iter().map(|r| bench.submit(r.clone())).collect();
    while bench.engine.has_work() {
        bench.step();
    }
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(bench.tokens(*id), solo(request, VOCAB));
    }
    let slot = bench.engine.snapshot(bench.now).policies.into_iter().find(|s| s.kind == kind).unwrap();
    assert!(slot.policy.name.starts_with("builtin"));
    assert_eq!((slot.faults, slot.fallbacks), (0, 0), "nothing of it is the live policy's");
    let report = report(&mut bench, kind);
    (bench, report)
}

fn steps(bench: &mut Bench, count: usize) {
    for _ in 0..count {
        bench.step();
    }
}

fn scheduler(schedule: impl FnMut(&StepView) -> Result<Plan, PolicyFault> + Send + 'static) -> AnyPolicy {
    AnyPolicy::Scheduler(Box::new(Scheduler("candidate", schedule)))
}

#[test]
fn a_shadow_that_decides_alike_agrees_in_every_step() {
    let (bench, report) = serve_beside(scheduler(|step| {
        let mut plan = fcfs(step);
        // The order of a plan is no difference.
        plan.run.reverse();
        plan.tokens.reverse();
        Ok(plan)
    }));
    assert_eq!(report.state, ShadowState::Watching);
    assert!(report.questions > 20 && report.agreements == report.questions, "{report:?}");
    assert!(bench.changes().is_empty(), "no policy became live");
}

#[test]
fn differences_are_counted_by_kind_and_shown_in_short() {
    let (_, report) = serve_beside(scheduler(|step| {
        let mut plan = fcfs(step);
        if step.number.is_multiple_of(3) {
            plan.run.pop();
            plan.tokens.pop();
        } else if let Some(most) = plan.tokens.iter_mut().find(|t| **t > 1) {
            *most -= 1;
        }
        Ok(plan)
    }));
    let count = |kind: DivergenceKind| report.divergences[kind as usize];
    assert!(count(DivergenceKind::Run) > 5 && count(DivergenceKind::Tokens) > 5, "{report:?}");
    let differences: u64 = report.divergences.iter().sum();
    assert_eq!(report.questions, report.agreements + differences);
    assert_eq!(report.examples.len(), SHADOW_EXAMPLES.min(differences as usize));
    let of = |kind| report.examples.iter().rev().find(|e| e.kind == kind).expect("a late one");
    let run = of(DivergenceKind::Run);
    assert!(run.live.starts_with("also runs ") && run.shadow == "also runs nothing else", "{run:?}");
    assert!(report.examples.windows(2).all(|pair| pair[0].step < pair[1].step));

    let (_, report) = serve_beside(scheduler(|step| {
        let mut plan = fcfs(step);
        if let Some(&first) = step.running.id.first() {
            plan.preempt.push(SequenceId(first));
            let mut keep = plan.run.iter().map(|id| id.0 != first).collect::<Vec<_>>().into_iter();
            let mut also = keep.clone();
            plan.run.retain(|_| keep.next().unwrap());
            plan.tokens.retain(|_| also.next().unwrap());
        }
        Ok(plan)
    }));
    assert!(report.divergences[DivergenceKind::Run as usize] > 10, "{report:?}");
}

#[test]
fn a_failing_shadow_is_removed_without_affecting_the_live_policy() {
    for kind in [FaultKind::Trap, FaultKind::InvalidDecision] {
        let (mut bench, report) = serve_beside(scheduler(move |step| match kind {
            _ if step.number <= 5 => Ok(fcfs(step)),
            FaultKind::Trap => Err(trap()),
            _ => Ok(Plan { run: vec![SequenceId(99)], tokens: vec![1], ..Plan::default() }),
        }));
        assert_eq!(report.state, ShadowState::Failed);
        assert!(report.reason.starts_with(kind.name()), "{}", report.reason);
        let faults: Vec<_> = bench
            .events
            .iter()
            .filter_map(|e| if let Event::PolicyFault(f) = e { Some(f) } else { None })
            .collect();
        assert_eq!(faults.len(), 1);
        assert!(faults[0].shadow && faults[0].removed && faults[0].policy.name == "candidate");
        assert_eq!(bench.engine.take_retired().len(), 1);
        assert!(bench.engine.promote(PolicyKind::Scheduler, bench.now).is_none());
    }
}

/// A scheduler whose calls take this much processor time each.
struct Costly {
    takes: Micros,
    spent: Micros,
}

impl Policy for Costly {
    fn info(&self) -> Arc<PolicyInfo> {
        info("costly")
    }

    fn spent(&self) -> Micros {
        self.spent
    }
}

impl SchedulerPolicy for Costly {
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        self.spent = self.spent.plus(self.takes);
        Ok(fcfs(step))
    }
}

#[test]
fn a_shadow_that_takes_more_than_a_quarter_of_the_time_ends() {
    // Steps take a millisecond: 245 and 260 of a second's 1,000, after what it took before it ran here.
    for (takes, ends) in [(245, false), (260, true)] {
        let mut bench = Bench::new(small());
        let policy = Costly { takes: Micros(takes), spent: Micros(9_000_000) };
        bench.engine.shadow(AnyPolicy::Scheduler(Box::new(policy)), bench.now);
        for turn in 0..3_000 {
            if !bench.engine.has_work() {
                bench.submit(request(prompt(turn, 9), 6));
            }
            bench.step();
        }
        let report = report(&mut bench, PolicyKind::Scheduler);
        let (state, kinds): (_, &[FaultKind]) = match ends {
            true => (ShadowState::Failed, &[FaultKind::StepBudget]),
            false => (ShadowState::Watching, &[]),
        };
        assert_eq!((report.state, bench.faults()), (state, kinds.to_vec()), "{report:?}");
        if ends {
            assert_eq!(
                report.reason,
                "step-budget: its calls within a second took 251 ms, over 250 ms in all"
            );
            let fault = report.fault.expect("it failed");
            assert!(fault.removed && fault.culprits.is_empty(), "live it would be within its limits");
        }
    }
}

/// Counts its calls, and hands the count on.
struct Counting(Arc<Mutex<u64>>);

impl Policy for Counting {
    fn info(&self) -> Arc<PolicyInfo> {
        info("counting")
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        Ok(self.0.lock().unwrap().to_le_bytes().to_vec())
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), PolicyFault> {
        *self.0.lock().unwrap() = u64::from_le_bytes(state.try_into().unwrap());
        Ok(())
    }
}

impl SchedulerPolicy for Counting {
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        let mut count = self.0.lock().unwrap();
        *count = count.checked_add(1).ok_or_else(trap)?;
        Ok(fcfs(step))
    }
}

#[test]
fn a_promoted_shadow_keeps_its_state_and_one_of_the_same_name_starts_from_a_copy() {
    let mut bench = Bench::new(small());
    let (first, second): (Arc<Mutex<u64>>, Arc<Mutex<u64>>) = Default::default();
    bench.engine.swap(AnyPolicy::Scheduler(Box::new(Counting(first.clone()))), bench.now);
    bench.submit(request(prompt(1, 9), 60));
    steps(&mut bench, 10);
    let report = bench.engine.shadow(AnyPolicy::Scheduler(Box::new(Counting(second.clone()))), bench.now);
    assert_eq!(report.state, Handover::Restored);
    assert_eq!(*second.lock().unwrap(), 10);
    steps(&mut bench, 10);
    *second.lock().unwrap() += 1_000;
    let promoted = bench.engine.promote(PolicyKind::Scheduler, bench.now).expect("it runs in shadow");
    assert_eq!((&*promoted.to, *second.lock().unwrap()), ("counting", 1_020));
    bench.run();
    assert_eq!(*first.lock().unwrap(), 20, "it gets no more calls");
    assert!(*second.lock().unwrap() > 1_040);
    assert_eq!(self::report(&mut bench, PolicyKind::Scheduler).state, ShadowState::Promoted);
}

#[test]
fn a_shadows_fault_carries_the_state_that_it_began_from() {
    let mut bench = Bench::new(small());
    let (live, shadow): (Arc<Mutex<u64>>, Arc<Mutex<u64>>) = Default::default();
    bench.engine.swap(AnyPolicy::Scheduler(Box::new(Counting(live))), bench.now);
    bench.submit(request(prompt(1, 9), 60));
    steps(&mut bench, 10);
    bench.engine.shadow(AnyPolicy::Scheduler(Box::new(Counting(shadow.clone()))), bench.now);
    *shadow.lock().unwrap() = u64::MAX;
    bench.run();
    let fault = report(&mut bench, PolicyKind::Scheduler).fault.expect("it failed");
    assert_eq!(fault.state, 10_u64.to_le_bytes());
}

#[test]
fn a_shadow_ends_when_it_is_stopped_or_another_policy_is_swapped_in() {
    let mut bench = Bench::new(small());
    let ended = |bench: &mut Bench| report(bench, PolicyKind::Scheduler).state;
    bench.engine.shadow(scheduler(|s| Ok(fcfs(s))), bench.now);
    assert!(bench.engine.stop_shadow(PolicyKind::Scheduler, bench.now).is_some());
    assert_eq!(ended(&mut bench), ShadowState::Stopped);
    assert!(bench.engine.stop_shadow(PolicyKind::Scheduler, bench.now).is_none());
    bench.engine.shadow(scheduler(|s| Ok(fcfs(s))), bench.now);
    bench.swap_scheduler("another", |s| Ok(fcfs(s)));
    assert_eq!(ended(&mut bench), ShadowState::Replaced);
    bench.engine.shadow(scheduler(|s| Ok(fcfs(s))), bench.now);
    let again = bench.engine.shadow(scheduler(|s| Ok(fcfs(s))), bench.now);
    assert!(again.retired.is_some(), "one shadow at a time");
    assert_eq!(ended(&mut bench), ShadowState::Watching);
}

#[test]
fn admission_verdicts_are_compared_by_kind() {
    let mut turn = 0;
    let (_, report) = serve_beside(AnyPolicy::Admission(Box::new(Admission(move |_: &_, _: &_| {
        turn += 1;
        Ok(match turn % 3 {
            0 => Verdict::Admit,
            1 => Verdict::Wait,
            _ => Verdict::Refuse(Refusal {
                reason: RefusalReason::Other,
                message: "no".into(),
                retry_after_ms: 0,
            }),
        })
    }))));
    assert_eq!((report.questions, report.agreements), (11, 3));
    let said: Vec<_> = report.examples[..2].iter().map(|e| (&*e.live, &*e.shadow)).collect();
    assert_eq!(said, [("admits request 1", "holds request 1"), ("admits request 2", "refuses request 2")]);
}

#[test]
fn a_prefix_cache_shadow_receives_all_events_and_drops_nothing() {
    let (_, report) = serve_beside(AnyPolicy::PrefixCache(Box::new(PrefixCache(|ask: Ask<'_>| {
        Ok(match ask {
            Ask::Reuse(_) => Say::Reuse(0),
            Ask::Retain(_) => Say::Retain(Retention { keep_tokens: 4, ttl: Micros::ZERO }),
            Ask::Observe(_) | Ask::Evict(_) => Say::Default,
        })
    }))));
    let count = |kind: DivergenceKind| report.divergences[kind as usize];
    assert!(count(DivergenceKind::Retain) > 5, "{report:?}");

    // A strict observer in shadow, primed and not, that names blocks to drop: those stay, and it receives the
    // live policy's drops. Promoted, it continues from what it knows.
    for seed in 0..40 {
        let mut bench = Bench::new(small());
        let live = RandomPrefixCache::new(seed, 0);
        bench.engine.swap(AnyPolicy::PrefixCache(Box::new(live)), bench.now);
        let mut requests = requests();
        let mut ids: Vec<_> = requests.iter().map(|r| bench.submit(r.clone())).collect();
        steps(&mut bench, 30);
        let shadow = RandomPrefixCache::new(seed + 1_000, 0);
        if seed % 2 == 0 {
            shadow.mirror.lock().unwrap().absorb(&bench.engine.begin_priming());
            steps(&mut bench, 5);
        }
        let mirror = shadow.mirror.clone();
        bench.engine.shadow(AnyPolicy::PrefixCache(Box::new(shadow)), bench.now);
        let repeated = requests.clone();
        ids.extend(repeated.iter().map(|r| bench.submit(r.clone())));
        requests.extend(repeated);
        steps(&mut bench, 60);
        let report = self::report(&mut bench, PolicyKind::PrefixCache);
        assert_eq!(report.state, ShadowState::Watching, "seed {seed}: {report:?}");
        assert!(report.questions > 0 && mirror.lock().unwrap().events > 0);
        if seed % 4 < 2 {
            bench.engine.promote(PolicyKind::PrefixCache, bench.now).expect("it runs in shadow");
        }
        bench.run();
        let slot = &bench.engine.snapshot(bench.now).policies[2];
        assert_eq!(slot.faults, 0, "seed {seed}: {:?}", slot.last_fault);
        for (id, request) in ids.iter().zip(&requests) {
            assert_eq!(bench.tokens(*id), solo(request, VOCAB), "seed {seed}");
        }
    }
}

#[test]
fn a_slot_without_a_shadow_has_no_report() {
    let mut bench = Bench::with(small(), Policies::builtin());
    assert!(bench.engine.snapshot(bench.now).policies.iter().all(|s| s.shadow.is_none() && !s.trial));
}
