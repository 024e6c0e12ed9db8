//! Which member decides, what a chain reports, and which chains there are.

use infer_core::Refusal;
use infer_core::policy::{AdmissionPolicy, AnyPolicy, Chain, FaultKind, Load, Policy, Pressure, Verdict};
use infer_core::request::RefusalReason;

use super::{Log, Member, ask, chain, chain_of, taken};
use crate::common::scripted::{Bench, prompt, request, small};

fn refusal(message: &str) -> Verdict {
    Verdict::Refuse(Refusal { reason: RefusalReason::Rate, message: message.into(), retry_after_ms: 5 })
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
    let mut chain = chain_of(["a", "b"], &log);
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
    let info = chain_of(["memory-aware", "token-bucket"], &log).info();
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
