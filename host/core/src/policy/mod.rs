//! The policy boundary: one trait per kind. The engine can't tell a native policy from a Wasm one.

pub mod admission;
mod answer;
mod chain;
pub mod prefix_cache;
pub mod scheduler;

use std::fmt;
use std::sync::Arc;

pub use admission::{AdmissionPolicy, AdmissionRequest, Load, Pressure, Verdict};
pub use answer::Answer;
pub use chain::Chain;
pub use prefix_cache::{CacheEventKind, CacheEvents, Ended, Hit, PrefixCachePolicy, Retention};
pub use scheduler::{Plan, SchedulerPolicy, SequenceColumns, StepView, TenantColumns};

use crate::durations::Durations;
use crate::ids::Micros;

/// The paged KV pool as policies see it. `free_blocks + cached_blocks` can be allocated now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks in the pool.
    pub total_blocks: u32,
    /// Empty blocks.
    pub free_blocks: u32,
    /// Blocks that no sequence uses but whose prefix is kept for reuse.
    pub cached_blocks: u32,
}

/// The three slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyKind {
    /// Decides what runs next.
    Scheduler,
    /// Decides what is admitted.
    Admission,
    /// Which prefix is reused and kept.
    PrefixCache,
}

impl PolicyKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Scheduler, Self::Admission, Self::PrefixCache];

    /// The name used in URLs, flags and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Admission => "admission",
            Self::PrefixCache => "prefix-cache",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A policy's identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyInfo {
    /// Name, such as `continuous`.
    pub name: String,
    /// Semantic version of the policy.
    pub version: String,
    /// One or two sentences.
    pub description: String,
    /// JSON Schema of its configuration.
    pub config_schema: String,
    /// SHA-256 of the component in hex; empty for native policies.
    pub digest: String,
    /// Its configuration as JSON; empty if it has none.
    pub config: String,
    /// SHA-256 of the configuration in hex; empty if nothing is configured.
    pub config_digest: String,
}

impl PolicyInfo {
    /// Whether both are the same component (or native policy) with the same configuration.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.name, &self.digest, &self.config_digest) == (&other.name, &other.digest, &other.config_digest)
    }
}

/// What a policy's calls cost, as far as its implementation measures it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CallStats {
    /// Calls since it was created.
    pub calls: u64,
    /// Median duration of the recent ones.
    pub p50_us: f64,
    /// 99th percentile of the recent ones.
    pub p99_us: f64,
    /// How long each of them took.
    pub durations: Durations,
}

/// A number that a policy publishes about itself. It decides nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Gauge {
    /// The policy's name. In a list of policies each has gauges of its own.
    pub policy: String,
    /// The gauge's name.
    pub name: String,
    /// Its latest value, which is finite.
    pub value: f64,
}

/// What all policies have in common.
pub trait Policy: Send {
    /// Its identity.
    fn info(&self) -> Arc<PolicyInfo>;

    /// The policies that it consists of: itself, or the members of a chain in the order in which they are asked.
    fn members(&self) -> Vec<Arc<PolicyInfo>> {
        vec![self.info()]
    }

    /// State worth carrying to its replacement of the same name.
    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        Ok(Vec::new())
    }

    /// Whether it can use the state of an outgoing policy with this name: one with its own name, or a chain
    /// that contains it.
    fn takes_state_of(&self, name: &str) -> bool {
        let own = &self.info().name;
        name == own || name.split('+').any(|part| part == own)
    }

    /// The part of the state of an outgoing policy with this name that `import_state` accepts.
    fn own_part_of(&self, name: &str, state: &[u8]) -> Option<Vec<u8>> {
        let own = &self.info().name;
        if name == own { Some(state.to_vec()) } else { chain::part_of(own, state) }
    }

    /// Imports the outgoing policy's state, if `takes_state_of` holds. After a refusal it is as before; after
    /// any other error it is restarted and starts cold. Neither is a fault.
    fn import_state(&mut self, _state: &[u8]) -> Result<(), PolicyFault> {
        Ok(())
    }

    /// Called after a fault, before the next call: makes a fresh instance if the old one can't be used again.
    /// It knows nothing; `import_state` follows if there is a state. An error removes the policy for good.
    fn restart(&mut self) -> Result<(), PolicyFault> {
        Ok(())
    }

    /// What its calls cost.
    fn stats(&self) -> CallStats {
        CallStats::default()
    }

    /// What it publishes about itself; of a list of policies one after the other's, each sorted by name.
    fn gauges(&self) -> Vec<Gauge> {
        Vec::new()
    }

    /// Processor time of its calls so far, if its implementation measures it. If decisions must not depend on
    /// the machine, it measures none.
    fn spent(&self) -> Micros {
        Micros::ZERO
    }

    /// Starts to measure what its calls of one step take together.
    fn begin_step(&mut self) {}

    /// In a policy with several members, names the one that a fault is attributed to if no single call shows
    /// it.
    fn attribute(&self, fault: PolicyFault) -> PolicyFault {
        fault
    }
}

