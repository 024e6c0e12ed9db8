//! Urgent requests among a flood of others, and what keeps the others alive.

use infer_policy_sdk::testing::{
    Finished, Host, Report, Spec, check_config, check_scheduler, limits, step_of,
};
use infer_policy_sdk::{Limits, Micros, Row, parse_config};
use policy_continuous::Continuous;

use super::*;

fn policy(config: &str) -> Priority {
    Priority::new(parse_config(config).unwrap()).unwrap()
}

fn request(arrived_ms: u64, priority: i32, output_tokens: u32) -> Spec {
    Spec {
        arrived: Micros::from_millis(arrived_ms),
        priority,
        prompt_tokens: 40,
        output_tokens,
        max_new_tokens: output_tokens,
        ..Spec::default()
    }
}

/// Four slots.
fn run(scheduler: &mut impl Scheduler, specs: &[Spec]) -> Report {
    let limits = Limits { max_running: 4, ..limits() };
    Host::new(limits, 16, 2_000).run(scheduler, specs).unwrap()
}

fn row(id: u64, priority: i32) -> Row {
    Row { id, priority, prompt_tokens: 100, max_new_tokens: 50, ..Row::default() }
}

fn running(id: u64, priority: i32) -> Row {
    Row { computed_tokens: 100, generated_tokens: 1, blocks: 7, freeable_blocks: 7, ..row(id, priority) }
}

fn view(running: &[Row], waiting: &[Row], max_running: u32, free_blocks: u32) -> Step {
    Step { limits: Limits { max_running, ..limits() }, ..step_of(running, waiting, free_blocks) }
}

