//! A host under a load that varies in virtual time: steps cost what they compute, requests come in bursts,
//! and a few of them are very long.

use std::collections::BTreeMap;

use infer_core::engine::Policies;
use infer_core::policy::SchedulerPolicy;
use infer_core::testing::{SplitMix, solo};
use infer_core::{EngineConfig, Event, Executor, Limits, Micros, Request, SequenceId, StepOutput, TenantId};

use super::scripted::{Bench, VOCAB, request};

/// The arriving requests.
#[derive(Clone, Copy)]
pub struct Traffic {
    /// Requests per second in a quiet time, and in a burst.
    pub rates: [f64; 2],
    /// Mean length of a quiet time and of a burst, in seconds.
    pub spells_s: [f64; 2],
    /// Requests per second that are added for each second that has passed.
    pub rise: f64,
}

impl Traffic {
    /// A third of what the device can do on average, four times that in bursts.
    pub const BURSTS: Self = Self { rates: [6.0, 40.0], spells_s: [2.0, 0.7], rise: 0.0 };
    /// Most of what the device can do, all the time.
    pub const HEAVY: Self = Self { rates: [60.0, 60.0], spells_s: [1.0, 1.0], rise: 0.0 };
    /// More than the device can do.
    pub const OVERLOAD: Self = Self { rates: [160.0, 160.0], spells_s: [1.0, 1.0], rise: 0.0 };
}

pub struct Site {
    pub bench: Bench,
    pub requests: Vec<(SequenceId, Request)>,
    /// Requests that were refused.
    pub refused: usize,
    pub traffic: Traffic,
    rng: SplitMix,
    next_arrival: Micros,
    burst: usize,
    spell_ends: Micros,
}

pub fn config() -> EngineConfig {
    EngineConfig {
        limits: Limits {
            max_batch_tokens: 256,
            max_running: 16,
            prefill_chunk: 64,
            max_prefill_sequences: 4,
            max_prefill_tokens: 128,
        },
        block_size: 16,
        total_blocks: 512,
        max_waiting: 10_000,
        max_seq_len: 600,
        starvation_bound: Micros(1_000_000),
        ..EngineConfig::default()
    }
}

impl Site {
    pub fn new(seed: u64, traffic: Traffic, scheduler: impl SchedulerPolicy + 'static) -> Self {
        let policies = Policies { scheduler: Box::new(scheduler), ..Policies::builtin() };
        Self {
            bench: Bench::with(config(), policies),
            requests: Vec::new(),
            refused: 0,
            rng: SplitMix(seed),
            traffic,
            next_arrival: Micros(1_000),
            burst: 0,
            spell_ends: Micros(0),
        }
    }

    /// Serves until `seconds` have passed, or nothing is left to do before the next request.
    pub fn serve(&mut self, seconds: f64) {
        let end = self.bench.now.plus(Micros((seconds * 1e6) as u64));
        while self.bench.now < end {
            self.take_in();
            if !self.step() {
                let wake = self.bench.engine.next_wake().unwrap_or(Micros::NEVER);
                self.bench.now = wake.min(self.next_arrival).min(end).max(self.bench.now.plus(Micros(1)));
            }
        }
    }

    /// No more requests arrive; serves the remaining ones to their end.
    pub fn finish(&mut self) {
        self.next_arrival = Micros::NEVER;
        let mut rounds = 0;
        while self.bench.engine.has_work() {
            self.serve(1.0);
            rounds += 1;
            assert!(rounds < 1_000, "something hangs");
        }
    }

    /// Asserts that every request ended with the tokens that it gets alone.
    pub fn check_streams(&self) {
        let mut streams = BTreeMap::<SequenceId, Vec<u32>>::new();
        let mut finished = 0;
        for event in &self.bench.events {
            match event {
                Event::Token { id, token, .. } => streams.entry(*id).or_default().push(*token),
                Event::Finished { .. } => finished += 1,
                Event::Failed { message, .. } => panic!("a request failed: {message}"),
                Event::Refused { refusal, .. } => panic!("a request was refused: {}", refusal.message),
                _ => {}
            }
        }
        assert_eq!((finished, self.refused), (self.requests.len(), 0));
        for (id, request) in &self.requests {
            assert_eq!(streams[id], solo(request, VOCAB), "{id:?}");
        }
    }

    fn take_in(&mut self) {
        while self.next_arrival <= self.bench.now {
            let at = self.next_arrival;
            let request = self.request();
            match self.bench.engine.submit(request.clone(), self.bench.now) {
                Ok(id) => self.requests.push((id, request)),
                Err(_) => self.refused += 1,
            }
            while self.spell_ends <= at {
                self.burst = 1 - self.burst;
                let mean = self.traffic.spells_s[self.burst];
                self.spell_ends = self.spell_ends.plus(self.exponential(mean));
            }
            let rate = self.traffic.rates[self.burst] + self.traffic.rise * at.0 as f64 / 1e6;
            self.next_arrival = at.plus(self.exponential(1.0 / rate));
        }
    }

    /// Mostly short, a few very long: Pareto with index 1.3, cut off.
    fn request(&mut self) -> Request {
        let prompt = self.pareto(12.0, 400.0);
        let output = self.pareto(8.0, 150.0);
        let salt = self.rng.below(1 << 20) as u32;
        let prompt = (0..prompt).map(|i| (salt ^ i.wrapping_mul(7)) % VOCAB).collect();
        Request { tenant: TenantId(self.rng.below(3) as u32), ..request(prompt, output) }
    }

    fn pareto(&mut self, least: f64, most: f64) -> u32 {
        (least / self.uniform().powf(1.0 / 1.3)).min(most) as u32
    }

    fn exponential(&mut self, mean_s: f64) -> Micros {
        Micros((-self.uniform().ln() * mean_s * 1e6) as u64)
    }

    /// In (0, 1].
    fn uniform(&mut self) -> f64 {
        (self.rng.below(1 << 52) + 1) as f64 / (1u64 << 52) as f64
    }

    /// One step: two milliseconds, and more for each decode and each prompt token.
    fn step(&mut self) -> bool {
        let bench = &mut self.bench;
        let batch = bench.engine.begin_step(bench.now);
        bench.engine.drain_events(&mut bench.events);
        let Some(batch) = batch else { return false };
        let mut output = StepOutput::default();
        let result = bench.executor.execute(&batch, &mut output);
        let cost = 2_000 + 100 * batch.rows.len() as u64 + 30 * batch.tokens.len() as u64;
        bench.now = bench.now.plus(Micros(cost));
        bench.engine.finish_step(batch, result.map(|()| &output), bench.now);
        bench.engine.drain_events(&mut bench.events);
        bench.engine.check_invariants();
        true
    }
}
