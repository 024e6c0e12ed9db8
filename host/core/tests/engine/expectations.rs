//! How long outputs are expected to get: what clients say, and what the engine learned where they say nothing or were
//! wrong.

use std::sync::{Arc, Mutex};

use crate::common::scripted::{Admission, Bench, fcfs, prompt, request, small};
use infer_core::engine::Policies;
use infer_core::policy::{AdmissionRequest, Load, StepView, Verdict};
use infer_core::{Request, TenantId};

/// A request whose client expects so many tokens.
fn telling(expected: u32, request: Request) -> Request {
    Request { expected_output: Some(expected), ..request }
}

type Calls = Arc<Mutex<Vec<(AdmissionRequest, Load)>>>;

/// A bench whose admission policy notes what it is shown.
fn asked(verdict: impl Fn(&Load) -> Verdict + Send + 'static) -> (Bench, Calls) {
    let calls = Calls::default();
    let seen = Arc::clone(&calls);
    let admission = Admission(move |request: &AdmissionRequest, load: &Load| {
        seen.lock().unwrap().push((*request, *load));
        Ok(verdict(load))
    });
    let policies = Policies { admission: Box::new(admission), ..Policies::builtin() };
    (Bench::with(small(), policies), calls)
}

/// What each call was told to expect of its request, and of all others.
fn shown(calls: &Calls) -> Vec<(u32, u64)> {
    let expected =
        |(request, load): &(AdmissionRequest, Load)| (request.expected_tokens, load.expected_output_tokens);
    calls.lock().unwrap().iter().map(expected).collect()
}

#[test]
fn schedulers_are_shown_what_a_client_says_until_the_output_has_outgrown_it() {
    let views = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&views);
    let mut bench = Bench::scheduled(small(), move |step: &StepView| {
        seen.lock().unwrap().push(step.clone());
        Ok(fcfs(step))
    });
    // So the tenant's outputs have five tokens.
    bench.submit(request(prompt(1, 4), 5));
    bench.run();
    views.lock().unwrap().clear();
    bench.submit(telling(3, request(prompt(2, 4), 20)));
    bench.run();
    let views = views.lock().unwrap();
    assert_eq!(views[0].waiting.expected_tokens, [3]);
    let running: Vec<u32> = views[1..].iter().map(|view| view.running.expected_tokens[0]).collect();
    // It has one token after the first step, and outgrows 3, 5 and 10.
    let expected: Vec<u32> = [&[3; 2][..], &[5; 2], &[10; 5], &[20; 10]].concat();
    assert_eq!(running, expected);
}

#[test]
fn admission_is_shown_what_a_client_says_within_the_limit_of_the_output() {
    let (mut bench, calls) = asked(|_| Verdict::Admit);
    for (told, limit) in [(3, 20), (50, 5), (0, 5)] {
        bench.submit(telling(told, request(prompt(told, 4), limit)));
    }
    assert_eq!(shown(&calls), [(3, 0), (5, 3), (1, 3 + 5)]);
}

#[test]
fn all_sequences_of_a_request_share_what_its_client_says() {
    let (mut bench, calls) = asked(|_| Verdict::Admit);
    bench.engine.submit_all(vec![telling(3, request(prompt(1, 4), 20)); 3], bench.now).unwrap();
    assert_eq!(shown(&calls), [(9, 6), (3, 9), (3, 9), (3, 9)], "all of them first, then each");
    bench.run();
}

#[test]
fn memory_is_forecast_by_what_clients_say() {
    let (mut bench, calls) = asked(|_| Verdict::Admit);
    bench.submit(telling(3, request(prompt(1, 8), 30)));
    bench.submit(request(prompt(2, 8), 1));
    // Ten tokens need a slot in the pool, or 37 at the longest.
    let (_, load) = calls.lock().unwrap()[1];
    assert_eq!((load.expected_blocks, load.promised_blocks), (3, 10));
}

#[test]
fn what_is_learned_meanwhile_does_not_replace_what_the_client_of_a_held_request_says() {
    let idle = |load: &Load| load.running + load.admitted == 0;
    let (mut bench, calls) = asked(move |load| if idle(load) { Verdict::Admit } else { Verdict::Wait });
    bench.submit(request(prompt(1, 4), 3));
    bench.submit(telling(7, request(prompt(2, 4), 20)));
    bench.submit(request(prompt(3, 4), 20));
    bench.run();
    let calls = calls.lock().unwrap();
    let mut of = [2, 3].map(|id| {
        let calls = calls.iter().filter(|(request, _)| request.id.0 == id);
        calls.map(|(request, _)| request.expected_tokens).collect::<Vec<_>>()
    });
    of.iter_mut().for_each(Vec::dedup);
    // Outputs of three tokens were seen when the second is admitted, and then one of twenty.
    assert_eq!(of, [vec![7], vec![20, 3, 5]]);
}

#[test]
fn what_clients_say_changes_nothing_that_is_learned() {
    let learned = |told: Option<u32>| {
        let mut bench = Bench::new(small());
        for (seed, (tenant, output)) in (1..).zip([(1, 5), (2, 20), (1, 9), (2, 2)]) {
            let tenant = TenantId(tenant);
            let request = request(prompt(seed, 4), output);
            bench.submit(Request { tenant, expected_output: told, ..request });
            bench.run();
        }
        let numbers = bench.engine.carry(bench.now).numbers;
        (numbers.tenants, numbers.mean_output)
    };
    let plain = learned(None);
    assert!(plain.1 > 0, "{plain:?}");
    for told in [1, 4, 1_000] {
        assert_eq!(learned(Some(told)), plain, "{told}");
    }
}
