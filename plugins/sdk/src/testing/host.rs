//! A host in miniature: checks and applies plans, counts blocks. How long an output will be is no more known to the
//! policy than on a real host, unless a scenario says so. Deliberately absent: the content of tokens.

mod scenario;
mod sequence;
mod view;

use std::collections::BTreeMap;

pub use scenario::{Finished, Report, Spec};
use sequence::Sequence;

use super::outputs::Outputs;
use super::pool::{Held, Pool};
use super::rules::check_plan;
use crate::{Limits, Micros, Plan, Scheduler, SequenceId};

/// The host. A step takes `step_time`, and more for each decode and prompt token if that is set.
#[derive(Clone, Debug)]
pub struct Host {
    /// Limits that it shows and checks.
    pub limits: Limits,
    /// How long a step takes.
    pub step_time: Micros,
    /// What each decode adds to it.
    pub decode_time: Micros,
    /// What each prompt token adds to it.
    pub prompt_token_time: Micros,
    /// The bound that it shows.
    pub starvation_bound: Micros,
    /// Weights of tenants, if not 1000 permille.
    pub weights_permille: BTreeMap<u32, u32>,
    now: Micros,
    number: u64,
    last_step: Micros,
    last_prefill_tokens: u32,
    last_decodes: u32,
    idle_since: Micros,
    pool: Pool,
    /// Prompt and output tokens that each tenant was served.
    served: BTreeMap<u32, (u64, u64)>,
    outputs: Outputs,
    /// Since when tenants have been overtaken.
    passed: BTreeMap<u32, Micros>,
    arriving: Vec<(SequenceId, Spec)>,
    waiting: Vec<Sequence>,
    running: Vec<Sequence>,
    report: Report,
}

impl Host {
    /// A host with nothing to do.
    pub fn new(limits: Limits, block_size: u32, total_blocks: u32) -> Self {
        Self {
            limits,
            step_time: Micros::from_millis(1),
            decode_time: Micros::ZERO,
            prompt_token_time: Micros::ZERO,
            starvation_bound: Micros::from_millis(5_000),
            weights_permille: BTreeMap::new(),
            now: Micros::ZERO,
            number: 0,
            last_step: Micros::ZERO,
            last_prefill_tokens: 0,
            last_decodes: 0,
            idle_since: Micros::ZERO,
            pool: Pool::new(block_size, total_blocks),
            served: BTreeMap::new(),
            outputs: Outputs::default(),
            passed: BTreeMap::new(),
            arriving: Vec::new(),
            waiting: Vec::new(),
            running: Vec::new(),
            report: Report::default(),
        }
    }

    /// Runs a scenario to its end, or returns what the scheduler did wrong. The first request is sequence 1.
    pub fn run(mut self, scheduler: &mut impl Scheduler, specs: &[Spec]) -> Result<Report, String> {
        self.arriving = specs.iter().zip(1..).map(|(spec, id)| (SequenceId(id), *spec)).collect();
        self.arriving.sort_by_key(|(_, spec)| spec.arrived);
        let mut asked = 0u64;
        let work: u64 =
            specs.iter().map(|spec| u64::from(spec.prompt_tokens) + u64::from(spec.output_tokens)).sum();
        while self.report.finished.len() < specs.len() {
            asked += 1;
            if asked > 1_000 + 100 * work {
                return Err(format!("requests are left after {asked} steps: {self:?}"));
            }
            self.arrive();
            let step = self.view();
            let plan = scheduler.schedule(&step);
            check_plan(&step, &plan).map_err(|rule| format!("{rule}: {plan:?} for {step:?}"))?;
            if !self.apply(&plan) {
                let next = self.arriving.first().map_or(Micros::NEVER, |(_, spec)| spec.arrived);
                let woken = plan.wake.min(next);
                if woken == Micros::NEVER || woken <= self.now {
                    return Err(format!("nothing runs and nothing will: {plan:?} for {step:?}"));
                }
                self.now = woken;
            }
        }
        Ok(self.report)
    }

    /// Adds a request that arrives now. Panics if it could never end.
    pub fn submit(&mut self, id: u64, spec: Spec) {
        assert!(spec.prompt_tokens > 0, "request {id} needs a prompt: {spec:?}");
        let ends = (1..=spec.max_new_tokens).contains(&spec.output_tokens);
        assert!(ends, "request {id} must end after 1 to `max_new_tokens` tokens: {spec:?}");
        self.served.entry(spec.tenant).or_default();
        let expected = spec.expected_tokens.unwrap_or_else(|| self.outputs.expected(spec.tenant));
        self.waiting.push(Sequence {
            id: SequenceId(id),
            spec,
            held: Held::default(),
            computed: 0,
            generated: 0,
            expected: expected.clamp(1, spec.max_new_tokens),
            preemptions: 0,
            started: Micros::NEVER,
            first_token: Micros::NEVER,
            overtaken: None,
            paused: 0,
        });
    }

