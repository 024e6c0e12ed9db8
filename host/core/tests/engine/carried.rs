//! An engine goes on where another one was: its clock, its ids, its counts, and what its policies exported.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use infer_core::engine::{Exported, Numbers, Policies};
use infer_core::policy::{
    AnyPolicy, FaultKind, Plan, Policy, PolicyFault, PolicyInfo, PolicyKind, SchedulerPolicy, StepView,
};
use infer_core::testing::SplitMix;
use infer_core::{Micros, Request, SequenceId, TenantId};

use crate::common::info;
use crate::common::scripted::{Bench, Scheduler, fcfs, prompt, request, small, trap};

const DAY: Micros = Micros(86_400_000_000);

/// A scheduler that notes what it is shown and given.
#[derive(Clone, Default)]
struct Teller {
    seen: Arc<Mutex<Vec<StepView>>>,
    log: Arc<Mutex<Vec<String>>>,
    /// Why it takes no state.
    refuses: Option<FaultKind>,
    /// Whether it can't export its state.
    is_spoilt: Arc<Mutex<bool>>,
}

impl Policy for Teller {
    fn info(&self) -> Arc<PolicyInfo> {
        info("teller")
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        if *self.is_spoilt.lock().unwrap() { Err(trap()) } else { Ok(b"memories".to_vec()) }
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), PolicyFault> {
        if let Some(kind) = self.refuses {
            return Err(PolicyFault::new(kind, "another version"));
        }
        self.log.lock().unwrap().push(format!("import {}", String::from_utf8_lossy(state)));
        Ok(())
    }

    fn restart(&mut self) -> Result<(), PolicyFault> {
        self.log.lock().unwrap().push("restart".into());
        Ok(())
    }
}

impl SchedulerPolicy for Teller {
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        self.seen.lock().unwrap().push(step.clone());
        Ok(fcfs(step))
    }
}

impl Teller {
    fn bench(&self) -> Bench {
        Bench::with(small(), Policies { scheduler: Box::new(self.clone()), ..Policies::builtin() })
    }

