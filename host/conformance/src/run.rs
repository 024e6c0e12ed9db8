//! Whole runs of the real engine with the policy live, and what must hold in each of them.

use std::collections::BTreeMap;

use infer_core::engine::Policies;
use infer_core::policy::{AnyPolicy, CallStats, Fault, FaultView, PolicyKind, StepView};
use infer_core::testing::{self, ScriptedExecutor};
use infer_core::{Engine, Event, FinishReason, Micros, Request, SequenceId};

use crate::candidate::Candidate;
use crate::scenario::{self, Scenario, VOCAB};
use crate::sheet::{Check, Sheet};
use crate::transcript::{self, Exchange, Tape, Transcript};

/// Turns after which a run is abandoned. A load takes a few thousand; a scheduler that promises wakes for as
/// long as the watchdog allows is called every millisecond of that.
const MAX_TURNS: u64 = 200_000;

/// Fuel after which a run is abandoned: many seconds of a core. The shipped policies take at most a 300th.
const MAX_FUEL: u64 = 10_000_000_000;

/// The outcome of one load.
pub(crate) struct Run {
    pub name: &'static str,
    pub submitted: u64,
    /// Not ended when the run was given up.
    pub left: Vec<SequenceId>,
    /// Abandoned because its calls took this much in all.
    pub out_of_fuel: bool,
    pub steps: u64,
    /// Virtual time from start to end.
    pub lasted: Micros,
    /// Rows that did not fit in memory.
    pub cut_rows: u64,
    pub faults: Vec<Fault>,
    /// Of each live instance, in order.
    pub transcripts: Vec<Transcript>,
    pub stats: CallStats,
}

impl Run {
    /// All calls.
    pub fn exchanges(&self) -> impl Iterator<Item = &Exchange> {
        self.transcripts.iter().flat_map(|transcript| &transcript.exchanges)
    }
}

/// Plays every load with instances of the candidate.
pub(crate) fn play_all(candidate: &Candidate, seed: u64) -> Vec<Run> {
    scenario::all(seed).into_iter().map(|scenario| Player::new(candidate, scenario).play()).collect()
}

struct Player<'a> {
    candidate: &'a Candidate,
    scenario: Scenario,
    engine: Engine,
    executor: ScriptedExecutor,
    now: Micros,
    tapes: Vec<Tape>,
    /// Live requests, and when they are to be cancelled.
    alive: BTreeMap<SequenceId, Micros>,
    run: Run,
}

impl<'a> Player<'a> {
    fn new(candidate: &'a Candidate, scenario: Scenario) -> Self {
        let (mut policies, mut tapes) = (Policies::builtin(), Vec::new());
        if scenario.live_after.is_none() {
            let (policy, tape) = transcript::record(candidate.load());
            tapes.push(tape);
            match policy {
                AnyPolicy::Scheduler(policy) => policies.scheduler = policy,
                AnyPolicy::Admission(policy) => policies.admission = policy,
                AnyPolicy::PrefixCache(policy) => policies.prefix_cache = policy,
            }
        }
        let config = scenario.config.clone();
        let executor =
            ScriptedExecutor::new(config.block_size, config.total_blocks, config.prompt_cache_entries, VOCAB);
        let run = Run {
            name: scenario.name,
            submitted: 0,
            left: Vec::new(),
            out_of_fuel: false,
            steps: 0,
            lasted: Micros::ZERO,
            cut_rows: 0,
            faults: Vec::new(),
            transcripts: Vec::new(),
            stats: CallStats::default(),
        };
        Self {
            candidate,
            scenario,
            engine: Engine::new(config, policies),
            executor,
            now: Micros(1),
            tapes,
            alive: BTreeMap::new(),
            run,
        }
    }

