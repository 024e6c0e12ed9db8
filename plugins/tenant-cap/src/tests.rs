//! Answers on hand-made loads.

use infer_policy_sdk::testing::{check_admission, check_config};
use infer_policy_sdk::{Micros, TenantId, parse_config};

use super::*;

fn policy(config: &str) -> TenantCap {
    TenantCap::new(parse_config(config).unwrap()).unwrap()
}

/// A tenant of weight 1 with so many sequences in flight, and more that are held.
fn load(in_flight: u32, held: u32) -> Load {
    Load {
        now: Micros(1_000),
        running: in_flight.saturating_add(3),
        max_running: 32,
        waiting: held,
        waiting_tokens: u64::from(held) * 500,
        max_waiting: 100,
        output_tokens_per_second: 100,
        tenant_running: in_flight,
        tenant_waiting: held,
        tenant_in_flight: in_flight,
        tenant_weight_permille: 1_000,
        ..Load::default()
    }
}

fn request(id: u64) -> Request {
    Request { id: SequenceId(id), tenant: TenantId(1), arrived: Micros(1_000), ..Request::default() }
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<TenantCap>();
}

#[test]
fn meets_the_requirements_of_every_admission_policy() {
    check_admission(|| policy("{}"));
    check_admission(|| policy(r#"{"max_in_flight": 1, "by_weight": false, "max_held": 1}"#));
    check_admission(|| policy(r#"{"max_in_flight": 1, "lend_below": 4294967295}"#));
}

#[test]
fn a_tenant_at_its_limit_waits() {
    let mut policy = policy(r#"{"max_in_flight": 3}"#);
    for (in_flight, held, verdict) in [
        (0, 0, Verdict::Admit),
        (2, 5, Verdict::Admit),
        (3, 0, Verdict::WaitTenant),
        (9, 99, Verdict::WaitTenant),
    ] {
        assert_eq!(policy.admit(&request(1), &load(in_flight, held)), verdict, "{in_flight}, {held}");
    }
}

#[test]
fn the_limit_grows_with_the_weight_but_is_never_0() {
    for (config, weight, limit) in [
        (r#"{"max_in_flight": 3}"#, 2_500, 7),
        (r#"{"max_in_flight": 3}"#, 1, 1),
        (r#"{"max_in_flight": 3, "by_weight": false}"#, 2_500, 3),
        (r#"{"max_in_flight": 4294967295}"#, u32::MAX, u32::MAX),
        ("{}", 1_000, 24),
        ("{}", 500, 12),
        ("{}", 2_000, 24),
        (r#"{"max_in_flight": 24}"#, 2_000, 48),
    ] {
        let mut policy = policy(config);
        let at = |in_flight| Load { tenant_weight_permille: weight, ..load(in_flight, 0) };
        assert_eq!(policy.admit(&request(1), &at(limit - 1)), Verdict::Admit, "{config}");
        assert_eq!(policy.admit(&request(2), &at(limit)), Verdict::WaitTenant, "{config}");
    }
}

#[test]
fn by_default_no_weight_may_take_every_slot() {
    for (slots, limit) in [(1, 1), (2, 1), (3, 2), (4, 3), (32, 24), (134, 101)] {
        for weight in [1_000, 1_500, 100_000] {
            let mut policy = policy("{}");
            let at = |used| Load { max_running: slots, tenant_weight_permille: weight, ..load(used, 0) };
            assert_eq!(policy.admit(&request(1), &at(limit - 1)), Verdict::Admit, "{slots}, {weight}");
            assert_eq!(policy.admit(&request(2), &at(limit)), Verdict::WaitTenant, "{slots}, {weight}");
        }
    }
}

#[test]
fn slots_that_are_idle_on_the_host_are_lent_to_a_tenant_at_its_limit() {
    let mut policy = policy(r#"{"max_in_flight": 3, "lend_below": 20, "max_held": 5}"#);
    let at = |running, admitted, preempted, held| Load { running, admitted, preempted, ..load(3, held) };
    assert_eq!(policy.admit(&request(1), &at(19, 0, 0, 5)), Verdict::Admit, "though five wait");
    assert_eq!(policy.admit(&request(2), &at(20, 0, 0, 0)), Verdict::WaitTenant);
    assert_eq!(policy.admit(&request(3), &at(10, 9, 0, 0)), Verdict::Admit);
    assert_eq!(policy.admit(&request(4), &at(10, 9, 1, 0)), Verdict::WaitTenant, "those to come count, too");
    assert_eq!(policy.admit(&request(5), &at(u32::MAX, 1, 1, 0)), Verdict::WaitTenant);
    let below_limit = Load { tenant_in_flight: 2, ..at(40, 0, 0, 0) };
    assert_eq!(
        policy.admit(&request(6), &below_limit),
        Verdict::Admit,
        "a tenant's own share is never lent away"
    );
    assert_eq!(
        self::policy(r#"{"max_in_flight": 3}"#).admit(&request(1), &at(3, 0, 0, 0)),
        Verdict::WaitTenant
    );
}

#[test]
fn the_last_slots_are_never_lent() {
    for (slots, lent) in [(1, 0), (2, 1), (16, 15), (32, 30), (64, 60)] {
        let mut policy = policy(r#"{"max_in_flight": 1, "lend_below": 4294967295}"#);
        let at = |running| Load { max_running: slots, running, ..load(1, 0) };
        let verdict = if lent > 0 { Verdict::Admit } else { Verdict::WaitTenant };
        assert_eq!(policy.admit(&request(1), &at(lent.max(1) - 1)), verdict, "{slots}");
        assert_eq!(policy.admit(&request(2), &at(lent)), Verdict::WaitTenant, "{slots}");
    }
}

/// A host takes in all requests of an instant and then asks about the held ones, at the same time.
#[test]
fn a_request_that_was_let_in_is_not_refused_in_the_same_instant() {
    let mut policy = policy(r#"{"max_in_flight": 2, "max_held": 2}"#);
    assert_eq!(policy.admit(&request(1), &load(2, 0)), Verdict::WaitTenant);
    assert_eq!(policy.admit(&request(2), &load(2, 1)), Verdict::WaitTenant);
    assert_eq!(policy.admit(&request(1), &load(2, 2)), Verdict::WaitTenant, "it waits already");
    assert_eq!(policy.admit(&request(2), &load(2, 2)), Verdict::WaitTenant);
    assert!(matches!(policy.admit(&request(3), &load(2, 2)), Verdict::Refuse(_)), "this one is new");
}

#[test]
fn more_than_may_wait_are_refused_when_they_arrive_and_only_then() {
    let mut policy = policy(r#"{"max_in_flight": 2, "max_held": 3}"#);
    assert_eq!(policy.admit(&request(1), &load(2, 2)), Verdict::WaitTenant);
    let Verdict::Refuse(refusal) = policy.admit(&request(2), &load(2, 3)) else { panic!("three wait") };
    assert_eq!((refusal.reason, refusal.retry_after_ms), (Reason::Rate, 5_000), "500 tokens at 100 a second");
    assert!(refusal.message.contains("3 wait, of at most 3"), "{}", refusal.message);
    let refused = |held| matches!(self::policy("{}").admit(&request(1), &load(24, held)), Verdict::Refuse(_));
    assert!(!refused(74) && refused(75), "three quarters of the host's queue");
    let later = Load { now: Micros(2_000), ..load(2, 4) };
    assert_eq!(policy.admit(&request(1), &later), Verdict::WaitTenant, "it was let in to wait");
    // A request of several sequences, let in as a whole: those after the first come under its id.
    assert_eq!(policy.admit(&request(9), &load(1, 0)), Verdict::Admit);
    assert_eq!(policy.admit(&request(9), &load(2, 5)), Verdict::WaitTenant);
}
