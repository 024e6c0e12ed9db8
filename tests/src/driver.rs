//! Drives an engine with the demo model step by step; a step takes five virtual milliseconds.

use std::collections::BTreeMap;
use std::sync::Arc;

use infer_core::engine::Policies;
use infer_core::{
    AdapterId, Engine, EngineConfig, Event, Executor, FinishReason, Micros, Refusal, Request, SamplingParams,
    SequenceId, SessionId, StepOutput, TenantId, TokenLogprobs, Usage,
};
use infer_model::{KvCacheKind, Model, ModelExecutor};

const STEP_US: u64 = 5_000;

/// How a sequence ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It completed.
    Finished(FinishReason),
    /// An error ended it.
    Failed(String),
    /// It was refused while it waited.
    Refused(String),
}

/// An engine, the model, and all events that the engine emitted.
pub struct Driver {
    /// The engine.
    pub engine: Engine,
    /// The model.
    pub executor: ModelExecutor,
    /// Virtual time.
    pub now: Micros,
    /// Tokens of each sequence.
    pub tokens: BTreeMap<SequenceId, Vec<u32>>,
    /// Log-probabilities of these tokens, for requests that asked for them.
    pub logprobs: BTreeMap<SequenceId, Vec<TokenLogprobs>>,
    /// How each sequence ended.
    pub ended: BTreeMap<SequenceId, (Ended, Option<Usage>)>,
    /// All other events, oldest first.
    pub events: Vec<Event>,
    output: StepOutput,
}

impl Driver {
    /// A driver of the demo model with the paged cache.
    pub fn new(config: EngineConfig, policies: Policies) -> Self {
        Self::with_cache(config, policies, crate::model(), KvCacheKind::Paged)
    }

    /// A driver of `model` with the given cache.
    pub fn with_cache(
        config: EngineConfig,
        policies: Policies,
        model: &Model,
        kv_cache: KvCacheKind,
    ) -> Self {
        // How long a policy's calls take depends on the machine.
        let config = EngineConfig { policy_step_budget: Micros::NEVER, ..config };
        let executor = crate::executor(model, &config, kv_cache);
        Self {
            engine: Engine::new(config, policies),
            executor,
            now: Micros(1),
            tokens: BTreeMap::new(),
            logprobs: BTreeMap::new(),
            ended: BTreeMap::new(),
            events: Vec::new(),
            output: StepOutput::default(),
        }
    }

    /// Submits a request now.
    pub fn submit(&mut self, request: Request) -> Result<SequenceId, Refusal> {
        let id = self.engine.submit(request, self.now)?;
        self.tokens.insert(id, Vec::new());
        Ok(id)
    }

    /// Runs one step; if nothing can run, advances time to the engine's next wake-up. False when no work is left.
    ///
    /// # Panics
    /// If work is left, but the engine neither runs any nor names a wake-up: a host would hang.
    pub fn step(&mut self) -> bool {
        match self.engine.begin_step(self.now) {
            Some(batch) => {
                let result = self.executor.execute(&batch, &mut self.output);
                self.now = self.now.plus(Micros(STEP_US));
                self.engine.finish_step(batch, result.map(|()| &self.output), self.now);
            }
            None if !self.engine.has_work() => {
                self.collect();
                return false;
            }
            None => {
                let wake = self.engine.next_wake().expect("work is left, so the engine names a wake");
                self.now = if wake > self.now { wake } else { self.now.plus(Micros(STEP_US)) };
            }
        }
        self.collect();
        true
    }

    /// Steps until nothing is left.
    pub fn run(&mut self) {
        while self.step() {}
    }

    /// The tokens of all sequences, in submission order.
    pub fn streams(&self) -> Vec<Vec<u32>> {
        self.tokens.values().cloned().collect()
    }

    /// Policy faults that the engine reported, in order.
    pub fn faults(&self) -> Vec<&'static str> {
        let name = |event: &Event| match event {
            Event::PolicyFault(fault) => Some(fault.fault.kind.name()),
            _ => None,
        };
        self.events.iter().filter_map(name).collect()
    }

    fn collect(&mut self) {
        let mut events = Vec::new();
        self.engine.drain_events(&mut events);
        for event in events {
            match event {
                Event::Token { id, token, logprobs } => {
                    self.tokens.entry(id).or_default().push(token);
                    self.logprobs.entry(id).or_default().extend(logprobs.map(|all| *all));
                }
                Event::Finished { id, reason, usage } => self.end(id, Ended::Finished(reason), Some(usage)),
                Event::Failed { id, message, usage, .. } => self.end(id, Ended::Failed(message), Some(usage)),
                Event::Refused { id, refusal } => self.end(id, Ended::Refused(refusal.message), None),
                other => self.events.push(other),
            }
        }
    }

    fn end(&mut self, id: SequenceId, ended: Ended, usage: Option<Usage>) {
        let before = self.ended.insert(id, (ended, usage));
        assert!(before.is_none(), "sequence {} ended twice", id.0);
    }
}

/// A greedy request without stop tokens.
pub fn request(prompt: Vec<u32>, max_new_tokens: u32) -> Request {
    Request {
        tenant: TenantId(0),
        session: SessionId(0),
        cache_salt: 0,
        adapter: AdapterId::NONE,
        priority: 0,
        deadline: Micros::NEVER,
        prompt: Arc::from(prompt),
        max_new_tokens,
        expected_output: None,
        min_new_tokens: 0,
        stop_tokens: Arc::from([]),
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
    }
}
