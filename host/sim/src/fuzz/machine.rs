//! Plays a case: drives a real engine as the host's thread does, and checks after each operation.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use infer_core::engine::Policies;
use infer_core::policy::{AnyPolicy, FaultKind, PolicyKind};
use infer_core::request::RefusalReason;
use infer_core::snapshot::Counters;
use infer_core::testing::SplitMix;
use infer_core::{
    Batch, Change, DeviceFault, DeviceFaultKind, Engine, Event, Executor as _, FinishReason, Micros,
    SequenceId, StepOutput, TenantId, TenantTerms,
};

use super::case::{Ask, Case, Mode, Op, Script, Setup, Slot, Style, Trouble};
use super::clients::Clients;
use super::inspector::Inspector;
use super::ledger::Ledger;
use super::patience::Patience;
use super::policies;
use super::report::Reached;

/// Turns in which everything that is left must end. Whoever hangs hangs for longer.
const LAST_TURNS: u32 = 30_000;
/// How long a canary of a case is watched.
const WINDOW: Micros = Micros(500_000);

/// A policy from outside, which a case names by its place.
pub struct Outsider<'a> {
    /// What makes it, as in `Setup::outsiders`.
    pub name: String,
    /// Makes an instance; called on the thread that plays the case.
    pub make: Box<dyn Fn() -> AnyPolicy + Sync + 'a>,
}

/// What is checked besides the machine's own books.
#[derive(Clone, Copy, Debug)]
pub struct Checks {
    /// The engine's own assertions about itself.
    pub own: bool,
}

impl Default for Checks {
    fn default() -> Self {
        Self { own: true }
    }
}

/// A case that was played to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Operations and turns after them.
    pub steps: u64,
    /// Batches that the device computed.
    pub batches: u64,
    /// A number that depends on everything that happened.
    pub fingerprint: u64,
    /// What happened.
    pub reached: Reached,
}

/// Something that must not happen did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// After how many operations; more than there are where it was found while everything came to its end.
    pub step: u64,
    /// What.
    pub message: String,
    /// The assertion's file and line. Two violations with the same place are taken for the same.
    pub place: String,
}

/// Plays a case.
pub fn play(case: &Case, outsiders: &[Outsider<'_>], checks: Checks) -> Result<Outcome, Violation> {
    let steps = Cell::new(0);
    let run = || {
        let mut machine = Machine::new(&case.setup, outsiders, checks);
        for op in &case.ops {
            steps.set(steps.get() + 1);
            machine.perform(op);
        }
        machine.wind_up(|| steps.set(steps.get() + 1));
        machine.outcome(steps.get())
    };
    watch(run).map_err(|(message, place)| Violation { step: steps.get(), message, place })
}

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `run` and turns a panic into its message and place, quietly.
fn watch<T>(run: impl FnOnce() -> T) -> Result<T, (String, String)> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if WATCHED.get() {
                let place = info.location().map_or_else(String::new, ToString::to_string);
                PLACE.with_borrow_mut(|text| *text = place);
            } else {
                loud(info);
            }
        }));
    });
    WATCHED.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    WATCHED.set(false);
    outcome.map_err(|panic| (text_of(&*panic), PLACE.take()))
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}

struct Machine<'a> {
    engine: Engine,
    inspector: Inspector,
    clients: Clients,
    ledger: Ledger,
    patience: Patience,
    setup: &'a Setup,
    outsiders: &'a [Outsider<'a>],
    checks: Checks,
    /// The driver's clock, and the latest time that the engine was told.
    now: Micros,
    clock: Micros,
    out: Option<Batch>,
    trouble: Option<Trouble>,
    output: StepOutput,
    events: Vec<Event>,
    batches: u64,
    draining: bool,
    /// The engine's own scheduler stands in for one that was taken out.
    aided: bool,
}

