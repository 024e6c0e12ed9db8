//! Rates, bursts and times to come back, on hand-made loads and against the definition of a bucket.

use infer_policy_sdk::testing::{check_admission, check_config, for_seeds};
use infer_policy_sdk::{Memory, SequenceId, parse_config};

use super::charged::MAX_CHARGED;
use super::*;

fn policy(config: &str) -> TokenBucket {
    TokenBucket::new(parse_config(config).unwrap()).unwrap()
}

/// 600 tokens a minute, ten a second, and 100 at once.
fn ten_a_second() -> TokenBucket {
    policy(r#"{"tokens_per_minute": 600, "burst": 100}"#)
}

fn request(id: u64, tenant: u32, tokens: u32) -> Request {
    Request {
        id: SequenceId(id),
        tenant: TenantId(tenant),
        prompt_tokens: tokens - tokens / 2,
        max_new_tokens: tokens / 2,
        ..Request::default()
    }
}

fn at(millis: u64) -> Load {
    Load { now: Micros::from_millis(millis), ..Load::default() }
}

/// Milliseconds that a refused one is told to wait; `None` where it is let in.
fn retry(verdict: Verdict) -> Option<u32> {
    match verdict {
        Verdict::Admit => None,
        Verdict::Refuse(refusal) => {
            assert_eq!(refusal.reason, Reason::Rate);
            assert!(refusal.message.len() <= 256, "{}", refusal.message);
            Some(refusal.retry_after_ms)
        }
        Verdict::Wait => panic!("a rate is no reason to stand in the queue"),
    }
}

#[test]
fn its_configuration_is_what_its_schema_says() {
    check_config::<TokenBucket>();
    let error = TokenBucket::new(parse_config(r#"{"burst": 5}"#).unwrap()).err().unwrap();
    assert!(error.contains("`burst`") && error.contains("`tokens_per_minute`"), "{error}");
}

#[test]
fn it_stands_what_every_admission_policy_has_to() {
    check_admission(|| policy("{}"));
}

#[test]
fn without_a_limit_everything_is_let_in() {
    let mut policy = policy("{}");
    for id in 0..1_000 {
        assert_eq!(retry(policy.admit(&request(id, 0, u32::MAX), &at(0))), None);
    }
    assert!(policy.buckets.is_empty() && policy.charged.len() == 0, "nothing is kept of whom nothing limits");
}

#[test]
fn a_burst_passes_and_then_the_rate_holds() {
    let mut policy = ten_a_second();
    let mut ask = |id, millis| retry(policy.admit(&request(id, 1, 40), &at(millis)));
    assert_eq!([ask(1, 0), ask(2, 0), ask(3, 0)], [None, None, Some(2_000)], "20 are left, 40 needed");
    assert_eq!(ask(4, 1_999), Some(1));
    assert_eq!(ask(5, 2_000), None, "the promised time was right to the millisecond");
    assert_eq!(ask(6, 2_000), Some(4_000));
    assert_eq!(ask(7, 3_600_000), None, "an idle hour fills it");
    assert_eq!([ask(8, 3_600_000), ask(9, 3_600_000)], [None, Some(2_000)], "and no further than its burst");
}

#[test]
fn tenants_do_not_take_from_each_other() {
    let mut policy = ten_a_second();
    assert_eq!(retry(policy.admit(&request(1, 1, 100), &at(0))), None);
    assert_eq!(retry(policy.admit(&request(2, 1, 100), &at(0))), Some(10_000));
    assert_eq!(retry(policy.admit(&request(3, 2, 100), &at(0))), None);
}

#[test]
fn the_hosts_limit_for_a_tenant_goes_before_the_configured_one() {
    let mut policy = ten_a_second();
    let limited = Load { tenant_rate_per_minute: 60, tenant_burst: 10, ..at(0) };
    assert_eq!(retry(policy.admit(&request(1, 1, 10), &limited)), None);
    assert_eq!(retry(policy.admit(&request(2, 1, 10), &limited)), Some(10_000));
    let minute = Load { tenant_burst: 0, ..limited };
    assert_eq!(retry(policy.admit(&request(3, 2, 60), &minute)), None, "no burst is a minute's worth");
}

#[test]
fn what_is_larger_than_the_burst_is_told_that_waiting_does_not_help() {
    let mut policy = ten_a_second();
    let Verdict::Refuse(refusal) = policy.admit(&request(1, 1, 101), &at(0)) else { panic!("it is let in") };
    assert_eq!((refusal.reason, refusal.retry_after_ms), (Reason::Rate, 0));
    assert!(refusal.message.contains("101") && refusal.message.contains("100"), "{}", refusal.message);
    assert_eq!(retry(policy.admit(&request(2, 1, 100), &at(0))), None, "and nothing was charged for it");
}

#[test]
fn a_request_is_charged_once_however_often_it_is_asked_about() {
    let mut policy = ten_a_second();
    for _ in 0..10 {
        assert_eq!(retry(policy.admit(&request(1, 1, 60), &at(0))), None);
    }
    assert_eq!(retry(policy.admit(&request(2, 1, 40), &at(0))), None);
    assert_eq!(retry(policy.admit(&request(3, 1, 1), &at(0))), Some(100));
}

#[test]
fn whoever_waits_in_the_longest_queue_has_paid_once() {
    let longest = 100_000;
    let mut policy = policy(r#"{"tokens_per_minute": 1, "burst": 100000}"#);
    let first = (1..=longest).filter_map(|id| retry(policy.admit(&request(id, 1, 1), &at(0)))).count();
    let again = (1..=longest).filter_map(|id| retry(policy.admit(&request(id, 1, 1), &at(0)))).count();
    assert_eq!((first, again), (0, 0), "refused at the door, and when asked again");
    assert_eq!(retry(policy.admit(&request(longest + 1, 1, 1), &at(0))), Some(60_000), "the bucket is empty");
}

#[test]
fn one_that_pays_is_not_the_one_that_is_forgotten_for_it() {
    let mut policy = policy(r#"{"tokens_per_minute": 1, "burst": 4000000}"#);
    for id in 1..=MAX_CHARGED as u64 {
        policy.admit(&request(id, 1, 1), &at(0));
    }
    let left = policy.buckets[&TenantId(1)].level;
    (0..10).for_each(|_| assert_eq!(retry(policy.admit(&request(0, 1, 1), &at(0))), None));
    assert_eq!(policy.buckets[&TenantId(1)].level, left - TOKEN);
}

#[test]
fn levels_and_payments_survive_a_swap() {
    let (mut old, mut new) = (ten_a_second(), ten_a_second());
    old.admit(&request(1, 1, 70), &at(0));
    old.admit(&request(2, 2, 10), &at(500));
    new.import_state(&old.export_state()).unwrap();
    assert_eq!((&new.buckets, &new.charged), (&old.buckets, &old.charged));
    assert_eq!(retry(new.admit(&request(1, 1, 70), &at(500))), None, "it has paid");
    assert_eq!(retry(new.admit(&request(3, 1, 40), &at(500))), Some(500), "35 are left");
}

#[test]
fn what_is_no_state_is_refused_and_changes_nothing() {
    let mut policy = ten_a_second();
    policy.admit(&request(1, 1, 70), &at(0));
    let state = policy.export_state();
    for length in 0..state.len() {
        let kept = policy.import_state(&state[..length]);
        assert!(
            kept.is_err() || length == state.len() - 2,
            "{length} bytes: only who has paid ends anywhere"
        );
        policy.import_state(&state).unwrap();
    }
    let mut other = state.clone();
    other[0] = 9;
    assert!(policy.import_state(&other).unwrap_err().contains("no state"));
    let bucket = *policy.buckets.values().next().unwrap();
    let many = (0..=MAX_TENANTS as u32).map(|tenant| (TenantId(tenant), bucket)).collect();
    assert!(policy.import_state(&state::write(&many, &policy.charged)).unwrap_err().contains("too many"));
    assert_eq!(policy.export_state(), state);
}

#[test]
fn memory_of_tenants_and_requests_is_bounded() {
    let mut policy = policy(r#"{"tokens_per_minute": 60000000}"#);
    let last = MAX_CHARGED as u32 + 1_000;
    for n in 0..=last {
        policy.admit(&request(u64::from(n), n.min(9_999), 1), &at(u64::from(n)));
    }
    assert_eq!((policy.buckets.len(), policy.charged.len()), (MAX_TENANTS, MAX_CHARGED));
    let kept = policy.charged.contains(SequenceId(u64::from(last)));
    assert!(policy.buckets.contains_key(&TenantId(9_999)) && kept);
}

#[test]
fn nobody_ever_gets_more_than_burst_and_rate_and_promises_are_kept() {
    for_seeds(0..200, |rng| {
        let (rate, burst) = (rng.between(1, 100_000), rng.between(1, 1_000));
        let mut policy = policy(&format!(r#"{{"tokens_per_minute": {rate}, "burst": {burst}}}"#));
        let (mut millis, mut taken) = (0, 0);
        for id in 0..100 {
            millis += u64::from(rng.between(0, 50));
            let tokens = rng.between(1, burst);
            let Some(wait) = retry(policy.admit(&request(2 * id, 0, tokens), &at(millis))) else {
                taken += u64::from(tokens);
                continue;
            };
            if rng.one_in(3) {
                let early = policy.admit(&request(2 * id, 0, tokens), &at(millis + u64::from(wait) - 1));
                assert!(retry(early).is_some(), "the time named is the first at which it passes");
                millis += u64::from(wait);
                assert_eq!(retry(policy.admit(&request(2 * id + 1, 0, tokens), &at(millis))), None);
                taken += u64::from(tokens);
            }
        }
        assert!(taken * 60_000 <= u64::from(burst) * 60_000 + millis * u64::from(rate), "{taken} tokens");
    });
}

#[test]
fn extreme_numbers_get_an_answer() {
    let mut policy = policy(r#"{"tokens_per_minute": 4294967295, "burst": 4294967295}"#);
    for_seeds(0..2_000, |rng| {
        let mut number = || *[0, 1, 16, u32::MAX].get(rng.between(0, 3) as usize).unwrap();
        let load = Load {
            now: Micros(u64::from(number()) << 32),
            tenant_rate_per_minute: number(),
            tenant_burst: number(),
            memory: Memory { total_blocks: number(), free_blocks: number(), ..Memory::default() },
            ..Load::default()
        };
        let request = Request {
            id: SequenceId(rng.next_u64()),
            prompt_tokens: u32::MAX,
            max_new_tokens: rng.between(0, u32::MAX),
            ..Request::default()
        };
        policy.admit(&request, &load);
        assert!(policy.measure(&load).level_permille <= 1_000);
    });
}