/// A policy of any kind, as a swap carries it.
pub enum AnyPolicy {
    /// For the scheduler slot.
    Scheduler(Box<dyn SchedulerPolicy>),
    /// For the admission slot.
    Admission(Box<dyn AdmissionPolicy>),
    /// For the prefix-cache slot.
    PrefixCache(Box<dyn PrefixCachePolicy>),
}

impl AnyPolicy {
    /// The slot it belongs in.
    pub fn kind(&self) -> PolicyKind {
        match self {
            Self::Scheduler(_) => PolicyKind::Scheduler,
            Self::Admission(_) => PolicyKind::Admission,
            Self::PrefixCache(_) => PolicyKind::PrefixCache,
        }
    }

    /// Its identity.
    pub fn info(&self) -> Arc<PolicyInfo> {
        match self {
            Self::Scheduler(p) => p.info(),
            Self::Admission(p) => p.info(),
            Self::PrefixCache(p) => p.info(),
        }
    }

    /// What it has in common with other kinds.
    pub fn lifecycle(&mut self) -> &mut dyn Policy {
        match self {
            Self::Scheduler(p) => p.as_mut(),
            Self::Admission(p) => p.as_mut(),
            Self::PrefixCache(p) => p.as_mut(),
        }
    }
}

impl fmt::Debug for AnyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyPolicy({} {})", self.kind(), self.info().name)
    }
}

/// A call that failed, or an answer that can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyFault {
    /// What kind of fault.
    pub kind: FaultKind,
    /// What happened, for a person.
    pub message: String,
    /// The member that caused it, if the slot's policy has several.
    pub member: Option<Arc<PolicyInfo>>,
}

impl PolicyFault {
    /// A fault of `kind`.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), member: None }
    }

    /// Whether a policy said no to what it was given, and is none the worse.
    pub fn is_refusal(&self) -> bool {
        self.kind == FaultKind::Setup
    }
}

impl fmt::Display for PolicyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.message)
    }
}

impl std::error::Error for PolicyFault {}

/// Kinds of policy faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// The guest trapped (panic, unreachable, out of bounds).
    Trap,
    /// It ran past its deadline or out of fuel.
    Deadline,
    /// Each of its calls of a step, or of a second in shadow, was in time, but all together were not.
    StepBudget,
    /// It asked for more memory than its limit.
    Memory,
    /// Its answer breaks the rules of the interface.
    InvalidDecision,
    /// The watchdog: nothing progresses, or a request is starved.
    Starvation,
    /// It could not be instantiated or configured.
    Setup,
}

impl FaultKind {
    /// All kinds, in declaration order.
    pub const ALL: [Self; 7] = [
        Self::Trap,
        Self::Deadline,
        Self::StepBudget,
        Self::Memory,
        Self::InvalidDecision,
        Self::Starvation,
        Self::Setup,
    ];

    /// The name used in metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trap => "trap",
            Self::Deadline => "deadline",
            Self::StepBudget => "step-budget",
            Self::Memory => "memory",
            Self::InvalidDecision => "invalid-decision",
            Self::Starvation => "starvation",
            Self::Setup => "setup",
        }
    }
}

/// A policy fault with everything needed to understand and replay it.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Which slot.
    pub slot: PolicyKind,
    /// Which policy.
    pub policy: Arc<PolicyInfo>,
    /// What.
    pub fault: PolicyFault,
    /// The engine's step number.
    pub step: u64,
    /// When.
    pub at: Micros,
    /// What it was shown when it failed.
    pub view: FaultView,
    /// The state that it last exported; empty if there was none.
    pub state: Vec<u8>,
    /// Whether it ran in shadow, where no request depended on it.
    pub shadow: bool,
    /// Whether it removed the policy.
    pub removed: bool,
    /// If it did, the policies whose faults removed it, each once: the policy itself, or the members of a list that
    /// failed within the window. Empty otherwise, and if a shadow took more time than a shadow may.
    pub culprits: Vec<Culprit>,
}

/// A policy that a removal is attributed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// The policy, or the member of a list.
    pub policy: Arc<PolicyInfo>,
    /// Its last fault, for a person.
    pub reason: String,
}

/// A call and what it showed.
#[derive(Clone, Debug)]
pub enum FaultView {
    /// `schedule`.
    Schedule(Box<StepView>),
    /// `admit`.
    Admit(AdmissionRequest, Load),
    /// `measure`.
    Measure(Load),
    /// `reuse`.
    Reuse(Hit),
    /// `retain`.
    Retain(Ended),
    /// `observe`.
    Observe(Box<CacheEvents>),
    /// `evict`.
    Evict {
        /// When.
        now: Micros,
        /// Blocks needed.
        need: u32,
    },
    /// Export, import or restart.
    Lifecycle,
}
