//! All calls and events of one instance with its answers: recorded between the engine and the policy, judged
//! afterwards, and repeated with other instances.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, AnyPolicy, CacheEvents, CallStats, Ended, Gauge, Hit, Load, Plan,
    Policy, PolicyFault, PolicyInfo, PrefixCachePolicy, Pressure, Retention, SchedulerPolicy, StepView,
    Verdict,
};
use infer_core::{BlockId, Micros};

/// A call and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Exchange {
    Schedule(Box<StepView>, Plan),
    Admit(AdmissionRequest, Load, Verdict),
    Measure(Load, Pressure),
    Reuse(Hit, u32),
    Retain(Ended, Retention),
    Observe(Box<CacheEvents>, Vec<BlockId>),
    Evict(Micros, u32, Vec<BlockId>),
    Export(Vec<u8>),
    /// And whether the state was imported.
    Import(Vec<u8>, bool),
}

impl Exchange {
    /// Memory that it takes, but for a few bytes.
    fn bytes(&self) -> usize {
        const ROW: usize = 100;
        size_of::<Self>()
            + match self {
                Self::Schedule(view, plan) => {
                    let rows = view.running.len() + view.waiting.len() + view.tenants.id.len();
                    ROW * rows + 12 * plan.run.len() + 8 * plan.preempt.len()
                }
                Self::Observe(events, names) => ROW * events.len() + 4 * names.len(),
                Self::Evict(_, _, names) => 4 * names.len(),
                Self::Export(state) | Self::Import(state, _) => state.len(),
                Self::Admit(..) | Self::Measure(..) | Self::Reuse(..) | Self::Retain(..) => 0,
            }
    }

    /// Makes the same call to another instance and returns its answer.
    pub fn ask(&self, policy: &mut AnyPolicy) -> Result<Self, PolicyFault> {
        Ok(match (self, policy) {
            (Self::Schedule(view, _), AnyPolicy::Scheduler(p)) => {
                Self::Schedule(view.clone(), p.schedule(view)?)
            }
            (Self::Admit(request, load, _), AnyPolicy::Admission(p)) => {
                Self::Admit(*request, *load, p.admit(request, load)?)
            }
            (Self::Measure(load, _), AnyPolicy::Admission(p)) => Self::Measure(*load, p.measure(load)?),
            (Self::Reuse(hit, _), AnyPolicy::PrefixCache(p)) => Self::Reuse(*hit, p.reuse(hit)?),
            (Self::Retain(ended, _), AnyPolicy::PrefixCache(p)) => Self::Retain(*ended, p.retain(ended)?),
            (Self::Observe(events, _), AnyPolicy::PrefixCache(p)) => {
                Self::Observe(events.clone(), p.observe(events)?)
            }
            (Self::Evict(now, need, _), AnyPolicy::PrefixCache(p)) => {
                Self::Evict(*now, *need, p.evict(*now, *need)?)
            }
            (Self::Export(_), policy) => Self::Export(policy.lifecycle().export_state()?),
            (Self::Import(state, _), policy) => {
                Self::Import(state.clone(), policy.lifecycle().import_state(state).is_ok())
            }
            (exchange, policy) => unreachable!("{exchange:?} is no question for {policy:?}"),
        })
    }

    /// The answer alone, for a person.
    pub fn answer(&self) -> String {
        match self {
            Self::Schedule(_, plan) => format!("{plan:?}"),
            Self::Admit(_, _, verdict) => format!("{verdict:?}"),
            Self::Measure(_, pressure) => format!("{pressure:?}"),
            Self::Reuse(_, tokens) => format!("{tokens} tokens"),
            Self::Retain(_, retention) => format!("{retention:?}"),
            Self::Observe(_, names) | Self::Evict(_, _, names) => format!("{names:?}"),
            Self::Export(state) => format!("a state of {} bytes", state.len()),
            Self::Import(_, taken) => (if *taken { "imported" } else { "refused" }).to_owned(),
        }
    }

    /// The function that was called.
    pub fn function(&self) -> &'static str {
        match self {
            Self::Schedule(..) => "schedule",
            Self::Admit(..) => "admit",
            Self::Measure(..) => "measure",
            Self::Reuse(..) => "reuse",
            Self::Retain(..) => "retain",
            Self::Observe(..) => "observe",
            Self::Evict(..) => "evict",
            Self::Export(..) => "export-state",
            Self::Import(..) => "import-state",
        }
    }
}

/// Memory that a transcript may take; the longest of the shipped policies' takes a sixteenth.
const MAX_BYTES: usize = 64 << 20;

/// The calls of an instance up to its first fault, because a restarted one has another past, or as long as
/// there is room.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    pub exchanges: Vec<Exchange>,
    pub stats: CallStats,
    bytes: usize,
    closed: bool,
}

