//! The scheduler policy: a full snapshot in columns in, a plan out.

use crate::config::Limits;
use crate::ids::{Micros, SequenceId};
use crate::policy::{Memory, Policy, PolicyFault};

/// Decides, once per engine step, which sequences run and how many tokens each computes.
pub trait SchedulerPolicy: Policy {
    /// Plans one step.
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault>;
}

/// One row per sequence, in columns of equal length. Ids and times are plain integers here: these columns
/// cross the Wasm boundary as bulk copies. See `wit/scheduler.wit` for each column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the WIT documents each column")]
pub struct SequenceColumns {
    pub id: Vec<u64>,
    pub tenant: Vec<u32>,
    pub session: Vec<u64>,
    pub priority: Vec<i32>,
    pub arrived: Vec<u64>,
    pub deadline: Vec<u64>,
    pub prompt_tokens: Vec<u32>,
    pub computed_tokens: Vec<u32>,
    pub pending_tokens: Vec<u32>,
    pub idle_blocks: Vec<u32>,
    pub generated_tokens: Vec<u32>,
    pub max_new_tokens: Vec<u32>,
    pub expected_tokens: Vec<u32>,
    pub blocks: Vec<u32>,
    pub freeable_blocks: Vec<u32>,
    pub preemptions: Vec<u32>,
}

/// One row per tenant with work or history. See `wit/scheduler.wit`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the WIT documents each column")]
pub struct TenantColumns {
    pub id: Vec<u32>,
    pub weight_permille: Vec<u32>,
    pub running: Vec<u32>,
    pub waiting: Vec<u32>,
    pub prompt_tokens_served: Vec<u64>,
    pub output_tokens_served: Vec<u64>,
}

/// Everything a scheduler sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepView {
    /// Now.
    pub now: Micros,
    /// Number of the step being planned, from 1.
    pub number: u64,
    /// How long the last step took on the device; 0 before the first.
    pub last_step: Micros,
    /// Prompt tokens that the last step computed.
    pub last_prefill_tokens: u32,
    /// Sequences that decoded in the last step.
    pub last_decodes: u32,
    /// When the host became idle; `NEVER` while something runs.
    pub idle_since: Micros,
    /// How long a waiting sequence may be overtaken, or a running one left out, before the watchdog removes
    /// the scheduler.
    pub starvation_bound: Micros,
    /// Limits that a plan must keep.
    pub limits: Limits,
    /// The pool.
    pub memory: Memory,
    /// In the order in which they started.
    pub running: SequenceColumns,
    /// In order of arrival, preempted ones first.
    pub waiting: SequenceColumns,
    /// Tenants with work or history.
    pub tenants: TenantColumns,
}

/// A scheduler's answer, unchecked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Sequences that compute in this step, most important first.
    pub run: Vec<SequenceId>,
    /// At most how many tokens each computes.
    pub tokens: Vec<u32>,
    /// Running sequences to preempt.
    pub preempt: Vec<SequenceId>,
    /// When to call again even if nothing happens.
    pub wake: Micros,
}
