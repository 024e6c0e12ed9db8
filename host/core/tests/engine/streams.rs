//! What clients see: every stream equals the same request run alone, whatever else happens.

use infer_core::engine::Policies;
use infer_core::testing::{self, ScriptedExecutor, solo};
use infer_core::{
    Engine, EngineConfig, Event, FinishReason, Limits, Micros, PrefixEvent, Request, SamplingParams,
    SequenceId,
};
use std::sync::Arc;

const VOCAB: u32 = 50;

fn config() -> EngineConfig {
    EngineConfig {
        limits: Limits {
            max_batch_tokens: 64,
            max_running: 8,
            prefill_chunk: 16,
            max_prefill_sequences: 4,
            max_prefill_tokens: 48,
        },
        block_size: 4,
        total_blocks: 64,
        max_seq_len: 128,
        ..EngineConfig::default()
    }
}

fn pair(config: EngineConfig) -> (Engine, ScriptedExecutor) {
    let executor =
        ScriptedExecutor::new(config.block_size, config.total_blocks, config.prompt_cache_entries, VOCAB);
    (Engine::new(config, Policies::builtin()), executor)
}

fn tokens(events: &[Event], of: SequenceId) -> Vec<u32> {
    let token = |e: &Event| match e {
        Event::Token { id, token, .. } if *id == of => Some(*token),
        _ => None,
    };
    events.iter().filter_map(token).collect()
}

fn prompt(seed: u32, len: u32) -> Arc<[u32]> {
    (0..len).map(|i| (seed * 31 + i * 7) % VOCAB).collect()
}

fn submit_all(engine: &mut Engine, requests: &[Request], now: Micros) -> Vec<SequenceId> {
    requests.iter().map(|r| engine.submit(r.clone(), now).expect("it is taken")).collect()
}

#[test]
fn mixed_lengths_stream_as_if_alone() {
    let (mut engine, mut executor) = pair(config());
    let requests: Vec<_> = (1..20).map(|i| testing::request(prompt(i, i * 5 % 60 + 1), i % 13 + 1)).collect();
    let mut now = Micros(0);
    let ids = submit_all(&mut engine, &requests, now);
    let events = testing::run(&mut engine, &mut executor, &mut now, 2_000);
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(tokens(&events, *id), solo(request, VOCAB), "{id:?}");
    }
    let finished =
        events.iter().filter(|e| matches!(e, Event::Finished { reason: FinishReason::Length, .. }));
    assert_eq!(finished.count(), requests.len());
}

#[test]
fn a_repeated_prompt_runs_no_forward_pass_for_its_first_token() {
    for len in [3, 4, 17, 20] {
        let (mut engine, mut executor) = pair(config());
        let request = testing::request(prompt(3, len), 6);
        let mut now = Micros(0);
        submit_all(&mut engine, std::slice::from_ref(&request), now);
        testing::run(&mut engine, &mut executor, &mut now, 100);
        let before = executor.computed;
        let id = engine.submit(request.clone(), now).unwrap();
        let events = testing::run(&mut engine, &mut executor, &mut now, 100);
        assert_eq!(tokens(&events, id), solo(&request, VOCAB), "prompt of {len}");
        assert_eq!(executor.computed - before, 5, "the last token's keys are never needed");
        assert_eq!(executor.answered, 1);
        assert!(events.iter().any(|e| matches!(
            e,
            Event::Started { prefix: PrefixEvent::FullHitNoPrefillNeeded, cached_tokens, prefill_tokens: 0, .. }
                if *cached_tokens == len
        )));
    }
}

#[test]
fn samples_of_one_prompt_compute_it_once_and_copy_its_last_block() {
    for len in [3, 18, 40] {
        let (mut engine, mut executor) = pair(config());
        let samples: Vec<Request> = (0..4)
            .map(|seed| {
                let sampling = SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() };
                Request { sampling, ..testing::request(prompt(3, len), 6) }
            })
            .collect();
        let mut now = Micros(0);
        let ids = submit_all(&mut engine, &samples, now);
        let events = testing::run(&mut engine, &mut executor, &mut now, 200);
        for (id, request) in ids.iter().zip(&samples) {
            assert_eq!(tokens(&events, *id), solo(request, VOCAB), "{id:?} of {len}");
        }
        let computed = (executor.computed, executor.answered);
        assert_eq!(computed, (u64::from(len) + 4 * 5, 3), "the prompt once, then each its own output");
    }
}