    fn play(mut self) -> Run {
        let mut arrivals = std::mem::take(&mut self.scenario.arrivals).into_iter().peekable();
        let every = self.scenario.swap_every.unwrap_or(u64::MAX);
        let mut next_swap = self.scenario.live_after.unwrap_or(every);
        let last_fuel = self.candidate.fuel().saturating_add(MAX_FUEL);
        for _ in 0..MAX_TURNS {
            if self.candidate.fuel() > last_fuel {
                self.run.out_of_fuel = true;
                break;
            }
            while let Some((_, request)) = arrivals.next_if(|(at, _)| *at <= self.now) {
                self.submit(request);
            }
            if self.run.steps >= next_swap {
                next_swap = next_swap.saturating_add(every);
                self.swap();
            }
            self.cancel();
            if arrivals.peek().is_none() && !self.engine.has_work() {
                break;
            }
            self.turn(arrivals.peek().map(|(at, _)| *at));
        }
        self.run.left = self.alive.keys().copied().collect();
        self.run.lasted = self.now;
        let snapshot = self.engine.snapshot(self.now);
        self.run.cut_rows = snapshot.counters.cut_rows;
        drop(self.engine);
        self.run.transcripts = self.tapes.iter().map(transcript::take).collect();
        self.run.stats = self.run.transcripts.first().map(|t| t.stats).unwrap_or_default();
        self.run
    }

    fn submit(&mut self, request: Request) {
        self.run.submitted += 1;
        let rng = &mut self.scenario.rng;
        let cancelled = rng.chance(self.scenario.cancelled_percent);
        let cancel_at = if cancelled { self.now.plus(Micros(rng.below(1_500_000))) } else { Micros::NEVER };
        if let Ok(id) = self.engine.submit(request, self.now) {
            self.alive.insert(id, cancel_at);
        }
        self.collect();
    }

    fn cancel(&mut self) {
        let due: Vec<_> = self.alive.iter().filter(|(_, at)| **at <= self.now).map(|(id, _)| *id).collect();
        for id in due {
            self.engine.finish(id, FinishReason::Cancelled, self.now);
            self.alive.remove(&id);
        }
        self.collect();
    }

    /// A fresh instance takes over as on a host: it first receives every cached block, then becomes live.
    fn swap(&mut self) {
        let (mut policy, tape) = transcript::record(self.candidate.load());
        if let AnyPolicy::PrefixCache(policy) = &mut policy {
            // Its answer is ignored here; a fault recurs once it is live.
            let _ = policy.observe(&self.engine.begin_priming());
        }
        self.engine.swap(policy, self.now);
        self.tapes.push(tape);
        self.collect();
    }

    /// A step; if nothing can run, time advances to the next thing that may change that.
    fn turn(&mut self, next_arrival: Option<Micros>) {
        let stepped = testing::step(&mut self.engine, &mut self.executor, &mut self.now, self.scenario.step);
        self.run.steps += u64::from(stepped);
        if !stepped {
            let cancel = self.alive.values().copied().min().filter(|at| *at != Micros::NEVER);
            let next = [self.engine.next_wake(), next_arrival, cancel].into_iter().flatten().min();
            self.now = next.unwrap_or(self.now).max(self.now.plus(Micros(1)));
        }
        self.collect();
    }

    fn collect(&mut self) {
        let mut events = Vec::new();
        self.engine.drain_events(&mut events);
        for event in events {
            match event {
                Event::Finished { id, .. } | Event::Failed { id, .. } | Event::Refused { id, .. } => {
                    self.alive.remove(&id);
                }
                Event::PolicyFault(fault) if fault.slot == self.candidate.kind => {
                    self.run.faults.push(*fault);
                }
                _ => {}
            }
        }
    }
}

