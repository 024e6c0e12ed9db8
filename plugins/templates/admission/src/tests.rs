//! Answers on hand-made loads, and the requirements of every admission policy.

use infer_policy_sdk::testing::{check_admission, check_config};
use infer_policy_sdk::{Memory, parse_config};

use super::*;

fn policy(config: &str) -> PromptGate {
    PromptGate::new(parse_config(config).unwrap()).unwrap()
}

/// A host of 100 blocks of 16 tokens on which something runs.
fn load(free_blocks: u32) -> Load {
    let memory = Memory { block_size: 16, total_blocks: 100, free_blocks, cached_blocks: 0 };
    Load { memory, running: 1, ..Load::default() }
}

fn prompt(prompt_tokens: u32) -> Request {
    Request { prompt_tokens, max_new_tokens: 16, ..Request::default() }
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<PromptGate>();
    let error = PromptGate::new(parse_config(r#"{"full_permille": 2000}"#).unwrap()).err().unwrap();
    assert!(error.contains("full_permille") && error.contains("2000"), "{error}");
}

#[test]
fn a_long_prompt_waits_while_the_pool_is_full_and_a_short_one_does_not() {
    let mut policy = policy(r#"{"long_prompt_tokens": 200}"#);
    assert_eq!(policy.admit(&prompt(201), &load(60)), Verdict::Admit);
    assert_eq!(policy.admit(&prompt(201), &load(50)), Verdict::Wait);
    assert_eq!(policy.admit(&prompt(200), &load(0)), Verdict::Admit);
}

#[test]
fn an_idle_host_admits_everything_that_fits() {
    let idle = Load { running: 0, ..load(0) };
    assert_eq!(policy("{}").admit(&prompt(1_500), &idle), Verdict::Admit);
}

#[test]
fn a_request_that_can_never_fit_is_refused_with_the_numbers() {
    let Verdict::Refuse(refusal) = policy("{}").admit(&prompt(1_700), &load(100)) else {
        panic!("it is admitted")
    };
    assert!(refusal.message.contains("108 blocks") && refusal.message.contains("100"), "{}", refusal.message);
}

#[test]
fn meets_the_requirements_of_every_admission_policy() {
    check_admission(|| policy("{}"));
}
