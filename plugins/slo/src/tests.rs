//! Estimates by hand, and promises that must hold once the named time has passed.

use infer_policy_sdk::testing::{check_admission, check_config, for_seeds, gauge};
use infer_policy_sdk::{Memory, parse_config};

use super::*;

fn policy(config: &str) -> Slo {
    Slo::new(parse_config(config).unwrap()).unwrap()
}

/// Eight slots, 1000 prompt tokens and 100 output tokens a second.
fn load() -> Load {
    Load {
        now: Micros::from_millis(10_000),
        max_running: 8,
        max_waiting: 100,
        prefill_tokens_per_second: 1_000,
        output_tokens_per_second: 100,
        ..Load::default()
    }
}

/// Arrives now and is due this many milliseconds later.
fn request(prompt_tokens: u32, due_ms: u64) -> Request {
    Request {
        id: SequenceId(1),
        arrived: load().now,
        deadline: load().now.plus(Micros::from_millis(due_ms)),
        prompt_tokens,
        max_new_tokens: 50,
        expected_tokens: 20,
        ..Request::default()
    }
}

/// Milliseconds after which a refused request may retry; `None` if it is admitted.
fn retry(verdict: Verdict) -> Option<u32> {
    match verdict {
        Verdict::Admit => None,
        Verdict::Refuse(refusal) => {
            assert_eq!(refusal.reason, Reason::Backpressure);
            assert!(refusal.message.len() <= 256, "{}", refusal.message);
            Some(refusal.retry_after_ms)
        }
        Verdict::Wait | Verdict::WaitTenant => panic!("it never says wait"),
    }
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<Slo>();
    for config in [r#"{"slack": 0}"#, r#"{"slack": 11}"#] {
        let error = Slo::new(parse_config(config).unwrap()).err().unwrap();
        assert!(error.contains("`slack`"), "{error}");
    }
}