/// Which sequences run, and which are preempted.
fn decide(config: &str, step: &Step) -> (Vec<u64>, Vec<u64>) {
    let plan = policy(config).schedule(step);
    let ids = |ids: &[infer_policy_sdk::SequenceId]| ids.iter().map(|id| id.0).collect();
    (ids(&plan.run), ids(&plan.preempt))
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<Priority>();
    for key in ["aging_ms", "max_level"] {
        let zero = parse_config(&format!("{{\"{key}\": 0}}")).unwrap();
        let error = Priority::new(zero).err().unwrap();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn the_more_urgent_request_starts_first_unless_the_other_aged_enough() {
    let at = |id, priority, arrived_ms: u64| Row { arrived: arrived_ms * 1_000, ..row(id, priority) };
    let waiting = [at(1, 0, 0), at(2, 2, 1_999), at(3, 2, 2_001), at(4, 0, 2_001)];
    let (run, _) = decide(r#"{"aging_ms": 1000}"#, &view(&[], &waiting, 8, 100));
    assert_eq!(run, [2, 1, 3, 4], "two levels are worth two seconds");
}

#[test]
fn a_running_sequence_of_lower_priority_gives_its_slot() {
    let full = |waiting| view(&[running(1, 1), running(2, 0), running(3, 0)], &[waiting], 3, 50);
    assert_eq!(decide("{}", &full(row(4, 1))), (vec![1, 2, 4], vec![3]), "the latest of the least urgent");
    assert_eq!(decide("{}", &full(row(4, 0))), (vec![1, 2, 3], vec![]), "equals never give way");
    assert_eq!(decide(r#"{"preempt": false}"#, &full(row(4, 9))), (vec![1, 2, 3], vec![]));
}

#[test]
fn who_has_become_urgent_by_waiting_keeps_its_slot() {
    let after = |ms: u64| Row { arrived: ms * 1_000, ..row(2, 1) };
    let given = |waiting| decide(r#"{"aging_ms": 1000}"#, &view(&[running(1, 0)], &[waiting], 1, 50)).1;
    assert_eq!(given(after(500)), [1], "half a level below");
    assert_eq!(given(after(501)), [0u64; 0]);
}

#[test]
fn preempts_as_many_as_needed_or_none_if_all_are_too_few() {
    let urgent = |prompt_tokens| Row { prompt_tokens, ..row(4, 1) };
    let short =
        |prompt_tokens| view(&[running(1, 1), running(2, 0), running(3, 0)], &[urgent(prompt_tokens)], 8, 3);
    assert_eq!(decide("{}", &short(60)).1, [3]);
    assert_eq!(decide("{}", &short(180)).1, [3, 2]);
    assert_eq!(decide("{}", &short(260)).1, [0u64; 0]);
}

#[test]
fn a_prefix_freed_with_its_only_user_is_not_counted_twice() {
    let shares = Row { computed_tokens: 64, ..row(2, 1) };
    let given = |free_blocks| decide("{}", &view(&[running(1, 0)], &[shares], 8, free_blocks)).1;
    assert_eq!((given(0), given(1)), (vec![], vec![1]), "seven blocks, and one for growth");
    let shared = Row { freeable_blocks: 1, ..running(1, 0) };
    let full = view(&[shared, Row { id: 3, ..shared }], &[shares], 2, 50);
    assert_eq!(decide("{}", &full).1.len(), 1, "if only slots are short, one is enough");
}

#[test]
fn who_can_start_without_anybodys_leaving_does_so_first() {
    let step = view(&[running(1, 0)], &[row(2, 1), row(3, 1)], 2, 50);
    assert_eq!(decide("{}", &step), (vec![1, 2], vec![]));
}

#[test]
fn no_preemption_for_a_request_that_waits_for_a_prefix() {
    let waits = Row { pending_tokens: 96, ..row(2, 1) };
    assert_eq!(decide("{}", &view(&[running(1, 0)], &[waits], 1, 50)), (vec![1], vec![]));
}

#[test]
fn who_gave_way_before_does_so_only_for_a_higher_level() {
    let again = Row { preemptions: 1, ..running(1, 0) };
    assert_eq!(decide("{}", &view(&[again], &[row(2, 1)], 1, 50)).1, [0u64; 0]);
    assert_eq!(decide("{}", &view(&[again], &[row(2, 2)], 1, 50)).1, [1]);
    let largest = Row { priority: i32::MAX, ..row(2, 0) };
    let given = |preemptions| {
        let often = Row { preemptions, priority: i32::MIN, ..running(1, 0) };
        !decide("{}", &view(&[often], &[largest], 1, 50)).1.is_empty()
    };
    assert_eq!((0..u32::BITS).take_while(|times| given(*times)).count(), 6, "forty levels are the most");
    assert!(!given(u32::MAX));
}

#[test]
fn a_stream_of_the_most_urgent_requests_neither_starves_a_low_one_nor_recomputes_it_for_ever() {
    let mut specs = vec![request(0, 0, 300)];
    specs.extend((0..400).map(|n| request(5 + 20 * n, 1_000_000, 8)));
    let one = Limits { max_running: 1, ..limits() };
    let report = Host::new(one, 16, 2_000).run(&mut policy(r#"{"aging_ms": 100}"#), &specs).unwrap();
    let low = report.of(1);
    assert!(low.preemptions <= 5, "twenty levels above it: {}", low.preemptions);
    assert!(low.ended < Micros::from_millis(4_000), "{:?}", low.ended);
}

#[test]
fn where_memory_runs_out_the_least_urgent_gives_way_not_the_latest() {
    let tight = Row { computed_tokens: 112, prompt_tokens: 112, ..running(1, 0) };
    let (run, preempt) = decide("{}", &view(&[tight, Row { id: 2, priority: 1, ..tight }], &[], 8, 0));
    assert_eq!((run, preempt), (vec![2], vec![1]));
}

#[test]
fn urgent_requests_are_served_as_if_alone() {
    let mut specs: Vec<Spec> = (0..40).map(|n| request(10 * n, 0, 100)).collect();
    specs.extend((0..20).map(|n| request(5 + 40 * n, 5, 20)));
    let mean = |report: &Report, ids| report.mean_ms(ids, Finished::latency);
    let continuous = &mut Continuous::new(parse_config("{}").unwrap()).unwrap();
    let (fcfs, priority) = (run(continuous, &specs), run(&mut policy("{}"), &specs));
    assert_eq!(mean(&priority, 41..=60), 20, "one step for each of its tokens");
    assert!(mean(&fcfs, 41..=60) > 200, "{}", mean(&fcfs, 41..=60));
    let (low, low_fcfs) = (mean(&priority, 1..=40), mean(&fcfs, 1..=40));
    assert!(low * 2 < low_fcfs * 3, "the others lose what the urgent ones compute: {low} against {low_fcfs}");
    assert!(priority.preemptions <= 20, "{}", priority.preemptions);
    let waiting_alone = run(&mut policy(r#"{"preempt": false}"#), &specs);
    assert_eq!(waiting_alone.preemptions, 0);
    assert!(mean(&waiting_alone, 41..=60) < mean(&fcfs, 41..=60) / 2);
}

#[test]
fn aging_keeps_low_priorities_from_starving() {
    // Urgent requests that alone keep all slots busy, and a single low one.
    let mut specs = vec![request(0, 3, 40); 4];
    specs.extend((0..800).map(|n| request(2 * n, 3, 10)));
    specs.push(request(1, 0, 10));
    let started = |config| run(&mut policy(config), &specs).of(805).started.0 / 1_000;
    let (slow, fast) = (started(r#"{"aging_ms": 200}"#), started(r#"{"aging_ms": 50}"#));
    assert!((150..600).contains(&fast) && (600..1_500).contains(&slow), "{fast} and {slow}");
}

#[test]
fn a_stream_of_urgent_requests_does_not_keep_preempting_the_same_one() {
    let mut specs = vec![request(0, 0, 300)];
    specs.extend((0..50).map(|n| request(5 + 20 * n, 1, 8)));
    let one = Limits { max_running: 1, ..limits() };
    let report = Host::new(one, 16, 2_000).run(&mut policy(r#"{"aging_ms": 60000}"#), &specs).unwrap();
    assert_eq!(report.of(1).preemptions, 1);
}

#[test]
fn meets_the_requirements_of_every_scheduler() {
    check_scheduler(|| policy("{}"));
    check_scheduler(|| policy(r#"{"aging_ms": 5}"#));
    check_scheduler(|| policy(r#"{"preempt": false}"#));
}
