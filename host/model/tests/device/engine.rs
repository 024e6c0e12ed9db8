//! The engine with the emulated device, which is maximally lazy: the streams of every family are the same when steps are
//! planned ahead, and with draft tokens, as on a host that does neither.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use infer_core::engine::Policies;
use infer_core::testing::request;
use infer_core::{
    Batch, DeviceFault, Engine, EngineConfig, Event, Executor, Limits, Micros, Request, SamplingParams,
    SequenceId, StepOutput,
};
use infer_kernels::cuda::Device;
use infer_model::cuda::{DeviceExecutor, DeviceOptions};

use crate::{load, seeded};

const LONGEST: u32 = 64;
const BLOCKS: u32 = 96;
/// Samples of a step: twice as many as sequences may run.
const ROWS: u32 = 8;

fn executor(name: &str) -> Option<DeviceExecutor> {
    let device: Arc<dyn Device> = Arc::new(seeded(11)?);
    let options = DeviceOptions {
        block_size: 4,
        total_blocks: BLOCKS,
        max_rows: ROWS,
        max_tokens: 32,
        max_seq_len: LONGEST,
        prompt_cache_entries: 4,
        // The composition of a step depends on when it was planned.
        deterministic: true,
        graphs: true,
    };
    Some(load(name).to_device(&device).and_then(|model| model.executor(options)).expect("a small executor"))
}

fn config() -> EngineConfig {
    EngineConfig {
        limits: Limits {
            max_batch_tokens: 32,
            max_running: 4,
            prefill_chunk: 8,
            max_prefill_sequences: 2,
            max_prefill_tokens: 16,
        },
        block_size: 4,
        total_blocks: BLOCKS,
        max_seq_len: LONGEST,
        prompt_cache_entries: 4,
        max_samples: ROWS,
        ..EngineConfig::default()
    }
}

/// Prompts of several lengths, one of them twice; greedy, sampled, one that may not end early, one that ends unexpectedly,
/// and one, the last, whose samples depend on earlier tokens.
fn requests() -> Vec<Request> {
    let prompt =
        |seed: u32, len: u32| (0..len).map(|at| (seed * 37 + at * (3 + seed)) % 200).collect::<Vec<_>>();
    let mut all: Vec<Request> = (0..6).map(|seed| request(prompt(seed, 3 + 4 * seed), 6 + seed)).collect();
    for (at, request) in all.iter_mut().enumerate() {
        if at % 2 == 1 {
            request.sampling = SamplingParams { seed: at as u64, ..SamplingParams::default() };
        }
    }
    let every_third: Arc<[u32]> = (0..400).step_by(3).collect();
    (all[1].stop_tokens, all[1].min_new_tokens) = (Arc::clone(&every_third), 3);
    all[3].stop_tokens = every_third;
    all.push(request(prompt(2, 11), 5));
    all.push(Request {
        sampling: SamplingParams { repetition_penalty: 1.2, ..SamplingParams::default() },
        ..request(prompt(7, 5), 4)
    });
    all
}

struct Host {
    engine: Engine,
    executor: DeviceExecutor,
    out: VecDeque<(Batch, Result<bool, DeviceFault>)>,
    now: Micros,
    behind: u32,
    tokens: BTreeMap<SequenceId, Vec<u32>>,
}

impl Host {
    fn new(executor: DeviceExecutor, config: EngineConfig) -> Self {
        let engine = Engine::new(config, Policies::builtin());
        let (out, tokens) = (VecDeque::new(), BTreeMap::new());
        Self { engine, executor, out, now: Micros(1), behind: 0, tokens }
    }

    /// Submits as many steps as allowed, then collects the oldest. False if there was nothing to do.
    fn turn(&mut self, most_out: usize) -> bool {
        while self.out.len() < most_out
            && let Some(batch) = self.engine.begin_step(self.now)
        {
            self.behind += self.out.len() as u32;
            let submitted = self.executor.submit(&batch);
            self.out.push_back((batch, submitted));
        }
        let Some((batch, submitted)) = self.out.pop_front() else { return false };
        let mut output = StepOutput::default();
        let result = submitted.and_then(|_| self.executor.collect(&batch, &mut output));
        self.now = self.now.plus(Micros(1_000));
        self.engine.finish_step(batch, result.map(|()| &output), self.now);
        let mut events = Vec::new();
        self.engine.drain_events(&mut events);
        for event in events {
            match event {
                Event::Token { id, token, .. } => self.tokens.entry(id).or_default().push(token),
                Event::Failed { id, message, .. } => panic!("{id:?}: {message}"),
                _ => {}
            }
        }
        true
    }

