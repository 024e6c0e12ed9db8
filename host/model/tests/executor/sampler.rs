//! Sampling: which tokens are chosen, with what frequency, and what a sample does not depend on.

use std::sync::Arc;

use infer_core::{Constraint, SamplingExtras, SamplingParams};
use infer_model::sampler::{Draw, Sampler, logprobs};

fn params(temperature: f32) -> SamplingParams {
    SamplingParams { temperature, ..SamplingParams::default() }
}

fn draw(logits: &[f32], params: &SamplingParams, index: u32) -> Option<u32> {
    let draw = Draw { params, index, history: &[], forbidden: &[] };
    Sampler::default().draw(&mut logits.to_vec(), draw)
}

/// How often each token is sampled in `count` samples.
fn frequencies(logits: &[f32], params: &SamplingParams, count: u32) -> Vec<f64> {
    let mut seen = vec![0_u32; logits.len()];
    for index in 0..count {
        seen[draw(logits, params, index).expect("sound logits") as usize] += 1;
    }
    seen.into_iter().map(|n| f64::from(n) / f64::from(count)).collect()
}

#[test]
fn greedy_takes_the_lowest_of_equally_likely_tokens() {
    assert_eq!(draw(&[1.0, 3.0, 2.0, 3.0], &params(0.0), 5), Some(1));
}

#[test]
fn draws_follow_the_softmax_of_the_logits_over_the_temperature() {
    let logits = [0.0, 1.0, 2.0, -1.0];
    for temperature in [0.5_f64, 1.0, 2.0] {
        let weights = logits.map(|logit: f32| (f64::from(logit) / temperature).exp());
        let total: f64 = weights.iter().sum();
        let seen = frequencies(&logits, &params(temperature as f32), 20_000);
        for (seen, weight) in seen.iter().zip(weights) {
            assert!((seen - weight / total).abs() < 0.015, "at {temperature}: {seen}");
        }
    }
}

#[test]
fn top_k_and_top_p_leave_only_the_likeliest() {
    let logits = [0.0, 2.0, 1.0, 2.0, -3.0];
    let only = |params: &SamplingParams| -> Vec<usize> {
        let seen = frequencies(&logits, params, 2_000);
        (0..logits.len()).filter(|token| seen[*token] > 0.0).collect()
    };
    assert_eq!(only(&SamplingParams { top_k: 3, ..params(1.0) }), [1, 2, 3]);
    assert_eq!(only(&SamplingParams { top_k: 1, ..params(1.0) }), [1]);
    // Shares are 0.05, 0.39, 0.14, 0.39, 0.003.
    assert_eq!(only(&SamplingParams { top_p: 0.5, ..params(1.0) }), [1, 3]);
    assert_eq!(only(&SamplingParams { top_p: 0.3, ..params(1.0) }), [1]);
    assert_eq!(only(&SamplingParams { top_p: 0.9, ..params(1.0) }), [1, 2, 3]);
    // Top-p applies to what top-k left: 1 and 3 with half each.
    assert_eq!(only(&SamplingParams { top_k: 2, top_p: 0.45, ..params(1.0) }), [1]);
}

#[test]
fn a_nucleus_may_span_a_large_flat_vocabulary() {
    let logits = vec![0.0; 5_000];
    let params = SamplingParams { top_p: 0.9, ..params(1.0) };
    let largest = (0..500).filter_map(|index| draw(&logits, &params, index)).max();
    assert!(largest.is_some_and(|token| (4_000..4_501).contains(&token)), "{largest:?}");
}

#[test]
fn tiny_temperatures_do_not_overflow() {
    assert_eq!(draw(&[-50.0, 80.0, 79.0], &params(1e-30), 0), Some(1));
}

#[test]
fn a_draw_depends_on_seed_and_index_alone() {
    let logits: Vec<f32> = (0..100).map(|i| (i % 7) as f32 * 0.1).collect();
    let seeded = |seed| SamplingParams { seed, ..params(1.0) };
    let row = |seed| (0..20).map(|index| draw(&logits, &seeded(seed), index)).collect::<Vec<_>>();
    assert_eq!(row(1), row(1));
    assert_ne!(row(1), row(2));
    let mut used = Sampler::default();
    for index in 0..20 {
        let params = seeded(1);
        let draw = Draw { params: &params, index, history: &[3, 4], forbidden: &[] };
        assert_eq!(used.draw(&mut logits.clone(), draw), row(1)[index as usize]);
    }
}

#[test]
fn top_k_of_all_tokens_draws_as_none_does() {
    let logits: Vec<f32> = (0..100).map(|i| (i * 37 % 100) as f32 * 0.01).collect();
    let row = |top_k| {
        let params = SamplingParams { top_k, ..params(1.0) };
        (0..50).map(|index| draw(&logits, &params, index)).collect::<Vec<_>>()
    };
    assert_eq!(row(100), row(0));
    assert_eq!(row(u32::MAX), row(0));
    assert_ne!(row(99), row(0), "the likeliest come first");
}