/// What holds for policies of every kind: no fault, and every request ends.
pub(crate) fn judge(runs: &[Run], kind: PolicyKind, sheet: &mut Sheet) {
    for run in runs {
        for fault in &run.faults {
            sheet.fail(Check::Runs.of_fault(fault.fault.kind), || {
                let seen = essence(&fault.view);
                format!("run `{}`, step {}: {}{seen}", run.name, fault.step, fault.fault)
            });
        }
        if run.out_of_fuel {
            sheet.fail(Check::Fuel, || {
                format!("run `{}`: abandoned, because its calls took over {MAX_FUEL} units in all", run.name)
            });
        } else if let Some(id) = run.left.first() {
            sheet.fail(Check::Progress, || {
                format!(
                    "run `{}`: {} of {} requests never ended, sequence {} among them",
                    run.name,
                    run.left.len(),
                    run.submitted,
                    id.0
                )
            });
        }
    }
    let sum = |number: fn(&Run) -> u64| runs.iter().map(number).sum::<u64>();
    let (requests, steps) = (sum(|run| run.submitted), sum(|run| run.steps));
    let calls = sum(|run| run.exchanges().count() as u64);
    let faults = match sum(|run| run.faults.len() as u64) {
        0 => format!("no {kind} fault"),
        1 => "1 fault, see below".to_owned(),
        count => format!("{count} faults, see below"),
    };
    sheet.done(
        Check::Runs,
        format!(
            "{} loads through the engine, {requests} requests, {steps} steps, {calls} calls: {faults}",
            runs.len()
        ),
    );
    if runs.iter().all(|run| run.left.is_empty()) {
        sheet.done(Check::Progress, "every request ended, and the watchdog did not intervene");
    } else {
        // A failure outweighs it.
        sheet.note(Check::Progress, "unknown: a run was abandoned before its requests had ended");
    }
}

/// The part of a policy's view that helps a person understand what it did.
fn essence(view: &FaultView) -> String {
    match view {
        FaultView::Schedule(view) => format!("; it was shown {}", scene(view)),
        FaultView::Admit(request, load) => format!("; it was asked about {request:?} under {load:?}"),
        FaultView::Measure(load) => format!("; it was shown {load:?}"),
        FaultView::Reuse(hit) => format!("; it was asked about {hit:?}"),
        FaultView::Retain(ended) => format!("; it was asked about {ended:?}"),
        FaultView::Observe(events) => format!("; it received {} events", events.len()),
        FaultView::Evict { need, .. } => format!("; {need} blocks were needed"),
        FaultView::Lifecycle => String::new(),
    }
}

/// A step in one line.
pub(crate) fn scene(view: &StepView) -> String {
    let (limits, memory) = (view.limits, view.memory);
    format!(
        "{} running and {} waiting, {} free and {} cached of {} blocks, limits of {} tokens, {} running, {} \
         prompts and {} prompt tokens in chunks of {}",
        view.running.len(),
        view.waiting.len(),
        memory.free_blocks,
        memory.cached_blocks,
        memory.total_blocks,
        limits.max_batch_tokens,
        limits.max_running,
        limits.max_prefill_sequences,
        limits.max_prefill_tokens,
        limits.prefill_chunk,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Outcome;

    #[test]
    fn an_abandoned_run_does_not_judge_unfinished_requests() {
        let run = |left: &[u64]| Run {
            name: "abandoned",
            submitted: 3,
            left: left.iter().map(|&id| SequenceId(id)).collect(),
            out_of_fuel: !left.is_empty(),
            steps: 1,
            lasted: Micros(1),
            cut_rows: 0,
            faults: Vec::new(),
            transcripts: Vec::new(),
            stats: CallStats::default(),
        };
        let progress = |runs: &[Run]| {
            let mut sheet = Sheet::default();
            judge(runs, PolicyKind::Scheduler, &mut sheet);
            let lines = sheet.lines();
            lines.iter().find(|line| line.check == "progress").expect("it is judged").outcome
        };
        assert_eq!(progress(&[run(&[])]), Outcome::Ok);
        assert_eq!(progress(&[run(&[]), run(&[2])]), Outcome::Note);
    }
}
