//! The policy's rule on hand-made views, and the requirements of every scheduler.

use infer_policy_sdk::testing::{check_config, check_scheduler, limits};
use infer_policy_sdk::{Limits, Memory, Row, Sequences, parse_config};

use super::*;

fn policy(config: &str) -> ShortestFirst {
    ShortestFirst::new(parse_config(config).unwrap()).unwrap()
}

/// Prompts by id that have waited from the start, on an idle host with this many slots.
fn waiting(prompts: &[(u64, u32)], max_running: u32, now_ms: u64) -> Step {
    let row = |&(id, prompt_tokens)| Row { id, prompt_tokens, max_new_tokens: 10, ..Row::default() };
    Step {
        now: Micros::from_millis(now_ms),
        starvation_bound: Micros::from_millis(5_000),
        limits: Limits { max_running, ..limits() },
        memory: Memory { block_size: 16, total_blocks: 100, free_blocks: 100, cached_blocks: 0 },
        waiting: prompts.iter().map(row).collect::<Sequences>(),
        ..Step::default()
    }
}

fn order(plan: &Plan) -> Vec<u64> {
    plan.run.iter().map(|id| id.0).collect()
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<ShortestFirst>();
}

#[test]
fn the_shortest_prompt_starts_first() {
    let plan = policy("{}").schedule(&waiting(&[(1, 300), (2, 20), (3, 100)], 8, 0));
    assert_eq!(order(&plan), [2, 3, 1]);
}

#[test]
fn a_request_overtaken_for_too_long_goes_first() {
    let mut policy = policy(r#"{"patience_ms": 500}"#);
    let mut first = |waiting: Step| order(&policy.schedule(&waiting));
    assert_eq!(first(waiting(&[(1, 300), (2, 20)], 1, 0)), [2], "from now on");
    assert_eq!(first(waiting(&[(1, 300), (3, 20)], 1, 499)), [3]);
    assert_eq!(first(waiting(&[(1, 300), (4, 20)], 1, 500)), [1]);
}

#[test]
fn meets_the_requirements_of_every_scheduler() {
    check_scheduler(|| policy("{}"));
}