    /// Lets time pass.
    pub fn advance(&mut self, duration: Micros) {
        self.now = self.now.plus(duration);
    }

    /// Now.
    pub fn now(&self) -> Micros {
        self.now
    }

    /// What happened so far.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Carries a checked plan out: preempts, reserves in order, cuts what doesn't fit, computes. Returns
    /// whether anything was computed.
    pub fn apply(&mut self, plan: &Plan) -> bool {
        for id in &plan.preempt {
            self.preempt(*id);
        }
        let mut computed = Vec::new();
        self.note_overtaken(plan);
        for (place, (id, &tokens)) in plan.run.iter().zip(&plan.tokens).enumerate() {
            if !self.reserve(*id, tokens) {
                self.report.cut += (plan.run.len() - place) as u64;
                break;
            }
            computed.push((*id, tokens));
        }
        if computed.is_empty() {
            return false;
        }
        self.number += 1;
        self.report.steps += 1;
        self.pass_step(&computed);
        for sequence in &mut self.running {
            let tokens = computed.iter().find(|(id, _)| *id == sequence.id).map(|(_, tokens)| *tokens);
            sequence.paused = if tokens.is_some() { 0 } else { sequence.paused + 1 };
            self.report.longest_pause = self.report.longest_pause.max(sequence.paused);
            if let Some(tokens) = tokens {
                let generated = sequence.generated;
                let prompt_tokens = if sequence.decodes() { 0 } else { tokens };
                sequence.compute(tokens, &mut self.pool, self.now);
                let served = self.served.entry(sequence.spec.tenant).or_default();
                served.0 += u64::from(prompt_tokens);
                served.1 += u64::from(sequence.generated - generated);
                self.report.tokens += u64::from(tokens);
            }
        }
        self.retire();
        self.pool.check(self.running.iter().map(|sequence| &sequence.held));
        true
    }

    /// Lets a step's time pass.
    fn pass_step(&mut self, computed: &[(SequenceId, u32)]) {
        (self.last_prefill_tokens, self.last_decodes) = (0, 0);
        for (id, tokens) in computed {
            let decodes = self.running.iter().any(|sequence| sequence.id == *id && sequence.decodes());
            self.last_decodes += u32::from(decodes);
            self.last_prefill_tokens += if decodes { 0 } else { *tokens };
        }
        let decodes = self.decode_time.0 * u64::from(self.last_decodes);
        let prompts = self.prompt_token_time.0 * u64::from(self.last_prefill_tokens);
        self.last_step = self.step_time.plus(Micros(decodes + prompts));
        self.now = self.now.plus(self.last_step);
    }

    fn arrive(&mut self) {
        while let Some((id, spec)) =
            self.arriving.first().copied().filter(|(_, spec)| spec.arrived <= self.now)
        {
            self.arriving.remove(0);
            self.submit(id.0, spec);
        }
    }

    fn preempt(&mut self, id: SequenceId) {
        let place = self.running.iter().position(|s| s.id == id).expect("the plan was checked");
        let mut sequence = self.running.remove(place);
        self.pool.release(&sequence.held);
        sequence.held = Held::default();
        sequence.computed = 0;
        sequence.preemptions += 1;
        sequence.paused = 0;
        self.report.preemptions += 1;
        let behind = self.waiting.iter().take_while(|s| s.preemptions > 0 && s.id < sequence.id).count();
        self.waiting.insert(behind, sequence);
        if self.running.is_empty() {
            self.idle_since = self.now;
        }
    }

    fn reserve(&mut self, id: SequenceId, tokens: u32) -> bool {
        if let Some(place) = self.waiting.iter().position(|s| s.id == id) {
            let mut sequence = self.waiting[place].clone();
            sequence.held = match sequence.spec.shared {
                Some((prefix, _)) => self.pool.pin(prefix, sequence.shareable(self.pool.block_size)),
                None => Held::default(),
            };
            sequence.computed = sequence.held.shared * self.pool.block_size;
            sequence.started = sequence.started.min(self.now);
            sequence.overtaken = None;
            if !sequence.grow(tokens, &mut self.pool) {
                self.pool.release(&sequence.held);
                return false;
            }
            self.waiting.remove(place);
            self.running.push(sequence);
            return true;
        }
        let sequence = self.running.iter_mut().find(|s| s.id == id).expect("the plan was checked");
        sequence.grow(tokens, &mut self.pool)
    }

