//! What a policy keeps over a fault or a swap: it is restarted with the last state that it exported.

use std::sync::{Arc, Mutex};

use crate::common::info;
use crate::common::scripted::{Bench, Scheduler, fcfs, prompt, request, small, trap};
use infer_core::policy::{
    AnyPolicy, FaultKind, Plan, Policy, PolicyFault, PolicyInfo, PolicyKind, SchedulerPolicy, StepView,
};
use infer_core::{EngineConfig, Event, Handover, Micros};

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
    for (name, state) in [("noted", Handover::Restored), ("another", Handover::Cold)] {
        let log = Arc::new(Mutex::new(Vec::new()));
        let policy = |name| Noted { name, log: log.clone(), broken: false };
        let mut bench = Bench::new(small());
        bench.engine.swap(AnyPolicy::Scheduler(Box::new(policy("noted"))), bench.now);
        let report = bench.engine.swap(AnyPolicy::Scheduler(Box::new(policy(name))), bench.now);
        assert_eq!(report.state, state);
        assert_eq!(log.lock().unwrap().len(), usize::from(state == Handover::Restored));
        assert!(report.retired.is_some(), "the one before the previous is needed no more");
        let back = bench.engine.rollback(PolicyKind::Scheduler, bench.now).expect("there is a previous one");
        assert_eq!((&*back.from, &*back.to), (name, "noted"));
        assert!(bench.engine.rollback(PolicyKind::Scheduler, bench.now).is_none());
    }
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
    assert_eq!(bench.engine.swap(scheduler(&new), bench.now).state, Handover::Restored);
    assert_eq!(fail(&mut bench, &new), [1], "what it took over");
    *new.state.lock().unwrap() = 2;
    let back = bench.engine.rollback(PolicyKind::Scheduler, bench.now).expect("the first");
    assert_eq!(back.state, Handover::Restored);
    assert_eq!(fail(&mut bench, &old), [2], "and not what it exported before it left, nor twice");
    *old.state.lock().unwrap() = 3;
    bench.engine.shadow(scheduler(&new), bench.now);
    *new.state.lock().unwrap() = 4;
    let promoted = bench.engine.promote(PolicyKind::Scheduler, bench.now).expect("the shadow");
    assert_eq!(promoted.state, Handover::Kept);
    assert_eq!(fail(&mut bench, &new), [4], "what it had when it was promoted");
}

/// A scheduler of the same name with this state that can't read any, with this kind of fault.
struct Unreading(FaultKind, &'static [u8]);

impl Policy for Unreading {
    fn info(&self) -> Arc<PolicyInfo> {
        info("keeper")
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        Ok(self.1.to_vec())
    }

    fn import_state(&mut self, _state: &[u8]) -> Result<(), PolicyFault> {
        Err(PolicyFault::new(self.0, "another version"))
    }
}

impl SchedulerPolicy for Unreading {
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        Ok(fcfs(step))
    }
}

#[test]
fn a_policy_that_cannot_read_its_predecessors_state_says_why() {
    for (kind, note) in [
        (FaultKind::Setup, "it refuses its predecessor's state: another version"),
        (FaultKind::Trap, "it failed over its predecessor's state: trap: another version"),
    ] {
        for how in ["swap", "canary", "shadow", "rollback"] {
            let mut bench = Bench::new(small());
            let keeper = || AnyPolicy::Scheduler(Box::new(Keeper::default()));
            let unreading = || AnyPolicy::Scheduler(Box::new(Unreading(kind, &[7])));
            if how == "rollback" {
                bench.engine.swap(unreading(), bench.now);
            }
            let before = bench.engine.swap(keeper(), bench.now);
            assert_eq!(before.state_note, None);
            let report = match how {
                "swap" => bench.engine.swap(unreading(), bench.now),
                "canary" => bench.engine.canary(unreading(), Micros(1_000_000), bench.now).expect("no other"),
                "shadow" => bench.engine.shadow(unreading(), bench.now),
                _ => bench.engine.rollback(PolicyKind::Scheduler, bench.now).expect("the first"),
            };
            let state = if how == "rollback" { Handover::Kept } else { Handover::Cold };
            assert_eq!((report.state, report.state_note.as_deref()), (state, Some(note)), "{how}");
            bench.step();
            let told = bench.events.iter().rev().find_map(|event| match event {
                Event::PolicyChanged { reason, .. } => Some(reason.clone()),
                Event::Shadow { state_note, .. } => state_note.clone(),
                _ => None,
            });
            let reason = if how == "shadow" { note.to_owned() } else { format!("{how}; {note}") };
            assert_eq!((told, bench.faults()), (Some(reason), vec![]), "{how}");
        }
    }
}

