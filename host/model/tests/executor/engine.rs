//! A real model under the real engine with its built-in policies: whatever the engine does with a request (batching, chunking
//! its prompt, preempting it, starting from cached blocks), its greedy tokens stay the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use infer_core::engine::Policies;
use infer_core::{
    AdapterId, Engine, EngineConfig, Event, Executor, Limits, Micros, Request, SamplingParams, SequenceId,
    SessionId, StepOutput, TenantId,
};
use infer_model::{DType, ExecutorOptions, KvCacheKind, Model, ModelExecutor, Quantize};

use crate::common::{model, stored_as};

const NEW_TOKENS: u32 = 24;

/// Prompts of ragged lengths, some with a common prefix, and one that occurs twice.
fn prompts() -> Vec<Vec<u32>> {
    let text = |seed: u32, len: u32| (0..len).map(move |i| (i * 29 + seed * 101 + i * i) % 500);
    let shared: Vec<u32> = text(1, 70).collect();
    let mut prompts: Vec<Vec<u32>> =
        [3, 16, 33, 50, 90].into_iter().map(|len| text(len, len).collect()).collect();
    for tail in 2..6 {
        prompts.push(shared.iter().copied().chain(text(tail, 10 * tail)).collect());
    }
    prompts.push(prompts[4].clone());
    prompts
}

struct Host {
    engine: Engine,
    executor: ModelExecutor,
    now: Micros,
}

impl Host {
    fn new(model: &Model, kind: KvCacheKind, total_blocks: u32, caching: bool) -> Self {
        Self::guessing(model, kind, total_blocks, caching, 0)
    }

    fn guessing(model: &Model, kind: KvCacheKind, total_blocks: u32, caching: bool, speculate: u32) -> Self {
        let block_size = 16;
        let prompt_cache_entries = if caching { 8 } else { 0 };
        let config = EngineConfig {
            limits: Limits {
                prefill_chunk: 24,
                max_batch_tokens: 96,
                max_running: 8,
                ..EngineConfig::default().limits
            },
            block_size,
            total_blocks,
            max_seq_len: 256,
            prefix_caching: caching,
            prompt_cache_entries,
            speculate,
            ..EngineConfig::default()
        };
        let executor = model.executor(ExecutorOptions {
            kv_cache: kind,
            block_size,
            total_blocks,
            max_running: 8,
            max_seq_len: 256,
            prompt_cache_entries,
            threads: 1,
        });
        let executor = executor.expect("a small KV cache fits");
        Self { engine: Engine::new(config, Policies::builtin()), executor, now: Micros(1) }
    }

    fn submit(&mut self, prompt: &[u32]) -> SequenceId {
        self.submit_drawing(prompt, 0.0)
    }

    fn submit_drawing(&mut self, prompt: &[u32], temperature: f32) -> SequenceId {
        let request = Request {
            tenant: TenantId::default(),
            session: SessionId::default(),
            cache_salt: 0,
            adapter: AdapterId::NONE,
            priority: 0,
            deadline: Micros::NEVER,
            prompt: Arc::from(prompt),
            max_new_tokens: NEW_TOKENS,
            expected_output: None,
            min_new_tokens: 0,
            stop_tokens: Arc::from([]),
            sampling: SamplingParams { temperature, seed: 7, ..SamplingParams::default() },
        };
        self.engine.submit(request, self.now).expect("room for all")
    }

    /// Runs until nothing is left. Returns each sequence's tokens and the number of preemptions.
    fn finish(&mut self) -> (BTreeMap<SequenceId, Vec<u32>>, usize) {
        let (mut tokens, mut preemptions) = (BTreeMap::<_, Vec<u32>>::new(), 0);
        let (mut output, mut events) = (StepOutput::default(), Vec::new());
        while self.engine.has_work() {
            self.now = self.now.plus(Micros(1_000));
            let Some(batch) = self.engine.begin_step(self.now) else { continue };
            let result = self.executor.execute(&batch, &mut output);
            self.engine.finish_step(batch, result.map(|()| &output), self.now);
            self.engine.drain_events(&mut events);
            for event in events.drain(..) {
                match event {
                    Event::Token { id, token, .. } => tokens.entry(id).or_default().push(token),
                    Event::Preempted { .. } => preemptions += 1,
                    Event::Failed { message, .. } => panic!("a request failed: {message}"),
                    _ => {}
                }
            }
        }
        (tokens, preemptions)
    }
}

