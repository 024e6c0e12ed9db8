//! `memory-aware` at the engine's door: what it lets in at once, and beside what the pool holds already.

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
    /// With 100 blocks of 4 tokens.
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

    /// Runs to the end; the most that ran at once.
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
fn a_burst_between_two_steps_keeps_the_limit_in_flight() {
    for (max_in_flight, places, most) in [(3, 8, 3), (8, 8, 8), (9, 8, 8)] {
        let mut host = Host::new(places, &format!("{{\"max_in_flight\": {max_in_flight}}}"));
        for n in 0..20 {
            host.submit(vec![n; 4], 4);
        }
        let queue = host.engine.snapshot(host.now).queue;
        let held = if max_in_flight < places { 20 - max_in_flight } else { queue.held };
        assert_eq!(queue.held, held, "{max_in_flight} of {places} places");
        assert_eq!(host.run(), most, "{max_in_flight} of {places} places");
    }
}

#[test]
fn the_held_that_are_asked_again_in_one_step_keep_the_limit_too() {
    let mut host = Host::new(8, r#"{"max_in_flight": 3}"#);
    // They all end in one step.
    for n in 0..3 {
        host.submit(vec![n; 4], 4);
    }
    for n in 3..12 {
        host.submit(vec![n; 4], 6);
    }
    assert_eq!(host.run(), 3);
}

#[test]
fn a_turn_whose_history_is_cached_waits_for_the_memory_that_it_takes() {
    let mut host = Host::new(8, "{}");
    let first: Vec<u32> = (0..200).map(|i| i * 7 % VOCAB).collect();
    let turn = host.submit(first.clone(), 41);
    host.run();
    let history: Vec<u32> = first.into_iter().chain(host.tokens(turn)).collect();
    // 60 blocks are cached. Somebody takes 25 more, of which 10 are promised.
    let other = host.submit((0..60).map(|i| i * 11 % VOCAB).collect(), 41);
    (0..3).for_each(|_| host.step());
    // 60 that it finds and 20 that it doesn't are not there beside 25 and a reserve of 10.
    let next = host.submit(history, 79);
    host.step();
    let queue = host.engine.snapshot(host.now).queue;
    assert_eq!((queue.running, queue.held), (1, 1), "{queue:?}");
    host.run();
    assert_eq!((host.tokens(other).count(), host.tokens(next).count()), (41, 79));
    let preempted = host.events.iter().filter(|event| matches!(event, Event::Preempted { .. })).count();
    assert_eq!(preempted, 0);
}
