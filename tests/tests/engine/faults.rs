//! A policy that traps, spins, grows or lies costs no request and no token.

use infer_core::engine::Policies;
use infer_core::policy::{AnyPolicy, PolicyKind};
use infer_core::{EngineConfig, SequenceId};
use infer_tests::{Driver, Ended, bundled, faulty, request, tokenizer};

/// Submits forty requests, which cause more policy calls of every kind than the self-test at loading.
fn submit_some(driver: &mut Driver) -> Vec<SequenceId> {
    let tokenizer = tokenizer();
    let questions =
        ["What is a prefix cache?", "What is preemption?", "Explain admission control.", "What is TTFT?"];
    let prompts = questions.iter().cycle().take(40).enumerate();
    prompts
        .map(|(i, question)| {
            let prompt = tokenizer.encode(&question.repeat(1 + i % 8), true).expect("encodes");
            driver.submit(request(prompt, 30 + i as u32)).expect("admitted")
        })
        .collect()
}

fn policies(kind: PolicyKind, policy: AnyPolicy) -> Policies {
    let mut policies = Policies::builtin();
    if let AnyPolicy::Scheduler(p) = bundled(PolicyKind::Scheduler, "continuous", "{}") {
        policies.scheduler = p;
    }
    assert_eq!(policy.kind(), kind);
    match policy {
        AnyPolicy::Scheduler(p) => policies.scheduler = p,
        AnyPolicy::Admission(p) => policies.admission = p,
        AnyPolicy::PrefixCache(p) => policies.prefix_cache = p,
    }
    policies
}

fn config() -> EngineConfig {
    EngineConfig { total_blocks: 256, max_seq_len: 512, ..EngineConfig::default() }
}

fn baseline() -> Vec<Vec<u32>> {
    let mut driver = Driver::new(config(), Policies::builtin());
    submit_some(&mut driver);
    driver.run();
    driver.streams()
}

/// Runs the load under a policy that misbehaves after thirty calls; returns the fault reasons seen.
fn survives(kind: PolicyKind, fault: &str) -> Vec<&'static str> {
    let policy = faulty(kind, &format!(r#"{{"fault": "{fault}", "after": 30}}"#));
    let mut driver = Driver::new(config(), policies(kind, policy));
    let ids = submit_some(&mut driver);
    driver.run();
    for id in ids {
        assert!(matches!(driver.ended[&id].0, Ended::Finished(_)), "{fault}: {:?}", driver.ended[&id]);
    }
    assert_eq!(driver.streams(), baseline(), "{kind} {fault}: tokens differ");
    driver.faults()
}

#[test]
fn misbehaving_scheduler_is_replaced_in_the_same_step() {
    let cases = [
        ("trap", "trap"),
        ("spin", "deadline"),
        ("memory", "memory"),
        ("unknown-id", "invalid-decision"),
        ("duplicate", "invalid-decision"),
        ("over-budget", "invalid-decision"),
        ("unequal-columns", "invalid-decision"),
        ("starve", "starvation"),
        ("stall", "starvation"),
    ];
    for (fault, reason) in cases {
        let seen = survives(PolicyKind::Scheduler, fault);
        assert!(seen.contains(&reason), "{fault}: saw {seen:?}");
    }
}

#[test]
fn trapping_or_spinning_admission_costs_no_request() {
    for (fault, reason) in [("trap", "trap"), ("spin", "deadline")] {
        let seen = survives(PolicyKind::Admission, fault);
        assert!(seen.contains(&reason), "{fault}: saw {seen:?}");
    }
}

#[test]
fn misbehaving_prefix_cache_costs_no_token() {
    for (fault, reason) in [("trap", "trap"), ("spin", "deadline")] {
        let seen = survives(PolicyKind::PrefixCache, fault);
        assert!(seen.contains(&reason), "{fault}: saw {seen:?}");
    }
}

#[test]
fn fault_names_policy_digest_step_and_view() {
    let policy = faulty(PolicyKind::Scheduler, r#"{"fault": "trap", "after": 30}"#);
    let digest = policy.info().digest.clone();
    let mut driver = Driver::new(config(), policies(PolicyKind::Scheduler, policy));
    submit_some(&mut driver);
    driver.run();
    let slot = driver.engine.snapshot(driver.now).policies[0].clone();
    let fault = slot.last_fault.expect("recorded");
    assert_eq!(fault.policy.digest, digest);
    assert_eq!(digest.len(), 64);
    assert!(fault.step > 0);
    let infer_core::policy::FaultView::Schedule(view) = &fault.view else { panic!("wrong view") };
    assert!(!view.running.id.is_empty() || !view.waiting.id.is_empty());
}