/// A transcript in the making.
pub(crate) type Tape = Arc<Mutex<Transcript>>;

/// The contents of a tape once its instance is gone.
pub(crate) fn take(tape: &Tape) -> Transcript {
    mem::take(&mut *lock(tape))
}

fn lock(tape: &Tape) -> MutexGuard<'_, Transcript> {
    tape.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wraps a policy and records its calls.
struct Probe<P: Policy + ?Sized> {
    policy: Box<P>,
    tape: Tape,
}

/// Puts a tape before a policy.
pub(crate) fn record(policy: AnyPolicy) -> (AnyPolicy, Tape) {
    let tape = Tape::default();
    let recorded = match policy {
        AnyPolicy::Scheduler(policy) => AnyPolicy::Scheduler(Box::new(Probe { policy, tape: tape.clone() })),
        AnyPolicy::Admission(policy) => AnyPolicy::Admission(Box::new(Probe { policy, tape: tape.clone() })),
        AnyPolicy::PrefixCache(policy) => {
            AnyPolicy::PrefixCache(Box::new(Probe { policy, tape: tape.clone() }))
        }
    };
    (recorded, tape)
}

impl<P: Policy + ?Sized> Probe<P> {
    fn write<T>(
        &mut self,
        answer: Result<T, PolicyFault>,
        exchange: impl FnOnce(&T) -> Exchange,
    ) -> Result<T, PolicyFault> {
        let mut transcript = lock(&self.tape);
        transcript.closed |= answer.is_err();
        if let Ok(answer) = &answer
            && !transcript.closed
        {
            let exchange = exchange(answer);
            transcript.bytes += exchange.bytes();
            transcript.closed = transcript.bytes > MAX_BYTES;
            transcript.exchanges.push(exchange);
        }
        answer
    }
}

impl<P: Policy + ?Sized> Drop for Probe<P> {
    fn drop(&mut self) {
        lock(&self.tape).stats = self.policy.stats();
    }
}

impl<P: Policy + ?Sized> Policy for Probe<P> {
    fn info(&self) -> Arc<PolicyInfo> {
        self.policy.info()
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        let state = self.policy.export_state();
        self.write(state, |state| Exchange::Export(state.clone()))
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), PolicyFault> {
        let imported = self.policy.import_state(state);
        let taken = imported.is_ok();
        self.write(Ok(()), |()| Exchange::Import(state.to_vec(), taken)).and(imported)
    }

    fn restart(&mut self) -> Result<(), PolicyFault> {
        lock(&self.tape).closed = true;
        self.policy.restart()
    }

    fn stats(&self) -> CallStats {
        self.policy.stats()
    }

    fn gauges(&self) -> Vec<Gauge> {
        self.policy.gauges()
    }
}

impl SchedulerPolicy for Probe<dyn SchedulerPolicy> {
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        let plan = self.policy.schedule(step);
        self.write(plan, |plan| Exchange::Schedule(Box::new(step.clone()), plan.clone()))
    }
}

impl AdmissionPolicy for Probe<dyn AdmissionPolicy> {
    fn admit(&mut self, request: &AdmissionRequest, load: &Load) -> Result<Verdict, PolicyFault> {
        let verdict = self.policy.admit(request, load);
        self.write(verdict, |verdict| Exchange::Admit(*request, *load, verdict.clone()))
    }

    fn measure(&mut self, load: &Load) -> Result<Pressure, PolicyFault> {
        let pressure = self.policy.measure(load);
        self.write(pressure, |pressure| Exchange::Measure(*load, *pressure))
    }
}

impl PrefixCachePolicy for Probe<dyn PrefixCachePolicy> {
    fn reuse(&mut self, hit: &Hit) -> Result<u32, PolicyFault> {
        let tokens = self.policy.reuse(hit);
        self.write(tokens, |tokens| Exchange::Reuse(*hit, *tokens))
    }

    fn retain(&mut self, ended: &Ended) -> Result<Retention, PolicyFault> {
        let retention = self.policy.retain(ended);
        self.write(retention, |retention| Exchange::Retain(*ended, *retention))
    }

    fn observe(&mut self, events: &CacheEvents) -> Result<Vec<BlockId>, PolicyFault> {
        let names = self.policy.observe(events);
        self.write(names, |names| Exchange::Observe(Box::new(events.clone()), names.clone()))
    }

    fn evict(&mut self, now: Micros, need: u32) -> Result<Vec<BlockId>, PolicyFault> {
        let names = self.policy.evict(now, need);
        self.write(names, |names| Exchange::Evict(now, need, names.clone()))
    }
}
