//! How many first tokens are on time, against the order of arrival.

use infer_policy_sdk::testing::{Host, Report, Rng, Spec, check_config, check_scheduler, limits, step_of};
use infer_policy_sdk::{Limits, Row, parse_config};
use policy_continuous::Continuous;

use super::*;

fn policy(config: &str) -> Deadline {
    Deadline::new(parse_config(config).unwrap()).unwrap()
}

fn request(arrived_ms: u64, due_in_ms: Option<u64>) -> Spec {
    let arrived = Micros::from_millis(arrived_ms);
    Spec {
        arrived,
        prompt_tokens: 200,
        output_tokens: 20,
        max_new_tokens: 20,
        deadline: due_in_ms.map(|ms| arrived.plus(Micros::from_millis(ms))),
        ..Spec::default()
    }
}

/// Four slots; a prompt takes about ten steps' time.
fn run(scheduler: &mut impl Scheduler, specs: &[Spec]) -> Report {
    let mut host = Host::new(Limits { max_running: 4, ..limits() }, 16, 2_000);
    host.prompt_token_time = Micros(50);
    host.run(scheduler, specs).unwrap()
}

fn on_time(report: &Report, specs: &[Spec]) -> usize {
    let on_time = |(spec, id): &(&Spec, u64)| {
        spec.deadline.is_some_and(|deadline| report.of(*id).first_token <= deadline)
    };
    specs.iter().zip(1..).filter(on_time).count()
}

fn view(waiting: &[Row]) -> Step {
    Step {
        now: Micros::from_millis(1_000),
        limits: Limits { max_running: 2, ..limits() },
        ..step_of(&[], waiting, 100)
    }
}

fn waiting(id: u64, deadline_ms: Option<u64>) -> Row {
    let deadline = deadline_ms.map_or(u64::MAX, |ms| ms * 1_000);
    Row { id, arrived: id, deadline, prompt_tokens: 100, max_new_tokens: 9, ..Row::default() }
}

fn started(policy: &mut Deadline, step: &Step) -> Vec<u64> {
    policy.schedule(step).run.iter().map(|id| id.0).collect()
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<Deadline>();
}

#[test]
fn the_earliest_deadline_starts_first_and_late_ones_last() {
    let (late, whenever) = (waiting(1, Some(999)), waiting(2, None));
    let (loose, tight) = (waiting(3, Some(3_000)), waiting(4, Some(2_000)));
    assert_eq!(started(&mut policy("{}"), &view(&[late, whenever, loose, tight])), [4, 3]);
    assert_eq!(started(&mut policy("{}"), &view(&[late, whenever, loose])), [3, 2]);
    assert_eq!(started(&mut policy("{}"), &view(&[late, whenever])), [2, 1]);
}

#[test]
fn lateness_is_predicted_from_past_prompt_times() {
    let mut learned = policy("{}");
    let (tight, loose) = (waiting(1, Some(1_040)), waiting(2, Some(1_200)));
    assert_eq!(started(&mut learned, &view(&[tight, loose])), [1, 2], "nothing is known yet");
    // Half a millisecond a token: 50 ms for a prompt of 100.
    let taught = Step {
        number: 2,
        last_step: Micros::from_millis(100),
        last_prefill_tokens: 200,
        ..view(&[tight, loose])
    };
    assert_eq!(started(&mut learned, &taught), [2, 1]);
    let mut next = policy("{}");
    next.import_state(&learned.export_state()).unwrap();
    assert_eq!(started(&mut next, &view(&[tight, loose])), [2, 1], "the next version knows it too");
}

#[test]
fn more_deadlines_are_met_than_in_order_of_arrival() {
    // Interactive requests with early deadlines among others with late ones or none.
    let mut rng = Rng::new(7);
    let specs: Vec<Spec> = (0..160)
        .map(|n| {
            let due = if n % 2 == 0 { Some(100) } else { rng.one_in(2).then_some(1_500) };
            request(n * 12, due)
        })
        .collect();
    let promised = specs.iter().filter(|spec| spec.deadline.is_some()).count();
    let continuous = &mut Continuous::new(parse_config("{}").unwrap()).unwrap();
    let fcfs = on_time(&run(continuous, &specs), &specs);
    let edf = on_time(&run(&mut policy("{}"), &specs), &specs);
    assert!(edf >= 2 * fcfs, "{edf} against {fcfs} of {promised}");
    assert!(edf * 10 >= promised * 9, "{edf} of {promised}");
}

#[test]
fn under_overload_late_requests_do_not_delay_the_others() {
    // Twice as many as can be on time: plain earliest deadline first would make nearly all of them late.
    let specs: Vec<Spec> = (0..200).map(|n| request(n * 6, Some(150))).collect();
    let continuous = &mut Continuous::new(parse_config("{}").unwrap()).unwrap();
    let fcfs = on_time(&run(continuous, &specs), &specs);
    let edf = on_time(&run(&mut policy("{}"), &specs), &specs);
    assert!(edf >= 70 && edf > 2 * fcfs, "{edf} against {fcfs}");
}

#[test]
fn requests_without_a_deadline_are_overtaken_for_at_most_the_patience() {
    let mut specs = vec![request(0, Some(100)); 4];
    specs.push(request(0, None));
    specs.extend((0..300).map(|n| request(n * 8, Some(60_000))));
    for (config, patience_ms) in [(r#"{"patience_ms": 200}"#, 200), ("{}", 600)] {
        let mut host = Host::new(Limits { max_running: 4, ..limits() }, 16, 2_000);
        host.prompt_token_time = Micros(50);
        host.starvation_bound = Micros::from_millis(1_000);
        let report = host.run(&mut policy(config), &specs).unwrap();
        let started_ms = report.of(5).started.0 / 1_000;
        assert!((patience_ms..patience_ms + 150).contains(&started_ms), "{config}: {started_ms}");
    }
}

#[test]
fn meets_the_requirements_of_every_scheduler() {
    check_scheduler(|| policy("{}"));
}
