//! Policies that take too much of a step's time, in many calls that each keep their limit.

use std::sync::{Arc, Mutex};

use crate::common::info;
use crate::common::scripted::{Bench, prompt, request, small};
use infer_core::Micros;
use infer_core::engine::{Exported, Policies};
use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, AnyPolicy, FaultKind, Load, Policy, PolicyFault, PolicyInfo,
    PolicyKind, Pressure, Verdict,
};

/// Admits everything, slowly.
struct Slow {
    spent: Micros,
    asked: Arc<Mutex<u32>>,
}

/// What exporting or importing its state takes: with two calls more than a step's budget.
const STATE_TIME: Micros = Micros(80_000);

impl Policy for Slow {
    fn info(&self) -> Arc<PolicyInfo> {
        info("slow")
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        self.spent = self.spent.plus(STATE_TIME);
        Ok(b"slow".to_vec())
    }

    fn import_state(&mut self, _: &[u8]) -> Result<(), PolicyFault> {
        self.spent = self.spent.plus(STATE_TIME);
        Ok(())
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
fn what_outlives_the_engine_is_on_no_steps_budget() {
    let asked = Arc::new(Mutex::new(0));
    let slow = Box::new(Slow { spent: Micros(0), asked: Arc::clone(&asked) });
    let mut bench = Bench::with(small(), Policies { admission: slow, ..Policies::builtin() });
    let state = Exported { kind: PolicyKind::Admission, policy: "slow".to_owned(), state: b"slow".to_vec() };
    assert_eq!(bench.engine.import_state(&state), Some(Ok(())));
    for seed in 0..2 {
        bench.submit(request(prompt(seed, 4), 1));
    }
    assert_eq!(bench.engine.carry(bench.now).states, [state]);
    for seed in 2..4 {
        bench.submit(request(prompt(seed, 4), 1));
    }
    bench.run();
    assert_eq!((bench.faults(), *asked.lock().unwrap()), (vec![], 4));
}
