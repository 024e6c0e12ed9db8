//! Admission policies in a chain: which member decides, which one is at fault, and what each keeps.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::common::scripted::{Bench, prompt, request, small, trap};
use infer_core::engine::Policies;
use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, AnyPolicy, CallStats, Chain, FaultKind, Gauge, Load, Policy,
    PolicyFault, PolicyInfo, PolicyKind, Pressure, Verdict,
};
use infer_core::request::RefusalReason;
use infer_core::{
    Durations, EngineConfig, Event, FinishReason, Handover, Micros, Refusal, SequenceId, SessionId, TenantId,
};

type Log = Arc<Mutex<Vec<String>>>;

/// Answers from a list, and admits when that is used up. Its state counts the answers it gave.
struct Member {
    name: String,
    config_digest: &'static str,
    log: Log,
    answers: VecDeque<Result<Verdict, PolicyFault>>,
    pressure: Pressure,
    given: u8,
    /// Its calls' total, and what each takes in microseconds, by the number of calls before it.
    spent: Micros,
    takes_us: fn(u8) -> u64,
}

impl Member {
    fn new(name: &str, log: &Log) -> Self {
        Self {
            name: name.into(),
            config_digest: "",
            log: log.clone(),
            answers: VecDeque::new(),
            pressure: Pressure::default(),
            given: 0,
            spent: Micros::ZERO,
            takes_us: |_| 0,
        }
    }

    fn answers(self, answers: impl IntoIterator<Item = Result<Verdict, PolicyFault>>) -> Self {
        Self { answers: answers.into_iter().collect(), ..self }
    }

    fn note(&self, what: &str) {
        self.log.lock().unwrap().push(format!("{} {what}", self.name));
    }
}

impl Policy for Member {
    fn info(&self) -> Arc<PolicyInfo> {
        Arc::new(PolicyInfo {
            name: self.name.clone(),
            digest: format!("digest of {}", self.name),
            config_digest: self.config_digest.to_owned(),
            ..PolicyInfo::default()
        })
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        Ok(if self.given == 0 { Vec::new() } else { vec![self.given] })
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), PolicyFault> {
        self.note(&format!("import {state:?}"));
        match *state {
            [given] if given < 100 => self.given = given,
            _ => return Err(PolicyFault::new(FaultKind::Setup, "that is too much")),
        }
        Ok(())
    }

    fn restart(&mut self) -> Result<(), PolicyFault> {
        self.note("restart");
        self.given = 0;
        Ok(())
    }

    fn spent(&self) -> Micros {
        self.spent
    }

    fn stats(&self) -> CallStats {
        let mut durations = Durations::default();
        (0..self.given).for_each(|_| durations.add(1_500));
        CallStats { calls: u64::from(self.given), p50_us: 1.5, p99_us: 10.0, durations }
    }

    fn gauges(&self) -> Vec<Gauge> {
        vec![Gauge { policy: self.name.clone(), name: "given".to_owned(), value: f64::from(self.given) }]
    }
}

impl AdmissionPolicy for Member {
    fn admit(&mut self, _request: &AdmissionRequest, _load: &Load) -> Result<Verdict, PolicyFault> {
        self.note("admit");
        self.spent = self.spent.plus(Micros((self.takes_us)(self.given)));
        self.given += 1;
        self.answers.pop_front().unwrap_or(Ok(Verdict::Admit))
    }

    fn measure(&mut self, _load: &Load) -> Result<Pressure, PolicyFault> {
        Ok(self.pressure)
    }
}

fn chain<const N: usize>(members: [Member; N]) -> Chain {
    Chain::new(members.into_iter().map(|member| Box::new(member) as _).collect()).expect("a valid chain")
}

fn refusal(message: &str) -> Verdict {
    Verdict::Refuse(Refusal { reason: RefusalReason::Rate, message: message.into(), retry_after_ms: 5 })
}

fn ask(chain: &mut Chain) -> Result<Verdict, PolicyFault> {
    let request = AdmissionRequest {
        id: SequenceId(1),
        tenant: TenantId(0),
        session: SessionId(0),
        priority: 0,
        arrived: Micros(0),
        deadline: Micros::NEVER,
        prompt_tokens: 1,
        cached_tokens: 0,
        idle_blocks: 0,
        max_new_tokens: 1,
        expected_tokens: 1,
    };
    chain.admit(&request, &Load::default())
}

fn taken(log: &Log) -> Vec<String> {
    std::mem::take(&mut *log.lock().unwrap())
}

#[test]
fn the_first_member_that_does_not_admit_decides_and_those_behind_it_are_not_called() {
    let log = Log::default();
    let waits = [Verdict::Admit, Verdict::Wait, Verdict::WaitTenant, Verdict::Admit];
    let first = Member::new("a", &log).answers(waits.map(Ok));
    let second = Member::new("b", &log).answers([Ok(Verdict::Admit), Ok(refusal("enough"))]);
    let mut chain = chain([first, second, Member::new("c", &log)]);
    for (verdict, asked) in [
        (Verdict::Admit, &["a admit", "b admit", "c admit"][..]),
        (Verdict::Wait, &["a admit"]),
        (Verdict::WaitTenant, &["a admit"]),
        (refusal("enough"), &["a admit", "b admit"]),
    ] {
        assert_eq!(ask(&mut chain), Ok(verdict));
        assert_eq!(taken(&log), asked);
    }
}