#[test]
fn penalties_count_each_token_once_and_push_both_signs_down() {
    let params = SamplingParams { repetition_penalty: 2.0, ..params(0.0) };
    let choose = |logits: &[f32], history: &[u32]| {
        let draw = Draw { params: &params, index: 0, history, forbidden: &[] };
        Sampler::default().draw(&mut logits.to_vec(), draw)
    };
    assert_eq!(choose(&[3.0, 2.0], &[0]), Some(1));
    assert_eq!(choose(&[5.0, 2.0], &[0, 0, 0]), Some(0), "halved once, not three times");
    assert_eq!(choose(&[-1.0, -1.5], &[0]), Some(1));
}

#[test]
fn forbidden_tokens_are_never_drawn() {
    let params = params(1.0);
    for index in 0..200 {
        let draw = Draw { params: &params, index, history: &[], forbidden: &[0, 2, 900] };
        assert_eq!(Sampler::default().draw(&mut [5.0, 0.0, 9.0], draw), Some(1));
    }
}

#[test]
fn unusable_logits_draw_nothing() {
    for logits in [[1.0, f32::NAN], [f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2]] {
        assert_eq!(draw(&logits, &params(0.0), 0), None, "{logits:?}");
        assert_eq!(draw(&logits, &params(1.0), 0), None, "{logits:?}");
    }
    assert_eq!(draw(&[f32::NEG_INFINITY, -4.0], &params(1.0), 0), Some(1));
}

#[test]
fn min_p_keeps_tokens_likely_enough_relative_to_the_likeliest() {
    // Relative to the likeliest: 1, 0.37, 0.14, 0.05; a temperature of 2 makes them 1, 0.61, 0.37, 0.22.
    let logits = [3.0, 2.0, 1.0, 0.0];
    let only = |min_p, temperature| {
        let seen = frequencies(&logits, &SamplingParams { min_p, ..params(temperature) }, 2_000);
        seen.iter().filter(|&&share| share > 0.0).count()
    };
    assert_eq!((only(0.2, 1.0), only(0.1, 1.0), only(0.2, 2.0), only(1.0, 1.0)), (2, 3, 4, 1));
}

#[test]
fn presence_and_frequency_count_the_output_alone() {
    let choose = |presence: f32, frequency: f32, history: &[u32], index: u32| {
        let params =
            SamplingParams { presence_penalty: presence, frequency_penalty: frequency, ..params(0.0) };
        let draw = Draw { params: &params, index, history, forbidden: &[] };
        Sampler::default().draw(&mut [3.0, 2.0, 1.0], draw)
    };
    assert_eq!(choose(2.0, 0.0, &[0, 0, 0], 0), Some(0), "a prompt is no output");
    assert_eq!(choose(1.5, 0.0, &[2, 0, 0, 0], 3), Some(1));
    assert_eq!(choose(0.9, 0.0, &[0, 0, 0], 3), Some(0), "presence counts once");
    assert_eq!(choose(0.0, 0.4, &[0, 0, 0], 3), Some(1), "frequency counts each");
    assert_eq!(choose(0.0, 0.4, &[0, 0, 0], 2), Some(0));
    assert_eq!(choose(-5.0, 0.0, &[2], 1), Some(2), "below 0 they encourage");
}

fn with(extras: SamplingExtras) -> SamplingParams {
    SamplingParams { extras: Some(Arc::new(extras)), ..params(0.0) }
}

#[test]
fn logit_bias_is_added() {
    let biased = with(SamplingExtras { logit_bias: vec![(1, 5.0), (900, 1.0)], ..SamplingExtras::default() });
    assert_eq!(draw(&[3.0, 0.0], &biased, 0), Some(1));
}

/// Allows nothing but one token.
#[derive(Debug)]
struct Only(u32);

impl Constraint for Only {
    fn restrict(&self, _output: &[u32], logits: &mut [f32]) -> bool {
        let kept = logits[self.0 as usize];
        logits.fill(f32::NEG_INFINITY);
        logits[self.0 as usize] = kept;
        true
    }
}

#[test]
fn forbidden_token_is_sampled_if_a_constraint_leaves_nothing_else() {
    let only = Arc::new(Only(2));
    let params = with(SamplingExtras { constraint: Some(only.clone()), ..SamplingExtras::default() });
    let mut logits = [1.0, 2.0, 0.5];
    assert!(only.restrict(&[], &mut logits));
    let draw = Draw { params: &params, index: 0, history: &[], forbidden: &[2] };
    assert_eq!(Sampler::default().draw(&mut logits, draw), Some(2));
}

#[test]
fn logprobs_are_the_softmax_of_all_logits_and_the_likeliest_come_first() {
    let logits = [1.0_f32, 3.0, 2.0, 3.0];
    let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    let of = |logit: f32| f64::from(logit) - total.ln();
    let told = logprobs(&logits, 2, 3);
    assert!((f64::from(told.logprob) - of(2.0)).abs() < 1e-6);
    let tokens: Vec<u32> = told.top.iter().map(|(token, _)| *token).collect();
    assert_eq!(tokens, [1, 3, 2], "of equals the lower first");
    assert!((f64::from(told.top[0].1) - of(3.0)).abs() < 1e-6);
    assert!(logprobs(&logits, 0, 0).top.is_empty());
    assert_eq!(logprobs(&[f32::NEG_INFINITY, 0.0], 0, 1).logprob, f32::NEG_INFINITY);
}
