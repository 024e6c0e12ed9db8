//! Schedulers: a full snapshot in, a plan out.
//!
//! Rows are passed as columns because lists of integers cross the Wasm boundary as bulk copies. A policy
//! reads them as rows: [`Sequences::iter`] gives [`Sequence`]s, and a column is read only if asked for.

use crate::Policy;
use crate::types::{Memory, Micros, SequenceId, SessionId, TenantId};

/// Decides, once per engine step, which sequences run and how many tokens each.
pub trait Scheduler: Policy {
    /// Plans one step. That it was planned doesn't tell that it happens: what doesn't fit in memory is cut off,
    /// and a host that plans ahead drops a plan that preempts, and asks again once its device is idle. The next
    /// view tells what became of a plan.
    fn schedule(&mut self, step: &Step) -> Plan;
}

/// Limits that a plan must keep; exceeding one is a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Tokens one step may compute, prompt chunks and decodes together.
    pub max_batch_tokens: u32,
    /// Sequences that may run at once.
    pub max_running: u32,
    /// Prompt tokens of one sequence that one step may compute.
    pub prefill_chunk: u32,
    /// Sequences whose prompts may be computed in one step.
    pub max_prefill_sequences: u32,
    /// Prompt tokens of all sequences that one step may compute.
    pub max_prefill_tokens: u32,
}

/// Everything a scheduler sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Now.
    pub now: Micros,
    /// Number of the step being planned, from 1.
    pub number: u64,
    /// How long the last step took on the device; zero before the first.
    pub last_step: Micros,
    /// Prompt tokens that the last step computed.
    pub last_prefill_tokens: u32,
    /// Sequences that decoded in the last step.
    pub last_decodes: u32,
    /// When the host became idle; `NEVER` while something runs.
    pub idle_since: Micros,
    /// How long a waiting sequence may be overtaken, or a running one left out, before the host removes the
    /// policy for it.
    pub starvation_bound: Micros,
    /// Limits that the plan must keep.
    pub limits: Limits,
    /// The pool.
    pub memory: Memory,
    /// In the order in which they started.
    pub running: Sequences,
    /// In order of arrival, preempted ones first.
    pub waiting: Sequences,
    /// Tenants with work or history.
    pub tenants: Tenants,
}

impl Step {
    /// How long a policy may let a sequence be overtaken if it would do so for `patience`: at most three
    /// fifths of the watchdog's bound, because a sequence that is first from then on still waits for memory.
    pub fn patience(&self, patience: Micros) -> Micros {
        patience.min(Micros(self.starvation_bound.0 / 5 * 3))
    }
}

/// A step's plan. Use [`crate::Planner`] to make one that keeps the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Sequences that compute, most important first. A running sequence that isn't listed pauses.
    pub run: Vec<SequenceId>,
    /// Most tokens that each computes; 0 only if everything is cached, including the last logits.
    pub tokens: Vec<u32>,
    /// Running sequences that give their blocks back and wait again.
    pub preempt: Vec<SequenceId>,
    /// When to call again even if nothing happens.
    pub wake: Micros,
}

impl Default for Plan {
    fn default() -> Self {
        Self { run: Vec::new(), tokens: Vec::new(), preempt: Vec::new(), wake: Micros::NEVER }
    }
}

macro_rules! columns {
    ($(#[doc = $doc:literal] $name:ident: $column:ty => $value:ty, $wrap:expr;)*) => {
        /// One row per sequence, in columns of equal length. [`Row`] documents each of them.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[allow(missing_docs, reason = "`Row` documents each of them")]
        pub struct Sequences {
            $(pub $name: Vec<$column>,)*
        }

        /// One sequence as a plain value, for tests and simulators.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Row {
            $(#[doc = $doc] pub $name: $column,)*
        }

        impl Sequences {
            /// Appends a row; for tests and simulators.
            pub fn push(&mut self, row: Row) {
                $(self.$name.push(row.$name);)*
            }
        }

        impl Sequence<'_> {
            $(#[doc = $doc] #[inline] pub fn $name(self) -> $value { $wrap(self.columns.$name[self.row]) })*
        }
    };
}

/// One sequence of a view; reads the columns on demand.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    columns: &'a Sequences,
    row: usize,
}

