//! Lengths of outputs that requests say: the true ones, with errors, or none.

use infer_core::engine::Policies;
use infer_core::testing::Expectations;
use infer_sim::trace::{Recorded, in_order};
use infer_sim::workload::{Lengths, Limit};
use infer_sim::{Outcome, Predictions, Settings, Workload, replay, simulate};

use crate::{named, settings};

/// What `run` makes of the built-in policies, and what was expected of the requests, in the order of their arrival.
fn watched(run: impl FnOnce(Policies) -> Outcome) -> (Outcome, Vec<u32>) {
    let expectations = Expectations::default();
    let outcome = run(expectations.policies());
    (outcome, expectations.noted())
}

/// Outputs of which most are short and a few very long, and no client limits them.
fn heavy_tailed(workload: &str) -> Workload {
    let mut workload = named(workload, 300);
    for stream in &mut workload.streams {
        stream.output = Lengths::HeavyTailed { median: 60, sigma: 1.4, max: 1_000 };
        stream.limit = Limit::Fixed(1_000);
    }
    workload
}

fn simulated(workload: &str, predictions: Predictions, seed: u64) -> (Outcome, Vec<u32>) {
    let settings = Settings { predictions, ..settings(0.9, seed) };
    watched(|policies| simulate(&settings, policies, &heavy_tailed(workload), |_| {}))
}

#[test]
fn predictions_change_nothing_but_what_policies_are_shown() {
    for workload in ["diverse", "chat"] {
        let (learned, guessed) = simulated(workload, Predictions::Learned, 1);
        for predictions in [Predictions::Exact, Predictions::Erring(0.8)] {
            let (outcome, told) = simulated(workload, predictions, 1);
            assert_eq!(outcome, learned, "{workload} {predictions}");
            assert_eq!(told.len(), guessed.len(), "{workload} {predictions}");
            assert_ne!(told, guessed, "{workload} {predictions}");
        }
    }
}

#[test]
fn a_seed_gives_the_same_predictions_twice_and_an_error_of_0_is_none() {
    let told = |sigma, seed| simulated("diverse", Predictions::Erring(sigma), seed).1;
    let (_, exact) = simulated("diverse", Predictions::Exact, 1);
    assert_eq!(told(0.5, 1), told(0.5, 1));
    assert_eq!(told(0.0, 1), exact);
    assert_ne!(told(0.5, 1), exact);
    // Of median-true predictions, about half are too long.
    let longer = told(0.5, 1).iter().zip(&exact).filter(|(told, exact)| told > exact).count();
    assert!((90..200).contains(&longer), "{longer} of {}", exact.len());
}

#[test]
fn exact_predictions_of_a_trace_are_the_lengths_of_its_outputs() {
    let output = |id: u64| 1 + (id * 37 % 300) as u32;
    let replayed = |predictions| {
        let rows = (1..=40).map(|id| {
            Ok(Recorded {
                id,
                at_us: id * 50_000,
                prompt_tokens: 100,
                output_tokens: output(id),
                max_tokens: 512,
                // Every second client said something.
                expected_output: (id % 2 == 1).then_some(9),
                ..Recorded::default()
            })
        });
        let settings = Settings { predictions, ..settings(1.0, 1) };
        watched(|policies| {
            replay(&settings, policies, in_order(rows), u64::MAX, |_| {}).expect("the trace is well-formed")
        })
    };
    let (outcome, told) = replayed(Predictions::Exact);
    assert_eq!(outcome.finished, 40);
    assert_eq!(told, (1..=40).map(output).collect::<Vec<_>>());
    let (_, said) = replayed(Predictions::Learned);
    assert!(said.iter().step_by(2).all(|&tokens| tokens == 9), "{said:?}");
    assert!(said.iter().skip(1).step_by(2).any(|&tokens| tokens != 9), "{said:?}");
}
