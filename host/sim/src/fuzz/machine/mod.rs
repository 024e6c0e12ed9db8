//! Plays a case: drives a real engine as the host's thread does, and checks after each operation.

mod admission;
mod device;
mod finale;
mod operator;
mod requests;
mod turns;

use std::cell::Cell;
use std::collections::VecDeque;

use infer_core::engine::Policies;
use infer_core::policy::{AnyPolicy, CacheEvents, Chain};
use infer_core::testing::SplitMix;
use infer_core::{Batch, Engine, Event, FinishReason, Micros, StepOutput};

use super::case::{Case, Op, Script, Setup, Style, Trouble};
use super::clients::Clients;
use super::inspector::Inspector;
use super::ledger::Ledger;
use super::patience::Patience;
use super::policies::{self, Shown};
use super::report::Reached;
use super::watch::watch;

/// A policy from outside, which a case names by its index.
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
    /// The number of operations before it; more than there are if it was found while the case wound up.
    pub step: u64,
    /// What.
    pub message: String,
    /// The file and line of the assertion or, if several share it, of the call. Two violations with the same
    /// place count as the same.
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

struct Machine<'a> {
    engine: Engine,
    inspector: Inspector,
    clients: Clients,
    ledger: Ledger,
    patience: Patience,
    setup: &'a Setup,
    outsiders: &'a [Outsider<'a>],
    checks: Checks,
    /// The driver's clock, and the latest time that the engine received.
    now: Micros,
    clock: Micros,
    /// Batches in flight, oldest first.
    out: VecDeque<Batch>,
    /// The last batch that returned was lost, and so will be the one behind it.
    nothing_came: bool,
    lost: bool,
    trouble: Option<Trouble>,
    /// What admission was shown since the last check.
    shown: Shown,
    output: StepOutput,
    events: Vec<Event>,
    batches: u64,
    draining: bool,
    /// The built-in scheduler replaces one that was removed.
    aided: bool,
}

impl<'a> Machine<'a> {
    fn new(setup: &'a Setup, outsiders: &'a [Outsider<'a>], checks: Checks) -> Self {
        let mut slots = Policies::builtin();
        let shown = Shown::default();
        for script in &setup.policies {
            match make(script, outsiders, None, &shown) {
                AnyPolicy::Scheduler(policy) => slots.scheduler = policy,
                AnyPolicy::Admission(policy) => slots.admission = policy,
                AnyPolicy::PrefixCache(policy) => slots.prefix_cache = policy,
            }
        }
        let mut clients = Clients::new(setup);
        clients.reached.lists += setup.policies.iter().filter(|script| script.is_list()).count() as u64;
        Self {
            engine: Engine::new(setup.engine(), slots),
            inspector: Inspector::new(setup),
            clients,
            ledger: Ledger::default(),
            patience: Patience::new(setup),
            setup,
            outsiders,
            checks,
            now: Micros(1),
            clock: Micros(1),
            out: VecDeque::new(),
            nothing_came: false,
            lost: false,
            trouble: None,
            shown,
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
            Op::Expire { pick } => self.expire(*pick),
            Op::Begin => {
                self.begin();
            }
            Op::Step { us } => self.step(*us),
            Op::Wait { us } => {
                self.end_all(*us);
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

    /// The time as the engine receives it.
    fn tell(&mut self) -> Micros {
        self.clock = self.clock.max(self.now);
        self.now
    }

    fn pass(&mut self, us: u64) {
        self.now = self.now.plus(Micros(us));
    }

    fn check(&mut self) {
        self.ledger.update(&self.engine, &self.clients, &self.out);
        assert_eq!(self.engine.has_work(), !self.clients.live().is_empty(), "whether there is work");
        if self.checks.own {
            self.engine.check_invariants();
        }
        self.forget_shown();
    }
}

/// A script's policy, or a list of all its admission policies.
fn make(
    script: &Script,
    outsiders: &[Outsider<'_>],
    cached: Option<&CacheEvents>,
    shown: &Shown,
) -> AnyPolicy {
    let first = match make_one(script, outsiders, cached, shown) {
        AnyPolicy::Admission(first) if !script.also.is_empty() => first,
        other => return other,
    };
    let mut members = vec![first];
    for (&style, nth) in script.also.iter().zip(1..) {
        let next = Script { style, seed: script.seed.wrapping_add(nth), also: Vec::new(), ..*script };
        let AnyPolicy::Admission(next) = make_one(&next, outsiders, None, shown) else { continue };
        if members.iter().all(|member| member.info().name != next.info().name) {
            members.push(next);
        }
    }
    match members.len() {
        1 => AnyPolicy::Admission(members.remove(0)),
        _ => AnyPolicy::Admission(Box::new(
            Chain::new(members).expect("the names differ, and the list is short"),
        )),
    }
}

fn make_one(
    script: &Script,
    outsiders: &[Outsider<'_>],
    cached: Option<&CacheEvents>,
    shown: &Shown,
) -> AnyPolicy {
    match script.style {
        Style::Outsider(at) if !outsiders.is_empty() => {
            let mut policy = (outsiders[at as usize % outsiders.len()].make)();
            if let (AnyPolicy::PrefixCache(policy), Some(cached)) = (&mut policy, cached) {
                // The answer is ignored; if it fails, its first call does too.
                let _ = policy.observe_all(cached);
            }
            policy
        }
        _ => policies::make(script, cached, shown),
    }
}
