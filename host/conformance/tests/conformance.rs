//! Every shipped policy, and every template, passes. Each policy that misbehaves on purpose fails in the
//! right check, with a message that says what it does.

use infer_conformance::cost::measure;
use infer_conformance::{Options, Outcome, Report, check};
use infer_tests::{
    FAULTY_ADMISSION, FAULTY_PREFIX_CACHE, FAULTY_SCHEDULER, TEMPLATE_ADMISSION, TEMPLATE_PREFIX_CACHE,
    TEMPLATE_SCHEDULER,
};

fn checked(component: &[u8], config: &str) -> Report {
    check(component, &Options { config: config.to_owned(), seed: 1 }).expect("this machine runs WebAssembly")
}

/// The failed check's text must contain this; it is shown if it doesn't.
fn fails(component: &[u8], config: &str, expected: &str, part: &str) {
    let report = checked(component, config);
    let line = report.line(expected).unwrap_or_else(|| panic!("{config}: no check {expected}:\n{report}"));
    assert_eq!(line.outcome, Outcome::Failed, "{config}: {expected} did not fail:\n{report}");
    assert!(line.detail.contains(part), "{config}: {expected} does not say `{part}`:\n{report}");
    assert!(!report.passed);
}

#[test]
fn every_shipped_policy_passes() {
    for policy in infer_bundle::POLICIES {
        let report = checked(policy.component, "{}");
        assert!(report.passed, "{report}");
        assert_eq!((report.kind, report.name.as_deref()), (Some(policy.kind), Some(policy.name)));
        assert_eq!(report.sha256.as_deref(), Some(policy.sha256));
    }
}

#[test]
fn what_new_policies_begin_as_passes() {
    for component in [TEMPLATE_SCHEDULER, TEMPLATE_ADMISSION, TEMPLATE_PREFIX_CACHE] {
        let report = checked(component, "{}");
        assert!(report.passed, "{report}");
    }
}

#[test]
fn a_scheduler_that_misbehaves_fails_with_what_it_does() {
    let cases = [
        ("trap", "runs", "told to trap"),
        ("spin", "fuel", "units of fuel"),
        ("slow", "fuel", "units of fuel"),
        ("memory", "memory", "bytes of memory"),
        ("unknown-id", "views", "is unknown"),
        ("duplicate", "views", "is named twice"),
        ("over-budget", "views", "tokens"),
        ("unequal-columns", "views", "token counts"),
        ("starve", "progress", "for too long"),
        ("stall", "idling", "no wake is promised"),
        ("stall", "progress", "though something could"),
    ];
    for (fault, check, part) in cases {
        fails(FAULTY_SCHEDULER, &format!(r#"{{"fault": "{fault}"}}"#), check, part);
    }
}

/// On a host of its own it never leaves a sequence idle.
#[test]
fn a_scheduler_that_runs_one_sequence_of_those_that_it_takes_over_fails() {
    let config = r#"{"fault": "single", "after": 0}"#;
    fails(FAULTY_SCHEDULER, config, "progress", "run `takeover`, step ");
    fails(FAULTY_SCHEDULER, config, "progress", "was left idle for too long while others ran");
}

#[test]
fn an_admission_policy_that_misbehaves_fails_with_what_it_does() {
    let cases = [
        ("trap", "runs", "told to trap"),
        ("spin", "fuel", "units of fuel"),
        ("wait-forever", "progress", "held on an idle host"),
        ("refuse-silently", "refusals", "has no message"),
        ("boast", "views", "available blocks"),
    ];
    for (fault, check, part) in cases {
        fails(FAULTY_ADMISSION, &format!(r#"{{"fault": "{fault}", "after": 30}}"#), check, part);
    }
}

#[test]
fn a_prefix_cache_policy_that_misbehaves_fails_with_what_it_does() {
    let cases = [
        ("trap", "runs", "told to trap"),
        ("spin", "fuel", "units of fuel"),
        ("wrong-blocks", "runs", "it drops block 4294967295 of a pool of"),
        ("too-much-reuse", "views", "that are cached"),
        ("too-few", "evictions", "has to pick the rest"),
    ];
    for (fault, check, part) in cases {
        fails(FAULTY_PREFIX_CACHE, &format!(r#"{{"fault": "{fault}", "after": 30}}"#), check, part);
    }
}

#[test]
fn the_cost_of_a_call_beyond_the_limits_is_reported_separately() {
    let costs = measure(FAULTY_SCHEDULER, r#"{"fault": "spin", "after": 30}"#).expect("it can be asked");
    assert_eq!(costs.len(), 3, "{costs:?}");
    assert!(
        costs.iter().all(|cost| cost.fault.as_ref().is_some_and(|fault| fault.contains("deadline"))),
        "{costs:?}"
    );
}

#[test]
fn a_policy_with_memory_is_noted_and_passes() {
    let report = checked(FAULTY_SCHEDULER, r#"{"fault": "moody", "keep_calls": true}"#);
    let line = report.line("history").expect("history is looked at");
    assert_eq!(line.outcome, Outcome::Note, "{report}");
    assert!(line.detail.contains("differently; that is no fault, `state` tells"), "{report}");
    assert_eq!(report.line("determinism").map(|line| line.outcome), Some(Outcome::Ok), "{report}");
}

#[test]
fn a_policy_that_refuses_the_state_that_it_exported_fails() {
    fails(FAULTY_SCHEDULER, r#"{"keep_calls": false}"#, "state", "exported: `keep_calls` is off");
    let report = checked(FAULTY_SCHEDULER, r#"{"keep_calls": true}"#);
    let line = report.line("state").expect("its state is carried over");
    assert_eq!(line.outcome, Outcome::Ok, "{report}");
    assert!(line.detail.contains("8 bytes carried over"), "{report}");
}

#[test]
fn a_report_names_the_clock_of_each_time() {
    let policy = infer_bundle::find("scheduler", "continuous").expect("it is shipped");
    let report = checked(policy.component, "{}");
    let line = report.line("time").expect("calls were made");
    let (before, after) =
        line.detail.split_once(" of wall time in the run `").expect("the percentiles' clock");
    assert!(before.ends_with(" us (p99)") && after.contains(" ms of processor time"), "{report}");
}

#[test]
fn what_does_not_load_fails_with_the_reason() {
    let wasi = wat::parse_str(r#"(component (import "wasi:clocks/wall-clock@0.2.0" (instance)))"#);
    let empty = wat::parse_str("(component)");
    let module = wat::parse_str("(module)");
    let cases = [
        (wasi.expect("well-formed"), "has no WASI"),
        (empty.expect("well-formed"), "it exports nothing"),
        (module.expect("well-formed"), "not a component"),
        (b"text".to_vec(), "not a WebAssembly file"),
    ];
    for (component, part) in cases {
        fails(&component, "{}", "load", part);
    }
    fails(FAULTY_SCHEDULER, r#"{"fualt": "trap"}"#, "load", "fualt");
}

#[test]
fn a_report_follows_from_component_configuration_and_seed() {
    let without_time = |report: Report| {
        let kept = report.checks.into_iter().filter(|line| line.check != "time");
        serde_json::to_string(&kept.collect::<Vec<_>>()).expect("a report is JSON")
    };
    let policy = infer_bundle::find("scheduler", "static-batch").expect("it is shipped");
    let [first, second] = [1, 2].map(|_| without_time(checked(policy.component, "{}")));
    assert_eq!(first, second);
}