    fn retire(&mut self) {
        let (ended, running): (Vec<_>, Vec<_>) = std::mem::take(&mut self.running)
            .into_iter()
            .partition(|sequence| sequence.generated >= sequence.spec.output_tokens);
        self.running = running;
        for sequence in ended {
            self.pool.release(&sequence.held);
            self.outputs.learn(sequence.spec.tenant, sequence.generated);
            self.report.finished.push(Finished {
                id: sequence.id,
                arrived: sequence.spec.arrived,
                started: sequence.started,
                first_token: sequence.first_token,
                ended: self.now,
                preemptions: sequence.preemptions,
            });
        }
        if self.running.is_empty() {
            self.idle_since = self.now;
        }
    }

    /// Notes which sequences a plan overtakes. A sequence that waits for a prefix being computed is better
    /// off waiting.
    fn note_overtaken(&mut self, plan: &Plan) {
        let starts = |id: SequenceId| plan.run.contains(&id);
        for served in &self.running {
            self.passed.remove(&served.spec.tenant);
        }
        let started: Vec<_> = self.waiting.iter().filter(|s| starts(s.id)).map(|s| (s.id, s.spec)).collect();
        for (_, spec) in &started {
            self.passed.remove(&spec.tenant);
        }
        for at in 0..self.waiting.len() {
            let waiting = &self.waiting[at];
            if starts(waiting.id) || self.waiting_row(waiting).pending_tokens > 0 {
                continue;
            }
            let (id, spec) = (waiting.id, waiting.spec);
            let by = |own: bool| {
                started.iter().any(|(other, of)| {
                    *other > id && of.priority <= spec.priority && (of.tenant == spec.tenant) == own
                })
            };
            let since = if by(true) {
                *self.waiting[at].overtaken.get_or_insert(self.now)
            } else if by(false) {
                *self.passed.entry(spec.tenant).or_insert(self.now)
            } else {
                continue;
            };
            self.report.longest_overtaken = self.report.longest_overtaken.max(self.now.since(since));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::limits;

    /// What is expected of each waiting or running sequence, by id.
    fn expected(host: &Host) -> Vec<(u64, u32)> {
        let view = host.view();
        let rows = view.running.iter().chain(view.waiting.iter());
        rows.map(|sequence| (sequence.id().0, sequence.expected_tokens())).collect()
    }

    fn spec(tenant: u32, output_tokens: u32) -> Spec {
        Spec { tenant, prompt_tokens: 4, output_tokens, max_new_tokens: 100, ..Spec::default() }
    }

    fn run_alone(host: &mut Host, id: u64, spec: Spec) {
        host.submit(id, spec);
        host.apply(&Plan { run: vec![SequenceId(id)], tokens: vec![4], ..Plan::default() });
        for _ in 1..spec.output_tokens {
            host.apply(&Plan { run: vec![SequenceId(id)], tokens: vec![1], ..Plan::default() });
        }
        assert_eq!(host.report().of(id).id.0, id);
    }

    #[test]
    fn expected_outputs_are_learned_by_tenant_and_limited_by_the_request() {
        let mut host = Host::new(limits(), 16, 100);
        host.submit(1, spec(1, 7));
        assert_eq!(expected(&host), [(1, 100)], "nothing is known");
        run_alone(&mut host, 2, spec(1, 20));
        run_alone(&mut host, 3, spec(2, 36));
        host.submit(4, spec(1, 7));
        host.submit(5, spec(2, 7));
        host.submit(6, spec(3, 7));
        host.submit(7, Spec { max_new_tokens: 9, ..spec(2, 7) });
        host.submit(8, Spec { expected_tokens: Some(50), ..spec(2, 7) });
        // A sixteenth of the second length replaces as much of the mean of all.
        assert_eq!(expected(&host), [(1, 100), (4, 20), (5, 36), (6, 21), (7, 9), (8, 50)]);
    }

    #[test]
    fn expected_output_doubles_when_it_is_reached() {
        let mut host = Host::new(limits(), 16, 100);
        let spec = Spec { expected_tokens: Some(2), max_new_tokens: 7, ..spec(1, 7) };
        host.submit(1, spec);
        let mut seen = Vec::new();
        for tokens in [4, 1, 1, 1, 1, 1] {
            host.apply(&Plan { run: vec![SequenceId(1)], tokens: vec![tokens], ..Plan::default() });
            seen.extend(expected(&host).into_iter().map(|(_, expected)| expected));
        }
        assert_eq!(seen, [2, 4, 4, 7, 7, 7]);
    }
}
