//! What members keep over faults and swaps, alone and in other chains.

use std::sync::Arc;

use infer_core::Handover;
use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, AnyPolicy, Chain, FaultKind, Load, Policy, PolicyFault, PolicyInfo,
    PolicyKind, Pressure, Verdict,
};

use super::{Log, Member, ask, chain, chain_of, taken};
use crate::common::scripted::{Bench, prompt, request, small, trap};

#[test]
fn a_member_keeps_its_state_when_the_chain_changes() {
    let log = Log::default();
    let mut old = chain_of(["a", "b", "c"], &log);
    ask(&mut old).unwrap();
    ask(&mut old).unwrap();
    let state = old.export_state().unwrap();
    let mut new = chain_of(["c", "d", "a"], &log);
    taken(&log);
    assert!(new.takes_state_of("a+b+c") && !new.takes_state_of("b+e") && !new.takes_state_of("b"));
    assert_eq!(new.own_part_of("a+b+c", &state).as_ref(), Some(&state));
    new.import_state(&state).unwrap();
    assert_eq!(taken(&log), ["c import [2]", "a import [2]"]);
    assert_eq!((new.stats().calls, new.stats().durations.count()), (4, 4));
    assert_eq!((new.stats().p50_us, new.stats().p99_us), (4.5, 30.0));
    let gauges = new.gauges().into_iter().map(|gauge| (gauge.policy, gauge.value)).collect::<Vec<_>>();
    assert_eq!(gauges, [("c".to_owned(), 2.0), ("d".to_owned(), 0.0), ("a".to_owned(), 2.0)]);
}

#[test]
fn a_policy_keeps_its_state_when_it_joins_and_leaves_a_chain() {
    let log = Log::default();
    let mut chained = chain_of(["a", "b"], &log);
    assert!(chained.takes_state_of("b"));
    let state = chained.own_part_of("b", &[7]).unwrap();
    chained.import_state(&state).unwrap();
    assert_eq!(taken(&log), ["b import [7]"]);
    let only_b = state;
    let nothing = chained.own_part_of("a", &[]).unwrap();
    chained.import_state(&nothing).unwrap();
    assert_eq!(taken(&log), Vec::<String>::new());

    let state = chained.export_state().unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| Member::new(name, &log));
    assert!(a.takes_state_of("a+b") && b.takes_state_of("a+b") && !c.takes_state_of("a+b"));
    assert_eq!(b.own_part_of("a+b", &state), Some(vec![7]));
    assert_eq!(a.own_part_of("a+b", &state), Some(vec![]), "it exported nothing");
    assert_eq!(a.own_part_of("a+b", &only_b), None, "it exported no state, not even an empty one");
    assert_eq!(a.own_part_of("a+b", &[]), Some(vec![]), "no member exported any");
    let other = chain_of(["a", "c"], &log);
    assert_eq!(other.own_part_of("a+b", &state), Some(state));
    assert_eq!(other.own_part_of("a+b", &only_b), None, "no member of this chain exported it");
    assert_eq!(b.own_part_of("b", &[9]), Some(vec![9]));
    assert_eq!(b.own_part_of("a+b", &[9]), None, "this is no state of a chain");
}

#[test]
fn a_member_that_cannot_read_its_state_does_not_keep_the_others_from_theirs() {
    let log = Log::default();
    let members = ["a", "b"].map(|name| Member { given: 99, ..Member::new(name, &log) });
    let mut old = chain(members);
    old.import_state(&[]).unwrap();
    ask(&mut old).unwrap();
    let mut state = old.export_state().unwrap();
    *state.last_mut().unwrap() = 1;
    let mut new = chain_of(["a", "b"], &log);
    let refused = new.import_state(&state).unwrap_err();
    assert_eq!(refused.message, "a: that is too much");
    assert_eq!(new.stats().calls, 1, "b has its state");
    for length in 1..state.len() {
        let cut = new.import_state(&state[..length]);
        assert!(cut.is_err(), "{length} of {} bytes are no state", state.len());
    }
}