    fn run(&mut self, requests: Vec<Request>, most_out: usize) {
        for request in requests {
            self.engine.submit(request, self.now).expect("room");
        }
        while self.turn(most_out) {}
        assert!(!self.engine.has_work());
        assert_eq!(self.engine.memory().used, 0);
    }
}

fn planning_ahead() -> EngineConfig {
    EngineConfig { plan_ahead: true, ..config() }
}

/// Prompts that repeat themselves, so that draft tokens are found; then those of `requests`.
fn repetitive() -> Vec<Request> {
    let prompt = |seed: u32| (0..14).map(|at| (seed * 41 + at % 7 * 3) % 200).collect::<Vec<_>>();
    let mut all: Vec<Request> = (0..4).map(|seed| request(prompt(seed), 24 + seed)).collect();
    all[3].sampling = SamplingParams { temperature: 0.2, seed: 9, ..SamplingParams::default() };
    all.extend(requests());
    all
}

fn drafting_is_the_same(name: &str) {
    let Some(one_by_one) = executor(name) else { return };
    let mut plain = Host::new(one_by_one, config());
    plain.run(repetitive(), 1);
    let drafting = EngineConfig { speculate: 4, ..config() };
    let mut drafting = Host::new(executor(name).expect("as before"), drafting);
    drafting.run(repetitive(), 1);
    assert_eq!(drafting.tokens, plain.tokens);
    let counters = drafting.engine.snapshot(drafting.now).counters;
    assert!(counters.accepted_tokens > 0, "{counters:?}");
    assert!(counters.drafted_tokens > counters.accepted_tokens, "some are wrong: {counters:?}");
}

fn ahead_is_the_same(name: &str) {
    let Some(one_by_one) = executor(name) else { return };
    let mut plain = Host::new(one_by_one, config());
    plain.run(requests(), 1);
    let mut ahead = Host::new(executor(name).expect("as before"), planning_ahead());
    ahead.run(requests(), 2);
    assert_eq!(ahead.tokens, plain.tokens);
    assert_eq!(plain.behind, 0);
    assert!(ahead.behind > 8, "{} steps were planned ahead", ahead.behind);
    assert!(ahead.executor.graph_launches() > 0, "and recorded");
}

#[test]
fn llama_draws_the_same_tokens_planned_ahead() {
    ahead_is_the_same("llama-f32");
}

#[test]
fn qwen2_draws_the_same_tokens_planned_ahead() {
    ahead_is_the_same("qwen2-bf16");
}

#[test]
fn qwen3_draws_the_same_tokens_planned_ahead() {
    ahead_is_the_same("qwen3-bf16");
}

#[test]
fn mistral_draws_the_same_tokens_planned_ahead() {
    ahead_is_the_same("mistral-bf16");
}

#[test]
fn gemma3_draws_the_same_tokens_planned_ahead() {
    ahead_is_the_same("gemma3-bf16");
}

#[test]
fn llama_draws_the_same_tokens_with_draft_tokens() {
    drafting_is_the_same("llama-f32");
    drafting_is_the_same("llama-bf16");
}

#[test]
fn gemma3_draws_the_same_tokens_with_draft_tokens() {
    drafting_is_the_same("gemma3-bf16");
}

/// A step that can't be submitted doesn't affect the one before it.
#[test]
fn refused_batch_does_not_affect_the_one_before() {
    let Some(device) = executor("llama-f32") else { return };
    let mut host = Host::new(device, planning_ahead());
    let greedy = request(vec![5, 6, 7], 4);
    let id = host.engine.submit(greedy, host.now).expect("room");
    let first = host.engine.begin_step(host.now).expect("a prompt");
    host.executor.submit(&first).expect("it is computed");
    let second = host.engine.begin_step(host.now).expect("a decode behind it");
    let mut wrong = second.clone();
    wrong.rows[0].input_from = Some(3);
    let fault = host.executor.submit(&wrong).expect_err("there is no such draw");
    assert!(fault.message.contains("not on the device"), "{fault:?}");
    host.out.push_back((first, Ok(true)));
    let submitted = host.executor.submit(&second);
    host.out.push_back((second, submitted));
    while host.turn(2) {}
    let ahead = host.tokens.remove(&id);
    let mut alone = Host::new(executor("llama-f32").expect("as before"), config());
    let id = alone.engine.submit(request(vec![5, 6, 7], 4), alone.now).expect("room");
    while alone.turn(1) {}
    assert_eq!(ahead, alone.tokens.remove(&id));
}
