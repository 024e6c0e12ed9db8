//! Lengths that nobody knows, what short outputs gain from it, and what bounds the long ones' loss.

use infer_policy_sdk::testing::{
    Finished, Host, Report, Rng, Spec, check_config, check_scheduler, limits, step_of,
};
use infer_policy_sdk::{Limits, Row, Sequences, parse_config};
use policy_continuous::Continuous;

use super::*;

fn policy(config: &str) -> Mlfq {
    Mlfq::new(parse_config(config).unwrap()).unwrap()
}

fn request(arrived_ms: u64, output_tokens: u32) -> Spec {
    Spec {
        arrived: Micros::from_millis(arrived_ms),
        prompt_tokens: 40,
        output_tokens,
        max_new_tokens: 1_024,
        ..Spec::default()
    }
}

/// Four slots, one millisecond a step.
fn run(scheduler: &mut impl Scheduler, specs: &[Spec]) -> Report {
    let limits = Limits { max_running: 4, ..limits() };
    Host::new(limits, 16, 2_000).run(scheduler, specs).unwrap()
}

fn waiting(id: u64, generated_tokens: u32) -> Row {
    let preemptions = u32::from(generated_tokens > 0);
    Row { id, prompt_tokens: 100, max_new_tokens: 900, generated_tokens, preemptions, ..Row::default() }
}

fn running(id: u64, generated_tokens: u32) -> Row {
    let computed_tokens = 99 + generated_tokens;
    let blocks = computed_tokens.div_ceil(16);
    Row { computed_tokens, blocks, freeable_blocks: blocks, preemptions: 0, ..waiting(id, generated_tokens) }
}

fn view(running: &[Row], waiting: &[Row], max_running: u32, free_blocks: u32) -> Step {
    Step { limits: Limits { max_running, ..limits() }, ..step_of(running, waiting, free_blocks) }
}