impl<'a> Machine<'a> {
    fn new(setup: &'a Setup, outsiders: &'a [Outsider<'a>], checks: Checks) -> Self {
        let mut slots = Policies::builtin();
        for script in &setup.policies {
            match make(script, outsiders, None) {
                AnyPolicy::Scheduler(policy) => slots.scheduler = policy,
                AnyPolicy::Admission(policy) => slots.admission = policy,
                AnyPolicy::PrefixCache(policy) => slots.prefix_cache = policy,
            }
        }
        Self {
            engine: Engine::new(setup.engine(), slots),
            inspector: Inspector::new(setup),
            clients: Clients::new(setup),
            ledger: Ledger::default(),
            patience: Patience::new(Micros(setup.starvation_bound_us)),
            setup,
            outsiders,
            checks,
            now: Micros(1),
            clock: Micros(1),
            out: None,
            trouble: None,
            output: StepOutput::default(),
            events: Vec::new(),
            batches: 0,
            draining: false,
            aided: false,
        }
    }

    fn perform(&mut self, op: &Op) {
        if !matches!(op, Op::Step { .. }) {
            self.patience.disturbed();
        }
        match op {
            Op::Submit(ask) => self.submit(ask),
            Op::Cancel { pick } => self.finish(*pick, FinishReason::Cancelled),
            Op::Stop { pick } => self.finish(*pick, FinishReason::Stop),
            Op::Begin => {
                self.begin();
            }
            Op::Step { us } => self.step(*us),
            Op::Wait { us } => {
                self.end(*us);
                let wake = self.engine.next_wake().unwrap_or(Micros::NEVER);
                self.pass(u64::from(*us).min(wake.since(self.now).0));
            }
            Op::Jump { us } => self.pass(*us),
            Op::Back { us } => self.now = Micros(self.now.0.saturating_sub(*us)),
            Op::Fault { trouble } => self.trouble = Some(trouble.clone()),
            Op::Swap { script, mode } => self.swap(script, *mode),
            Op::Promote { slot } => self.between(|engine, now| drop(engine.promote(slot.kind(), now))),
            Op::StopShadow { slot } => self.between(|engine, now| drop(engine.stop_shadow(slot.kind(), now))),
            Op::Rollback { slot } => self.between(|engine, now| drop(engine.rollback(slot.kind(), now))),
            Op::ClearQueue => self.clear_queue(),
            Op::Drain => {
                self.engine.drain();
                self.draining = true;
            }
            Op::Report => self.report(),
            Op::Terms { seed } => self.grant(SplitMix(*seed)),
        }
        self.check();
    }

    /// The time as the engine is told it.
    fn tell(&mut self) -> Micros {
        self.clock = self.clock.max(self.now);
        self.now
    }

    fn pass(&mut self, us: u64) {
        self.now = self.now.plus(Micros(us));
    }

    fn submit(&mut self, ask: &Ask) {
        let request = self.clients.request(ask, self.now);
        let due = self.refusal_due(request.prompt.len(), request.max_new_tokens as usize);
        let now = self.tell();
        match self.engine.submit(request.clone(), now) {
            Ok(id) => {
                assert_eq!(due, None, "a request was taken that can't be");
                self.clients.taken(id, ask, request);
            }
            Err(refusal) => {
                assert!(due.is_none_or(|due| due == refusal.reason), "{refusal:?}, not {due:?}");
                self.clients.refused(&refusal);
            }
        }
        self.drain();
    }

    /// Why the engine must refuse, whatever admission says.
    fn refusal_due(&self, prompt: usize, output: usize) -> Option<RefusalReason> {
        let blocks = (prompt + output).saturating_sub(1).div_ceil(self.setup.block_size as usize);
        if self.draining {
            Some(RefusalReason::Draining)
        } else if prompt == 0 || output == 0 {
            Some(RefusalReason::Other)
        } else if prompt + output > self.setup.max_seq_len as usize {
            Some(RefusalReason::TooLong)
        } else if blocks > self.setup.total_blocks as usize {
            Some(RefusalReason::Memory)
        } else if self.clients.queued() >= self.setup.max_waiting {
            Some(RefusalReason::QueueFull)
        } else {
            None
        }
    }

    fn finish(&mut self, pick: u32, reason: FinishReason) {
        let Some(id) = self.clients.pick(pick) else { return };
        self.end_request(id, reason);
        self.drain();
        assert!(self.clients.get(id).is_none(), "{id:?} was to end and hasn't");
    }

    fn end_request(&mut self, id: SequenceId, reason: FinishReason) {
        self.clients.get_mut(id).expect("it is alive").asked = Some(reason);
        let now = self.tell();
        assert!(self.engine.finish(id, reason, now), "{id:?} is alive");
        assert!(!self.engine.finish(id, reason, now), "{id:?} has ended");
        self.clients.reached.ended_in_flight += u64::from(self.out.is_some());
    }

    fn clear_queue(&mut self) {
        // Those that were preempted wait too; which these are is the engine's knowledge.
        for id in self.clients.live().keys().copied().collect::<Vec<_>>() {
            if self.ledger.table(id).is_empty() {
                self.clients.get_mut(id).expect("it is alive").doomed = true;
            }
        }
        let before = self.clients.live().len();
        let now = self.tell();
        let cleared = self.engine.clear_queue("the operator cleared the queue", now);
        self.drain();
        assert_eq!(before - self.clients.live().len(), cleared, "requests that were cleared");
        assert!(self.clients.live().values().all(|client| !client.doomed), "one that waits was spared");
    }

    fn grant(&mut self, mut dice: SplitMix) {
        let tenants = 0..dice.below(5) as u32;
        let terms: Vec<_> = tenants
            .map(|tenant| {
                let weight_permille = dice.below(4_000) as u32;
                let (rate_per_minute, burst) = (dice.next_u64() as u32, dice.next_u64() as u32);
                (TenantId(tenant), TenantTerms { weight_permille, rate_per_minute, burst })
            })
            .collect();
        self.engine.set_tenants(&terms);
    }

    /// What may only happen while no batch is out.
    fn between(&mut self, change: impl FnOnce(&mut Engine, Micros)) {
        self.end(1_000);
        let now = self.tell();
        change(&mut self.engine, now);
        self.drain();
    }

    fn swap(&mut self, script: &Script, mode: Mode) {
        self.end(1_000);
        let primed = mode == Mode::Primed && script.slot == Slot::PrefixCache;
        let cached = primed.then(|| self.engine.begin_priming());
        if primed && script.seed.is_multiple_of(2) {
            // It takes its time over what it is told.
            self.step(500);
            self.end(1_000);
        }
        let policy = make(script, self.outsiders, cached.as_ref());
        let now = self.tell();
        match mode {
            Mode::Now | Mode::Primed => drop(self.engine.swap(policy, now)),
            Mode::Shadow => drop(self.engine.shadow(policy, now)),
            Mode::Canary => drop(self.engine.canary(policy, WINDOW, now)),
        }
        self.drain();
    }

    fn step(&mut self, us: u32) {
        if self.out.is_none() && !self.begin() {
            let wake = self.engine.next_wake();
            let until = self.patience.sleeps(self.clock, wake, self.engine.has_work());
            self.pass(until.since(self.now).0);
            self.clients.reached.slept += 1;
            return;
        }
        self.end(us);
    }

    /// Makes a batch, if none is out. True where one is out.
    fn begin(&mut self) -> bool {
        if self.out.is_some() {
            return true;
        }
        self.clients.read(self.batches);
        let now = self.tell();
        let batch = self.engine.begin_step(now);
        self.drain();
        let Some(batch) = batch else { return false };
        self.batches += 1;
        self.ledger.update(&self.engine, &self.clients, false);
        self.inspector.check(&batch, &self.clients, &self.ledger);
        self.patience.begins(&batch, &self.ledger, self.clock, self.aided);
        self.ledger.remember(&self.clients);
        self.clients.reached.copies += u64::from(!batch.copies.is_empty());
        self.clients.reached.answered +=
            batch.rows.iter().filter(|row| row.logits_from.is_some()).count() as u64;
        self.out = Some(batch);
        true
    }

    /// The device computes the batch that is out, if there is one.
    fn end(&mut self, us: u32) {
        let Some(batch) = self.out.take() else { return };
        let failed = self.compute(&batch);
        let alive: Vec<(SequenceId, usize, bool)> = batch
            .rows
            .iter()
            .filter_map(|row| Some((row.sequence, self.clients.get(row.sequence)?.got, row.sample)))
            .collect();
        let doomed = |clients: &Clients, id| clients.get(id).is_some_and(|client| client.doomed);
        self.pass(us.into());
        let spared = failed.is_some();
        let now = self.tell();
        let result = failed.map_or(Ok(&self.output), Err);
        self.engine.finish_step(batch, result, now);
        self.drain();
        for (id, got, sample) in alive {
            assert!(!doomed(&self.clients, id), "{id:?} lives on though the device failed it");
            let due = got + usize::from(sample && !spared);
            let had = self.clients.get(id).map(|client| client.got);
            assert!(
                had.is_none_or(|had| had == due),
                "{id:?} has {had:?} tokens after a batch, {due} are due"
            );
        }
    }

    /// Computes a batch; marks whom the device fails.
    fn compute(&mut self, batch: &Batch) -> Option<DeviceFault> {
        let trouble = self.trouble.take();
        let fault = |kind, rows| DeviceFault { kind, message: "the device failed".to_owned(), rows };
        let fault = match &trouble {
            Some(Trouble::All { memory: true }) => Some(fault(DeviceFaultKind::OutOfMemory, None)),
            Some(Trouble::All { memory: false }) => Some(fault(DeviceFaultKind::Failed, None)),
            Some(Trouble::Rows { rows }) => Some(fault(DeviceFaultKind::OutOfMemory, Some(rows.clone()))),
            _ => None,
        };
        if let Some(fault) = fault.clone() {
            self.inspector.device.fail_next(fault);
        }
        let result = self.inspector.device.execute(batch, &mut self.output);
        assert_eq!(result.as_ref().err(), fault.as_ref());
        let mut lost: Vec<usize> = match &fault {
            Some(DeviceFault { rows: Some(rows), .. }) => rows.clone(),
            Some(_) => (0..batch.rows.len()).collect(),
            None => Vec::new(),
        };
        match trouble {
            Some(Trouble::Short { missing }) => {
                self.output.sampled.truncate(batch.rows.len().saturating_sub(missing));
                lost = (0..batch.rows.len()).collect();
                self.inspector.lost(batch);
            }
            Some(Trouble::Silent { row }) if batch.rows.get(row).is_some_and(|row| row.sample) => {
                self.output.sampled[row] = None;
                lost = vec![row];
            }
            _ => {}
        }
        if !lost.is_empty() || fault.is_some() {
            self.clients.reached.device_faults += 1;
        }
        if fault.is_some() {
            self.inspector.lost(batch);
        }
        for row in lost.iter().filter_map(|&at| batch.rows.get(at)) {
            if let Some(client) = self.clients.get_mut(row.sequence) {
                client.doomed = true;
            }
        }
        fault
    }

    /// Hands out what the engine has to tell, as the host's thread does.
    fn drain(&mut self) {
        loop {
            let mut events = std::mem::take(&mut self.events);
            self.engine.drain_events(&mut events);
            let none = events.is_empty();
            for event in events.drain(..) {
                self.hear(&event);
            }
            self.events = events;
            drop(self.engine.take_retired());
            let lagging = std::mem::take(&mut self.clients.lagging);
            if none && lagging.is_empty() {
                return;
            }
            for id in lagging {
                if self.clients.get(id).is_some() {
                    self.end_request(id, FinishReason::Cancelled);
                }
            }
        }
    }

    fn hear(&mut self, event: &Event) {
        self.clients.hear(event);
        self.patience.hear(event);
        let reached = &mut self.clients.reached;
        match event {
            Event::PolicyFault(fault) => {
                reached.policy_faults += 1;
                reached.starvation_faults += u64::from(fault.fault.kind == FaultKind::Starvation);
                self.clients.note(fault.step ^ (fault.fault.kind as u64) << 60);
            }
            Event::PolicyChanged { kind, to, change, step, .. } => {
                reached.changes[*change as usize] += 1;
                if *kind == PolicyKind::Scheduler {
                    self.aided = *to == "builtin-fcfs" && matches!(change, Change::Fault | Change::Verdict);
                }
                self.clients.note(*step ^ (*change as u64) << 58);
            }
            Event::Shadow { .. } => reached.shadows += 1,
            _ => {}
        }
    }

    /// What an operator is shown is so.
    fn report(&mut self) {
        let now = self.tell();
        let snapshot = self.engine.snapshot(now);
        self.drain();
        let memory = snapshot.memory;
        assert_eq!(memory, self.engine.memory());
        assert_eq!(memory.free + memory.cached + memory.used, memory.total, "{memory:?}");
        let queue = snapshot.queue;
        let alive = (queue.waiting + queue.held + queue.running + queue.preempted) as usize;
        assert_eq!(alive, self.clients.live().len(), "{queue:?}");
        assert_eq!(queue.waiting + queue.held, self.clients.queued(), "{queue:?}");
        assert_eq!(snapshot.requests.len(), alive);
        for shown in &snapshot.requests {
            let client = self.clients.get(shown.id).expect("who is shown is alive");
            assert_eq!(shown.prompt_tokens as usize, client.prompt_len(), "prompt of {:?}", shown.id);
            assert_eq!(shown.generated_tokens as usize, client.got, "tokens of {:?}", shown.id);
            assert_eq!((shown.tenant, shown.priority), (client.request.tenant, client.request.priority));
        }
        self.count(&snapshot.counters);
    }

    /// The engine's counters are the machine's.
    fn count(&mut self, counters: &Counters) {
        let reached = &mut self.clients.reached;
        assert_eq!(counters.refused, reached.refused, "refused requests");
        assert_eq!(counters.finished, reached.finished, "finished requests");
        assert_eq!(counters.failed, reached.failed, "failed requests");
        assert_eq!(counters.generated_tokens, reached.tokens, "tokens");
        assert_eq!(counters.preemptions, reached.preempted, "preemptions");
        reached.cut_rows = counters.cut_rows;
        reached.evicted_blocks = counters.evicted_blocks;
    }

    fn check(&mut self) {
        self.ledger.update(&self.engine, &self.clients, self.out.is_some());
        assert_eq!(self.engine.has_work(), !self.clients.live().is_empty(), "whether there is work");
        if self.checks.own {
            self.engine.check_invariants();
        }
    }

    /// Nothing more comes in: everything that is there ends, and every block is had again.
    fn wind_up(&mut self, mut turned: impl FnMut()) {
        self.end(1_000);
        self.trouble = None;
        self.now = self.now.max(self.clock);
        if !self.setup.unaided {
            self.patience.disturbed();
            let Policies { scheduler, admission, prefix_cache } = Policies::builtin();
            let now = self.tell();
            self.engine.swap(AnyPolicy::Scheduler(scheduler), now);
            self.engine.swap(AnyPolicy::Admission(admission), now);
            self.engine.swap(AnyPolicy::PrefixCache(prefix_cache), now);
            self.drain();
        }
        self.run_dry(&mut turned);
        assert_eq!(self.ledger.used(), 0, "blocks are in use though nobody is alive");
        let memory = self.engine.memory();
        assert_eq!(memory.free + memory.cached, memory.total, "{memory:?}");
        if !self.setup.unaided && !self.draining {
            self.fill(memory.total, &mut turned);
        }
        self.report();
    }

    fn run_dry(&mut self, turned: &mut impl FnMut()) {
        let mut turns = 0;
        while self.engine.has_work() {
            self.step(1_000);
            self.check();
            turned();
            turns += 1;
            assert!(turns < LAST_TURNS, "these never end: {:?}", self.clients.live().keys());
        }
        // What was told last is told, and what ended last is let go.
        self.begin();
        self.check();
    }

    /// One request gets the whole pool.
    fn fill(&mut self, total_blocks: u32, turned: &mut impl FnMut()) {
        let longest = (total_blocks * self.setup.block_size + 1).min(self.setup.max_seq_len);
        let own = u16::try_from(longest.saturating_sub(1)).unwrap_or(u16::MAX);
        if self.setup.max_waiting == 0 || own == 0 {
            return;
        }
        let finished = self.clients.reached.finished;
        self.submit(&Ask { own, max_new: 1, tenant: 250, seed: 77, ..Ask::default() });
        self.run_dry(turned);
        let length = Counters::finish_index(FinishReason::Length);
        assert_eq!(
            self.clients.reached.finished[length],
            finished[length] + 1,
            "the pool can't be filled again"
        );
    }

    fn outcome(mut self, steps: u64) -> Outcome {
        let fingerprint = self.clients.fingerprint ^ self.clock.0;
        let reached = std::mem::take(&mut self.clients.reached);
        Outcome { steps, batches: self.batches, fingerprint, reached }
    }
}

fn make(
    script: &Script,
    outsiders: &[Outsider<'_>],
    cached: Option<&infer_core::policy::CacheEvents>,
) -> AnyPolicy {
    match script.style {
        Style::Outsider(at) if !outsiders.is_empty() => {
            let mut policy = (outsiders[at as usize % outsiders.len()].make)();
            if let (AnyPolicy::PrefixCache(policy), Some(cached)) = (&mut policy, cached) {
                // What it says to that counts for nothing; where it fails, its first question does too.
                let _ = policy.observe_all(cached);
            }
            policy
        }
        _ => policies::make(script, cached),
    }
}
