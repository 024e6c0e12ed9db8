//! What a policy publishes about itself reaches the host, and nothing that it says there is a fault unless it never ends.

use crate::support::{Guest, TRIGGER, fuel_loader, loader, patient, scheduler, view};
use infer_core::policy::{FaultKind, Gauge, SchedulerPolicy};

/// Sets the gauge `text` to this.
fn set(value: &str) -> String {
    format!("(call $gauge (i32.const 800) (i32.const 4) (f64.const {value}))")
}

fn gauges(policy: &dyn SchedulerPolicy) -> Vec<(String, String, f64)> {
    policy.gauges().into_iter().map(|Gauge { policy, name, value }| (policy, name, value)).collect()
}

fn text_is(value: f64) -> Vec<(String, String, f64)> {
    vec![("hand-written".to_owned(), "text".to_owned(), value)]
}

#[test]
fn gauge_stays_until_it_is_set_again_or_removed() {
    // The step's number is its value; in step 7 it isn't a number.
    let body = "(call $gauge (i32.const 800) (i32.const 4) (select
            (f64.const nan)
            (f64.convert_i64_u (i64.load offset=8 (local.get $step)))
            (i64.eq (i64.load offset=8 (local.get $step)) (i64.const 7))))
        (i32.const 1024)";
    let guest = Guest { schedule: body.into(), ..Guest::default() };
    for loader in [fuel_loader(), loader(patient())] {
        let mut policy = scheduler(&loader, &guest.component()).expect("it loads");
        assert_eq!(gauges(&*policy), [], "what it said to its self-test isn't of this instance");
        for (step, after) in [(5, text_is(5.0)), (6, text_is(6.0)), (7, vec![]), (8, text_is(8.0))] {
            policy.schedule(&view(step, 1, 1)).expect("a plan");
            assert_eq!(gauges(&*policy), after);
        }
        policy.restart().expect("a fresh instance");
        assert_eq!(gauges(&*policy), []);
    }
}

#[test]
fn fault_ends_the_gauges_of_its_instance() {
    let body = format!("{} unreachable", set("1"));
    let mut policy = scheduler(&fuel_loader(), &Guest::failing_with(&body).component()).expect("it loads");
    assert_eq!(policy.schedule(&view(TRIGGER, 1, 1)).expect_err("it traps").kind, FaultKind::Trap);
    assert_eq!(gauges(&*policy), []);
}

#[test]
fn gauge_with_a_wrong_name_is_dropped_and_the_policy_goes_on() {
    let guest = Guest { text: "Text", ..Guest::failing_with(&set("1")) };
    let mut policy = scheduler(&fuel_loader(), &guest.component()).expect("it loads");
    policy.schedule(&view(TRIGGER, 1, 1)).expect("no fault");
    assert_eq!(gauges(&*policy), []);
}

#[test]
fn endless_gauges_are_a_fault() {
    let body = format!("(loop $forever {} (br $forever))", set("1"));
    let mut policy = scheduler(&fuel_loader(), &Guest::failing_with(&body).component()).expect("it loads");
    let fault = policy.schedule(&view(TRIGGER, 1, 1)).expect_err("it never ends");
    assert_eq!(fault.kind, FaultKind::Trap);
    assert!(fault.message.contains("of log and gauges to the host in one call"), "{fault}");
}
