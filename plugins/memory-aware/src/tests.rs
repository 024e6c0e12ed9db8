//! Formulas and answers on hand-made loads, and a queue in which no request may wait for ever.

use infer_policy_sdk::testing::{check_admission, check_config, for_seeds};
use infer_policy_sdk::{Memory, Micros, parse_config};

use super::*;

fn policy(config: &str) -> MemoryAware {
    MemoryAware::new(parse_config(config).unwrap()).unwrap()
}

/// A busy host with 100 blocks of 16 tokens, 10 of them in reserve.
fn load(free_blocks: u32, cached_blocks: u32) -> Load {
    Load {
        memory: Memory { block_size: 16, total_blocks: 100, free_blocks, cached_blocks },
        max_running: 32,
        running: 1,
        max_waiting: 1_000,
        ..Load::default()
    }
}

/// One of which nothing is known, so that its limit is expected.
fn request(prompt_tokens: u32, max_new_tokens: u32) -> Request {
    expecting(max_new_tokens, prompt_tokens, max_new_tokens)
}

fn expecting(expected_tokens: u32, prompt_tokens: u32, max_new_tokens: u32) -> Request {
    let deadline = Micros::NEVER;
    Request { prompt_tokens, max_new_tokens, expected_tokens, deadline, ..Request::default() }
}

fn claims(expected_blocks: u32, promised_blocks: u32, load: Load) -> Load {
    Load { expected_blocks, promised_blocks, ..load }
}