#[test]
fn only_the_member_that_failed_is_restarted_and_given_its_state() {
    let log = Log::default();
    let failing = Member::new("b", &log).answers([Ok(Verdict::Admit), Err(trap())]);
    let mut chain = chain([Member::new("a", &log), failing]);
    ask(&mut chain).unwrap();
    let state = chain.export_state().unwrap();
    let fault = ask(&mut chain).unwrap_err();
    assert_eq!((fault.kind, &*fault.message), (FaultKind::Trap, "b: it fell over"));
    taken(&log);
    chain.restart().unwrap();
    chain.import_state(&state).unwrap();
    assert_eq!(taken(&log), ["b restart", "b import [1]"]);
    assert_eq!(chain.stats().calls, 3, "a counts two, b imported one");
    chain.restart().unwrap();
    assert!(taken(&log).is_empty(), "no member failed since");
}

fn imports(log: &Log) -> Vec<String> {
    taken(log).into_iter().filter(|line| !line.ends_with("admit")).collect()
}

#[test]
fn a_shadow_imports_the_same_state_as_a_successor() {
    let log = Log::default();
    let alone = || AnyPolicy::Admission(Box::new(Member::new("b", &log)));
    let list = || AnyPolicy::Admission(Box::new(chain_of(["a", "b"], &log)));
    for (live, shadow) in [(alone(), list()), (list(), alone()), (list(), list()), (alone(), alone())] {
        let mut bench = Bench::new(small());
        bench.engine.swap(live, bench.now);
        for seed in 0..3 {
            bench.submit(request(prompt(seed, 4), 2));
        }
        bench.run();
        taken(&log);
        assert_eq!(bench.engine.shadow(shadow, bench.now).state, Handover::Restored);
        let imported = imports(&log);
        assert_eq!(imported.last().map(String::as_str), Some("b import [3]"), "{imported:?}");
    }
    let mut bench = Bench::new(small());
    bench.engine.swap(alone(), bench.now);
    let other = AnyPolicy::Admission(Box::new(Member::new("c", &log)));
    assert_eq!(bench.engine.shadow(other, bench.now).state, Handover::Cold);
}

#[test]
fn a_chain_that_comes_back_keeps_the_states_of_all_members() {
    let log = Log::default();
    let failing = Member::new("b", &log).answers([Ok(Verdict::Admit), Ok(Verdict::Admit), Err(trap())]);
    let mut bench = Bench::new(small());
    let list = chain([Member::new("a", &log), failing]);
    bench.engine.swap(AnyPolicy::Admission(Box::new(list)), bench.now);
    for seed in 0..2 {
        bench.submit(request(prompt(seed, 4), 2));
    }
    bench.engine.swap(AnyPolicy::Admission(Box::new(Member::new("a", &log))), bench.now);
    bench.submit(request(prompt(3, 4), 2));
    taken(&log);
    let back = bench.engine.rollback(PolicyKind::Admission, bench.now).expect("the list");
    assert_eq!(back.state, Handover::Restored);
    bench.submit(request(prompt(4, 4), 2));
    bench.submit(request(prompt(5, 4), 2));
    bench.run();
    assert_eq!(imports(&log), ["a import [3]", "b restart", "b import [2]"]);
}

/// Fails when it imports a state, as an instance that traps does.
struct Fragile(Member, bool);

impl Policy for Fragile {
    fn info(&self) -> Arc<PolicyInfo> {
        self.0.info()
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        self.0.export_state()
    }

    fn import_state(&mut self, _state: &[u8]) -> Result<(), PolicyFault> {
        self.1 = true;
        Err(trap())
    }

    fn restart(&mut self) -> Result<(), PolicyFault> {
        self.1 = false;
        self.0.restart()
    }
}

impl AdmissionPolicy for Fragile {
    fn admit(&mut self, request: &AdmissionRequest, load: &Load) -> Result<Verdict, PolicyFault> {
        if self.1 { Err(trap()) } else { self.0.admit(request, load) }
    }

    fn measure(&mut self, load: &Load) -> Result<Pressure, PolicyFault> {
        if self.1 { Err(trap()) } else { self.0.measure(load) }
    }
}

