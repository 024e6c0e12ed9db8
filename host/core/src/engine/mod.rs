//! The engine: `submit`, `begin_step`, `finish_step`, `finish`, swaps and snapshots.
//!
//! This file holds the engine's fields and short methods; each longer one has a file of its own. Most fields
//! are in groups, each declared in the file named for its subject. The engine has one owner, and every call
//! leaves it consistent. One batch is in flight at a time, or two if it plans ahead (`ahead`).

mod admit;
mod ahead;
mod cache;
mod carried;
mod compose;
mod decisions;
mod end;
mod finish_step;
mod flight;
mod forecast;
mod held;
mod inspect;
mod load;
mod neglect;
mod offload;
mod reserve;
mod rows;
mod shadow;
mod slots;
mod snapshot;
mod speculate;
mod step;
mod swap;

pub use cache::Emptied;
pub use carried::{Carried, Exported, Numbers};
pub use decisions::Decision;
pub use swap::CANARY_WINDOW;

use crate::builtin::{AcceptWhatFits, FirstComeFirstServed, KeepAll};
use crate::config::EngineConfig;
use crate::engine::cache::Feed;
use crate::engine::decisions::Decisions;
use crate::engine::flight::Flights;
use crate::engine::held::Held;
use crate::engine::load::Demand;
use crate::engine::rows::Rows;
use crate::engine::slots::Slots;
use crate::engine::step::Step;
use crate::event::{Event, Handover};
use crate::guard::{Context, GuardLimits};
use crate::ids::{Micros, TenantId};
use crate::kv::Kv;
use crate::kv::cached::CachedBlock;
use crate::kv::feed::{KvBlock, KvEvent};
use crate::perf::Recorder;
use crate::policy::{
    AdmissionPolicy, AnyPolicy, PolicyKind, PrefixCachePolicy, SchedulerPolicy, SequenceColumns, StepView,
    TenantColumns,
};
use crate::sequence::{SeqIx, Slab};
use crate::snapshot::Counters;
use crate::tenants::{TenantTerms, Tenants};
use crate::watchdog::Watchdog;

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
    /// The state that the new policy has.
    pub state: Handover,
    /// Why it doesn't have the state that there was for it: it refuses that, or failed over it.
    pub state_note: Option<String>,
    /// A policy that is no longer used; drop it off the engine thread.
    pub retired: Option<AnyPolicy>,
}

/// What a driver has yet to collect.
#[derive(Default)]
struct Outbox {
    events: Vec<Event>,
    /// Policies that were removed for their faults.
    retired: Vec<AnyPolicy>,
}

impl Outbox {
    /// A guard's context, whose consequences end up here.
    fn context(&mut self, step: u64, now: Micros) -> Context<'_> {
        Context { now, step, events: &mut self.events, retired: &mut self.retired }
    }
}

/// The state machine. See the crate documentation.
pub struct Engine {
    config: EngineConfig,
    policies: Slots,
    kv: Kv,
    slab: Slab,
    /// What the scheduler is shown, kept up to date in place.
    view: StepView,
    /// The sequences behind its rows.
    rows: Rows,
    /// Requests that admission told to wait.
    held: Held,
    /// Tokens that are still asked of the host, and its pace.
    demand: Demand,
    tenants: Tenants,
    /// Buffers from a plan to its batch.
    step: Step,
    /// When the last plan asked to be called again.
    wake: Micros,
    /// Batches that the device has.
    flights: Flights,
    perf: Recorder,
    watchdog: Watchdog,
    feed: Feed,
    /// Waiting sequences whose prefix is still coming back from the second level of the cache.
    arriving: Vec<SeqIx>,
    decisions: Decisions,
    outbox: Outbox,
    counters: Counters,
    next_id: u64,
    /// The latest time that the driver named.
    clock: Micros,
    draining: bool,
}

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
        let limits = GuardLimits {
            max_strikes: config.max_strikes,
            strike_window: config.strike_window,
            step_budget: config.policy_step_budget,
        };
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
            policies: Slots::new(policies, limits),
            kv: Kv::new(&config),
            slab: Slab::default(),
            view,
            rows: Rows::default(),
            held: Held::default(),
            demand: Demand::default(),
            tenants: Tenants::default(),
            step: Step::default(),
            wake: Micros::NEVER,
            flights: Flights::default(),
            perf: Recorder::default(),
            watchdog: Watchdog::new(config.starvation_bound),
            feed: Feed::default(),
            arriving: Vec::new(),
            decisions: Decisions::default(),
            outbox: Outbox::default(),
            counters: Counters::default(),
            next_id: 1,
            clock: Micros::ZERO,
            draining: false,
            config,
        }
    }

    /// From now on `submit` refuses with `Draining`.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Takes `drain` back.
    pub fn undrain(&mut self) {
        self.draining = false;
    }

    /// Replaces the tenants' terms; unnamed tenants get the defaults.
    pub fn set_tenants(&mut self, all: &[(TenantId, TenantTerms)]) {
        self.tenants.configure(&mut self.view.tenants, all);
        self.held.load_changed = true;
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

    /// Every block that can be found by content, most recently used first and parents before children, for
    /// `restore_cache` of another engine. An engine that was idle until `now` has not seen that time pass.
    pub fn cached_blocks(&self, now: Micros) -> Vec<CachedBlock> {
        self.kv.cached(self.clock.max(now))
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
        !(self.rows.is_empty() && self.held.is_empty())
    }

    /// When to call `begin_step` again even if nothing happens; `None` for never.
    pub fn next_wake(&self) -> Option<Micros> {
        let held = self.held.next_call();
        let idle = self.rows.is_empty();
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
        out.append(&mut self.outbox.events);
    }

    /// Policies that were removed for their faults and are no longer used. Drop them off the engine thread.
    /// Policies that a swap retires are in its report instead.
    pub fn take_retired(&mut self) -> Vec<AnyPolicy> {
        std::mem::take(&mut self.outbox.retired)
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
