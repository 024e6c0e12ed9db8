//! Policies that a test writes as a closure, and the bench they are tried on.

use std::sync::Arc;

use infer_core::builtin::{AcceptWhatFits, FirstComeFirstServed, KeepAll};
use infer_core::engine::Policies;
use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, AnyPolicy, CacheEvents, Ended, FaultKind, Hit, Load, Plan, Policy,
    PolicyFault, PolicyInfo, PrefixCachePolicy, Pressure, Retention, SchedulerPolicy, StepView, Verdict,
};
use infer_core::testing::{self, ScriptedExecutor};
use infer_core::{
    BlockId, Engine, EngineConfig, Event, Executor, Limits, Micros, PrefixEvent, Request, SequenceId,
    SessionId, StepOutput,
};

use super::info;

pub const VOCAB: u32 = 50;

/// A trap, as a fault.
pub fn trap() -> PolicyFault {
    PolicyFault::new(FaultKind::Trap, "it fell over")
}

/// A scheduler that is a closure.
pub struct Scheduler<F>(pub &'static str, pub F);

impl<F: Send> Policy for Scheduler<F> {
    fn info(&self) -> Arc<PolicyInfo> {
        info(self.0)
    }
}

impl<F: FnMut(&StepView) -> Result<Plan, PolicyFault> + Send> SchedulerPolicy for Scheduler<F> {
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        (self.1)(step)
    }
}

/// An admission policy that is a closure.
pub struct Admission<F>(pub F);

impl<F: Send> Policy for Admission<F> {
    fn info(&self) -> Arc<PolicyInfo> {
        info("scripted-admission")
    }
}

impl<F: FnMut(&AdmissionRequest, &Load) -> Result<Verdict, PolicyFault> + Send> AdmissionPolicy
    for Admission<F>
{
    fn admit(&mut self, request: &AdmissionRequest, load: &Load) -> Result<Verdict, PolicyFault> {
        (self.0)(request, load)
    }

    fn measure(&mut self, load: &Load) -> Result<Pressure, PolicyFault> {
        AcceptWhatFits::default().measure(load)
    }
}

