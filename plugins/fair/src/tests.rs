//! Floods, weights and returning tenants; the bound of the paper as a number.

use std::collections::BTreeMap;

use infer_policy_sdk::testing::{Finished, Host, Rng, Spec, check_config, check_scheduler, limits};
use infer_policy_sdk::{Limits, Memory, Micros, Row, SequenceId, Tenant, TenantId, parse_config};
use policy_continuous::Continuous;

use super::*;

fn policy(config: &str) -> Fair {
    Fair::new(parse_config(config).unwrap()).unwrap()
}

fn request(tenant: u32, prompt_tokens: u32, output_tokens: u32) -> Spec {
    Spec { tenant, prompt_tokens, output_tokens, max_new_tokens: output_tokens, ..Spec::default() }
}

const POOL_TOKENS: u64 = 100 * 16;

/// Eight slots, and a pool that holds about as many sequences.
fn host() -> Host {
    Host::new(Limits { max_running: 8, ..limits() }, 16, 100)
}

/// What tenants 1 and 2 were served, weighted, after each step in which both have requests queued.
fn services(scheduler: &mut impl Scheduler, mut host: Host) -> Vec<[u64; 2]> {
    let mut services = Vec::new();
    loop {
        let view = host.view();
        let queued = |tenant| view.waiting.tenant.contains(&tenant);
        if !(queued(1) && queued(2)) {
            return services;
        }
        services.push([1, 2].map(|id| {
            let tenant = view.tenants.iter().find(|tenant| tenant.id.0 == id).expect("it has work");
            tenant.prompt_tokens_served + 2 * tenant.output_tokens_served
        }));
        assert!(host.apply(&scheduler.schedule(&view)), "something runs");
    }
}

/// The largest difference of the two services over any interval.
fn largest_gap(services: &[[u64; 2]]) -> u64 {
    let gaps = || services.iter().map(|[one, two]| *one as i64 - *two as i64);
    (gaps().max().unwrap() - gaps().min().unwrap()) as u64
}

/// Tenant 1 has sent everything before tenant 2 arrives; their requests differ in shape.
fn flooded() -> Host {
    let mut rng = Rng::new(3);
    let mut host = host();
    (1..=300).for_each(|id| host.submit(id, request(1, rng.between(80, 100), rng.between(5, 20))));
    (301..=450).for_each(|id| host.submit(id, request(2, rng.between(5, 20), rng.between(60, 100))));
    host
}

