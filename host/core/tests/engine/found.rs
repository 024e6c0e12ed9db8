//! Findings of the fault machine, each as a test of its own; `tests/REGRESSIONS.md` names the seeds.

use std::sync::{Arc, Mutex};

use crate::common::info;
use crate::common::scripted::{Ask, Bench, PrefixCache, Say, VOCAB, fcfs, prompt, request, small, trap};
use infer_core::policy::{AnyPolicy, FaultKind, Plan, Policy, PolicyFault, PolicyInfo, PolicyKind};
use infer_core::policy::{SchedulerPolicy, StepView};
use infer_core::testing::solo;
use infer_core::trial::CanaryState;
use infer_core::{EngineConfig, Handover, Limits, Micros, SequenceId};

/// Memory for two sequences' prompts, not for their outputs.
fn tight() -> EngineConfig {
    EngineConfig { total_blocks: 8, prefix_caching: false, starvation_bound: Micros(50_000), ..small() }
}

#[test]
fn a_scheduler_that_waits_for_memory_that_is_never_freed_is_removed() {
    // It runs what fits and never preempts: once every block is held it plans nothing, for ever.
    let mut bench = Bench::scheduled(tight(), |step| {
        let plan = fcfs(step);
        Ok(if plan.preempt.is_empty() { plan } else { Plan { wake: Micros::NEVER, ..Plan::default() } })
    });
    let requests = [request(prompt(1, 12), 12), request(prompt(2, 12), 12)];
    let ids = requests.each_ref().map(|request| bench.submit(request.clone()));
    let mut slept = 0;
    while bench.engine.has_work() {
        if !bench.step() {
            bench.now = bench.engine.next_wake().expect("the driver is woken while there is work");
            slept += 1;
        }
    }
    assert!(slept > 0, "memory was full");
    assert_eq!(bench.faults(), [FaultKind::Starvation]);
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(bench.tokens(*id), solo(request, VOCAB));
    }
}

#[test]
fn a_plan_that_only_preempts_is_followed_by_another_at_once() {
    let mut steps = 0;
    let mut bench = Bench::scheduled(small(), move |step| {
        steps += 1;
        if steps == 3 {
            let preempt = step.running.id.iter().map(|&id| SequenceId(id)).collect();
            return Ok(Plan { preempt, wake: Micros::NEVER, ..Plan::default() });
        }
        Ok(fcfs(step))
    });
    let wanted = request(prompt(1, 9), 6);
    let id = bench.submit(wanted.clone());
    assert!(bench.step() && bench.step() && !bench.step());
    let wake = bench.engine.next_wake().expect("there is work");
    assert!(wake <= bench.now.plus(Micros(1_000)), "{wake:?} is far from {:?}", bench.now);
    bench.run();
    assert_eq!(bench.tokens(id), solo(&wanted, VOCAB));
    assert!(bench.faults().is_empty());
}

#[test]
fn blocks_shared_only_by_preempted_sequences_are_free_for_the_rest() {
    // The first needs nearly all of the pool; the others hold one prefix together, which no view counts as
    // freeable.
    let config = EngineConfig {
        limits: Limits { prefill_chunk: 24, max_prefill_tokens: 64, ..small().limits },
        total_blocks: 8,
        prompt_cache_entries: 0,
        ..small()
    };
    let mut turn = 0;
    let mut bench = Bench::scheduled(config, move |step| {
        turn += 1;
        let give = |rows: &[(u64, u32)]| Plan {
            run: rows.iter().map(|&(id, _)| SequenceId(id)).collect(),
            tokens: rows.iter().map(|&(_, tokens)| tokens).collect(),
            wake: Micros::NEVER,
            ..Plan::default()
        };
        Ok(match turn {
            // The long one starts with a small chunk, then two that share three blocks.
            1 => give(&[(1, 4), (2, 13)]),
            2 => give(&[(3, 1)]),
            // It runs out of memory: the engine calls the built-in.
            3 => give(&[(1, 24)]),
            _ => fcfs(step),
        })
    });
    let shared = prompt(3, 12);
    let with = |last: u32| [shared.clone(), vec![last]].concat();
    let requests = [request(prompt(1, 28), 2), request(with(1), 8), request(with(2), 8)];
    let ids = requests.each_ref().map(|request| bench.submit(request.clone()));
    bench.run();
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(bench.tokens(*id), solo(request, VOCAB));
    }
}

#[test]
fn a_canary_that_fails_on_its_first_events_is_removed_and_the_trial_ends() {
    let mut bench = Bench::new(EngineConfig { max_strikes: 1, ..small() });
    bench.submit(request(prompt(1, 20), 4));
    bench.run();
    let failing = PrefixCache(|ask: Ask<'_>| match ask {
        Ask::Observe(_) => Err(trap()),
        _ => Ok(Say::Default),
    });
    let policy = AnyPolicy::PrefixCache(Box::new(failing));
    bench.engine.canary(policy, Micros(1_000_000), bench.now).expect("no other slot is on trial");
    let slot = bench.engine.snapshot(bench.now).policies[2].clone();
    let canary = slot.canary.expect("it was on trial");
    assert!(!slot.trial, "{:?} is on trial in its stead", slot.policy.name);
    assert_eq!((canary.state, &*canary.policy.name), (CanaryState::RolledBack, "scripted-prefix-cache"));
    let wanted = request(prompt(2, 20), 4);
    let id = bench.submit(wanted.clone());
    bench.run();
    assert_eq!(bench.tokens(id), solo(&wanted, VOCAB));
}

/// Exports `memory` and records imports; fails once the engine has had its state.
struct Absent {
    memory: Option<&'static [u8]>,
    given: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Policy for Absent {
    fn info(&self) -> Arc<PolicyInfo> {
        info("absent")
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        self.memory.map(<[u8]>::to_vec).ok_or_else(trap)
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), PolicyFault> {
        self.given.lock().unwrap().push(state.to_vec());
        Ok(())
    }
}

impl SchedulerPolicy for Absent {
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        if step.number == EXPORTED { Err(trap()) } else { Ok(fcfs(step)) }
    }
}

/// A step by which the engine has a copy of a policy's state.
const EXPORTED: u64 = 1_010;

#[test]
fn a_state_that_was_never_exported_is_not_imported() {
    let given = Arc::default();
    let absent = |memory| AnyPolicy::Scheduler(Box::new(Absent { memory, given: Arc::clone(&given) }));
    let mut bench = Bench::new(small());
    bench.engine.swap(absent(None), bench.now);
    let report = bench.engine.swap(absent(Some(b"new")), bench.now);
    assert_eq!(report.state, Handover::Cold, "there was nothing to take over");
    assert!(given.lock().unwrap().is_empty());
}

#[test]
fn a_failed_policy_that_comes_back_has_its_successors_state() {
    let given = Arc::default();
    let absent = |memory| AnyPolicy::Scheduler(Box::new(Absent { memory, given: Arc::clone(&given) }));
    let mut bench = Bench::new(small());
    bench.engine.swap(absent(Some(b"kept")), bench.now);
    for turn in 1.. {
        bench.submit(request(prompt(turn, 9), 100));
        while bench.engine.has_work() && bench.faults().is_empty() {
            bench.step();
        }
        if !bench.faults().is_empty() {
            break;
        }
    }
    // It failed, and would be restarted at its next call: by then another policy is live.
    bench.engine.swap(absent(None), bench.now);
    bench.engine.rollback(PolicyKind::Scheduler, bench.now).expect("there is a previous one");
    bench.run();
    assert_eq!(*given.lock().unwrap(), [b"kept", b"kept"], "its successor, and itself when it came back");
}
