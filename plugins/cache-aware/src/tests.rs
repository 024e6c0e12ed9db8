//! Interleaved groups of requests, one prefix per group, in a pool that doesn't hold all the prefixes.

use infer_policy_sdk::testing::{Finished, Host, Report, Spec, check_config, check_scheduler, limits};
use infer_policy_sdk::{Limits, Memory, Row, parse_config};
use policy_continuous::Continuous;

use super::*;

fn policy(config: &str) -> CacheAware {
    CacheAware::new(parse_config(config).unwrap()).unwrap()
}

/// A prompt of which all but 16 tokens are a prefix, or nothing is.
fn request(arrived_ms: u64, prefix: Option<u64>) -> Spec {
    Spec {
        arrived: Micros::from_millis(arrived_ms),
        prompt_tokens: 528,
        output_tokens: 8,
        max_new_tokens: 8,
        shared: prefix.map(|prefix| (prefix, 512)),
        ..Spec::default()
    }
}

/// Two slots, room for two prefixes of 32 blocks, and prompts that take several steps.
fn host() -> Host {
    let mut host = Host::new(Limits { max_running: 2, ..limits() }, 16, 80);
    host.prompt_token_time = Micros(50);
    host
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<CacheAware>();
}

#[test]
fn the_longest_cached_prefix_starts_first_then_by_arrival() {
    let row = |id, computed_tokens, pending_tokens| Row {
        id,
        arrived: id,
        prompt_tokens: 100,
        max_new_tokens: 9,
        computed_tokens,
        pending_tokens,
        ..Row::default()
    };
    let step = Step {
        limits: limits(),
        memory: Memory { block_size: 16, total_blocks: 100, free_blocks: 100, cached_blocks: 0 },
        waiting: [row(1, 0, 0), row(2, 32, 0), row(3, 64, 0), row(4, 32, 0), row(5, 16, 96)]
            .into_iter()
            .collect(),
        ..Step::default()
    };
    let started: Vec<u64> = policy("{}").schedule(&step).run.iter().map(|id| id.0).collect();
    assert_eq!(started, [3, 2, 4, 1], "the fifth waits for what is being computed");
    let started = policy(r#"{"prefix_wait_ms": 0}"#).schedule(&step).run;
    assert_eq!(started[0].0, 5);
}

#[test]
fn groups_with_a_prefix_each_wait_less_than_in_order_of_arrival() {
    let specs: Vec<Spec> = (0..48).map(|n| request(n, Some(1 + n % 4))).collect();
    let continuous = &mut Continuous::new(parse_config("{}").unwrap()).unwrap();
    let fcfs = host().run(continuous, &specs).unwrap();
    let aware = host().run(&mut policy("{}"), &specs).unwrap();
    let mean = |report: &Report| report.mean_ms(1..=48, Finished::ttft);
    let longest = |report: &Report| report.finished.iter().map(Finished::ttft).max().unwrap();
    assert!(mean(&aware) * 2 < mean(&fcfs), "{} ms against {} ms", mean(&aware), mean(&fcfs));
    assert!(longest(&aware) < longest(&fcfs), "{:?} against {:?}", longest(&aware), longest(&fcfs));
    assert!(aware.tokens * 2 < fcfs.tokens, "{} tokens against {}", aware.tokens, fcfs.tokens);
}

#[test]
fn uncached_requests_are_overtaken_for_at_most_the_patience() {
    let mut specs = vec![request(0, Some(1)), request(0, Some(1)), request(1, None)];
    specs.extend((0..300).map(|n| request(2 + 3 * n, Some(1))));
    for (config, patience_ms) in [(r#"{"patience_ms": 150}"#, 150), ("{}", 600)] {
        let mut host = host();
        host.starvation_bound = Micros::from_millis(1_000);
        let report = host.run(&mut policy(config), &specs).unwrap();
        let started_ms = report.of(3).started.0 / 1_000;
        assert!((patience_ms..patience_ms + 120).contains(&started_ms), "{config}: {started_ms}");
    }
}

#[test]
fn meets_the_requirements_of_every_scheduler() {
    check_scheduler(|| policy("{}"));
    check_scheduler(|| policy(r#"{"patience_ms": 0, "prefix_wait_ms": 0}"#));
}