#[test]
fn configuration_matches_its_schema() {
    check_config::<Fair>();
    let error = Fair::new(parse_config(r#"{"output_weight": 0}"#).unwrap()).err().unwrap();
    assert!(error.contains("output_weight"), "{error}");
}

#[test]
fn two_backlogged_tenants_differ_by_less_than_the_papers_bound() {
    let bound = 2 * u64::max(100, 2 * POOL_TOKENS);
    let fair = services(&mut policy("{}"), flooded());
    let served: u64 = fair.last().unwrap().iter().sum();
    assert!(served > 4 * bound, "long enough to tell: {served}");
    assert!(largest_gap(&fair) <= bound, "{} of {bound}", largest_gap(&fair));
    let continuous = &mut Continuous::new(parse_config("{}").unwrap()).unwrap();
    let fcfs = services(continuous, flooded());
    assert!(largest_gap(&fcfs) > 2 * bound, "{}", largest_gap(&fcfs));
}

#[test]
fn shares_follow_the_weights() {
    let mut host = flooded();
    host.weights_permille = BTreeMap::from([(1, 3_000)]);
    let services = services(&mut policy("{}"), host);
    let [one, two] = *services.last().unwrap();
    assert!((25..=35).contains(&(one * 10 / two)), "{one} and {two}, not three to one");
}

#[test]
fn shares_follow_weights_by_which_a_token_hardly_counts() {
    let mut host = host();
    // One token a step, which counts 2.99 and 5.97 units.
    host.limits.max_running = 1;
    host.weights_permille = BTreeMap::from([(1, 670_000), (2, 335_000)]);
    (1..=200).for_each(|id| host.submit(id, request(1 + u32::from(id > 140), 4, 40)));
    let services = services(&mut policy("{}"), host);
    let [one, two] = *services.last().unwrap();
    assert!(two > 4_000 && (19..=21).contains(&(one * 10 / two)), "{one} and {two}, not two to one");
}

#[test]
fn a_small_tenant_does_not_feel_a_flood() {
    let mut specs = vec![request(1, 50, 50); 200];
    specs.extend((0..10).map(|n| Spec { arrived: Micros::from_millis(40 * n), ..request(2, 20, 10) }));
    let continuous = &mut Continuous::new(parse_config("{}").unwrap()).unwrap();
    let fcfs = host().run(continuous, &specs).unwrap();
    let fair = host().run(&mut policy("{}"), &specs).unwrap();
    let small = |report: &infer_policy_sdk::testing::Report| report.mean_ms(201..=210, Finished::ttft);
    assert!(small(&fair) <= 30 && small(&fcfs) > 500, "{} ms against {} ms", small(&fair), small(&fcfs));
}

#[test]
fn who_was_idle_comes_back_without_a_claim() {
    // Tenant 1 alone is served for long; then both flood.
    let (mut policy, mut host) = (policy("{}"), host());
    (1..=100).for_each(|id| host.submit(id, request(1, 50, 50)));
    for _ in 0..300 {
        assert!(host.apply(&policy.schedule(&host.view())));
    }
    let before = host.view().tenants;
    let before = before.prompt_tokens_served[0] + 2 * before.output_tokens_served[0];
    (101..=200).for_each(|id| host.submit(id, request(2, 50, 50)));
    for _ in 0..300 {
        assert!(host.apply(&policy.schedule(&host.view())));
    }
    let after = host.view().tenants;
    let [one, two] = [0, 1].map(|row| after.prompt_tokens_served[row] + 2 * after.output_tokens_served[row]);
    let (one, two) = (one - before, two);
    assert!(one.abs_diff(two) < (one + two) / 5, "{one} and {two} from then on");
}

#[test]
fn a_tenant_with_held_requests_does_not_lose_its_claim() {
    let tenant = |id, waiting, prompt_tokens_served| Tenant {
        id: TenantId(id),
        weight_permille: 1_000,
        waiting,
        prompt_tokens_served,
        ..Tenant::default()
    };
    let row = |id, tenant| Row { id, tenant, prompt_tokens: 10, max_new_tokens: 10, ..Row::default() };
    let step = |served: [u64; 2], waiting: &[Row]| Step {
        limits: Limits { max_running: 1, ..limits() },
        memory: Memory { block_size: 16, total_blocks: 100, free_blocks: 100, cached_blocks: 0 },
        tenants: [tenant(1, 50, served[0]), tenant(2, 50, served[1])].into_iter().collect(),
        waiting: waiting.iter().copied().collect(),
        ..Step::default()
    };
    let mut policy = policy("{}");
    policy.schedule(&step([0, 0], &[row(1, 1), row(2, 2)]));
    // Nothing of tenant 2 is visible for a step: all its requests are held.
    policy.schedule(&step([10_000, 2_000], &[row(3, 1)]));
    let plan = policy.schedule(&step([10_000, 2_000], &[row(3, 1), row(4, 2)]));
    assert_eq!(plan.run, [SequenceId(4)], "it is 8,000 tokens behind");
}

#[test]
fn counters_survive_a_swap() {
    // Tenant 1 is far ahead of tenant 2, and tenant 3 has left after a long prompt.
    let (mut outgoing, mut host) = (policy("{}"), host());
    (1..=4).for_each(|id| host.submit(id, request(1, 90, 60)));
    host.submit(5, request(3, 400, 1));
    for _ in 0..20 {
        host.apply(&outgoing.schedule(&host.view()));
    }
    (6..=80).for_each(|id| host.submit(id, request(1 + u32::from(id % 2 == 0), 10, 10)));
    for _ in 0..10 {
        host.apply(&outgoing.schedule(&host.view()));
    }
    let (mut next, mut cold) = (policy("{}"), policy("{}"));
    next.import_state(&outgoing.export_state()).unwrap();
    let goes_on = |policy: &mut Fair| {
        let mut host = host.clone();
        let mut plans = Vec::new();
        for _ in 0..50 {
            plans.push(policy.schedule(&host.view()));
            host.apply(plans.last().unwrap());
        }
        plans
    };
    let plans = goes_on(&mut outgoing);
    assert_eq!(goes_on(&mut next), plans, "the next version continues as this one would");
    assert_ne!(goes_on(&mut cold), plans, "a cold one plans otherwise");
    assert!(next.import_state(&[1, 2, 3]).unwrap_err().contains('3'));
}

#[test]
fn very_unequal_weights_leave_no_tenant_without_a_turn() {
    let mut host = host();
    host.limits.max_running = 1;
    host.starvation_bound = Micros::from_millis(500);
    host.weights_permille = BTreeMap::from([(1, 1), (2, 1_000_000)]);
    let mut specs = vec![request(1, 50, 10); 4];
    specs.extend([request(2, 20, 10); 300]);
    let report = host.run(&mut policy("{}"), &specs).unwrap();
    let started = [1, 2, 3, 4].map(|id| report.of(id).started.0 / 1_000);
    for pair in started.windows(2) {
        assert!(pair[1] - pair[0] <= 320, "at least every 300 ms: {started:?}");
    }
    assert!(started[3] > 600, "and not sooner than it must: {started:?}");
}

#[test]
fn meets_the_requirements_of_every_scheduler() {
    check_scheduler(|| policy("{}"));
}
