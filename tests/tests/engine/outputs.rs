//! Lengths of outputs: the SDK's host in miniature, which policies are tested on, expects the same as the engine.

use std::iter::{once, repeat_n};

use infer_core::config::EngineConfig;
use infer_core::ids::Micros;
use infer_core::testing::Expectations;
use infer_policy_sdk::testing::{Host, Spec, limits};
use infer_policy_sdk::{Plan, SequenceId};
use infer_sim::trace::{Recorded, in_order};
use infer_sim::{Predictions, Profile, Settings, Slo, replay};

/// The `max_tokens` of all requests, more than any output.
const LONGEST: u32 = 2_000;

/// What the engine expects of requests that come one after another, each with a tenant and a length.
fn in_engine(requests: &[(u32, u32)]) -> Vec<u32> {
    let expectations = Expectations::default();
    let settings = Settings {
        engine: EngineConfig { total_blocks: 8_000, max_seq_len: 8_192, ..EngineConfig::default() },
        profile: Profile::named("h100", "8b").expect("a known profile"),
        host: Micros::ZERO,
        load: 1.0,
        slo: Slo::default(),
        seed: 1,
        tenants: Vec::new(),
        predictions: Predictions::Learned,
    };
    let recorded = |(id, &(tenant, output_tokens)): (u64, &(u32, u32))| {
        let at_us = id * 60_000_000;
        let (prompt_tokens, max_tokens) = (4, LONGEST);
        Ok(Recorded { id, at_us, tenant, prompt_tokens, output_tokens, max_tokens, ..Recorded::default() })
    };
    let trace = in_order((1..).zip(requests).map(recorded));
    let outcome = replay(&settings, expectations.policies(), trace, u64::MAX, |_| {});
    let outcome = outcome.expect("the trace is well-formed");
    assert_eq!(outcome.finished, requests.len() as u64);
    expectations.noted()
}

/// What the host in miniature expects of them.
fn in_miniature(requests: &[(u32, u32)]) -> Vec<u32> {
    let mut host = Host::new(limits(), 16, 1_000);
    let mut expected = Vec::new();
    for (id, &(tenant, output_tokens)) in (1..).zip(requests) {
        let spec =
            Spec { tenant, prompt_tokens: 4, output_tokens, max_new_tokens: LONGEST, ..Spec::default() };
        host.submit(id, spec);
        expected.extend(host.view().waiting.iter().map(|sequence| sequence.expected_tokens()));
        for tokens in once(4).chain(repeat_n(1, output_tokens as usize - 1)) {
            host.apply(&Plan { run: vec![SequenceId(id)], tokens: vec![tokens], ..Plan::default() });
        }
    }
    expected
}

#[test]
fn host_in_miniature_learns_lengths_of_outputs_like_the_engine() {
    let requests: Vec<(u32, u32)> = (0..80).map(|n| (n % 7 % 3, 1 + n * n * 37 % 701)).collect();
    let expected = in_miniature(&requests);
    assert_eq!(expected[0], LONGEST, "nothing is known");
    assert!(expected[1..].iter().all(|&tokens| tokens < LONGEST), "{expected:?}");
    assert_eq!(expected, in_engine(&requests));
}
