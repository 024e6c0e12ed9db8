//! Prefix hits, full hits, preemption and the contiguous backend all produce the same tokens.

use std::sync::Arc;

use infer_core::engine::Policies;
use infer_core::{EngineConfig, Event, PrefixEvent, SamplingExtras, SessionId};
use infer_model::{KvCacheKind, Model};
use infer_tests::{Driver, model, model_f32, request, tokenizer};

fn prompt(text: &str) -> Vec<u32> {
    tokenizer().encode(text, true).expect("encodes")
}

fn long_prompt() -> Vec<u32> {
    prompt(&"What is a prefix cache? How does continuous batching work? ".repeat(8))
}

fn alone(tokens: Vec<u32>, max_new: u32) -> Vec<u32> {
    let config = EngineConfig { prefix_caching: false, prompt_cache_entries: 0, ..EngineConfig::default() };
    let mut driver = Driver::new(config, Policies::builtin());
    driver.submit(request(tokens, max_new)).expect("admitted");
    driver.run();
    driver.streams().remove(0)
}

fn prefix_events(driver: &Driver) -> Vec<(PrefixEvent, u32, u32)> {
    let started = |event: &Event| match *event {
        Event::Started { prefix, cached_tokens, prefill_tokens, .. } => {
            Some((prefix, cached_tokens, prefill_tokens))
        }
        _ => None,
    };
    driver.events.iter().filter_map(started).collect()
}

#[test]
fn repeated_prompt_is_a_full_hit_without_prefill() {
    let mut driver = Driver::new(EngineConfig::default(), Policies::builtin());
    let tokens = long_prompt();
    let len = tokens.len() as u32;
    driver.submit(request(tokens.clone(), 1)).expect("admitted");
    driver.run();
    let before = driver.executor.forward_passes();
    driver.submit(request(tokens.clone(), 1)).expect("admitted");
    driver.run();
    assert_eq!(driver.executor.forward_passes(), before, "a full hit runs no forward pass");
    assert_eq!(
        prefix_events(&driver),
        [(PrefixEvent::MissFull, 0, len), (PrefixEvent::FullHitNoPrefillNeeded, len, 0)]
    );
    driver.submit(request(tokens.clone(), 40)).expect("admitted");
    driver.run();
    assert_eq!(driver.streams()[2], alone(tokens, 40));
}

#[test]
fn shared_prefix_is_reused_without_changing_tokens() {
    let mut driver = Driver::new(EngineConfig::default(), Policies::builtin());
    let first = long_prompt();
    let mut second = first.clone();
    second.extend(prompt("What is TTFT?"));
    driver.submit(request(first, 20)).expect("admitted");
    driver.run();
    driver.submit(request(second.clone(), 50)).expect("admitted");
    driver.run();
    let (event, cached, _) = prefix_events(&driver)[1];
    assert_eq!(event, PrefixEvent::CrossRequestHit);
    assert!(cached >= 32, "{cached}");
    assert_eq!(driver.streams()[1], alone(second, 50));
}

#[test]
fn next_turn_hits_the_cached_prompt_and_output() {
    let mut driver = Driver::new(EngineConfig::default(), Policies::builtin());
    let mut first = request(long_prompt(), 40);
    first.session = SessionId(7);
    driver.submit(first).expect("admitted");
    driver.run();
    let mut history = long_prompt();
    let reply = driver.streams()[0].clone();
    let left_behind = (history.len() + reply.len() - 1) as u32 / 16 * 16;
    history.extend(reply);
    history.extend(prompt("Why?"));
    let mut second = request(history.clone(), 30);
    second.session = SessionId(7);
    driver.submit(second).expect("admitted");
    driver.run();
    let (event, cached, _) = prefix_events(&driver)[1];
    assert_eq!(event, PrefixEvent::ConversationalHit);
    assert!(cached >= left_behind, "{cached} < {left_behind}");
    assert_eq!(driver.streams()[1], alone(history, 30));
}

#[test]
fn preemption_by_recompute_changes_no_token() {
    let config = EngineConfig {
        total_blocks: 40,
        max_seq_len: 400,
        prefix_caching: false,
        prompt_cache_entries: 0,
        ..EngineConfig::default()
    };
    let mut driver = Driver::new(config, Policies::builtin());
    let prompts: Vec<Vec<u32>> = (1..=6).map(|i| prompt(&"What is preemption? ".repeat(i * 2))).collect();
    for tokens in &prompts {
        driver.submit(request(tokens.clone(), 120)).expect("admitted");
    }
    driver.run();
    let preempted = driver.events.iter().filter(|event| matches!(event, Event::Preempted { .. })).count();
    assert!(preempted > 0, "the pool was meant to be too small");
    for (stream, tokens) in driver.streams().into_iter().zip(prompts) {
        assert_eq!(stream, alone(tokens, 120));
    }
}