#[test]
fn meets_the_requirements_of_every_admission_policy() {
    check_admission(|| policy("{}"));
    check_admission(|| policy(r#"{"default_ttft_ms": 100}"#));
}

#[test]
fn prompts_ahead_and_its_own_must_fit_before_the_deadline() {
    let cases = [
        // waiting prompts, own prompt, of it cached, due in ms; retry time
        (0, 500, 0, 500, None),
        (0, 501, 0, 500, Some(0)),
        (0, 900, 400, 500, None),
        (1_000, 500, 0, 1_500, None),
        (1_000, 500, 0, 1_200, Some(300)),
        (9_000, 500, 0, 500, Some(9_000)),
    ];
    for (waiting_prompt_tokens, prompt, cached_tokens, due, expected) in cases {
        let load = Load { waiting: 1, waiting_prompt_tokens, ..load() };
        let request = Request { cached_tokens, ..request(prompt, due) };
        assert_eq!(retry(policy("{}").admit(&request, &load)), expected, "{prompt} tokens due in {due} ms");
        // The rest of a prompt that has started is ahead, too.
        let load = Load { waiting_prompt_tokens: 0, started_prompt_tokens: waiting_prompt_tokens, ..load };
        assert_eq!(retry(policy("{}").admit(&request, &load)), expected, "{prompt} tokens due in {due} ms");
    }
}

#[test]
fn if_every_slot_is_taken_enough_sequences_must_end_first() {
    let cases = [
        // running, waiting, expected output; retry time
        (7, 0, 8_000, None),
        (8, 0, 800, None),
        (8, 0, 1_600, Some(1_000)),
        (8, 2, 1_000, Some(2_000)),
    ];
    for (running, waiting, expected_output_tokens, expected) in cases {
        let load = Load { running, waiting, expected_output_tokens, ..load() };
        let verdict = policy("{}").admit(&request(100, 1_100), &load);
        assert_eq!(retry(verdict), expected, "{running} run, {waiting} wait");
    }
}

#[test]
fn a_queued_request_does_not_count_as_ahead_of_itself() {
    let later = Load {
        now: load().now.plus(Micros::from_millis(100)),
        running: 7,
        waiting: 1,
        waiting_prompt_tokens: 900,
        expected_output_tokens: 7_020,
        ..load()
    };
    let request = request(900, 1_000);
    assert_eq!(retry(policy("{}").admit(&request, &later)), None);
    let too_late = Load { now: load().now.plus(Micros::from_millis(101)), ..later };
    assert_eq!(retry(policy("{}").admit(&request, &too_late)), Some(1), "a new request would be in time");
}

#[test]
fn a_request_asked_about_twice_in_an_instant_does_not_count_as_ahead_of_itself() {
    let mut policy = policy("{}");
    let request = request(900, 1_000);
    assert_eq!(retry(policy.admit(&request, &Load { running: 7, ..load() })), None);
    // Another member of the list deferred it, and it is asked about once more.
    let held = Load { running: 7, waiting: 1, waiting_prompt_tokens: 900, ..load() };
    assert_eq!(retry(policy.admit(&request, &held)), None);
    let newcomer = Request { id: SequenceId(2), ..request };
    assert_eq!(retry(policy.admit(&newcomer, &held)), Some(800), "it is ahead of a later request");
}

#[test]
fn each_of_several_sequences_is_judged_like_all_of_them_together() {
    // Six of eight slots are taken: of two sequences none has to wait for an end, of three one does.
    for (count, expected) in [(2, None), (3, Some(1_300))] {
        let mut policy = policy("{}");
        let others = count - 1;
        let before = Load { running: 6, expected_output_tokens: 1_000, ..load() };
        let each = request(100, 300);
        let all = Request {
            prompt_tokens: 100 * count,
            max_new_tokens: 50 * count,
            expected_tokens: 20 * count,
            ..each
        };
        let expected_output_tokens = 1_000 + 20 * u64::from(others);
        let together = Load { waiting: others, expected_output_tokens, ..before };
        assert_eq!(retry(policy.admit(&all, &together)), expected, "{count} together");
        let queued = Load {
            waiting: count,
            waiting_prompt_tokens: 100 * u64::from(count),
            expected_output_tokens: 1_000 + 20 * u64::from(count),
            ..before
        };
        for nth in 0..count {
            assert_eq!(retry(policy.admit(&each, &queued)), expected, "sequence {nth} of {count}");
        }
    }
}

#[test]
fn without_a_promise_or_a_rate_everything_passes() {
    let busy = Load { waiting: 50, waiting_prompt_tokens: 1 << 40, running: 8, ..load() };
    let unpromised = Request { deadline: Micros::NEVER, ..request(100, 0) };
    assert_eq!(retry(policy("{}").admit(&unpromised, &busy)), None);
    let mut by_default = policy(r#"{"default_ttft_ms": 1000}"#);
    assert!(retry(by_default.admit(&unpromised, &busy)).is_some());
    let unknown = [
        Load { prefill_tokens_per_second: 0, ..busy },
        Load { output_tokens_per_second: 0, waiting_prompt_tokens: 0, ..busy },
    ];
    for load in unknown {
        assert_eq!(retry(by_default.admit(&unpromised, &load)), None);
        assert_eq!(retry(by_default.admit(&request(100, 500), &load)), None);
    }
}

#[test]
fn slack_refuses_earlier() {
    let request = request(400, 500);
    assert_eq!(retry(policy("{}").admit(&request, &load())), None);
    assert_eq!(retry(policy(r#"{"slack": 1.3}"#).admit(&request, &load())), Some(0));
}

#[test]
fn backpressure_is_reported_when_even_an_empty_request_would_be_late() {
    let mut policy = policy(r#"{"default_ttft_ms": 1000}"#);
    for (waiting_prompt_tokens, expected) in [(1_000, false), (1_001, true)] {
        let load = Load { waiting: 1, waiting_prompt_tokens, ..load() };
        assert_eq!(policy.measure(&load).backpressure, expected);
        assert_eq!(gauge("estimated_ttft_ms"), Some(waiting_prompt_tokens as f64));
    }
    policy.measure(&Load { prefill_tokens_per_second: 0, ..load() });
    assert_eq!(gauge("estimated_ttft_ms"), None, "nothing is known yet");
}

#[test]
fn a_retry_at_the_named_time_is_admitted_if_the_queue_drained_at_the_measured_rates() {
    let mut policy = policy("{}");
    for_seeds(0..2_000, |rng| {
        let busy = Load {
            running: rng.between(0, 6),
            waiting: 1,
            waiting_prompt_tokens: u64::from(rng.between(0, 20_000)),
            ..load()
        };
        let asks = request(rng.between(1, 3_000), u64::from(rng.between(1, 4_000)));
        let Some(wait) = retry(policy.admit(&asks, &busy)) else { return };
        let own = u64::from(asks.prompt_tokens);
        let budget = asks.deadline.since(asks.arrived).0 / 1_000;
        assert_eq!(wait == 0, own > budget, "only its own prompt is beyond help");
        if wait > 0 {
            let later = Micros::from_millis(u64::from(wait));
            let drained = busy.waiting_prompt_tokens.saturating_sub(u64::from(wait));
            let load = Load { now: busy.now.plus(later), waiting_prompt_tokens: drained, ..busy };
            let again = Request { arrived: load.now, deadline: asks.deadline.plus(later), ..asks };
            assert_eq!(retry(policy.admit(&again, &load)), None);
        }
    });
}

#[test]
fn extreme_numbers_get_an_answer() {
    let mut policy = policy(r#"{"default_ttft_ms": 1, "slack": 10}"#);
    for_seeds(0..2_000, |rng| {
        let mut number = || *[0, 1, 16, u32::MAX].get(rng.between(0, 3) as usize).unwrap();
        let load = Load {
            now: Micros(u64::from(number()) << 32 | 1),
            running: number(),
            waiting: number(),
            max_running: number(),
            waiting_prompt_tokens: u64::from(number()) << 32,
            expected_output_tokens: u64::from(number()) << 32,
            prefill_tokens_per_second: number(),
            output_tokens_per_second: number(),
            memory: Memory { total_blocks: number(), free_blocks: number(), ..Memory::default() },
            ..Load::default()
        };
        let request = Request {
            arrived: Micros(u64::from(number())),
            deadline: Micros(u64::from(number()) << 32),
            prompt_tokens: number(),
            cached_tokens: number(),
            expected_tokens: number(),
            ..Request::default()
        };
        policy.admit(&request, &load);
        assert!(policy.measure(&load).level_permille <= 1_000);
    });
}
