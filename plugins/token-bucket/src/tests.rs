//! Charges, reservations and retry times, on hand-made loads and against a miniature host.

use infer_policy_sdk::testing::{check_admission, check_config, for_seeds};
use infer_policy_sdk::{Memory, Micros, SequenceId, parse_config};

use super::charged::MAX_CHARGED;
use super::*;

mod host;

fn policy(config: &str) -> TokenBucket {
    TokenBucket::new(parse_config(config).unwrap()).unwrap()
}

/// 600 tokens a minute, ten a second, and 100 at once.
fn ten_a_second() -> TokenBucket {
    policy(r#"{"tokens_per_minute": 600, "burst": 100}"#)
}

/// A request that is expected to generate all that it may.
fn request(id: u64, tenant: u32, tokens: u32) -> Request {
    let output = tokens / 2;
    Request {
        id: SequenceId(id),
        tenant: TenantId(tenant),
        prompt_tokens: tokens - output,
        max_new_tokens: output,
        expected_tokens: output,
        ..Request::default()
    }
}

/// A tenant's load: what of it is in flight, and how much output it has been served.
fn at(millis: u64, in_flight: u32, output: u64) -> Load {
    Load {
        now: Micros::from_millis(millis),
        tenant_running: in_flight,
        tenant_output_tokens_served: output,
        ..Load::default()
    }
}

/// Asks about a request that arrives at the moment of the load.
fn arrives(policy: &mut TokenBucket, request: Request, load: &Load) -> Verdict {
    policy.admit(&Request { arrived: load.now, ..request }, load)
}

/// Milliseconds after which a refused request may retry; `None` if it is admitted.
fn retry(verdict: Verdict) -> Option<u32> {
    match verdict {
        Verdict::Admit => None,
        Verdict::Refuse(refusal) => {
            assert_eq!(refusal.reason, Reason::Rate);
            assert!(refusal.message.len() <= 256, "{}", refusal.message);
            Some(refusal.retry_after_ms)
        }
        Verdict::Wait | Verdict::WaitTenant => panic!("a rate is no reason to stay in the queue"),
    }
}

fn level(policy: &TokenBucket, tenant: u32) -> i64 {
    policy.buckets[&TenantId(tenant)].level / TOKEN
}

fn reserved(policy: &TokenBucket, tenant: u32) -> u64 {
    policy.buckets[&TenantId(tenant)].reserved
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<TokenBucket>();
    let error = TokenBucket::new(parse_config(r#"{"burst": 5}"#).unwrap()).err().unwrap();
    assert!(error.contains("`burst`") && error.contains("`tokens_per_minute`"), "{error}");
}

#[test]
fn passes_the_checks_of_every_admission_policy() {
    check_admission(|| policy("{}"));
}

#[test]
fn without_a_limit_everything_is_admitted_and_nothing_kept() {
    let mut policy = policy("{}");
    for id in 0..1_000 {
        assert_eq!(retry(arrives(&mut policy, request(id, 0, u32::MAX), &at(0, 0, 0))), None);
    }
    assert!(policy.buckets.is_empty() && policy.charged.len() == 0);
}

#[test]
fn output_from_before_a_limit_is_not_charged() {
    let mut policy = policy("{}");
    let limited = |millis, output| Load { tenant_rate_per_minute: 600, ..at(millis, 0, output) };
    arrives(&mut policy, request(1, 1, 100), &limited(0, 5_000));
    assert_eq!(level(&policy, 1), 550, "the prompt, and nothing generated before");
    arrives(&mut policy, request(2, 1, 100), &at(0, 0, 5_000));
    arrives(&mut policy, request(3, 1, 100), &limited(0, 90_000));
    assert_eq!(level(&policy, 1), 550, "nothing generated while there was no limit");
}

/// One request after another, each given as: milliseconds, sequences in flight, output served so far, prompt,
/// `max_new_tokens`, `expected_tokens`. Then the retry time in milliseconds and what is left and reserved.
#[test]
fn requests_pay_for_what_they_use() {
    type Row = (u64, u32, u64, [u32; 3], Option<u32>, i64, u64);
    let cases: [(&str, &[Row]); 9] = [
        (
            "a burst passes, then the rate holds",
            &[
                (0, 0, 0, [40, 1, 1], None, 60, 1),
                (0, 0, 1, [40, 1, 1], None, 19, 1),
                (0, 0, 2, [40, 1, 1], Some(2_300), 18, 0),
                (2_299, 0, 2, [40, 1, 1], Some(1), 40, 0),
                (2_300, 0, 2, [40, 1, 1], None, 1, 1),
                (3_600_000, 0, 3, [40, 1, 1], None, 60, 1),
            ],
        ),
        (
            "a reservation returns what wasn't generated",
            &[
                (0, 0, 0, [10, 90, 90], None, 90, 90),
                (0, 1, 0, [10, 90, 90], Some(10_000), 90, 90),
                (0, 0, 5, [10, 75, 75], None, 75, 75),
            ],
        ),
        (
            "output generated in flight is charged once, out of its reservation",
            &[
                (0, 0, 0, [10, 80, 80], None, 90, 80),
                (0, 1, 50, [10, 1, 1], Some(100), 40, 30),
                (100, 1, 50, [10, 1, 1], None, 31, 31),
                (100, 2, 60, [9, 1, 1], Some(1_000), 21, 21),
            ],
        ),
        (
            "a request without max_tokens reserves what is expected of it",
            &[(0, 0, 0, [10, 4_086, 20], None, 90, 20), (0, 1, 0, [10, 4_086, 20], None, 80, 40)],
        ),
        (
            "one that is expected to exceed the burst takes a full bucket",
            &[
                (0, 0, 0, [10, 4_086, 4_086], None, 90, 90),
                (0, 0, 30, [10, 4_086, 4_086], Some(4_000), 60, 0),
                (4_000, 0, 30, [10, 4_086, 4_086], None, 90, 90),
            ],
        ),
        (
            "output beyond a reservation is a debt that the rate pays off",
            &[
                (0, 0, 0, [10, 4_086, 20], None, 90, 20),
                (0, 1, 200, [10, 4_086, 20], Some(14_000), -110, 0),
                (13_999, 0, 200, [10, 4_086, 20], Some(1), 29, 0),
                (14_000, 0, 200, [10, 4_086, 20], None, 20, 20),
            ],
        ),
        (
            "each request that ended without output releases the mean",
            &[
                (0, 0, 0, [10, 30, 30], None, 90, 30),
                (0, 1, 0, [10, 10, 10], None, 80, 40),
                (0, 1, 0, [100, 1, 1], Some(0), 80, 20),
            ],
        ),
        (
            "what is expected of one output changes no reservation of another",
            &[(0, 0, 0, [10, 40, 40], None, 90, 40), (0, 1, 0, [10, 40, 5], None, 80, 45)],
        ),
        (
            "a prompt that leaves no room for output is refused for good and free",
            &[(0, 0, 0, [100, 1, 1], Some(0), 100, 0), (0, 0, 0, [99, 50, 50], None, 1, 1)],
        ),
    ];
    for (what, rows) in cases {
        let mut policy = ten_a_second();
        for (id, &(millis, in_flight, output, [prompt_tokens, max, expected], wait, left, held)) in
            rows.iter().enumerate()
        {
            let request = Request {
                prompt_tokens,
                max_new_tokens: max,
                expected_tokens: expected,
                ..request(id as u64, 1, 0)
            };
            let verdict = arrives(&mut policy, request, &at(millis, in_flight, output));
            assert_eq!(retry(verdict), wait, "{what}: request {id}");
            assert_eq!((level(&policy, 1), reserved(&policy, 1)), (left, held), "{what}: after request {id}");
        }
    }
}

/// A request of the whole context.
fn chat(id: u64, expected_tokens: u32) -> Request {
    Request { prompt_tokens: 15, max_new_tokens: 4_081, expected_tokens, ..request(id, 1, 0) }
}

/// Until a request has ended, an ordinary answer is reserved for each, and what is expected of them afterwards.
#[test]
fn little_is_reserved_while_no_lengths_are_known() {
    for (expected, wait, left) in [(44, None, (5_776, 5_164)), (4_081, Some(34_250), (5_791, 5_120))] {
        let mut policy = policy(r#"{"tokens_per_minute": 6000}"#);
        for id in 0..12 {
            let verdict = arrives(&mut policy, chat(id, 4_081), &at(0, id as u32, 0));
            assert_eq!(retry(verdict).is_none(), id < 11, "527 tokens each: request {id}");
        }
        let verdict = arrives(&mut policy, chat(12, expected), &at(0, 10, 44));
        assert_eq!(retry(verdict), wait, "{expected} expected");
        assert_eq!((level(&policy, 1), reserved(&policy, 1)), left, "{expected} expected");
    }
}

#[test]
fn what_a_client_says_of_its_output_tells_nothing_of_others() {
    let mut policy = policy(r#"{"tokens_per_minute": 6000}"#);
    let mut ask = |id: u64, expected| retry(arrives(&mut policy, chat(id, expected), &at(0, id as u32, 0)));
    // Lengths of which nobody says anything are as unknown after the second as before.
    assert_eq!([ask(0, 4_081), ask(1, 5), ask(2, 4_081)], [None; 3]);
    assert_eq!((level(&policy, 1), reserved(&policy, 1)), (5_955, 512 + 5 + 512));
}

#[test]
fn refusals_say_what_would_help() {
    let cases = [
        (
            (0, [40, 30, 30]),
            "the limit is 600 tokens a minute: the request needs about 70 (40 prompt, 30 output) and 50 are \
             available; retry in 2 s or ask for at most 10 output tokens",
        ),
        (
            (0, [60, 30, 30]),
            "the limit is 600 tokens a minute: the request needs about 90 (60 prompt, 30 output) and 50 are \
             available; retry in 4 s",
        ),
        (
            (200, [40, 30, 30]),
            "the limit is 600 tokens a minute: the request needs about 70 (40 prompt, 30 output) and 0 are \
             available; retry in 22 s",
        ),
        (
            (0, [100, 30, 30]),
            "the request has 100 prompt tokens and needs at least one of output, but the limit is 100 tokens at \
             once: shorten the prompt",
        ),
    ];
    for ((output, [prompt_tokens, max_new_tokens, expected_tokens]), expected) in cases {
        let mut policy = ten_a_second();
        arrives(&mut policy, Request { prompt_tokens: 50, ..request(1, 1, 0) }, &at(0, 0, 0));
        let request = Request { prompt_tokens, max_new_tokens, expected_tokens, ..request(2, 1, 0) };
        let Verdict::Refuse(refusal) = arrives(&mut policy, request, &at(0, 0, output)) else {
            panic!("admitted instead of: {expected}")
        };
        assert_eq!(refusal.message, expected);
    }
}

#[test]
fn tenants_have_buckets_of_their_own() {
    let mut policy = ten_a_second();
    assert_eq!(retry(arrives(&mut policy, request(1, 1, 100), &at(0, 0, 0))), None);
    assert_eq!(retry(arrives(&mut policy, request(2, 1, 100), &at(0, 1, 0))), Some(10_000));
    assert_eq!(retry(arrives(&mut policy, request(3, 2, 100), &at(0, 0, 0))), None);
}

#[test]
fn the_hosts_limit_for_a_tenant_precedes_the_configured_one() {
    let mut policy = ten_a_second();
    let limited = Load { tenant_rate_per_minute: 60, tenant_burst: 10, ..at(0, 0, 0) };
    assert_eq!(retry(arrives(&mut policy, request(1, 1, 10), &limited)), None);
    let busy = Load { tenant_running: 1, ..limited };
    assert_eq!(retry(arrives(&mut policy, request(2, 1, 10), &busy)), Some(10_000));
    let minute = Load { tenant_burst: 0, ..limited };
    assert_eq!(retry(arrives(&mut policy, request(3, 2, 60), &minute)), None, "no burst is a minute's worth");
}

#[test]
fn a_request_is_charged_once_however_often_it_is_asked_about() {
    let mut policy = ten_a_second();
    assert_eq!(retry(arrives(&mut policy, request(1, 1, 60), &at(0, 0, 0))), None);
    for millis in 1..10 {
        let waiting = Load { tenant_waiting: 1, ..at(millis, 0, 0) };
        assert_eq!(retry(policy.admit(&request(1, 1, 60), &waiting)), None);
    }
    assert_eq!((level(&policy, 1), reserved(&policy, 1)), (70, 30));
}

/// The host asks about all choices together, then about each while it counts all of them.
#[test]
fn choices_are_charged_together_and_release_their_reservations_one_by_one() {
    let mut policy = ten_a_second();
    let choice = Request { prompt_tokens: 5, max_new_tokens: 15, expected_tokens: 15, ..request(1, 1, 0) };
    let all = Request { prompt_tokens: 20, max_new_tokens: 60, expected_tokens: 60, ..choice };
    assert_eq!(retry(arrives(&mut policy, all, &at(0, 0, 0))), None);
    for _ in 0..4 {
        assert_eq!(retry(arrives(&mut policy, choice, &at(0, 4, 0))), None);
    }
    assert_eq!((level(&policy, 1), reserved(&policy, 1)), (80, 60));
    for (in_flight, left) in [(4, 60), (3, 45), (1, 15), (0, 0)] {
        arrives(&mut policy, Request { prompt_tokens: 100, ..request(2, 1, 0) }, &at(0, in_flight, 0));
        assert_eq!(reserved(&policy, 1), left, "{in_flight} in flight");
    }
}

/// If a member defers all choices as a whole, the host asks again and shows the other choices as all that
/// waits.
#[test]
fn a_load_that_hides_the_tenant_releases_no_reservation() {
    let hidden = Load { waiting: 1, ..at(0, 0, 0) };
    for (what, charged_first) in [("behind the member that deferred", false), ("before it", true)] {
        let mut policy = ten_a_second();
        assert_eq!(retry(arrives(&mut policy, request(1, 1, 60), &at(0, 0, 0))), None);
        if charged_first {
            assert_eq!(retry(arrives(&mut policy, request(2, 1, 20), &at(0, 1, 0))), None);
        }
        assert_eq!(retry(arrives(&mut policy, request(2, 1, 20), &hidden)), None, "{what}");
        assert_eq!((level(&policy, 1), reserved(&policy, 1)), (60, 40), "{what}");
    }
}

#[test]
fn the_longest_queue_is_charged_once() {
    let longest = 100_000;
    let mut policy = policy(r#"{"tokens_per_minute": 1, "burst": 200000}"#);
    let one = |id: u64| Request { max_new_tokens: 1, expected_tokens: 1, ..request(id, 1, 1) };
    let waiting = |count: u64| Load { tenant_waiting: count as u32, ..at(0, 0, 0) };
    let first = (1..=longest).filter_map(|id| retry(arrives(&mut policy, one(id), &waiting(id - 1)))).count();
    let all = Load { now: Micros(1), ..waiting(longest) };
    let again = (1..=longest).filter_map(|id| retry(policy.admit(&one(id), &all))).count();
    assert_eq!((first, again), (0, 0), "refused at the door, and when asked again");
    assert_eq!(retry(arrives(&mut policy, one(longest + 1), &all)), Some(120_000), "the bucket is empty");
}

#[test]
fn a_full_set_of_charged_requests_still_takes_the_lowest_id() {
    let mut policy = policy(r#"{"tokens_per_minute": 1, "burst": 4000000}"#);
    for id in 1..=MAX_CHARGED as u64 {
        arrives(&mut policy, request(id, 1, 1), &at(0, 0, 0));
    }
    let left = level(&policy, 1);
    (0..10).for_each(|_| assert_eq!(retry(arrives(&mut policy, request(0, 1, 1), &at(0, 0, 0))), None));
    assert_eq!(level(&policy, 1), left - 1);
}

#[test]
fn buckets_and_charges_survive_a_swap() {
    let (mut old, mut new) = (ten_a_second(), ten_a_second());
    arrives(&mut old, request(1, 1, 70), &at(0, 0, 0));
    arrives(&mut old, request(2, 2, 10), &at(500, 0, 0));
    new.import_state(&old.export_state()).unwrap();
    assert_eq!((&new.buckets, &new.charged), (&old.buckets, &old.charged));
    assert_eq!(new.export_state(), old.export_state());
    assert_eq!(retry(new.admit(&request(1, 1, 70), &at(500, 1, 0))), None, "it is charged");
    assert_eq!(retry(arrives(&mut new, request(3, 1, 40), &at(500, 1, 0))), Some(500), "35 are available");
}

#[test]
fn malformed_state_is_refused_and_changes_nothing() {
    let mut policy = ten_a_second();
    arrives(&mut policy, request(1, 1, 70), &at(0, 0, 0));
    let state = policy.export_state();
    for length in 0..state.len() {
        let kept = policy.import_state(&state[..length]);
        assert!(
            kept.is_err() || length == state.len() - 2,
            "{length} bytes: only the charged ids may be fewer"
        );
        policy.import_state(&state).unwrap();
    }
    for version in [2, 9] {
        let mut other = state.clone();
        other[0] = version;
        assert!(policy.import_state(&other).unwrap_err().contains("another version"));
    }
    let bucket = *policy.buckets.values().next().unwrap();
    let many = (0..=MAX_TENANTS as u32).map(|tenant| (TenantId(tenant), bucket)).collect();
    assert!(
        policy.import_state(&state::write(&many, &policy.charged, false)).unwrap_err().contains("too many")
    );
    assert_eq!(policy.export_state(), state);
}

#[test]
fn memory_of_tenants_and_requests_is_bounded() {
    let mut policy = policy(r#"{"tokens_per_minute": 60000000}"#);
    let last = MAX_CHARGED as u32 + 1_000;
    for n in 0..=last {
        arrives(&mut policy, request(u64::from(n), n.min(9_999), 1), &at(u64::from(n), 0, 0));
    }
    assert_eq!((policy.buckets.len(), policy.charged.len()), (MAX_TENANTS, MAX_CHARGED));
    let kept = policy.charged.contains(SequenceId(u64::from(last)));
    assert!(policy.buckets.contains_key(&TenantId(9_999)) && kept);
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
            tenant_running: number(),
            tenant_waiting: number(),
            tenant_in_flight: number(),
            tenant_output_tokens_served: u64::from(number()) << 32,
            memory: Memory { total_blocks: number(), free_blocks: number(), ..Memory::default() },
            ..Load::default()
        };
        let request = Request {
            id: SequenceId(rng.next_u64()),
            prompt_tokens: [1, u32::MAX - 1, u32::MAX][rng.between(0, 2) as usize],
            max_new_tokens: rng.between(0, u32::MAX),
            expected_tokens: rng.between(0, u32::MAX),
            ..Request::default()
        };
        if let Verdict::Refuse(refusal) = policy.admit(&request, &load) {
            assert!(refusal.message.len() <= 256, "{}", refusal.message);
        }
        assert!(policy.measure(&load).level_permille <= 1_000);
    });
}