columns! {
    /// Its id.
    id: u64 => SequenceId, SequenceId;
    /// The tenant that pays.
    tenant: u32 => TenantId, TenantId;
    /// The conversation it continues.
    session: u64 => SessionId, SessionId;
    /// Larger is more urgent.
    priority: i32 => i32, core::convert::identity;
    /// When it arrived.
    arrived: u64 => Micros, Micros;
    /// When the first token is due; `NEVER` if nothing was promised.
    deadline: u64 => Micros, Micros;
    /// Length of its prompt.
    prompt_tokens: u32 => u32, core::convert::identity;
    /// Tokens whose keys and values the pool holds for it. For a waiting one: the prefix that it would find cached now.
    computed_tokens: u32 => u32, core::convert::identity;
    /// For a waiting one: the longer prefix that running sequences are computing now; 0 if there is none.
    pending_tokens: u32 => u32, core::convert::identity;
    /// For a waiting one: blocks behind `computed_tokens` that no sequence uses now; starting it takes these as well.
    idle_blocks: u32 => u32, core::convert::identity;
    /// Tokens it has generated.
    generated_tokens: u32 => u32, core::convert::identity;
    /// Upper bound of `generated_tokens`.
    max_new_tokens: u32 => u32, core::convert::identity;
    /// Expected output length: more than `generated_tokens`, at most `max_new_tokens`.
    expected_tokens: u32 => u32, core::convert::identity;
    /// Blocks it holds.
    blocks: u32 => u32, core::convert::identity;
    /// Blocks that preempting it would free: those that it doesn't share.
    freeable_blocks: u32 => u32, core::convert::identity;
    /// How often it was preempted.
    preemptions: u32 => u32, core::convert::identity;
}

impl Sequence<'_> {
    /// Prompt and output so far.
    pub fn known_tokens(self) -> u32 {
        self.prompt_tokens().saturating_add(self.generated_tokens())
    }

    /// Tokens whose keys and values it still lacks: 1 while it decodes, 0 if everything is cached.
    pub fn remaining_tokens(self) -> u32 {
        self.known_tokens().saturating_sub(self.computed_tokens())
    }

    /// Prompt and output at its longest.
    pub fn longest_tokens(self) -> u32 {
        self.prompt_tokens().saturating_add(self.max_new_tokens())
    }

    /// Whether a running sequence has finished its prompt and generates one token a step.
    pub fn is_decoding(self) -> bool {
        self.generated_tokens() > 0 && self.remaining_tokens() <= 1
    }
}

impl Sequences {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.id.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.id.is_empty()
    }

    /// The sequence in a row. Panics if there is no such row.
    pub fn get(&self, row: usize) -> Sequence<'_> {
        assert!(row < self.len(), "row {row} of {}", self.len());
        Sequence { columns: self, row }
    }

    /// All of them, in the host's order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Sequence<'_>> + ExactSizeIterator + Clone {
        (0..self.len()).map(|row| Sequence { columns: self, row })
    }
}

impl FromIterator<Row> for Sequences {
    fn from_iter<I: IntoIterator<Item = Row>>(rows: I) -> Self {
        let mut columns = Self::default();
        rows.into_iter().for_each(|row| columns.push(row));
        columns
    }
}

/// One row per tenant with work or history, in columns of equal length. [`Tenant`] documents each of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "`Tenant` documents each of them")]
pub struct Tenants {
    pub id: Vec<u32>,
    pub weight_permille: Vec<u32>,
    pub running: Vec<u32>,
    pub waiting: Vec<u32>,
    pub prompt_tokens_served: Vec<u64>,
    pub output_tokens_served: Vec<u64>,
}

/// One tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tenant {
    /// Its number.
    pub id: TenantId,
    /// Its share relative to others; 1000 is one share.
    pub weight_permille: u32,
    /// Its sequences that run.
    pub running: u32,
    /// Its requests that wait.
    pub waiting: u32,
    /// Prompt tokens it was served.
    pub prompt_tokens_served: u64,
    /// Output tokens it was served.
    pub output_tokens_served: u64,
}

impl Tenants {
    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Tenant> + '_ {
        (0..self.id.len()).map(|row| Tenant {
            id: TenantId(self.id[row]),
            weight_permille: self.weight_permille[row],
            running: self.running[row],
            waiting: self.waiting[row],
            prompt_tokens_served: self.prompt_tokens_served[row],
            output_tokens_served: self.output_tokens_served[row],
        })
    }

    /// Appends one; for tests and simulators.
    pub fn push(&mut self, tenant: Tenant) {
        self.id.push(tenant.id.0);
        self.weight_permille.push(tenant.weight_permille);
        self.running.push(tenant.running);
        self.waiting.push(tenant.waiting);
        self.prompt_tokens_served.push(tenant.prompt_tokens_served);
        self.output_tokens_served.push(tenant.output_tokens_served);
    }
}

impl FromIterator<Tenant> for Tenants {
    fn from_iter<I: IntoIterator<Item = Tenant>>(tenants: I) -> Self {
        let mut columns = Self::default();
        tenants.into_iter().for_each(|tenant| columns.push(tenant));
        columns
    }
}
