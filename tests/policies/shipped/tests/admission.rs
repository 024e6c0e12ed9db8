//! `memory-aware` in the engine: concurrent admissions, and admissions while the pool holds other data.

use infer_core::engine::Policies;
use infer_core::testing::{self, ScriptedExecutor, request};
use infer_core::{Engine, EngineConfig, Event, Limits, Micros, SequenceId};
use policy_continuous::Continuous;
use policy_memory_aware::MemoryAware;
use shipped_policies::Native;

const VOCAB: u32 = 50;

struct Host {
    engine: Engine,
    executor: ScriptedExecutor,
    now: Micros,
    events: Vec<Event>,
}

impl Host {
    /// A host with 100 blocks of 4 tokens.
    fn new(max_running: u32, admission: &str) -> Self {
        let limits = Limits { max_running, ..EngineConfig::default().limits };
        let config = EngineConfig {
            limits,
            block_size: 4,
            total_blocks: 100,
            max_seq_len: 400,
            ..EngineConfig::default()
        };
        let policies = Policies {
            scheduler: Box::new(Native::<Continuous>::new("{}")),
            admission: Box::new(Native::<MemoryAware>::new(admission)),
            ..Policies::builtin()
        };
        let executor =
            ScriptedExecutor::new(config.block_size, config.total_blocks, config.prompt_cache_entries, VOCAB);
        Self { engine: Engine::new(config, policies), executor, now: Micros(1), events: Vec::new() }
    }

    fn submit(&mut self, prompt: Vec<u32>, output: u32) -> SequenceId {
        self.engine.submit(request(prompt, output), self.now).expect("it fits the pool")
    }

    fn step(&mut self) {
        testing::step(&mut self.engine, &mut self.executor, &mut self.now, Micros(1_000));
        self.engine.drain_events(&mut self.events);
    }

    /// Runs until no work is left; returns the largest number of sequences that ran at once.
    fn run(&mut self) -> u32 {
        let mut most = 0;
        while self.engine.has_work() {
            self.step();
            most = most.max(self.engine.snapshot(self.now).queue.running);
        }
        most
    }

    fn tokens(&self, of: SequenceId) -> impl Iterator<Item = u32> {
        self.events.iter().filter_map(move |event| match event {
            Event::Token { id, token, .. } if *id == of => Some(*token),
            _ => None,
        })
    }
}

#[test]
fn burst_between_two_steps_respects_max_in_flight() {
    for (max_in_flight, max_running, most) in [(3, 8, 3), (8, 8, 8), (9, 8, 8)] {
        let mut host = Host::new(max_running, &format!("{{\"max_in_flight\": {max_in_flight}}}"));
        for n in 0..20 {
            host.submit(vec![n; 4], 4);
        }
        let queue = host.engine.snapshot(host.now).queue;
        let held = if max_in_flight < max_running { 20 - max_in_flight } else { queue.held };
        assert_eq!(queue.held, held, "{max_in_flight} in flight, {max_running} running");
        assert_eq!(host.run(), most, "{max_in_flight} in flight, {max_running} running");
    }
}

#[test]
fn deferred_requests_retried_in_one_step_respect_max_in_flight() {
    let mut host = Host::new(8, r#"{"max_in_flight": 3}"#);
    // All three end in the same step.
    for n in 0..3 {
        host.submit(vec![n; 4], 4);
    }
    for n in 3..12 {
        host.submit(vec![n; 4], 6);
    }
    assert_eq!(host.run(), 3);
}

#[test]
fn turn_with_a_cached_history_waits_until_its_memory_is_free() {
    let mut host = Host::new(8, "{}");
    let first: Vec<u32> = (0..200).map(|i| i * 7 % VOCAB).collect();
    let turn = host.submit(first.clone(), 41);
    host.run();
    let history: Vec<u32> = first.into_iter().chain(host.tokens(turn)).collect();
    // 60 blocks are cached. Another request takes 25, of which 10 are only promised so far.
    let other = host.submit((0..60).map(|i| i * 11 % VOCAB).collect(), 41);
    (0..3).for_each(|_| host.step());
    // Its 60 cached and 20 new blocks don't fit next to those 25 and a reserve of 10.
    let next = host.submit(history, 79);
    host.step();
    let queue = host.engine.snapshot(host.now).queue;
    assert_eq!((queue.running, queue.held), (1, 1), "{queue:?}");
    host.run();
    assert_eq!((host.tokens(other).count(), host.tokens(next).count()), (41, 79));
    let preempted = host.events.iter().filter(|event| matches!(event, Event::Preempted { .. })).count();
    assert_eq!(preempted, 0);
}
