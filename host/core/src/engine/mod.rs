//! The engine: `submit`, `begin_step`, `finish_step`, `finish`, swaps and snapshots.
//!
//! This file holds the engine's fields and short methods; each longer one has a file of its own. The engine
//! has one owner, and every call leaves it consistent. One batch is in flight at a time, or two if it plans
//! ahead (`ahead`).

mod admit;
mod ahead;
mod cache;
mod compose;
mod decisions;
mod end;
mod finish_step;
mod held;
mod inspect;
mod load;
mod neglect;
mod reserve;
mod rows;
mod shadow;
mod snapshot;
mod speculate;
mod step;
mod swap;

pub use decisions::Decision;
pub use swap::CANARY_WINDOW;

use std::collections::VecDeque;

use crate::batch::Batch;
use crate::builtin::{AcceptWhatFits, FirstComeFirstServed, KeepAll};
use crate::columns::Places;
use crate::config::EngineConfig;
use crate::engine::cache::Feed;
use crate::engine::held::Held;
use crate::event::Event;
use crate::guard::{Context, Slot, Strikes};
use crate::ids::{Micros, SequenceId, TenantId};
use crate::kv::Kv;
use crate::kv::feed::{KvBlock, KvEvent};
use crate::perf::Recorder;
use crate::policy::{
    AdmissionPolicy, AnyPolicy, PolicyKind, PrefixCachePolicy, SchedulerPolicy, SequenceColumns, StepView,
    TenantColumns,
};
use crate::rates::Rates;
use crate::sequence::{SeqIx, Slab};
use crate::snapshot::Counters;
use crate::tenants::{TenantTerms, Tenants};
use crate::verify::{PlannedRow, Verifier};
use crate::watchdog::{Mark, Watchdog};

/// The three policies an engine starts with.
pub struct Policies {
    /// Decides what runs next.
    pub scheduler: Box<dyn SchedulerPolicy>,
    /// Decides what is admitted.
    pub admission: Box<dyn AdmissionPolicy>,
    /// Which prefix is kept.
    pub prefix_cache: Box<dyn PrefixCachePolicy>,
}

impl Policies {
    /// The native built-ins.
    pub fn builtin() -> Self {
        Self {
            scheduler: Box::new(FirstComeFirstServed::default()),
            admission: Box::new(AcceptWhatFits::default()),
            prefix_cache: Box::new(KeepAll::default()),
        }
    }
}

/// What a swap did.
#[derive(Debug)]
pub struct SwapReport {
    /// Which slot.
    pub kind: PolicyKind,
    /// Name of the policy that left.
    pub from: String,
    /// Name of the live policy.
    pub to: String,
    /// The step before which it took effect.
    pub at_step: u64,
    /// Whether the new policy imported the outgoing one's state.
    pub restored: bool,
    /// A policy that is no longer used; drop it off the engine thread.
    pub retired: Option<AnyPolicy>,
}

/// A batch in flight.
#[derive(Debug)]
struct InFlight {
    begun: Mark,
    /// When the device could turn to it.
    since: Micros,
    rows: Vec<PlannedRow>,
    /// The host takes part in some row's sampling.
    needs_host: bool,
    /// The batch before it was lost, and so is what it computes.
    void: bool,
}

