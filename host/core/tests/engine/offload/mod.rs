//! The second level of the prefix cache: what is evicted for room comes back, and nothing else does.

mod ahead;
mod faults;
mod pieces;
mod returns;

use std::ops::Range;

use infer_core::engine::Policies;
use infer_core::offload::Offloading;
use infer_core::snapshot::Counters;
use infer_core::testing::{self, ScriptedExecutor, TestSlots, solo};
use infer_core::{
    Batch, BlockId, DeviceFault, DeviceFaultKind, Engine, EngineConfig, Event, Executor, Micros, OffloadCopy,
    Request, SequenceId, StepOutput,
};

use crate::common::scripted::{VOCAB, prompt, request, small};

/// A host with a second level, and its clock.
struct Tiered {
    engine: Engine,
    executor: Offloading<ScriptedExecutor, TestSlots>,
    now: Micros,
    events: Vec<Event>,
}

/// Room for one conversation of eight blocks and a half.
fn tiny(offload_slots: u32) -> EngineConfig {
    EngineConfig { total_blocks: 12, prompt_cache_entries: 0, offload_slots, ..small() }
}

fn executor(config: &EngineConfig) -> ScriptedExecutor {
    ScriptedExecutor::new(config.block_size, config.total_blocks, config.prompt_cache_entries, VOCAB)
}

impl Tiered {
    fn new(config: EngineConfig) -> Self {
        Self::with(config, Policies::builtin())
    }

    fn with(config: EngineConfig, policies: Policies) -> Self {
        let store = TestSlots::new(config.offload_slots);
        let executor = Offloading::new(Box::new(executor(&config)), store);
        Self { engine: Engine::new(config, policies), executor, now: Micros(1), events: Vec::new() }
    }

    /// One that has served a turn of each of these conversations.
    fn after(config: EngineConfig, seeds: Range<u32>) -> Self {
        let mut host = Self::new(config);
        for seed in seeds {
            host.ask(turn(seed));
        }
        host
    }

    fn submit(&mut self, request: Request) -> SequenceId {
        self.engine.submit(request, self.now).expect("the request is taken")
    }

    fn run(&mut self) {
        let events = testing::run(&mut self.engine, &mut self.executor, &mut self.now, 5_000);
        self.events.extend(events);
        self.engine.check_invariants();
    }

    /// Runs a request alone, and checks its tokens.
    fn ask(&mut self, request: Request) -> SequenceId {
        let alone = solo(&request, VOCAB);
        let id = self.submit(request);
        self.run();
        assert_eq!(self.tokens(id), alone, "{id:?}");
        id
    }

    /// Makes steps, in each of which `running` has a row, until `waiting` has one, and then the rest. Returns how many blocks
    /// came back in each after the first.
    fn steps_until(&mut self, mut batch: Batch, running: SequenceId, waiting: SequenceId) -> Vec<usize> {
        let has = |batch: &Batch, id| batch.rows.iter().any(|row| row.sequence == id);
        let mut pieces = Vec::new();
        while !has(&batch, waiting) {
            self.compute(batch);
            batch = self.engine.begin_step(self.now).expect("one of them runs");
            assert!(has(&batch, running), "nothing holds it up");
            pieces.push(coming(&batch).len());
        }
        self.compute(batch);
        self.run();
        pieces
    }

    fn compute(&mut self, batch: Batch) {
        let mut output = StepOutput::default();
        self.executor.execute(&batch, &mut output).expect("the device is sound");
        self.now = self.now.plus(Micros(1_000));
        self.engine.finish_step(batch, Ok(&output), self.now);
    }

    fn tokens(&self, of: SequenceId) -> Vec<u32> {
        let token = |event: &Event| match event {
            Event::Token { id, token, .. } if *id == of => Some(*token),
            _ => None,
        };
        self.events.iter().filter_map(token).collect()
    }

    /// Tokens that a sequence found when it first started.
    fn cached(&self, of: SequenceId) -> u32 {
        let started = |event: &Event| match event {
            Event::Started { id, cached_tokens, .. } if *id == of => Some(*cached_tokens),
            _ => None,
        };
        self.events.iter().find_map(started).expect("it started")
    }

    fn counters(&mut self) -> Counters {
        self.engine.snapshot(self.now).counters
    }

    fn used_slots(&self) -> u32 {
        self.engine.offload().used
    }
}

/// A turn that leaves seven full blocks.
fn turn(seed: u32) -> Request {
    request(prompt(seed, 29), 3)
}

/// The next turn of its conversation.
fn next_turn(seed: u32) -> Request {
    let mut text = prompt(seed, 29);
    text.extend(solo(&turn(seed), VOCAB));
    text.extend(prompt(40, 4));
    request(text, 3)
}

/// Blocks that come back with a batch.
fn coming(batch: &Batch) -> Vec<BlockId> {
    let block = |copy: &OffloadCopy| match *copy {
        OffloadCopy::In { block, .. } => Some(block),
        OffloadCopy::Out { .. } => None,
    };
    batch.offload.iter().filter_map(block).collect()
}

fn fault(rows: Option<Vec<usize>>) -> DeviceFault {
    DeviceFault { kind: DeviceFaultKind::Failed, message: "it failed".to_owned(), rows }
}