#[test]
fn a_member_failing_on_import_starts_cold_without_a_fault() {
    let log = Log::default();
    let fragile = || -> Box<dyn AdmissionPolicy> { Box::new(Fragile(Member::new("a", &log), false)) };
    let list = || {
        let members = vec![fragile(), Box::new(Member { given: 50, ..Member::new("b", &log) }) as _];
        AnyPolicy::Admission(Box::new(Chain::new(members).unwrap()))
    };
    let mut bench = Bench::new(small());
    bench.engine.swap(list(), bench.now);
    bench.submit(request(prompt(1, 4), 2));
    taken(&log);
    assert_eq!(bench.engine.swap(list(), bench.now).state, Handover::Cold);
    bench.submit(request(prompt(2, 4), 2));
    bench.run();
    assert_eq!(bench.faults(), []);
    assert_eq!(taken(&log), ["b import [51]", "a restart", "a admit", "b admit"]);
}

#[test]
fn every_member_that_cannot_read_its_state_says_why() {
    let log = Log::default();
    let full = |name| Member { given: 100, ..Member::new(name, &log) };
    let mut bench = Bench::new(small());
    bench.engine.swap(AnyPolicy::Admission(Box::new(chain(["a", "b"].map(full)))), bench.now);
    let members: Vec<Box<dyn AdmissionPolicy>> =
        vec![Box::new(Member::new("a", &log)), Box::new(Fragile(Member::new("b", &log), false))];
    let list = AnyPolicy::Admission(Box::new(Chain::new(members).unwrap()));
    let report = bench.engine.swap(list, bench.now);
    let note = "it failed over its predecessor's state: trap: a: that is too much; b: it fell over";
    assert_eq!((report.state, report.state_note.as_deref()), (Handover::Cold, Some(note)));
    bench.step();
    assert_eq!(bench.faults(), []);
}

#[test]
fn a_member_that_fails_over_its_state_leaves_the_kept_states_of_the_others() {
    let (log, elsewhere) = (Log::default(), Log::default());
    let failing = Member::new("a", &log).answers([Ok(Verdict::Admit), Err(trap())]);
    let other = Member::new("b", &log).answers([Ok(Verdict::Admit), Err(trap())]);
    let members: Vec<Box<dyn AdmissionPolicy>> = vec![Box::new(Fragile(failing, false)), Box::new(other)];
    let mut bench = Bench::new(small());
    bench.engine.swap(AnyPolicy::Admission(Box::new(Chain::new(members).unwrap())), bench.now);
    let submit = |bench: &mut Bench| bench.submit(request(prompt(1, 4), 2));
    submit(&mut bench);
    // A shadow that imports the list's state makes the slot keep a copy of it.
    let shadow = chain_of(["a", "b"], &elsewhere);
    let shadow = bench.engine.shadow(AnyPolicy::Admission(Box::new(shadow)), bench.now);
    assert_eq!(shadow.state, Handover::Restored);
    taken(&log);
    for _ in 0..3 {
        submit(&mut bench);
    }
    assert_eq!(imports(&log), ["a restart", "a restart", "b restart", "b import [1]"]);
}

/// Fails to export its state.
struct Secretive(Member);

impl Policy for Secretive {
    fn info(&self) -> Arc<PolicyInfo> {
        self.0.info()
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        Err(trap())
    }
}

impl AdmissionPolicy for Secretive {
    fn admit(&mut self, request: &AdmissionRequest, load: &Load) -> Result<Verdict, PolicyFault> {
        self.0.admit(request, load)
    }

    fn measure(&mut self, load: &Load) -> Result<Pressure, PolicyFault> {
        self.0.measure(load)
    }
}

#[test]
fn a_live_policy_that_fails_to_export_for_a_shadow_has_a_fault() {
    let log = Log::default();
    for (shadow, faults) in [("b", vec![]), ("a", vec![FaultKind::Trap])] {
        let mut bench = Bench::new(small());
        let live = Secretive(Member::new("a", &log));
        bench.engine.swap(AnyPolicy::Admission(Box::new(live)), bench.now);
        let shadow = AnyPolicy::Admission(Box::new(Member::new(shadow, &log)));
        assert_eq!(bench.engine.shadow(shadow, bench.now).state, Handover::Cold);
        bench.step();
        assert_eq!(bench.faults(), faults);
    }
}