/// The state machine. See the crate documentation.
pub struct Engine {
    config: EngineConfig,
    scheduler: Slot<dyn SchedulerPolicy>,
    admission: Slot<dyn AdmissionPolicy>,
    prefix: Slot<dyn PrefixCachePolicy>,
    kv: Kv,
    slab: Slab,
    /// What the scheduler is shown, kept up to date in place.
    view: StepView,
    running: Places,
    waiting: Places,
    /// Leading rows of `waiting` that were preempted.
    preempted: usize,
    /// Requests that admission told to wait.
    held: Held,
    /// Most prompt and output tokens that held and waiting requests may still need.
    waiting_tokens: u64,
    /// Their prompts alone.
    waiting_prompt_tokens: u64,
    /// Output tokens that all live sequences are still expected to generate.
    expected_output_tokens: u64,
    tenants: Tenants,
    rates: Rates,
    verifier: Verifier,
    /// For plans that are not carried out.
    shadow_verifier: Verifier,
    perf: Recorder,
    watchdog: Watchdog,
    feed: Feed,
    /// Rows of the step being made.
    rows: Vec<PlannedRow>,
    /// Draft tokens of those rows, row after row.
    guesses: Vec<u32>,
    /// Batches in flight, oldest first.
    flights: VecDeque<InFlight>,
    /// Sequences that ended while a batch in flight has a row of them: their blocks return with it.
    lingering: Vec<SeqIx>,
    /// Sequences to name in the next batch's `released`.
    released: Vec<SequenceId>,
    /// Buffers of returned batches.
    spare: Vec<Batch>,
    /// Positions of rows to remove, a buffer.
    leaving: Vec<u32>,
    events: Vec<Event>,
    retired: Vec<AnyPolicy>,
    counters: Counters,
    next_id: u64,
    /// The latest time that the driver named.
    clock: Micros,
    draining: bool,
    /// When the last plan asked to be called again.
    wake: Micros,
    /// Memory or load changed since the last call about the first held request.
    load_changed: bool,
    held_asked_at: Micros,
    /// Since when there have only been held requests.
    held_alone_since: Option<Micros>,
    /// When the last batch was made.
    last_begun: Mark,
    /// Blocks that could be allocated before the plan took any.
    available_before: u32,
    /// The step at which policies export a copy of their state.
    next_export: u64,
    decisions: decisions::Decisions,
}

/// Longest time between two calls about the first held request.
const HELD_INTERVAL: Micros = Micros(50_000);
/// Shortest sleep until a wake that is already due, so that no driver spins.
const SHORTEST_WAKE: Micros = Micros(1_000);

impl Engine {
    /// An engine with nothing in it.
    pub fn new(config: EngineConfig, policies: Policies) -> Self {
        assert!(config.block_size > 0 && config.total_blocks > 0, "the pool must hold something");
        let limits = config.limits;
        let prefill = [limits.prefill_chunk, limits.max_prefill_sequences, limits.max_prefill_tokens];
        assert!(limits.max_batch_tokens > 0 && limits.max_running > 0, "a step must hold something");
        assert!(!prefill.contains(&0), "a step must hold a piece of a prompt");
        let strikes = Strikes { max: config.max_strikes, window: config.strike_window };
        let builtin = Policies::builtin();
        let view = StepView {
            now: Micros::ZERO,
            number: 1,
            last_step: Micros::ZERO,
            last_prefill_tokens: 0,
            last_decodes: 0,
            idle_since: Micros::ZERO,
            starvation_bound: config.starvation_bound,
            limits: config.limits,
            memory: crate::policy::Memory::default(),
            running: SequenceColumns::default(),
            waiting: SequenceColumns::default(),
            tenants: TenantColumns::default(),
        };
        Self {
            scheduler: Slot::new(
                PolicyKind::Scheduler,
                policies.scheduler,
                builtin.scheduler,
                AnyPolicy::Scheduler,
                strikes,
            ),
            admission: Slot::new(
                PolicyKind::Admission,
                policies.admission,
                builtin.admission,
                AnyPolicy::Admission,
                strikes,
            ),
            prefix: Slot::new(
                PolicyKind::PrefixCache,
                policies.prefix_cache,
                builtin.prefix_cache,
                AnyPolicy::PrefixCache,
                strikes,
            ),
            kv: Kv::new(&config),
            slab: Slab::default(),
            view,
            running: Places::default(),
            waiting: Places::default(),
            preempted: 0,
            held: Held::default(),
            waiting_tokens: 0,
            waiting_prompt_tokens: 0,
            expected_output_tokens: 0,
            tenants: Tenants::default(),
            rates: Rates::default(),
            verifier: Verifier::default(),
            shadow_verifier: Verifier::default(),
            perf: Recorder::default(),
            watchdog: Watchdog::new(config.starvation_bound),
            feed: Feed::default(),
            rows: Vec::new(),
            guesses: Vec::new(),
            flights: VecDeque::new(),
            lingering: Vec::new(),
            released: Vec::new(),
            spare: Vec::new(),
            leaving: Vec::new(),
            events: Vec::new(),
            retired: Vec::new(),
            counters: Counters::default(),
            next_id: 1,
            clock: Micros::ZERO,
            draining: false,
            wake: Micros::NEVER,
            load_changed: false,
            held_asked_at: Micros::ZERO,
            held_alone_since: None,
            last_begun: Mark::default(),
            available_before: 0,
            next_export: step::EXPORT_EVERY,
            decisions: decisions::Decisions::default(),
            config,
        }
    }

