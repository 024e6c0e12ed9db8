//! The policy's rule on a hand-made view, the host's rules on random ones, and whole scenarios.

use infer_policy_sdk::testing::{
    Host, Spec, check_config, check_plan, for_seeds, hostile_step, limits, random_spec, random_step,
};
use infer_policy_sdk::{Memory, Row, Sequences, parse_config};

use super::*;

fn policy(config: &str) -> ShortestFirst {
    ShortestFirst::new(parse_config(config).unwrap()).unwrap()
}

/// Prompts that wait since the beginning, on an idle host.
fn waiting(prompts: &[u32], now: Micros) -> Step {
    let row = |(id, prompt_tokens)| Row { id, prompt_tokens, max_new_tokens: 10, ..Row::default() };
    Step {
        now,
        starvation_bound: Micros::from_millis(5_000),
        limits: limits(),
        memory: Memory { block_size: 16, total_blocks: 100, free_blocks: 100, cached_blocks: 0 },
        waiting: (1..).zip(prompts.iter().copied()).map(row).collect::<Sequences>(),
        ..Step::default()
    }
}

fn order(plan: &Plan) -> Vec<u64> {
    plan.run.iter().map(|id| id.0).collect()
}

#[test]
fn its_configuration_is_what_its_schema_says() {
    check_config::<ShortestFirst>();
}

#[test]
fn the_shortest_prompt_starts_first() {
    let plan = policy("{}").schedule(&waiting(&[300, 20, 100], Micros::ZERO));
    assert_eq!(order(&plan), [2, 3, 1]);
}

#[test]
fn who_has_waited_for_long_goes_first() {
    let plan = policy(r#"{"patience_ms": 500}"#).schedule(&waiting(&[300, 20], Micros::from_millis(500)));
    assert_eq!(order(&plan), [1, 2]);
}

#[test]
fn every_plan_keeps_the_rules_and_nonsense_is_survived() {
    for_seeds(0..200, |rng| {
        let step = random_step(rng);
        check_plan(&step, &policy("{}").schedule(&step)).unwrap();
        policy("{}").schedule(&hostile_step(rng));
    });
}

#[test]
fn everybody_is_served_in_the_end() {
    for_seeds(0..50, |rng| {
        let specs: Vec<Spec> = (0..20).map(|_| random_spec(rng, 40 * 16)).collect();
        let report = Host::new(limits(), 16, 40).run(&mut policy("{}"), &specs).unwrap();
        assert_eq!(report.finished.len(), specs.len());
    });
}