/// A call of a prefix-cache policy.
pub enum Ask<'a> {
    Reuse(&'a Hit),
    Retain(&'a Ended),
    Observe(&'a CacheEvents),
    Evict(u32),
}

/// Its answer; `Default` is the built-in's.
pub enum Say {
    Default,
    Reuse(u32),
    Retain(Retention),
    Drop(Vec<BlockId>),
}

/// A prefix-cache policy that is a closure.
pub struct PrefixCache<F>(pub F);

impl<F: Send> Policy for PrefixCache<F> {
    fn info(&self) -> Arc<PolicyInfo> {
        info("scripted-prefix-cache")
    }
}

impl<F: FnMut(Ask<'_>) -> Result<Say, PolicyFault> + Send> PrefixCachePolicy for PrefixCache<F> {
    fn reuse(&mut self, hit: &Hit) -> Result<u32, PolicyFault> {
        Ok(if let Say::Reuse(tokens) = (self.0)(Ask::Reuse(hit))? { tokens } else { hit.cached_tokens })
    }

    fn retain(&mut self, ended: &Ended) -> Result<Retention, PolicyFault> {
        match (self.0)(Ask::Retain(ended))? {
            Say::Retain(retention) => Ok(retention),
            _ => KeepAll::default().retain(ended),
        }
    }

    fn observe(&mut self, events: &CacheEvents) -> Result<Vec<BlockId>, PolicyFault> {
        Ok(if let Say::Drop(names) = (self.0)(Ask::Observe(events))? { names } else { Vec::new() })
    }

    fn evict(&mut self, _now: Micros, need: u32) -> Result<Vec<BlockId>, PolicyFault> {
        Ok(if let Say::Drop(names) = (self.0)(Ask::Evict(need))? { names } else { Vec::new() })
    }
}

/// The built-in's plan, for closures that only differ a little.
pub fn fcfs(step: &StepView) -> Plan {
    FirstComeFirstServed::default().schedule(step).expect("the built-in never fails")
}

pub fn small() -> EngineConfig {
    EngineConfig {
        limits: Limits {
            max_batch_tokens: 64,
            max_running: 4,
            prefill_chunk: 16,
            max_prefill_sequences: 3,
            max_prefill_tokens: 40,
        },
        block_size: 4,
        total_blocks: 64,
        max_waiting: 16,
        max_seq_len: 128,
        prompt_cache_entries: 4,
        hash_key: [1, 2],
        ..EngineConfig::default()
    }
}

/// An engine, its device and its clock.
pub struct Bench {
    pub engine: Engine,
    pub executor: ScriptedExecutor,
    pub now: Micros,
    pub events: Vec<Event>,
}

impl Bench {
    pub fn new(config: EngineConfig) -> Self {
        Self::with(config, Policies::builtin())
    }

    pub fn with(config: EngineConfig, policies: Policies) -> Self {
        let executor =
            ScriptedExecutor::new(config.block_size, config.total_blocks, config.prompt_cache_entries, VOCAB);
        Self { engine: Engine::new(config, policies), executor, now: Micros(1), events: Vec::new() }
    }

    /// With this scheduler.
    pub fn scheduled(
        config: EngineConfig,
        schedule: impl FnMut(&StepView) -> Result<Plan, PolicyFault> + Send + 'static,
    ) -> Self {
        let scheduler = Box::new(Scheduler("scripted", schedule));
        Self::with(config, Policies { scheduler, ..Policies::builtin() })
    }

    pub fn submit(&mut self, request: Request) -> SequenceId {
        self.engine.submit(request, self.now).expect("the request is taken")
    }

    /// One step of a millisecond. False if nothing ran.
    pub fn step(&mut self) -> bool {
        let ran = testing::step(&mut self.engine, &mut self.executor, &mut self.now, Micros(1_000));
        self.engine.drain_events(&mut self.events);
        self.engine.check_invariants();
        ran
    }

    pub fn run(&mut self) {
        let events = testing::run(&mut self.engine, &mut self.executor, &mut self.now, 5_000);
        self.events.extend(events);
        self.engine.check_invariants();
    }

    /// Like `step`, with something done while the batch is in flight.
    pub fn step_with(&mut self, meanwhile: impl FnOnce(&mut Engine, Micros)) {
        let batch = self.engine.begin_step(self.now).expect("something runs");
        meanwhile(&mut self.engine, self.now);
        let mut output = StepOutput::default();
        let result = self.executor.execute(&batch, &mut output);
        self.now = self.now.plus(Micros(1_000));
        self.engine.finish_step(batch, result.map(|()| &output), self.now);
        self.engine.drain_events(&mut self.events);
        self.engine.check_invariants();
    }

    pub fn tokens(&self, of: SequenceId) -> Vec<u32> {
        let token = |e: &Event| match e {
            Event::Token { id, token, .. } if *id == of => Some(*token),
            _ => None,
        };
        self.events.iter().filter_map(token).collect()
    }

    /// Kinds of the faults so far.
    pub fn faults(&self) -> Vec<FaultKind> {
        let kind = |e: &Event| match e {
            Event::PolicyFault(fault) => Some(fault.fault.kind),
            _ => None,
        };
        self.events.iter().filter_map(kind).collect()
    }

    /// Policies that became live so far, by name.
    pub fn changes(&self) -> Vec<&str> {
        let name = |e: &'_ Event| match e {
            Event::PolicyChanged { to, .. } => Some(to.clone()),
            _ => None,
        };
        self.events.iter().filter_map(name).map(|n| &*n.leak()).collect()
    }

    pub fn swap_scheduler(
        &mut self,
        name: &'static str,
        schedule: impl FnMut(&StepView) -> Result<Plan, PolicyFault> + Send + 'static,
    ) -> infer_core::engine::SwapReport {
        self.engine.swap(AnyPolicy::Scheduler(Box::new(Scheduler(name, schedule))), self.now)
    }
}

/// `len` tokens that no other seed's prompt starts with.
pub fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (seed * 31 + i * (7 + seed)) % VOCAB).collect()
}

/// A greedy request.
pub fn request(prompt: Vec<u32>, max_new_tokens: u32) -> Request {
    testing::request(prompt, max_new_tokens)
}

/// The prefix event, cached and prefilled tokens of a sequence's start.
pub fn started(bench: &Bench, of: SequenceId) -> (PrefixEvent, u32, u32) {
    let found = bench.events.iter().find_map(|e| match e {
        Event::Started { id, prefix, cached_tokens, prefill_tokens, .. } if *id == of => {
            Some((*prefix, *cached_tokens, *prefill_tokens))
        }
        _ => None,
    });
    found.expect("it started")
}

/// A greedy request of a session.
pub fn of_session(session: u64, prompt: Vec<u32>, output: u32) -> Request {
    Request { session: SessionId(session), ..request(prompt, output) }
}

/// The built-ins with this prefix-cache policy.
pub fn scripted(answer: impl FnMut(Ask<'_>) -> Result<Say, PolicyFault> + Send + 'static) -> Policies {
    Policies { prefix_cache: Box::new(PrefixCache(answer)), ..Policies::builtin() }
}
