//! An engine under a steady load, for measuring what a step costs.

use std::sync::Arc;

use crate::batch::Batch;
use crate::config::{EngineConfig, Limits};
use crate::engine::{Engine, Policies};
use crate::event::Event;
use crate::executor::StepOutput;
use crate::ids::Micros;
use crate::testing::{SplitMix, request};

/// How big the load is.
#[derive(Clone, Copy, Debug)]
pub struct LoadShape {
    /// Sequences that generate.
    pub running: u32,
    /// Sequences that wait for a slot.
    pub waiting: u32,
    /// Prompt tokens of each.
    pub prompt_tokens: u32,
    /// Steps for which nothing ends.
    pub steps: u32,
}

impl LoadShape {
    /// 256 running and 1,000 waiting, 512 tokens each.
    pub const REFERENCE: Self = Self { running: 256, waiting: 1_000, prompt_tokens: 512, steps: 512 };
}

/// An engine in which every running sequence generates one token a step and none ends.
pub struct SteadyLoad {
    /// The engine, between steps.
    pub engine: Engine,
    output: StepOutput,
    events: Vec<Event>,
    now: Micros,
    left: u32,
}

impl SteadyLoad {
    /// Prefills everything that is to run.
    pub fn new(shape: LoadShape, policies: Policies) -> Self {
        let max_seq_len = shape.prompt_tokens + shape.steps + 1;
        let block_size = 16;
        let config = EngineConfig {
            limits: Limits {
                max_batch_tokens: 8_192,
                max_running: shape.running,
                prefill_chunk: shape.prompt_tokens,
                max_prefill_sequences: 16,
                max_prefill_tokens: 8_192,
            },
            block_size,
            total_blocks: shape.running * (max_seq_len.div_ceil(block_size) + 1),
            max_waiting: shape.running + shape.waiting,
            max_seq_len,
            plan_ahead: true,
            ..EngineConfig::default()
        };
        let mut load = Self {
            engine: Engine::new(config, policies),
            output: StepOutput::default(),
            events: Vec::new(),
            now: Micros(0),
            left: shape.steps - shape.running.div_ceil(16) - 1,
        };
        let mut rng = SplitMix(1);
        for _ in 0..shape.running + shape.waiting {
            let prompt: Arc<[u32]> = (0..shape.prompt_tokens).map(|_| rng.below(50_000) as u32).collect();
            load.engine.submit(request(prompt, shape.steps + 1), load.now).expect("the load fits");
        }
        let mut started = 0;
        while started < shape.running as usize {
            let batch = load.begin();
            load.answer(&batch);
            started += load.events.iter().filter(|e| matches!(e, Event::Started { .. })).count();
            load.finish(batch);
        }
        load.left = shape.steps - shape.running.div_ceil(16) - 1;
        load
    }

    /// Whether another step would end a sequence.
    pub fn is_used_up(&self) -> bool {
        self.left == 0
    }

    /// The part of a step before the device's work.
    pub fn begin(&mut self) -> Batch {
        self.engine.begin_step(self.now).expect("there is work")
    }

    /// The part after it, without the device's work and the driver's reading of events.
    pub fn finish(&mut self, batch: Batch) {
        self.now = self.now.plus(Micros(1_000));
        self.left = self.left.saturating_sub(1);
        self.engine.finish_step(batch, Ok(&self.output), self.now);
    }

    /// What a device would return; also drains the events, as a driver does.
    pub fn answer(&mut self, batch: &Batch) {
        self.events.clear();
        self.engine.drain_events(&mut self.events);
        self.output.sampled.clear();
        self.output.sampled.extend(batch.rows.iter().map(|row| row.sample.then_some(row.generated % 7)));
    }
}
