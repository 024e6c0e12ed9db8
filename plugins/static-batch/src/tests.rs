//! The rules of static batching as scenarios on the test host, where time is an argument.

use infer_policy_sdk::testing::{
    Host, Spec, check_config, check_fit, check_plan, for_seeds, hostile_step, limits, random_spec,
    random_step, step_of,
};
use infer_policy_sdk::{Limits, Micros, Policy, Row, Scheduler, Step, parse_config};

use super::*;

fn policy(config: &str) -> StaticBatch {
    StaticBatch::new(parse_config(config).unwrap()).unwrap()
}

fn request(arrived_ms: u64, output_tokens: u32) -> Spec {
    Spec {
        arrived: Micros::from_millis(arrived_ms),
        prompt_tokens: 10,
        output_tokens,
        max_new_tokens: output_tokens,
        ..Spec::default()
    }
}

/// When each request started and ended, in milliseconds, by its index in `specs`.
fn times(config: &str, specs: &[Spec]) -> Vec<(u64, u64)> {
    let report = Host::new(limits(), 16, 1_000).run(&mut policy(config), specs).unwrap();
    let mut finished = report.finished;
    finished.sort_by_key(|end| end.id);
    finished.iter().map(|end| (end.started.0 / 1_000, end.ended.0 / 1_000)).collect()
}

fn starts(config: &str, specs: &[Spec]) -> Vec<u64> {
    times(config, specs).into_iter().map(|(start, _)| start).collect()
}

fn row(id: u64, prompt_tokens: u32, computed_tokens: u32, generated_tokens: u32) -> Row {
    let blocks = computed_tokens.div_ceil(16);
    Row {
        id,
        prompt_tokens,
        computed_tokens,
        generated_tokens,
        max_new_tokens: 50,
        blocks,
        freeable_blocks: blocks,
        ..Row::default()
    }
}

fn step(running: &[Row], waiting: &[Row], free_blocks: u32) -> Step {
    Step {
        now: Micros::from_millis(1_000),
        idle_since: if running.is_empty() { Micros::ZERO } else { Micros::NEVER },
        ..step_of(running, waiting, free_blocks)
    }
}