#[test]
fn greedy_tokens_are_the_same_alone_mixed_preempted_and_from_cached_blocks() {
    for (name, dtype, quantize) in [
        ("llama-f32", DType::F32, Quantize::Off),
        ("llama-bf16", DType::Bf16, Quantize::Off),
        ("gemma3-f32", DType::F32, Quantize::Off),
        ("llama-bf16", DType::Bf16, Quantize::Q8),
        ("qwen3moe-bf16", DType::Bf16, Quantize::Q4),
    ] {
        let model = stored_as(name, dtype, quantize);
        let want: Vec<Vec<u32>> = prompts()
            .iter()
            .map(|prompt| {
                let mut host = Host::new(&model, KvCacheKind::Paged, 64, false);
                host.submit(prompt);
                host.finish().0.into_values().next().expect("one sequence")
            })
            .collect();
        for (kind, blocks, caching) in [
            (KvCacheKind::Paged, 256, false),
            (KvCacheKind::Paged, 256, true),
            (KvCacheKind::Paged, 14, true),
            (KvCacheKind::Contiguous, 256, false),
        ] {
            // With integers, near ties may resolve differently between the two caches.
            if kind == KvCacheKind::Contiguous && quantize != Quantize::Off {
                continue;
            }
            let how = format!("{name}, {quantize:?}, {kind:?}, {blocks} blocks, caching {caching}");
            let mut host = Host::new(&model, kind, blocks, caching);
            // Twice, so that the second round finds blocks cached by the first.
            for round in 0..2 {
                let ids: Vec<SequenceId> = prompts().iter().map(|prompt| host.submit(prompt)).collect();
                let (tokens, preemptions) = host.finish();
                for (i, (id, want)) in ids.iter().zip(&want).enumerate() {
                    assert_eq!(&tokens[id], want, "{how}, round {round}, prompt {i}");
                }
                assert!(blocks > 14 || preemptions > 0, "{how}: the pool was meant to be too small");
            }
        }
    }
}

#[test]
fn repeated_prompt_needs_no_forward_pass_for_its_first_token() {
    let model = model("llama-f32", DType::F32);
    let prompt = &prompts()[4];
    let mut host = Host::new(&model, KvCacheKind::Paged, 64, true);
    host.submit(prompt);
    let first = host.finish().0;
    let before = host.executor.forward_passes();
    host.submit(prompt);
    let second = host.finish().0;
    assert_eq!(first.into_values().next(), second.into_values().next());
    // The first token costs nothing; each of the others is one decode.
    assert_eq!(host.executor.forward_passes() - before, u64::from(NEW_TOKENS) - 1);
}

#[test]
fn draft_tokens_change_no_greedy_or_sampled_token() {
    // Repetitive prompts, so that prompt lookup finds draft tokens.
    let prompts: Vec<Vec<u32>> = prompts()
        .into_iter()
        .map(|prompt| prompt.iter().chain(&prompt[..prompt.len().min(60)]).copied().collect())
        .collect();
    for (name, dtype) in
        [("llama-f32", DType::F32), ("llama-bf16", DType::Bf16), ("gemma3-bf16", DType::Bf16)]
    {
        let model = model(name, dtype);
        for temperature in [0.0, 0.3] {
            let play = |kind, blocks, caching, speculate| {
                let mut host = Host::guessing(&model, kind, blocks, caching, speculate);
                let ids: Vec<_> =
                    prompts.iter().map(|prompt| host.submit_drawing(prompt, temperature)).collect();
                let (mut tokens, _) = host.finish();
                let tokens: Vec<_> = ids.iter().map(|id| tokens.remove(id).expect("its tokens")).collect();
                (tokens, host.engine.snapshot(host.now).counters)
            };
            for (kind, blocks, caching) in [
                (KvCacheKind::Paged, 256, true),
                (KvCacheKind::Paged, 20, true),
                (KvCacheKind::Contiguous, 256, false),
            ] {
                // Near ties may resolve differently between the two caches, but not within one.
                let (want, _) = play(kind, 256, false, 0);
                let (got, counters) = play(kind, blocks, caching, 5);
                assert_eq!(got, want, "{name}, {kind:?}, {blocks} blocks, temperature {temperature}");
                assert!(counters.accepted_tokens > 0, "{name}, temperature {temperature}: {counters:?}");
                assert!(counters.drafted_tokens > counters.accepted_tokens, "{counters:?}");
            }
        }
    }
}
