//! Speculation: the same tokens in fewer steps, with the same blocks and columns.

use std::sync::Arc;

use infer_core::engine::Policies;
use infer_core::testing::{self, ScriptedExecutor, solo};
use infer_core::{
    Batch, DeviceFault, DeviceFaultKind, Engine, EngineConfig, Event, Executor, Limits, Micros, Request,
    SamplingExtras, SamplingParams, StepOutput,
};

/// Samples the position modulo a period: a repetitive text.
struct Periodic {
    period: u32,
    /// Largest row seen.
    widest: u32,
}

impl Executor for Periodic {
    fn execute(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        output.reset(batch.rows.len());
        for (at, row) in batch.rows.iter().enumerate().filter(|(_, row)| row.sample) {
            self.widest = self.widest.max(row.token_len * u32::from(row.guesses > 0));
            let first = row.context_len - row.guesses;
            output.sampled[at] = Some(first % self.period);
            let after = (1..=row.guesses).map(|nth| (at, Some((first + nth) % self.period)));
            output.after_guesses.extend(after);
        }
        Ok(())
    }
}

/// Numbers that repeat themselves.
fn text(len: u32, period: u32) -> Vec<u32> {
    (0..len).map(|i| i % period).collect()
}

fn config(speculate: u32) -> EngineConfig {
    EngineConfig { total_blocks: 64, block_size: 4, max_seq_len: 128, speculate, ..EngineConfig::default() }
}

/// Runs one request alone. Returns its tokens and steps.
fn run(config: EngineConfig, executor: &mut impl Executor, request: &Request) -> (Vec<u32>, u64, Engine) {
    let mut engine = Engine::new(config, Policies::builtin());
    let mut now = Micros(1);
    let id = engine.submit(request.clone(), now).expect("room");
    let events = testing::run(&mut engine, executor, &mut now, 1_000);
    let tokens = events.iter().filter_map(|event| match event {
        Event::Token { id: of, token, .. } if *of == id => Some(*token),
        _ => None,
    });
    (tokens.collect(), engine.next_step() - 1, engine)
}

#[test]
fn a_repetitive_text_takes_a_fraction_of_the_steps() {
    let request = testing::request(text(20, 5), 60);
    let (mut plain, mut guessing) = (Periodic { period: 5, widest: 0 }, Periodic { period: 5, widest: 0 });
    let (want, steps, _) = run(config(0), &mut plain, &request);
    let (got, fewer, mut engine) = run(config(8), &mut guessing, &request);
    assert_eq!(got, want);
    assert_eq!((steps, plain.widest, guessing.widest), (60, 0, 9));
    assert!(fewer * 6 < steps, "{fewer} steps");
    let counters = engine.snapshot(Micros(1)).counters;
    assert_eq!(counters.generated_tokens, 60);
    assert_eq!(counters.accepted_tokens, 60 - fewer);
}

#[test]
fn an_end_within_the_guesses_ends_the_stream_there() {
    let mut request = testing::request(text(20, 5), 60);
    request.stop_tokens = Arc::from([3]);
    let (tokens, ..) = run(config(8), &mut Periodic { period: 5, widest: 0 }, &request);
    assert_eq!(tokens, [0, 1, 2, 3]);
    request.stop_tokens = Arc::from([]);
    request.max_new_tokens = 7;
    let (tokens, ..) = run(config(8), &mut Periodic { period: 5, widest: 0 }, &request);
    assert_eq!(tokens, [0, 1, 2, 3, 4, 0, 1]);
}

#[test]
fn draft_tokens_use_only_what_a_step_leaves_over() {
    let request = testing::request(text(20, 5), 40);
    let limits = Limits { max_batch_tokens: 4, ..EngineConfig::default().limits };
    let mut executor = Periodic { period: 5, widest: 0 };
    run(EngineConfig { limits, ..config(8) }, &mut executor, &request);
    assert_eq!(executor.widest, 4);
    // 59 positions take 15 blocks of 4; with 15 in all there is never one to spare beyond the last.
    let mut executor = Periodic { period: 5, widest: 0 };
    let (tokens, ..) = run(EngineConfig { total_blocks: 15, ..config(8) }, &mut executor, &request);
    assert_eq!(tokens.len(), 40);
}

