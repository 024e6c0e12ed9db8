//! Whole scenarios on the test host, single decisions on hand-made views, and properties over random ones.

use infer_policy_sdk::testing::{Host, Spec, check_config, check_scheduler, limits, step_of};
use infer_policy_sdk::{Limits, Micros, Policy, Row, Scheduler, parse_config};

use super::*;

fn policy(config: &str) -> Continuous {
    Continuous::new(parse_config(config).unwrap()).unwrap()
}

fn request(prompt_tokens: u32, output_tokens: u32) -> Spec {
    Spec { prompt_tokens, output_tokens, max_new_tokens: output_tokens, ..Spec::default() }
}

fn waiting(id: u64, prompt_tokens: u32) -> Row {
    Row { id, prompt_tokens, max_new_tokens: 10, ..Row::default() }
}

fn decode(id: u64, computed_tokens: u32) -> Row {
    let blocks = computed_tokens.div_ceil(16);
    Row {
        id,
        prompt_tokens: computed_tokens,
        computed_tokens,
        generated_tokens: 1,
        max_new_tokens: 50,
        blocks,
        freeable_blocks: blocks,
        ..Row::default()
    }
}

fn ids(plan: &Plan) -> Vec<u64> {
    plan.run.iter().map(|id| id.0).collect()
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<Continuous>();
    let error = Continuous::new(parse_config(r#"{"watermark": 2}"#).unwrap()).err().unwrap();
    assert!(error.contains("watermark") && error.contains('2'), "{error}");
}

#[test]
fn a_newcomer_starts_while_others_generate_and_leaves_before_them() {
    let late = Spec { arrived: Micros::from_millis(10), ..request(20, 3) };
    let report = Host::new(limits(), 16, 100).run(&mut policy("{}"), &[request(20, 50), late]).unwrap();
    assert_eq!(report.finished[0].id.0, 2);
    assert_eq!(report.finished[0].started, Micros::from_millis(10));
    assert_eq!(report.steps, 50, "no step is added by the newcomer");
}

#[test]
fn long_prompts_do_not_delay_decodes() {
    let plan = policy("{}").schedule(&step_of(&[decode(1, 20)], &[waiting(2, 4_000)], 1_000));
    assert_eq!((ids(&plan), plan.tokens), (vec![1, 2], vec![1, 512]));
}

#[test]
fn a_large_head_of_the_queue_is_not_overtaken_by_small_requests() {
    let plan = policy("{}").schedule(&step_of(&[decode(1, 20)], &[waiting(2, 500), waiting(3, 10)], 20));
    assert_eq!(ids(&plan), [1]);
}

#[test]
fn a_start_leaves_room_for_running_sequences() {
    let running = [decode(1, 32), decode(2, 31)];
    let fits = |free| ids(&policy("{}").schedule(&step_of(&running, &[waiting(3, 31)], free))).contains(&3);
    // One block for sequence 1 now, one more each for 1 and 2 soon, two for the newcomer.
    assert!(!fits(4));
    assert!(fits(5));
}

#[test]
fn alone_in_the_pool_a_sequence_may_have_all_of_it() {
    let plan = policy(r#"{"watermark": 0.5}"#).schedule(&step_of(&[], &[waiting(1, 160)], 10));
    assert_eq!(plan.tokens, [160]);
}

#[test]
fn a_plan_does_not_restart_what_it_preempts() {
    let plan = policy("{}").schedule(&step_of(&[decode(1, 32), decode(2, 160)], &[waiting(3, 5)], 0));
    assert_eq!(plan.preempt.iter().map(|id| id.0).collect::<Vec<_>>(), [2]);
    assert_eq!(ids(&plan), [1]);
}

#[test]
fn a_fully_cached_prompt_starts_even_in_a_full_step() {
    let full = Row { computed_tokens: 32, idle_blocks: 2, ..waiting(2, 32) };
    let long = Row { generated_tokens: 0, ..decode(1, 16) };
    let mut step = step_of(&[Row { prompt_tokens: 500, ..long }], &[full, waiting(3, 400)], 100);
    step.limits = Limits { max_batch_tokens: 400, ..limits() };
    let plan = policy("{}").schedule(&step);
    assert_eq!((ids(&plan), plan.tokens), (vec![1, 2], vec![400, 0]));
}

#[test]
fn a_step_starts_about_a_chunk_of_new_prompts() {
    let waiting: Vec<Row> = (1..=5).map(|id| waiting(id, 200)).collect();
    assert_eq!(policy("{}").schedule(&step_of(&[], &waiting, 100)).tokens, [200; 3]);
}

#[test]
fn requests_wait_for_a_shared_prefix_that_is_being_computed() {
    let first = Spec { shared: Some((1, 2_000)), ..request(2_010, 5) };
    let run = |config| Host::new(limits(), 16, 1_000).run(&mut policy(config), &[first; 4]).unwrap();
    let (patient, eager) = (run("{}"), run(r#"{"prefix_wait_ms": 0}"#));
    assert!(patient.tokens < 2_010 + 3 * 30 + 4 * 5, "the prefix is computed once: {}", patient.tokens);
    assert!(eager.tokens > 2 * patient.tokens, "{} against {}", eager.tokens, patient.tokens);
}

#[test]
fn the_wait_for_a_prefix_is_bounded_and_announced() {
    let mut policy = policy(r#"{"prefix_wait_ms": 100}"#);
    let stuck = Row { pending_tokens: 64, ..waiting(2, 100) };
    let mut step = step_of(&[decode(1, 20)], &[stuck, waiting(3, 10)], 100);
    for (millis, started, wake) in [(1_000, vec![1, 3], 1_100), (1_099, vec![1, 3], 1_100)] {
        step.now = Micros::from_millis(millis);
        let plan = policy.schedule(&step);
        assert_eq!((ids(&plan), plan.wake), (started, Micros::from_millis(wake)), "at {millis} ms");
    }
    step.now = Micros::from_millis(1_100);
    let plan = policy.schedule(&step);
    assert_eq!((ids(&plan), plan.wake), (vec![1, 2, 3], Micros::NEVER));
}

#[test]
fn no_wait_for_a_prefix_that_gains_less_than_a_block() {
    let nearly = Row { computed_tokens: 64, pending_tokens: 64, ..waiting(2, 100) };
    assert_eq!(ids(&policy("{}").schedule(&step_of(&[decode(1, 20)], &[nearly], 100))), [1, 2]);
}

/// Steps after which the streams generate and have shown what a decode takes.
const KNOWN_AFTER: usize = 5;

/// Device times of the steps with decodes, of 24 streams that meet 4 long prompts within 300 steps.
fn decode_steps(policy: &mut Continuous) -> Vec<u64> {
    let mut host = Host::new(Limits { max_batch_tokens: 4_096, ..limits() }, 16, 4_000);
    host.step_time = Micros(4_000);
    host.decode_time = Micros(100);
    host.prompt_token_time = Micros(50);
    (1..=24).for_each(|id| host.submit(id, request(20, 400)));
    let mut times = Vec::new();
    for number in 0..300 {
        if [20, 60, 100, 140].contains(&number) {
            host.submit(100 + number, request(3_000, 5));
        }
        let plan = policy.schedule(&host.view());
        assert!(host.apply(&plan), "something runs");
        let view = host.view();
        if view.last_decodes > 0 {
            times.push(view.last_step.0);
        }
    }
    times
}

#[test]
fn steps_with_decodes_meet_the_target_once_the_device_is_known() {
    let longest = |times: &[u64]| *times[KNOWN_AFTER..].iter().max().unwrap();
    let untargeted = decode_steps(&mut policy("{}"));
    assert_eq!(longest(&untargeted), 4_000 + 2_400 + 512 * 50, "a chunk delays every stream");
    let mut targeted = policy(r#"{"step_target_ms": 10}"#);
    let times = decode_steps(&mut targeted);
    assert!(longest(&times) <= 10_500, "{}", longest(&times));
    let full = times.iter().filter(|time| **time > 9_500).count();
    assert!(full >= 4 * 3_000 / 72 * 3 / 4, "the room for 72 tokens that the target leaves is used: {full}");

    let mut next = policy(r#"{"step_target_ms": 8}"#);
    next.import_state(&targeted.export_state()).unwrap();
    assert!(longest(&decode_steps(&mut next)) <= 8_400, "what was learned survives a swap");
}

#[test]
fn a_target_out_of_reach_stops_no_prompt() {
    let times = decode_steps(&mut policy(r#"{"step_target_ms": 1}"#));
    assert!(times[50..].iter().all(|time| *time <= 4_000 + 2_500 + 16 * 50), "a block a step: {times:?}");
}

#[test]
fn without_decodes_the_target_limits_nothing() {
    let mut policy = policy(r#"{"step_target_ms": 1}"#);
    decode_steps(&mut policy);
    assert_eq!(policy.schedule(&step_of(&[], &[waiting(1, 512)], 100)).tokens, [512]);
}

#[test]
fn meets_the_requirements_of_every_scheduler() {
    check_scheduler(|| policy("{}"));
    check_scheduler(|| policy(r#"{"step_target_ms": 2}"#));
}