fn ids(plan: &Plan) -> Vec<u64> {
    plan.run.iter().map(|id| id.0).collect()
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<StaticBatch>();
    let error = StaticBatch::new(parse_config(r#"{"batch_size": 0}"#).unwrap()).err().unwrap();
    assert!(error.contains("batch_size"), "{error}");
}

#[test]
fn a_full_batch_starts_at_once() {
    assert_eq!(starts(r#"{"batch_size": 4, "wait_ms": 1000}"#, &[request(0, 2); 4]), [0; 4]);
}

#[test]
fn a_partial_batch_starts_after_the_longest_wait() {
    assert_eq!(starts("{}", &[request(7, 2), request(30, 2)]), [57, 57]);
    assert_eq!(starts(r#"{"batch_size": 4, "wait_ms": 10}"#, &[request(0, 2), request(3, 2)]), [10, 10]);
}

#[test]
fn a_batch_starts_as_soon_as_it_is_full() {
    let specs = [0, 5, 20].map(|ms| request(ms, 2));
    assert_eq!(starts(r#"{"batch_size": 3}"#, &specs), [20; 3]);
}

#[test]
fn no_request_joins_until_every_member_is_finished() {
    // Four start at 0; three end early; the fourth runs for 30 steps. The fifth arrives at 5.
    let specs = [request(0, 2), request(0, 30), request(0, 2), request(0, 2), request(5, 2)];
    let times = times(r#"{"batch_size": 4}"#, &specs);
    assert_eq!(times[1], (0, 30));
    assert_eq!(times[0].1, 2, "a finished request leaves at once");
    assert_eq!(times[4].0, 30 + 50, "the wait begins when the batch before has ended");
}

#[test]
fn the_wait_starts_fresh_between_batches() {
    // The first's batch ends at 60. The second request arrives at 70 and waits from then on.
    assert_eq!(starts("{}", &[request(0, 10), request(70, 2)]), [50, 120]);
}

#[test]
fn five_requests_make_batches_of_two_two_and_one() {
    let starts = starts(r#"{"batch_size": 2, "wait_ms": 50}"#, &[request(0, 4); 5]);
    assert_eq!(starts, [0, 0, 4, 4, 8 + 50]);
}

#[test]
fn requests_start_in_the_order_in_which_they_came() {
    let plan = policy("{}").schedule(&step(&[], &[row(5, 9, 0, 0), row(3, 9, 0, 0), row(4, 9, 0, 0)], 50));
    assert_eq!(ids(&plan), [5, 3, 4]);
}

#[test]
fn an_empty_queue_asks_for_no_wake_up() {
    assert_eq!(policy("{}").schedule(&step(&[], &[], 10)), Plan::default());
}

#[test]
fn running_sequences_are_the_batch_after_a_swap() {
    let running = [row(1, 30, 16, 0), row(2, 20, 20, 1), row(3, 20, 22, 3)];
    let plan = policy(r#"{"batch_size": 2}"#).schedule(&step(&running, &[row(4, 10, 0, 0)], 50));
    assert_eq!(ids(&plan), [2, 3, 1]);
}

#[test]
fn a_preempted_member_comes_back_before_the_next_batch() {
    let preempted = Row { preemptions: 1, ..row(2, 20, 0, 5) };
    let newcomer = row(3, 10, 0, 0);
    let plan = policy("{}").schedule(&step(&[row(1, 20, 20, 1)], &[preempted, newcomer], 50));
    assert_eq!(ids(&plan), [1, 2]);
    let plan = policy("{}").schedule(&step(&[], &[preempted, newcomer], 50));
    assert_eq!(ids(&plan), [2], "its batch continues although no other member runs");
}

#[test]
fn a_member_started_later_by_the_host_still_belongs_to_the_batch() {
    let mut policy = policy(r#"{"batch_size": 3}"#);
    let queue = [1, 2, 3, 4].map(|id| row(id, 20, 0, 0));
    assert_eq!(ids(&policy.schedule(&step(&[], &queue, 50))), [1, 2, 3]);
    // Of equal prompts the first runs alone until the others can copy what it computed.
    let plan = policy.schedule(&step(&[row(1, 20, 20, 1)], &queue[1..], 50));
    assert_eq!(ids(&plan), [1, 2, 3], "4 came too late for this batch");
    let plan = policy.schedule(&step(&[], &queue[2..], 50));
    assert_eq!(ids(&plan), [3], "its batch continues although no other member runs");
    let plan = policy.schedule(&step(&[], &queue[3..], 50));
    assert_eq!(ids(&plan), [4], "the next batch");
}

#[test]
fn a_batch_takes_only_what_fits_to_its_longest_output() {
    // 10 + 50 tokens are 4 blocks each.
    let waiting = [row(1, 10, 0, 0), row(2, 10, 0, 0), row(3, 10, 0, 0)];
    assert_eq!(ids(&policy("{}").schedule(&step(&[], &waiting, 8))), [1, 2]);
    assert_eq!(ids(&policy("{}").schedule(&step(&[], &waiting, 3))), [1], "the first has the pool to itself");
}

#[test]
fn all_members_start_in_one_step_and_share_its_tokens() {
    let waiting: Vec<Row> = (1..=8).map(|id| row(id, if id == 1 { 10 } else { 1_000 }, 0, 0)).collect();
    let mut step = step(&[], &waiting, 1_000);
    step.limits = Limits { max_batch_tokens: 80, ..limits() };
    let plan = policy("{}").schedule(&step);
    assert_eq!(plan.tokens, [10; 8]);
    step.limits.max_batch_tokens = 4;
    assert_eq!(policy("{}").schedule(&step).tokens, [1; 4]);
}

#[test]
fn every_scenario_ends_whatever_the_pool_and_the_limits() {
    for_seeds(0..300, |rng| {
        let block_size = rng.between(1, 16);
        let blocks = rng.between(6, 60);
        let limits = Limits {
            max_batch_tokens: rng.between(4, 128),
            max_running: rng.between(1, 8),
            prefill_chunk: rng.between(1, 64),
            max_prefill_sequences: rng.between(1, 8),
            max_prefill_tokens: rng.between(1, 128),
        };
        let specs: Vec<Spec> =
            (0..rng.between(1, 24)).map(|_| random_spec(rng, block_size * blocks)).collect();
        let report = Host::new(limits, block_size, blocks).run(&mut policy("{}"), &specs).unwrap();
        assert_eq!(report.finished.len(), specs.len());
        assert_eq!(report.cut, 0, "what is planned fits");
        assert_eq!(report.preemptions, 0, "a batch fits to its end");
    });
}

#[test]
fn plans_keep_the_rules_and_fit_for_any_view() {
    for_seeds(0..3_000, |rng| {
        let step = random_step(rng);
        let plan = policy("{}").schedule(&step);
        check_plan(&step, &plan).unwrap();
        if step.running.len() - plan.preempt.len() != 1 {
            check_fit(&step, &plan).unwrap();
        }
        let newcomers =
            plan.run.iter().filter(|id| step.waiting.iter().any(|s| s.id() == **id && s.preemptions() == 0));
        assert!(step.running.is_empty() || newcomers.count() == 0, "no request joins a running batch");
    });
}

#[test]
fn hostile_views_get_an_answer() {
    for_seeds(0..2_000, |rng| {
        let plan = policy("{}").schedule(&hostile_step(rng));
        assert_eq!(plan.run.len(), plan.tokens.len());
    });
}