    fn any(&self) -> AnyPolicy {
        AnyPolicy::Scheduler(Box::new(self.clone()))
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

fn of_tenant(tenant: u32, prompt: Vec<u32>, output: u32) -> Request {
    Request { tenant: TenantId(tenant), ..request(prompt, output) }
}

fn memories() -> Exported {
    Exported { kind: PolicyKind::Scheduler, policy: "teller".into(), state: b"memories".to_vec() }
}

#[test]
fn an_engine_counts_on_and_its_policy_has_its_state_again() {
    let before = Teller::default();
    let mut bench = before.bench();
    bench.submit(of_tenant(3, prompt(1, 9), 6));
    bench.run();
    let carried = bench.engine.carry(bench.now);
    assert_eq!((&carried.states[..], carried.numbers.next_id), (&[memories()][..], 2));
    let last = before.seen.lock().unwrap().last().unwrap().clone();

    let after = Teller::default();
    let mut next = after.bench();
    let begin = bench.now.plus(DAY);
    next.engine.continue_from(&carried.numbers, begin);
    assert_eq!(next.engine.import_state(&memories()), Some(Ok(())));
    let slot = next.engine.slot(PolicyKind::Scheduler);
    assert_eq!((slot.since, after.log()), (begin, vec!["import memories".to_owned()]));
    next.now = begin.plus(Micros(1));
    assert_eq!(next.submit(of_tenant(3, prompt(2, 9), 50)), SequenceId(2));
    next.run();
    let first = after.seen.lock().unwrap()[0].clone();
    assert_eq!((first.now, first.number), (next_to(begin), last.number + 1));
    assert_eq!(first.waiting.expected_tokens, [6], "what its requests generated before");
    let served = (&first.tenants.prompt_tokens_served[..], &first.tenants.output_tokens_served[..]);
    assert_eq!(served, (&[9][..], &[6][..]));
    let snapshot = next.engine.snapshot(next.now);
    assert_eq!(snapshot.step, last.number + snapshot.counters.steps);
    let tenant = snapshot.tenants[0];
    assert_eq!((tenant.prompt_tokens, tenant.generated_tokens), (9, 50), "of this engine alone");
    assert_eq!(next.faults(), []);
    let tenants = next.engine.carry(next.now).numbers.tenants;
    let (_, history) = tenants.iter().find(|(tenant, _)| *tenant == TenantId(3)).expect("it was served");
    assert_eq!((history.prompt_tokens, history.output_tokens), (18, 56));
}

fn next_to(at: Micros) -> Micros {
    at.plus(Micros(1))
}

#[test]
fn a_policy_that_does_not_take_its_state_begins_cold_without_a_fault() {
    for (kind, note, log) in [
        (FaultKind::Setup, "it refuses its predecessor's state: another version", vec![]),
        (FaultKind::Trap, "it failed over its predecessor's state: trap: another version", vec!["restart"]),
    ] {
        let teller = Teller { refuses: Some(kind), ..Teller::default() };
        let mut bench = teller.bench();
        bench.engine.continue_from(&Numbers::default(), DAY);
        assert_eq!(bench.engine.import_state(&memories()), Some(Err(note.to_owned())));
        bench.now = DAY;
        bench.submit(request(prompt(1, 9), 3));
        bench.run();
        assert_eq!((teller.log(), bench.faults()), (log.iter().map(ToString::to_string).collect(), vec![]));
    }
}

#[test]
fn a_state_is_for_policies_of_its_name() {
    let mut bench = Teller::default().bench();
    let of_another = Exported { policy: "another".into(), ..memories() };
    let of_another_slot = Exported { kind: PolicyKind::Admission, ..memories() };
    assert_eq!(bench.engine.import_state(&of_another), None);
    assert_eq!(bench.engine.import_state(&of_another_slot), None);
    bench.engine.leave_to_builtin(PolicyKind::Scheduler);
    assert_eq!(bench.engine.import_state(&memories()), None);
}

#[test]
fn what_is_on_trial_leaves_nothing_and_what_it_replaced_does() {
    let teller = Teller::default();
    let mut bench = teller.bench();
    assert_eq!(bench.engine.carry(bench.now).states, [memories()]);
    let stranger = || AnyPolicy::Scheduler(Box::new(Scheduler("stranger", |step: &StepView| Ok(fcfs(step)))));
    bench.engine.canary(stranger(), Micros(1_000_000), bench.now).expect("no other is on trial");
    assert_eq!(bench.engine.carry(bench.now).states, [memories()]);
    bench.engine.swap(stranger(), bench.now);
    assert_eq!(bench.engine.carry(bench.now).states, [], "it has no state");
    bench.engine.shadow(teller.any(), bench.now);
    assert_eq!(bench.engine.carry(bench.now).states, []);
    bench.engine.promote(PolicyKind::Scheduler, bench.now).expect("the shadow");
    assert_eq!(bench.engine.carry(bench.now).states, [memories()]);
}

#[test]
fn a_state_that_cannot_be_exported_is_the_last_one_that_could() {
    let teller = Teller::default();
    let mut bench = teller.bench();
    bench.engine.carry(bench.now);
    *teller.is_spoilt.lock().unwrap() = true;
    assert_eq!(bench.engine.carry(bench.now).states, [memories()]);
    bench.submit(request(prompt(1, 9), 1));
    bench.run();
    assert_eq!(bench.faults(), [FaultKind::Trap]);
}

/// What a policy has been shown, over several engines.
#[derive(Default)]
struct Books {
    now: Micros,
    number: u64,
    served: BTreeMap<u32, (u64, u64)>,
    /// The highest id of earlier engines, and of all.
    before: u64,
    highest: u64,
}

impl Books {
    fn check(&mut self, step: &StepView) {
        assert!(step.now >= self.now && step.number >= self.number, "time and steps go on");
        (self.now, self.number) = (step.now, step.number);
        for &id in step.running.id.iter().chain(&step.waiting.id) {
            assert!(id > self.before, "{id} was another engine's");
            self.highest = self.highest.max(id);
        }
        let tenants = &step.tenants;
        let served = tenants.prompt_tokens_served.iter().zip(&tenants.output_tokens_served);
        for (&tenant, (&prompt, &output)) in tenants.id.iter().zip(served) {
            let known = self.served.insert(tenant, (prompt, output)).unwrap_or_default();
            assert!(prompt >= known.0 && output >= known.1, "tenant {tenant} was served more");
        }
    }
}

#[test]
fn nothing_that_a_policy_is_shown_goes_back_over_any_number_of_engines() {
    for seed in 0..20 {
        let mut rng = SplitMix(seed);
        let books = Arc::<Mutex<Books>>::default();
        let mut numbers = Numbers::default();
        for _ in 0..5 {
            let own = Arc::clone(&books);
            let mut bench = Bench::scheduled(small(), move |step| {
                own.lock().unwrap().check(step);
                Ok(fcfs(step))
            });
            bench.now = numbers.now.plus(Micros(rng.below(DAY.0)));
            bench.engine.continue_from(&numbers, bench.now);
            for nth in 0..rng.below(12) as u32 {
                let length = rng.between(1, 30) as u32;
                bench.submit(of_tenant(rng.below(4) as u32, prompt(nth, length), rng.between(1, 20) as u32));
                for _ in 0..rng.below(4) {
                    bench.step();
                }
            }
            // Some are still alive: they end with the engine.
            numbers = bench.engine.carry(bench.now).numbers;
            let mut books = books.lock().unwrap();
            assert!(numbers.next_id > books.highest, "seed {seed}");
            books.before = numbers.next_id - 1;
        }
    }
}