#[test]
fn the_most_cautious_numbers_are_reported() {
    let log = Log::default();
    let pressure = |level_permille, backpressure, reserved_blocks, available_blocks, max_sequence_tokens| {
        Pressure { level_permille, backpressure, reserved_blocks, available_blocks, max_sequence_tokens }
    };
    let members = [pressure(10, false, 7, 90, 500), pressure(30, true, 0, 95, 400)];
    let mut chain = chain(["a", "b"].map(|name| Member::new(name, &log)));
    assert_eq!(chain.measure(&Load::default()), Ok(Pressure::default()));
    let both = ["a", "b"].iter().zip(members).map(|(name, pressure)| {
        Box::new(Member { pressure, ..Member::new(name, &log) }) as Box<dyn AdmissionPolicy>
    });
    let mut chain = Chain::new(both.collect()).unwrap();
    assert_eq!(chain.measure(&Load::default()), Ok(pressure(30, true, 7, 90, 400)));
}

#[test]
fn a_chain_is_named_after_its_members() {
    let log = Log::default();
    let info = chain(["memory-aware", "token-bucket"].map(|name| Member::new(name, &log))).info();
    assert_eq!(info.name, "memory-aware+token-bucket");
    assert_eq!(info.digest, "digest of memory-aware+digest of token-bucket");
    assert_eq!(info.config_digest, "", "nothing is configured");
    let configured = Member { config_digest: "c", ..Member::new("b", &log) };
    assert_eq!(chain([Member::new("a", &log), configured]).info().config_digest, "+c");
    let long = ["a", "b", "c", "d"].map(|name| Member::new(&name.repeat(25), &log));
    let name = chain(long).info().name.clone();
    assert_eq!(name, format!("{}+{}+2", "a".repeat(25), "b".repeat(25)));
    let longest = ["a", "b"].map(|name| Member::new(&name.repeat(64), &log));
    let chain = chain(longest);
    assert_eq!(chain.info().name, "2");
    let names = chain.members().iter().map(|info| info.name.len()).collect::<Vec<_>>();
    assert_eq!((names, Member::new("a", &log).members().len()), (vec![64, 64], 1));
}

#[test]
fn too_few_too_many_or_duplicate_members_are_refused() {
    let log = Log::default();
    let make = |names: &[&str]| {
        let members = names.iter().map(|name| Box::new(Member::new(name, &log)) as _).collect();
        Chain::new(members).map(|_| ())
    };
    assert_eq!(make(&["a", "b", "c", "d", "e", "f", "g", "h"]), Ok(()));
    for names in [&["a"][..], &["a", "b", "c", "d", "e", "f", "g", "h", "i"], &["a", "b", "a"]] {
        let fault = make(names).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Setup);
        let says = if names.len() == 3 { "`a` is in the chain twice" } else { "2 to 8 policies" };
        assert!(fault.message.contains(says), "{}", fault.message);
    }
}

#[test]
fn a_member_keeps_its_state_when_the_chain_changes() {
    let log = Log::default();
    let mut old = chain(["a", "b", "c"].map(|name| Member::new(name, &log)));
    ask(&mut old).unwrap();
    ask(&mut old).unwrap();
    let state = old.export_state().unwrap();
    let mut new = chain(["c", "d", "a"].map(|name| Member::new(name, &log)));
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
    let mut chained = chain(["a", "b"].map(|name| Member::new(name, &log)));
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
    let other = chain(["a", "c"].map(|name| Member::new(name, &log)));
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
    let mut new = chain(["a", "b"].map(|name| Member::new(name, &log)));
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

#[test]
fn one_member_waits_while_another_would_admit_and_the_request_runs_in_the_end() {
    let log = Log::default();
    let waits = Member::new("a", &log).answers([Ok(Verdict::Wait), Ok(Verdict::Wait)]);
    let policy = chain([waits, Member::new("b", &log)]);
    let mut bench = Bench::new(small());
    bench.engine.swap(AnyPolicy::Admission(Box::new(policy)), bench.now);
    let id = bench.submit(request(prompt(1, 4), 2));
    bench.run();
    assert_eq!(bench.tokens(id).len(), 2);
    assert_eq!(taken(&log), ["a admit", "a admit", "a admit", "b admit"]);
    assert_eq!(bench.engine.snapshot(bench.now).policies[1].policy.name, "a+b");
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

fn imports(log: &Log) -> Vec<String> {
    taken(log).into_iter().filter(|line| !line.ends_with("admit")).collect()
}

#[test]
fn a_shadow_imports_the_same_state_as_a_successor() {
    let log = Log::default();
    let alone = || AnyPolicy::Admission(Box::new(Member::new("b", &log)));
    let list = || AnyPolicy::Admission(Box::new(chain(["a", "b"].map(|name| Member::new(name, &log)))));
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
    let shadow = chain(["a", "b"].map(|name| Member::new(name, &elsewhere)));
    let shadow = bench.engine.shadow(AnyPolicy::Admission(Box::new(shadow)), bench.now);
    assert_eq!(shadow.state, Handover::Restored);
    taken(&log);
    for _ in 0..3 {
        submit(&mut bench);
    }
    assert_eq!(imports(&log), ["a restart", "a restart", "b restart", "b import [1]"]);
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