    /// From now on `submit` refuses with `Draining`.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Replaces the tenants' terms; unnamed tenants get the defaults.
    pub fn set_tenants(&mut self, all: &[(TenantId, TenantTerms)]) {
        self.tenants.configure(&mut self.view.tenants, all);
        self.load_changed = true;
    }

    /// Makes `drain_kv_events` report changes of the content index from now on. See `kv_snapshot` for what is
    /// indexed already.
    pub fn watch_kv(&mut self) {
        self.kv.blocks.feed.get_or_insert_default();
    }

    /// Moves changes of the content index to `out`, oldest first.
    pub fn drain_kv_events(&mut self, out: &mut Vec<KvEvent>) {
        if let Some(feed) = &mut self.kv.blocks.feed {
            out.append(feed);
        }
    }

    /// Every block that can be found by content, parents before children. Includes changes that
    /// `drain_kv_events` has yet to report.
    pub fn kv_snapshot(&self) -> Vec<KvBlock> {
        self.kv.indexed()
    }

    /// Number of the step that is planned next.
    pub fn next_step(&self) -> u64 {
        self.view.number
    }

    /// Whether a batch may be made while another is in flight.
    pub fn plans_ahead(&self) -> bool {
        self.config.plan_ahead
    }

    /// Whether any sequence is alive.
    pub fn has_work(&self) -> bool {
        !(self.running.ix.is_empty() && self.waiting.ix.is_empty() && self.held.is_empty())
    }

    /// When to call `begin_step` again even if nothing happens; `None` for never.
    pub fn next_wake(&self) -> Option<Micros> {
        let held = (!self.held.is_empty()).then(|| self.held_asked_at.plus(HELD_INTERVAL));
        let idle = self.running.ix.is_empty() && self.waiting.ix.is_empty();
        let plan = (!idle).then_some(self.wake);
        let stall = if idle { None } else { self.watchdog.next_check() };
        let unfinished = (self.kv.has_stale() || self.feed.has_more()).then_some(self.clock);
        [held, plan, stall, unfinished, self.kv.next_expiry()]
            .into_iter()
            .flatten()
            .filter(|&at| at != Micros::NEVER)
            .min()
            .map(|at| at.max(self.clock.plus(SHORTEST_WAKE)))
    }

    /// Moves what happened since the last call to `out`, oldest first.
    pub fn drain_events(&mut self, out: &mut Vec<Event>) {
        out.append(&mut self.events);
    }

    /// Policies that were removed for their faults and are no longer used. Drop them off the engine thread.
    /// Policies that a swap retires are in its report instead.
    pub fn take_retired(&mut self) -> Vec<AnyPolicy> {
        std::mem::take(&mut self.retired)
    }

    /// A driver's clock that goes back stands still here.
    fn tick(&mut self, now: Micros) -> Micros {
        self.clock = self.clock.max(now);
        self.clock
    }

    /// Asserts everything that must hold between two calls. Debug builds do so after each step.
    pub fn check_invariants(&self) {
        self.kv.check(&self.slab);
        self.check_rows();
    }
}

/// Makes a guard's context from the engine's fields, so that the others can still be borrowed.
macro_rules! context {
    ($engine:expr, $now:expr) => {
        Context {
            now: $now,
            step: $engine.view.number,
            events: &mut $engine.events,
            retired: &mut $engine.retired,
        }
    };
}
use context;