#[test]
fn draft_tokens_are_shared_evenly_among_the_samples_of_a_step() {
    let repetitive = text(20, 5);
    let strange: Vec<u32> = (0..20).collect();
    for (first, max_samples, widths) in [
        (&repetitive, u32::MAX, [5, 5, 5, 5]),
        (&repetitive, 14, [4, 4, 3, 3]),
        (&repetitive, 5, [2, 1, 1, 1]),
        (&repetitive, 4, [1, 1, 1, 1]),
        (&repetitive, 2, [1, 1, 1, 1]),
        // What one can't use is left to the others.
        (&strange, 14, [1, 5, 4, 4]),
    ] {
        let config = EngineConfig { prefix_caching: false, max_samples, ..config(4) };
        let mut engine = Engine::new(config, Policies::builtin());
        let mut executor = Periodic { period: 5, widest: 0 };
        let mut now = Micros(1);
        for prompt in [first, &repetitive, &repetitive, &repetitive] {
            engine.submit(testing::request(prompt.clone(), 40), now).expect("room");
        }
        testing::step(&mut engine, &mut executor, &mut now, Micros(1_000));
        let batch = engine.begin_step(now).expect("four decodes");
        let computed: Vec<u32> = batch.rows.iter().map(|row| row.token_len).collect();
        assert_eq!(computed, widths, "{max_samples} samples");
    }
}

#[test]
fn wrong_guesses_cost_no_block_and_no_token() {
    // Tokens that depend on everything in memory, from a small vocabulary, so that some draft tokens are
    // wrong.
    let mut executor = ScriptedExecutor::new(4, 64, 100, 2);
    let mut engine = Engine::new(config(6), Policies::builtin());
    let mut now = Micros(1);
    let requests: Vec<Request> = (3..9).map(|len| testing::request(text(len, 2), 40)).collect();
    let ids: Vec<_> = requests.iter().map(|r| engine.submit(r.clone(), now).expect("room")).collect();
    let mut events = Vec::new();
    while engine.has_work() {
        testing::step(&mut engine, &mut executor, &mut now, Micros(1_000));
        engine.check_invariants();
        engine.drain_events(&mut events);
        let snapshot = engine.snapshot(now);
        let used: u32 = snapshot.requests.iter().map(|r| r.blocks).sum();
        let needed: u32 = snapshot.requests.iter().map(|r| r.computed_tokens.div_ceil(4)).sum();
        assert_eq!(used, needed, "no sequence holds more than what is computed");
    }
    let counters = engine.snapshot(now).counters;
    assert!(counters.accepted_tokens > 20 && counters.drafted_tokens > counters.accepted_tokens);
    for (id, request) in ids.iter().zip(&requests) {
        let tokens: Vec<u32> = events
            .iter()
            .filter_map(|event| match event {
                Event::Token { id: of, token, .. } if of == id => Some(*token),
                _ => None,
            })
            .collect();
        assert_eq!(tokens, solo(request, 2));
    }
}

#[test]
fn nothing_is_drafted_for_rows_with_history_or_logprobs() {
    let plain = testing::request(text(20, 5), 20);
    let with = |sampling: SamplingParams| Request { sampling, ..plain.clone() };
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let extras = SamplingExtras { logprobs: Some(1), ..SamplingExtras::default() };
    for (request, guessed) in [
        (plain.clone(), true),
        (with(SamplingParams { temperature: 1.0, ..greedy.clone() }), true),
        (with(SamplingParams { repetition_penalty: 1.5, ..greedy.clone() }), false),
        (with(SamplingParams { extras: Some(Arc::new(extras)), ..greedy }), false),
        (Request { min_new_tokens: 20, stop_tokens: Arc::from([9]), ..plain.clone() }, false),
    ] {
        let (tokens, _, mut engine) = run(config(4), &mut Periodic { period: 5, widest: 0 }, &request);
        assert_eq!(tokens.len(), 20);
        assert_eq!(engine.snapshot(Micros(1)).counters.drafted_tokens > 0, guessed, "{request:?}");
    }
}

#[test]
fn a_device_fault_frees_the_blocks_of_draft_tokens() {
    let mut executor = ScriptedExecutor::new(4, 64, 0, 2);
    let mut engine = Engine::new(EngineConfig { prompt_cache_entries: 0, ..config(6) }, Policies::builtin());
    let mut now = Micros(1);
    let request = testing::request(vec![0, 1, 0, 1, 0, 1], 40);
    let id = engine.submit(request.clone(), now).expect("room");
    let mut events = Vec::new();
    for round in 0.. {
        if !engine.has_work() {
            break;
        }
        if round % 3 == 1 {
            let kind = DeviceFaultKind::Failed;
            executor.fail_next(DeviceFault { kind, message: "gone".into(), rows: Some(vec![7]) });
        }
        testing::step(&mut engine, &mut executor, &mut now, Micros(1_000));
        engine.check_invariants();
    }
    engine.drain_events(&mut events);
    let tokens: Vec<u32> = events
        .iter()
        .filter_map(|event| match event {
            Event::Token { id: of, token, .. } if *of == id => Some(*token),
            _ => None,
        })
        .collect();
    assert_eq!(tokens, solo(&request, 2));
}