/// Which sequences run, and which are preempted.
fn decide(policy: &mut Mlfq, step: &Step) -> (Vec<u64>, Vec<u64>) {
    let plan = policy.schedule(step);
    let ids = |ids: &[SequenceId]| ids.iter().map(|id| id.0).collect();
    (ids(&plan.run), ids(&plan.preempt))
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<Mlfq>();
    let error = Mlfq::new(parse_config(r#"{"quantum": 0}"#).unwrap()).err().unwrap();
    assert!(error.contains("quantum"), "{error}");
}

#[test]
fn a_level_is_twice_as_long_as_the_one_before_and_chunks_of_the_prompt_count() {
    let policy = policy(r#"{"quantum": 10}"#);
    let step = Step { limits: limits(), ..Step::default() };
    let level = |prompt_tokens, generated_tokens| {
        let rows: Sequences =
            [Row { prompt_tokens, generated_tokens, ..Row::default() }].into_iter().collect();
        policy.level(&step, rows.get(0))
    };
    let levels = [0, 8, 9, 18, 19, 38, 39].map(|generated| level(512, generated));
    assert_eq!(levels, [0, 0, 1, 1, 2, 2, 3]);
    assert_eq!([level(0, 0), level(9 * 512, 0), level(9 * 512 + 1, 0), level(40 * 512, 0)], [0, 0, 1, 3]);
    assert_eq!(level(u32::MAX, u32::MAX), 29, "the largest service has a level, too");
}

#[test]
fn the_least_service_starts_first_and_replaces_the_most() {
    let slots = |count, waiting: &[Row]| {
        view(&[running(1, 300), running(2, 90), running(3, 200)], waiting, count, 90)
    };
    let decide = |step: Step| decide(&mut policy("{}"), &step);
    let queue = [waiting(4, 70), waiting(5, 0), waiting(6, 10)];
    assert_eq!(decide(slots(5, &queue)), (vec![1, 2, 3, 5, 6], vec![]), "by level, then in order of arrival");
    assert_eq!(decide(slots(3, &queue)), (vec![2, 3, 5], vec![1]));
    assert_eq!(decide(slots(3, &[waiting(4, 140)])), (vec![2, 3, 4], vec![1]));
    assert_eq!(decide(slots(3, &[waiting(4, 256)])), (vec![1, 2, 3], vec![]), "equals never give way");
}

#[test]
fn sequences_are_preempted_for_blocks_only_on_request() {
    let short = view(&[running(1, 300), running(2, 90)], &[waiting(3, 0)], 8, 3);
    assert_eq!(decide(&mut policy("{}"), &short).1, [0u64; 0]);
    assert_eq!(decide(&mut policy(r#"{"preempt_for_memory": true}"#), &short).1, [1]);
}

#[test]
fn who_starts_runs_for_a_quantum_whatever_its_level() {
    let mut policy = policy(r#"{"quantum": 10}"#);
    assert_eq!(decide(&mut policy, &view(&[], &[waiting(1, 50)], 1, 90)).0, [1]);
    let given = |policy: &mut Mlfq, generated| {
        decide(policy, &view(&[running(1, generated)], &[waiting(2, 0)], 1, 90)).1
    };
    assert_eq!((given(&mut policy, 51), given(&mut policy, 59)), (vec![], vec![]));
    assert_eq!(given(&mut policy, 60), [1]);
}

#[test]
fn a_quantum_ends_early_only_if_memory_is_too_short_for_the_next_tokens_of_all() {
    let mut policy = policy(r#"{"quantum": 20}"#);
    let start = view(&[], &[waiting(1, 50), waiting(2, 50)], 2, 90);
    assert_eq!(decide(&mut policy, &start).0, [1, 2]);
    // Both have filled their ten blocks, and a third one waits.
    let full = |free_blocks| view(&[running(1, 61), running(2, 61)], &[waiting(3, 0)], 2, free_blocks);
    assert_eq!(decide(&mut policy, &full(2)), (vec![1, 2], vec![]));
    assert_eq!(decide(&mut policy, &full(0)), (vec![1], vec![2]), "the latest to start");
}

/// As by a host that plans ahead, which drops a plan that preempts and asks again.
#[test]
fn who_is_due_stays_due_until_a_plan_with_it_is_carried_out() {
    let mut policy = policy(r#"{"quantum": 10, "patience_ms": 100}"#);
    let at = |ms, queue: &[Row]| Step {
        now: Micros::from_millis(ms),
        starvation_bound: Micros::from_millis(1_000),
        ..view(&[running(1, 300)], queue, 1, 90)
    };
    assert_eq!(decide(&mut policy, &at(0, &[waiting(2, 30), waiting(3, 0)])), (vec![3], vec![1]));
    let later = at(100, &[waiting(2, 30), waiting(4, 0)]);
    for asked in ["ahead", "again"] {
        assert_eq!(decide(&mut policy, &later), (vec![2], vec![1]), "{asked}");
    }
}

/// One output in ten is fifty times as long as the others, all of one tenant: nothing tells them apart.
fn heavy_tail() -> Vec<Spec> {
    let mut rng = Rng::new(1);
    (0..200)
        .map(|n| request(n * 12, if n % 10 == 0 { rng.between(400, 600) } else { rng.between(5, 15) }))
        .collect()
}

#[test]
fn short_outputs_end_soon_though_nobody_knows_that_they_are_short() {
    let specs = heavy_tail();
    let fcfs = &mut Continuous::new(parse_config("{}").unwrap()).unwrap();
    let (fcfs, mlfq) = (run(fcfs, &specs), run(&mut policy("{}"), &specs));
    let mean = |report: &Report| report.mean_ms(1..=200, Finished::latency);
    assert!(mean(&mlfq) * 2 < mean(&fcfs), "{} ms against {} ms", mean(&mlfq), mean(&fcfs));
    let short = |report: &Report| report.mean_ms((1..=200).filter(|id| id % 10 != 1), Finished::latency);
    assert!(short(&mlfq) < 30, "{} ms for ten tokens", short(&mlfq));
    assert!(mlfq.preemptions > 0);
}

#[test]
fn no_sequence_is_overtaken_for_longer_than_the_patience() {
    // A long one, and short ones that alone would keep the four slots busy for ever.
    let mut specs = vec![request(0, 500)];
    specs.extend((0..3_000).map(|n| request(n, 5)));
    let specs = &specs;
    let run = |config: &str| {
        let mut host = Host::new(Limits { max_running: 4, ..limits() }, 16, 2_000);
        host.starvation_bound = Micros::from_millis(1_000);
        host.run(&mut policy(config), specs).unwrap()
    };
    for (config, patience_ms) in [(r#"{"patience_ms": 200}"#, 200), ("{}", 600)] {
        let report = run(config);
        let overtaken_ms = report.longest_overtaken.0 / 1_000;
        assert!((patience_ms - 20..patience_ms + 20).contains(&overtaken_ms), "{config}: {overtaken_ms}");
    }
    // A quantum each time.
    let long = run(r#"{"patience_ms": 200, "quantum": 50}"#).of(1);
    assert!((6..=10).contains(&long.preemptions), "{}", long.preemptions);
}

#[test]
fn meets_the_requirements_of_every_scheduler() {
    check_scheduler(|| policy("{}"));
    check_scheduler(|| policy(r#"{"quantum": 1, "preempt_for_memory": true}"#));
    check_scheduler(|| policy(r#"{"quantum": 3, "patience_ms": 0}"#));
}