fn refusal(verdict: Verdict) -> Refusal {
    match verdict {
        Verdict::Refuse(refusal) => refusal,
        other => panic!("{other:?} is no refusal"),
    }
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<MemoryAware>();
    for (config, key) in [
        (r#"{"reserve": 1.5}"#, "reserve"),
        (r#"{"backpressure_at": -1}"#, "backpressure_at"),
        (r#"{"max_in_flight": 0}"#, "max_in_flight"),
        (r#"{"margin": 0.9}"#, "margin"),
        (r#"{"margin": 1e9}"#, "margin"),
    ] {
        let error = MemoryAware::new(parse_config(config).unwrap()).err().unwrap();
        assert!(error.contains(key), "{error}");
    }
    let error = parse_config::<Config>(r#"{"outputs": "shortest"}"#).err().unwrap();
    assert!(error.contains("shortest") && error.contains("longest"), "{error}");
}

#[test]
fn meets_the_requirements_of_every_admission_policy() {
    check_admission(|| policy("{}"));
    check_admission(|| policy(r#"{"max_in_flight": 1, "reserve": 0.9}"#));
    check_admission(|| policy(r#"{"outputs": "longest"}"#));
    check_admission(|| policy(r#"{"margin": 1000}"#));
}

#[test]
fn a_request_is_admitted_if_prompt_and_output_fit_beside_the_reserve() {
    let mut policy = policy("{}");
    let cases = [
        // free, cached, prompt, output
        (30, 0, 300, 20, Verdict::Admit),
        (30, 0, 300, 21, Verdict::Wait),
        (10, 20, 300, 20, Verdict::Admit),
        (10, 0, 1, 1, Verdict::Wait),
        (0, 0, 1, 1, Verdict::Wait),
    ];
    for (free, cached, prompt, output, expected) in cases {
        let verdict = policy.admit(&request(prompt, output), &load(free, cached));
        assert_eq!(verdict, expected, "{free} free, {cached} cached, {prompt} + {output} tokens");
    }
}

#[test]
fn cached_blocks_in_use_are_not_needed_again() {
    let cached = Request { cached_tokens: 170, ..request(300, 20) };
    assert_eq!(policy("{}").admit(&cached, &load(20, 0)), Verdict::Admit, "20 - 10 blocks needed");
    assert_eq!(policy("{}").admit(&cached, &load(19, 0)), Verdict::Wait);
    let idle = Request { idle_blocks: 4, ..cached };
    assert_eq!(policy("{}").admit(&idle, &load(20, 4)), Verdict::Admit, "6 of the 10 are others'");
    assert_eq!(policy("{}").admit(&idle, &load(19, 4)), Verdict::Wait, "4 of these leave the pool with it");
}

#[test]
fn an_output_counts_its_expected_length_with_the_margin_or_its_limit() {
    let cases = [
        // configuration; expected, limit; tokens that it counts
        ("{}", 10, 300, 13),
        ("{}", 10, 12, 12),
        ("{}", 300, 300, 300),
        (r#"{"margin": 1}"#, 10, 300, 10),
        (r#"{"margin": 2}"#, 10, 300, 20),
        (r#"{"outputs": "longest"}"#, 10, 300, 300),
        (r#"{"outputs": "longest", "margin": 1}"#, 10, 15, 15),
    ];
    for (config, expected, limit, counted) in cases {
        // With the reserve, 80 of its 90 free blocks are left: so long a prompt just fits beside the output.
        let prompt = 16 * 80 - counted;
        for (prompt, verdict) in [(prompt, Verdict::Admit), (prompt + 1, Verdict::Wait)] {
            let answer = policy(config).admit(&expecting(expected, prompt, limit), &load(90, 0));
            assert_eq!(answer, verdict, "{config}, {expected} of {limit} expected, prompt {prompt}");
        }
    }
}

#[test]
fn blocks_that_others_will_take_are_spoken_for() {
    let cases = [
        // configuration; expected, promised; claimed
        ("{}", 15, 15, 15),
        ("{}", 13, 15, 15),
        ("{}", 7, 15, 9),
        ("{}", 0, 15, 0),
        (r#"{"margin": 1.5}"#, 7, 15, 11),
        (r#"{"margin": 1}"#, 7, 15, 7),
        (r#"{"outputs": "longest"}"#, 7, 15, 15),
    ];
    for (config, expected, promised, claimed) in cases {
        let load = claims(expected, promised, load(50, 0));
        let left = 40 - claimed;
        assert_eq!(policy(config).admit(&request(16 * left, 0), &load), Verdict::Admit, "{config}");
        assert_eq!(policy(config).admit(&request(16 * left, 1), &load), Verdict::Wait, "{config}");
        assert_eq!(policy(config).measure(&load).available_blocks, left, "{config}, {expected} expected");
        assert_eq!(infer_policy_sdk::testing::gauge("claimed_blocks"), Some(f64::from(claimed)));
    }
}

#[test]
fn a_first_burst_waits_for_its_first_output() {
    let mut policy = policy("{}");
    // 60 blocks at its longest. The first runs, and nothing is known.
    let first = claims(59, 59, load(99, 0));
    assert_eq!(policy.admit(&request(16, 16 * 59), &first), Verdict::Wait);
    // It ended after 40 tokens. So much is expected of the others; with the margin they count 5 blocks.
    let idle = Load { running: 0, ..load(100, 0) };
    let known = expecting(40, 16, 16 * 59);
    assert_eq!(policy.admit(&known, &idle), Verdict::Admit);
    for admitted in 1..=17 {
        // Each of those admitted is expected to take 4.
        let burst = Load { running: 0, admitted, ..claims(4 * admitted, 60 * admitted, load(100, 0)) };
        let fits = 90 - 5 * admitted >= 5;
        let verdict = if fits { Verdict::Admit } else { Verdict::Wait };
        assert_eq!(policy.admit(&known, &burst), verdict, "{admitted} admitted");
    }
}

#[test]
fn a_request_that_can_never_fit_is_refused_with_need_and_supply() {
    for expected in [1, 2] {
        let refusal = refusal(policy("{}").admit(&expecting(expected, 1_600, 2), &load(100, 0)));
        assert_eq!((refusal.reason, refusal.retry_after_ms), (Reason::Memory, 0));
        assert!(refusal.message.contains("101") && refusal.message.contains("100"), "{}", refusal.message);
    }
}

#[test]
fn an_idle_host_admits_whatever_fits_the_pool() {
    let idle = Load { running: 0, ..load(100, 0) };
    assert_eq!(policy("{}").admit(&request(1_500, 100), &idle), Verdict::Admit);
    assert_eq!(
        policy("{}").admit(&request(1_500, 101), &idle),
        Verdict::Admit,
        "its last token needs no slot"
    );
    for about_to_start in [Load { admitted: 1, ..idle }, Load { preempted: 1, ..idle }] {
        assert_eq!(policy("{}").admit(&request(1_500, 100), &about_to_start), Verdict::Wait);
    }
}

#[test]
fn sequences_in_flight_are_limited() {
    let mut policy = policy(r#"{"max_in_flight": 3}"#);
    let cases = [
        // running, admitted, preempted
        (2, 0, 0, Verdict::Admit),
        (3, 0, 0, Verdict::Wait),
        (0, 2, 0, Verdict::Admit),
        (1, 2, 0, Verdict::Wait),
        (1, 1, 1, Verdict::Wait),
    ];
    for (running, admitted, preempted, expected) in cases {
        let load = Load { running, admitted, preempted, ..load(90, 0) };
        assert_eq!(policy.admit(&request(1, 1), &load), expected, "{running}, {admitted}, {preempted}");
        let pressure = policy.measure(&load);
        let open = expected == Verdict::Admit;
        assert_eq!((pressure.max_sequence_tokens > 0, pressure.backpressure), (open, !open));
    }
}

#[test]
fn the_number_of_sequences_is_not_limited_without_more_slots() {
    let queue = Load { running: 3, admitted: 900, ..load(90, 0) };
    let mut policy = policy(r#"{"max_in_flight": 3}"#);
    assert_eq!(policy.admit(&request(1, 1), &Load { max_running: 3, ..queue }), Verdict::Admit);
    assert_eq!(policy.admit(&request(1, 1), &Load { max_running: 4, ..queue }), Verdict::Wait);
}

#[test]
fn pressure_is_what_is_not_available() {
    let cases = [
        // free, cached, promised; level, backpressure, available
        (100, 0, 0, 100, false, 90),
        (60, 40, 0, 100, false, 90),
        (31, 0, 0, 790, false, 21),
        (30, 0, 0, 800, true, 20),
        (40, 0, 10, 800, true, 20),
        (10, 0, 0, 1_000, true, 0),
        (0, 0, 50, 1_000, true, 0),
    ];
    for (free, cached, promised_blocks, level, backpressure, available) in cases {
        let pressure = policy("{}").measure(&claims(promised_blocks, promised_blocks, load(free, cached)));
        let expected = Pressure {
            level_permille: level,
            backpressure,
            reserved_blocks: 10,
            available_blocks: available,
            max_sequence_tokens: available * 16,
        };
        assert_eq!(pressure, expected, "{free} free, {cached} cached, {promised_blocks} promised");
    }
}

#[test]
fn what_measure_reports_as_admissible_is_admitted() {
    let mut policy = policy("{}");
    for_seeds(0..2_000, |rng| {
        let promised_blocks = rng.between(0, 30) * rng.between(0, 1);
        let load = Load {
            running: rng.between(0, 1),
            admitted: rng.between(0, 1),
            promised_blocks,
            expected_blocks: rng.between(0, promised_blocks),
            ..load(rng.between(0, 60), rng.between(0, 40))
        };
        let longest = policy.measure(&load).max_sequence_tokens;
        if longest > 0 {
            assert_eq!(policy.admit(&request(longest, 0), &load), Verdict::Admit);
        }
        let idle = (load.running, load.admitted) == (0, 0);
        assert_ne!(policy.admit(&request(longest, 1 + u32::from(idle)), &load), Verdict::Admit);
    });
}

#[test]
fn a_queue_on_a_small_pool_always_empties() {
    for_seeds(0..200, |rng| {
        let mut policy = policy("{}");
        let mut queue: Vec<u32> = (0..20).map(|_| rng.between(1, 1_600)).collect();
        let mut running: Vec<u32> = Vec::new();
        while let Some(tokens) = queue.first().copied() {
            let held: u32 = running.iter().map(|tokens| blocks_for(*tokens, 16)).sum();
            let load = Load { running: running.len() as u32, ..load(100 - held, 0) };
            match policy.admit(&request(tokens, 0), &load) {
                Verdict::Admit => running.push(queue.remove(0)),
                Verdict::Wait => assert!(running.pop().is_some(), "nothing runs, and {tokens} tokens wait"),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn extreme_numbers_get_an_answer() {
    let mut policy = policy("{}");
    for_seeds(0..2_000, |rng| {
        let mut number = || *[0, 1, 16, u32::MAX].get(rng.between(0, 3) as usize).unwrap();
        let load = Load {
            memory: Memory {
                block_size: number(),
                total_blocks: number(),
                free_blocks: number(),
                cached_blocks: number(),
            },
            max_running: number(),
            running: number(),
            admitted: number(),
            preempted: number(),
            promised_blocks: number(),
            expected_blocks: number(),
            ..Load::default()
        };
        let request = Request {
            cached_tokens: number(),
            idle_blocks: number(),
            ..expecting(number(), number(), number())
        };
        policy.admit(&request, &load);
        assert!(policy.measure(&load).level_permille <= 1_000);
    });
}