/// Difference in log-probability between the likeliest next token after `context` and `token`.
fn margin(context: Vec<u32>, token: u32) -> f32 {
    let mut driver = Driver::new(EngineConfig::default(), Policies::builtin());
    let mut request = request(context, 1);
    let extras = SamplingExtras { logprobs: Some(5), ..SamplingExtras::default() };
    request.sampling.extras = Some(Arc::new(extras));
    let id = driver.submit(request).expect("admitted");
    driver.run();
    let top = &driver.logprobs[&id][0].top;
    let (_, likely) = *top.iter().find(|(id, _)| *id == token).expect("among the five likeliest");
    top[0].1 - likely
}

fn repeated_prompts() -> Vec<Vec<u32>> {
    (1..=8).map(|i| prompt(&"Explain paged attention. ".repeat(i))).collect()
}

/// The streams of the prompts with each cache, paged first.
fn over_both_caches(model: &Model, prompts: &[Vec<u32>]) -> [Vec<Vec<u32>>; 2] {
    [KvCacheKind::Paged, KvCacheKind::Contiguous].map(|kind| {
        let config = EngineConfig {
            prefix_caching: false,
            prompt_cache_entries: 0,
            max_seq_len: 512,
            total_blocks: 32 * 32,
            ..EngineConfig::default()
        };
        let mut driver = Driver::with_cache(config, Policies::builtin(), model, kind);
        for prompt in prompts {
            driver.submit(request(prompt.clone(), 60)).expect("admitted");
        }
        driver.run();
        driver.streams()
    })
}

#[test]
fn contiguous_and_paged_caches_agree() {
    let [paged, contiguous] = over_both_caches(model_f32(), &repeated_prompts());
    assert_eq!(paged, contiguous);
}

/// Log-probability of each token of the texts but the first, computed with a cache.
fn likelihoods(model: &Model, kind: KvCacheKind, texts: &[Vec<u32>]) -> Vec<f32> {
    let config = EngineConfig {
        prefix_caching: false,
        prompt_cache_entries: 0,
        max_seq_len: 512,
        total_blocks: 32 * 32,
        ..EngineConfig::default()
    };
    let mut driver = Driver::with_cache(config, Policies::builtin(), model, kind);
    for text in texts {
        let mut request = request(text.clone(), 1);
        let asked = SamplingExtras { prompt_logprobs: Some(0), ..SamplingExtras::default() };
        request.sampling.extras = Some(Arc::new(asked));
        driver.submit(request).expect("admitted");
    }
    driver.run();
    let mut prompts: Vec<_> = driver
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Prompt { id, logprobs } => Some((*id, logprobs)),
            _ => None,
        })
        .collect();
    prompts.sort_by_key(|(id, _)| *id);
    let all: Vec<f32> =
        prompts.iter().flat_map(|(_, logprobs)| logprobs.iter().map(|token| token.logprob)).collect();
    assert_eq!(
        all.len(),
        texts.iter().map(|text| text.len() - 1).sum::<usize>(),
        "every token of every text but the first"
    );
    all
}

/// The two backends share no attention code and sum in different orders, so inputs of bf16 products sometimes round
/// differently. Their distance must stay below the error of bf16 itself, which is the distance to the same weights
/// computed in f32. Where the streams diverge, the two tokens must be within twice that error of each other.
#[test]
fn in_bf16_contiguous_and_paged_caches_differ_less_than_the_rounding_error() {
    let prompts = repeated_prompts();
    let [paged, contiguous] = over_both_caches(model(), &prompts);
    let texts: Vec<Vec<u32>> =
        prompts.iter().zip(&paged).map(|(prompt, stream)| [&prompt[..], stream].concat()).collect();
    let of_paged = likelihoods(model(), KvCacheKind::Paged, &texts);
    let of_contiguous = likelihoods(model(), KvCacheKind::Contiguous, &texts);
    let exact = likelihoods(model_f32(), KvCacheKind::Contiguous, &texts);
    let square = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>() / a.len() as f64
    };
    let apart = square(&of_paged, &of_contiguous);
    let rounding = square(&of_paged, &exact).min(square(&of_contiguous, &exact));
    assert!(apart < rounding, "{:.1e} apart, rounding {:.1e}", apart.sqrt(), rounding.sqrt());
    let worst = of_paged.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    for ((prompt, paged), contiguous) in prompts.into_iter().zip(&paged).zip(&contiguous) {
        let Some(at) = (0..60).find(|&at| paged[at] != contiguous[at]) else { continue };
        let context = [&prompt[..], &paged[..at]].concat();
        let margin = margin(context, contiguous[at]);
        assert!(margin <= 2.0 * worst, "token {at}: {margin} nat apart, rounding makes {worst}");
    }
}
