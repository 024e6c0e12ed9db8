//! A heavy-tailed mix against the order of arrival, and what bounds the tail's loss.

use infer_policy_sdk::testing::{Finished, Host, Report, Rng, Spec, check_config, check_scheduler, limits};
use infer_policy_sdk::{Limits, Row, Sequences, parse_config};
use policy_continuous::Continuous;

use super::*;

fn policy(config: &str) -> Srpt {
    Srpt::new(parse_config(config).unwrap()).unwrap()
}

fn continuous() -> Continuous {
    Continuous::new(parse_config("{}").unwrap()).unwrap()
}

fn request(arrived_ms: u64, prompt_tokens: u32, output_tokens: u32) -> Spec {
    Spec {
        arrived: Micros::from_millis(arrived_ms),
        prompt_tokens,
        output_tokens,
        max_new_tokens: output_tokens,
        ..Spec::default()
    }
}

/// Four slots, one millisecond a step.
fn run(scheduler: &mut impl Scheduler, specs: &[Spec]) -> Report {
    let limits = Limits { max_running: 4, ..limits() };
    Host::new(limits, 16, 2_000).run(scheduler, specs).unwrap()
}

/// One request in ten generates fifty times what the others do; these belong to a tenant of their own, from which the
/// host learns how long outputs are, because no client says it. Together they are a little more than four slots can
/// serve while they arrive.
fn heavy_tail() -> Vec<Spec> {
    let mut rng = Rng::new(1);
    (0..200)
        .map(|n| {
            let long = n % 10 == 0;
            let output = if long { rng.between(400, 600) } else { rng.between(5, 15) };
            let usual = request(n * 12, rng.between(20, 100), output);
            Spec { tenant: u32::from(long), max_new_tokens: 1_024, ..usual }
        })
        .collect()
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<Srpt>();
}

#[test]
fn remaining_work_is_uncached_prompt_and_expected_output() {
    let row = |prompt_tokens, computed_tokens, generated_tokens, expected_tokens| Row {
        prompt_tokens,
        computed_tokens,
        generated_tokens,
        expected_tokens,
        ..Row::default()
    };
    for (row, left) in [
        (row(100, 0, 0, 20), 120),
        (row(100, 80, 0, 20), 40),
        (row(100, 0, 15, 20), 120),
        (row(0, 9, 9, 5), 0),
        (row(u32::MAX, 0, 0, u32::MAX), 2 * u64::from(u32::MAX)),
    ] {
        let rows: Sequences = [row].into_iter().collect();
        assert_eq!(remaining(rows.get(0)), left, "{row:?}");
    }
}

#[test]
fn the_shortest_starts_first_and_running_sequences_continue() {
    let blocker = request(0, 10, 50);
    let mut specs = vec![blocker; 4];
    specs.extend([request(1, 10, 30), request(2, 10, 5), request(3, 90, 10)]);
    let report = run(&mut policy("{}"), &specs);
    let starts = [5, 6, 7].map(|id| report.of(id).started.0 / 1_000);
    assert_eq!(starts, [50, 50, 50]);
    let order: Vec<u64> = report.finished.iter().map(|end| end.id.0).collect();
    assert_eq!((order[..4].to_vec(), report.preemptions), (vec![1, 2, 3, 4], 0));

    let one = Limits { max_running: 1, ..limits() };
    let report = Host::new(one, 16, 2_000).run(&mut policy("{}"), &specs[3..]).unwrap();
    let order: Vec<u64> = report.finished.iter().map(|end| end.id.0).collect();
    assert_eq!(order, [1, 3, 2, 4], "15 are left, 40, and 100");
}

#[test]
fn a_heavy_tailed_mix_waits_less_than_in_order_of_arrival() {
    let specs = heavy_tail();
    let mean = |report: &Report| report.mean_ms(1..=200, Finished::latency);
    let (srpt, fcfs) = (run(&mut policy("{}"), &specs), run(&mut continuous(), &specs));
    assert!(mean(&srpt) * 3 < mean(&fcfs) * 2, "{} ms against {} ms", mean(&srpt), mean(&fcfs));
    let longest = |report: &Report| report.finished.iter().map(Finished::latency).max().unwrap().0;
    assert!(longest(&srpt) < longest(&fcfs) + 3_000_000, "the tail loses its patience at most");
    let of_one_tenant: Vec<Spec> = specs.iter().map(|spec| Spec { tenant: 0, ..*spec }).collect();
    let blind = run(&mut policy("{}"), &of_one_tenant);
    assert!(mean(&srpt) < mean(&blind), "{} ms if all tenants expect the same", mean(&blind));
}

#[test]
fn no_request_is_overtaken_for_longer_than_the_patience() {
    // A long one, and short ones that alone would keep the four slots busy for ever.
    let mut specs = vec![request(0, 10, 40); 4];
    specs.push(request(0, 10, 500));
    specs.extend((0..600).map(|n| request(n, 10, 5)));
    for (config, patience_ms) in [(r#"{"patience_ms": 200}"#, 200), ("{}", 600)] {
        let mut host = Host::new(Limits { max_running: 4, ..limits() }, 16, 2_000);
        host.starvation_bound = Micros::from_millis(1_000);
        let report = host.run(&mut policy(config), &specs).unwrap();
        let started_ms = report.of(5).started.0 / 1_000;
        assert!((patience_ms..patience_ms + 50).contains(&started_ms), "{config}: {started_ms}");
        assert!(report.longest_overtaken.0 <= patience_ms * 1_000, "{config}");
    }
}

#[test]
fn meets_the_requirements_of_every_scheduler() {
    check_scheduler(|| policy("{}"));
    check_scheduler(|| policy(r#"{"patience_ms": 0}"#));
}
