//! Admission policies in a chain: who decides, whose fault it is, and what each member keeps.

mod common;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use common::scripted::{Bench, prompt, request, small, trap};
use infer_core::engine::Policies;
use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, AnyPolicy, CallStats, Chain, FaultKind, Load, Policy, PolicyFault,
    PolicyInfo, Pressure, Verdict,
};
use infer_core::request::RefusalReason;
use infer_core::{Event, FinishReason, Micros, Refusal, SequenceId, SessionId, TenantId};

type Log = Arc<Mutex<Vec<String>>>;

/// Answers from a list, and admits when that is used up. Its state counts the answers it gave.
struct Member {
    name: String,
    log: Log,
    answers: VecDeque<Result<Verdict, PolicyFault>>,
    pressure: Pressure,
    given: u8,
}

impl Member {
    fn new(name: &str, log: &Log) -> Self {
        Self {
            name: name.into(),
            log: log.clone(),
            answers: VecDeque::new(),
            pressure: Pressure::default(),
            given: 0,
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
        let digest = format!("digest of {}", self.name);
        Arc::new(PolicyInfo { name: self.name.clone(), digest, ..PolicyInfo::default() })
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        Ok(if self.given == 0 { Vec::new() } else { vec![self.given] })
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), PolicyFault> {
        self.note(&format!("import {state:?}"));
        match *state {
            [given] if given < 100 => self.given = given,
            _ => return Err(PolicyFault::new(FaultKind::InvalidDecision, "that is too much")),
        }
        Ok(())
    }

    fn restart(&mut self) -> Result<(), PolicyFault> {
        self.note("restart");
        self.given = 0;
        Ok(())
    }

    fn stats(&self) -> CallStats {
        CallStats { calls: u64::from(self.given), p50_us: 1.5, p99_us: 10.0 }
    }
}

impl AdmissionPolicy for Member {
    fn admit(&mut self, _request: &AdmissionRequest, _load: &Load) -> Result<Verdict, PolicyFault> {
        self.note("admit");
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
fn the_first_that_does_not_admit_decides_and_nobody_behind_it_is_asked() {
    let log = Log::default();
    let first = Member::new("a", &log).answers([Ok(Verdict::Admit), Ok(Verdict::Wait), Ok(Verdict::Admit)]);
    let second = Member::new("b", &log).answers([Ok(Verdict::Admit), Ok(refusal("enough"))]);
    let mut chain = chain([first, second, Member::new("c", &log)]);
    for (verdict, asked) in [
        (Verdict::Admit, &["a admit", "b admit", "c admit"][..]),
        (Verdict::Wait, &["a admit"]),
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
fn it_bears_the_names_of_its_members() {
    let log = Log::default();
    let info = chain(["memory-aware", "token-bucket"].map(|name| Member::new(name, &log))).info();
    assert_eq!(info.name, "memory-aware+token-bucket");
    assert_eq!(info.digest, "digest of memory-aware+digest of token-bucket");
    let long = ["a", "b", "c", "d"].map(|name| Member::new(&name.repeat(25), &log));
    let name = chain(long).info().name.clone();
    assert_eq!(name, format!("{}+{}+2", "a".repeat(25), "b".repeat(25)));
    let longest = ["a", "b"].map(|name| Member::new(&name.repeat(64), &log));
    assert_eq!(chain(longest).info().name, "2");
}

#[test]
fn too_few_too_many_and_twins_make_no_chain() {
    let log = Log::default();
    let make = |names: &[&str]| {
        let members = names.iter().map(|name| Box::new(Member::new(name, &log)) as _).collect();
        Chain::new(members).map(|_| ())
    };
    assert_eq!(make(&["a", "b", "c", "d", "e", "f", "g", "h"]), Ok(()));
    for names in [&["a"][..], &["a", "b", "c", "d", "e", "f", "g", "h", "i"], &["a", "b", "a"]] {
        let fault = make(names).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Setup);
        let says = if names.len() == 3 { "`a` stands in the chain twice" } else { "2 to 8 policies" };
        assert!(fault.message.contains(says), "{}", fault.message);
    }
}

#[test]
fn a_member_keeps_its_state_where_the_chain_changes() {
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
    assert_eq!(new.stats().calls, 4);
    assert_eq!((new.stats().p50_us, new.stats().p99_us), (4.5, 30.0));
}

#[test]
fn a_policy_keeps_its_state_when_it_comes_into_a_chain_and_when_it_stays_alone() {
    let log = Log::default();
    let mut chained = chain(["a", "b"].map(|name| Member::new(name, &log)));
    assert!(chained.takes_state_of("b"));
    let state = chained.own_part_of("b", &[7]).unwrap();
    chained.import_state(&state).unwrap();
    assert_eq!(taken(&log), ["b import [7]"]);
    let nothing = chained.own_part_of("a", &[]).unwrap();
    chained.import_state(&nothing).unwrap();
    assert_eq!(taken(&log), Vec::<String>::new());

    let state = chained.export_state().unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| Member::new(name, &log));
    assert!(a.takes_state_of("a+b") && b.takes_state_of("a+b") && !c.takes_state_of("a+b"));
    assert_eq!(b.own_part_of("a+b", &state), Some(vec![7]));
    assert_eq!(a.own_part_of("a+b", &state), Some(vec![]), "it had none");
    assert_eq!(b.own_part_of("b", &[9]), Some(vec![9]));
    assert_eq!(b.own_part_of("a+b", &[9]), None, "this is no state of a chain");
}

#[test]
fn one_that_cannot_read_its_state_does_not_keep_the_others_from_theirs() {
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
    assert_eq!(chain.stats().calls, 3, "a knows of two, b was told of one");
    chain.restart().unwrap();
    assert!(taken(&log).is_empty(), "nobody failed since");
}

#[test]
fn in_the_slot_a_failing_member_costs_no_request_and_strikes_take_the_chain_out() {
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