#[test]
fn a_policy_that_refuses_an_empty_state_misses_nothing() {
    let unreading = || AnyPolicy::Scheduler(Box::new(Unreading(FaultKind::Setup, &[])));
    let mut bench = Bench::new(small());
    bench.engine.swap(unreading(), bench.now);
    let report = bench.engine.swap(unreading(), bench.now);
    assert_eq!((report.state, report.state_note), (Handover::Cold, None));
}

/// A scheduler of another name, which takes over nobody's state.
fn stranger() -> AnyPolicy {
    AnyPolicy::Scheduler(Box::new(Scheduler("stranger", |step: &StepView| Ok(fcfs(step)))))
}

#[test]
fn a_policy_that_comes_back_or_is_promoted_goes_on_with_its_own_state() {
    let keeper = Keeper::default();
    let live = || AnyPolicy::Scheduler(Box::new(keeper.clone()));
    let mut bench = Bench::new(small());
    bench.engine.swap(live(), bench.now);
    assert_eq!(bench.engine.swap(stranger(), bench.now).state, Handover::Cold);
    let back = bench.engine.rollback(PolicyKind::Scheduler, bench.now).expect("the first");
    assert_eq!((&*back.to, back.state), ("keeper", Handover::Kept));
    assert_eq!(*keeper.given.lock().unwrap(), []);

    assert_eq!(bench.engine.shadow(stranger(), bench.now).state, Handover::Cold);
    let promoted = bench.engine.promote(PolicyKind::Scheduler, bench.now).expect("the shadow");
    assert_eq!((&*promoted.to, promoted.state), ("stranger", Handover::Kept));

    let tried = bench.engine.canary(live(), Micros(1_000_000), bench.now).expect("no other is on trial");
    assert_eq!(tried.state, Handover::Cold, "a new instance");
    let accepted = bench.engine.promote(PolicyKind::Scheduler, bench.now).expect("the canary");
    assert_eq!((&*accepted.to, accepted.state), ("keeper", Handover::Kept));
    assert_eq!(*keeper.given.lock().unwrap(), []);
}

#[test]
fn a_policy_without_a_copy_of_its_state_comes_back_cold_from_a_fault() {
    for (exported, state) in [(false, Handover::Cold), (true, Handover::Kept)] {
        let keeper = Keeper::default();
        let mut bench = Bench::new(small());
        bench.engine.swap(AnyPolicy::Scheduler(Box::new(keeper.clone())), bench.now);
        if exported {
            // A companion of its name makes the slot keep a copy.
            bench.engine.shadow(AnyPolicy::Scheduler(Box::new(keeper.clone())), bench.now);
            bench.engine.stop_shadow(PolicyKind::Scheduler, bench.now).expect("it runs");
        }
        *keeper.fails.lock().unwrap() = true;
        bench.submit(request(prompt(1, 9), 4));
        bench.step();
        assert_eq!(bench.faults(), [FaultKind::Trap]);
        bench.engine.swap(stranger(), bench.now);
        let back = bench.engine.rollback(PolicyKind::Scheduler, bench.now).expect("the first");
        assert_eq!((&*back.to, back.state), ("keeper", state));
    }
}

#[test]
fn a_promoted_shadow_that_cannot_export_its_state_begins_cold() {
    let keeper = Keeper::default();
    let mut bench = Bench::new(small());
    bench.engine.shadow(AnyPolicy::Scheduler(Box::new(keeper.clone())), bench.now);
    *keeper.state.lock().unwrap() = SPOILT;
    let promoted = bench.engine.promote(PolicyKind::Scheduler, bench.now).expect("the shadow");
    assert_eq!(promoted.state, Handover::Cold, "it is restarted before its first call");
    let note = "its own state could not be exported: trap: it fell over";
    assert_eq!(promoted.state_note.as_deref(), Some(note));
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
