//! Who waits while later requests start. The engine promises to remove a scheduler under which that goes on for
//! longer than the bound.
//!
//! A start overtakes a waiting sequence if its request came later and is no more urgent. It does not count for
//! one that admission holds, that would not fit in memory, or that waits for a prefix being computed; and
//! between tenants only while none of the waiting one's tenant runs. A new scheduler starts with a clean slate.
//!
//! Everything here is known from batches, tables and events, except for what admission holds. What can't be
//! known for certain counts as an excuse: memory that only the sequence's own cached blocks would make
//! sufficient, prefixes that may be computed by now, starts that the engine, which looks at a sample of them,
//! may have missed. Time is counted in gaps between batches, each of which counts for a part of the bound at
//! most (`patience`): so a jump of the clock or a sleep is no reproach.

use std::collections::{BTreeMap, BTreeSet};

use infer_core::request::SequenceState;
use infer_core::{Batch, Engine, Micros, SequenceId, TenantId};

use super::case::Setup;
use super::clients::{Client, Clients};
use super::ledger::Ledger;

/// Bounds of time that a sequence may be overtaken for: the engine looks only now and then, and also wants some
/// batches to be computed.
const LONGEST: u64 = 2;
/// The part of a bound within which the engine looks at starts once.
const SAMPLED: u64 = 64;
/// With more requests than this nothing is judged: the engine brings no more than 256 hits up to date in a step.
const MOST_LIVE: usize = 200;

/// A batch that was made, and everything else as it is right after that.
pub(super) struct Made<'a> {
    pub batch: &'a Batch,
    pub engine: &'a Engine,
    pub ledger: &'a Ledger,
    pub clients: &'a Clients,
    pub now: Micros,
    /// The built-in scheduler, which can't be removed, is live.
    pub aided: bool,
}

pub(super) struct Overtaking {
    bound: Micros,
    block_size: usize,
    /// Whether prefixes are shared.
    sharing: bool,
    running: BTreeMap<SequenceId, Run>,
    /// Sequences that started for the first time since the last batch.
    fresh: BTreeSet<SequenceId>,
    /// Waiting sequences that were overtaken.
    waits: BTreeMap<SequenceId, Wait>,
    /// When something of a tenant last started or stopped running, in time that counts.
    served: BTreeMap<TenantId, u64>,
    /// When anything last started.
    started: Micros,
    /// The scheduler changed since the last batch.
    forgiven: bool,
}

struct Run {
    tenant: TenantId,
    /// Tokens that it had when it started; while it has no more, others may wait for what it computes.
    got: usize,
}

struct Wait {
    /// By sequences of its own tenant, and by others'.
    by: [Span; 2],
    /// For how long it was overtaken, once the engine must have noticed.
    late: Option<u64>,
}

#[derive(Clone, Copy)]
struct Span {
    /// When the engine must have noticed it first, in time that counts.
    since: Option<u64>,
    /// The last starts that did not overtake the sequence like this: the engine may have looked at them alone.
    missed: Micros,
}

/// What started with a batch.
struct Starts<'a> {
    ids: &'a [SequenceId],
    /// The place in the queue of the last of them.
    last: (bool, SequenceId),
    /// Sequences that may have been computing a prefix before.
    computing: &'a [SequenceId],
}

impl Overtaking {
    pub fn new(setup: &Setup) -> Self {
        Self {
            bound: Micros(setup.starvation_bound_us),
            block_size: setup.block_size as usize,
            sharing: setup.prefix_caching,
            running: BTreeMap::new(),
            fresh: BTreeSet::new(),
            waits: BTreeMap::new(),
            served: BTreeMap::new(),
            started: Micros::ZERO,
            forgiven: false,
        }
    }

    /// The scheduler was replaced or blamed. The engine clears its marks then or, if it removes the scheduler in
    /// the middle of a step, at the beginning of the next one.
    pub fn forgive(&mut self) {
        self.waits.clear();
        self.forgiven = true;
    }

    /// A sequence starts for the first time.
    pub fn starts(&mut self, id: SequenceId) {
        self.fresh.insert(id);
    }

    /// A batch was made, `spent_us` after the first one in time that counts. Returns how many sequences it
    /// overtook.
    pub fn begins(&mut self, made: &Made<'_>, spent_us: u64) -> u64 {
        let Made { batch, clients, now, aided, .. } = *made;
        self.waits.retain(|&id, _| clients.get(id).is_some());
        if let Some((id, us)) = self.waits.iter().find_map(|(id, wait)| Some((id, wait.late?))) {
            let longest = LONGEST * self.bound.0;
            panic!("{id:?} waits, and later requests were started before it for {us} us, over {longest}");
        }
        let is_start = |id: &SequenceId| !self.running.contains_key(id) || batch.released.contains(id);
        let ids: Vec<SequenceId> = batch.rows.iter().map(|row| row.sequence).filter(is_start).collect();
        // Before the preempted ones leave: what waited for them learns of it in the next step.
        let computing = if ids.is_empty() { Vec::new() } else { self.computing(clients) };
        self.stop(batch, clients, spent_us);
        let forgiven = std::mem::take(&mut self.forgiven);
        let Some(last) = ids.iter().map(|id| (self.fresh.contains(id), *id)).max() else { return 0 };
        for &id in &ids {
            self.waits.remove(&id);
            self.served.insert(alive(clients, id).request.tenant, spent_us);
        }
        let starts = Starts { ids: &ids, last, computing: &computing };
        let overtaken = if forgiven || aided { 0 } else { self.note(made, &starts, spent_us) };
        self.started = now;
        self.fresh.clear();
        for &id in &ids {
            let client = alive(clients, id);
            self.running.insert(id, Run { tenant: client.request.tenant, got: client.got });
        }
        overtaken
    }

    /// Running sequences whose prompt, or what a preemption cost, may not be computed yet.
    fn computing(&self, clients: &Clients) -> Vec<SequenceId> {
        let computes = |(id, run): &(&SequenceId, &Run)| {
            self.sharing && clients.get(**id).is_some_and(|client| client.got == run.got)
        };
        self.running.iter().filter(computes).map(|(&id, _)| id).collect()
    }

    /// Some sequences have ended, or wait again.
    fn stop(&mut self, batch: &Batch, clients: &Clients, spent_us: u64) {
        let served = &mut self.served;
        self.running.retain(|id, run| {
            let runs = clients.get(*id).is_some() && !batch.released.contains(id);
            if !runs {
                served.insert(run.tenant, spent_us);
            }
            runs
        });
    }

    /// Notes who was overtaken. Returns how many.
    fn note(&mut self, made: &Made<'_>, starts: &Starts<'_>, spent_us: u64) -> u64 {
        let now = made.now;
        let mut count = 0;
        for (&id, client) in made.clients.live() {
            if self.running.contains_key(&id) || starts.ids.contains(&id) {
                continue;
            }
            let Some(own) = self.overtaken(id, client, starts, made) else {
                if let Some(wait) = self.waits.get_mut(&id) {
                    wait.by.iter_mut().for_each(|span| span.missed = now);
                }
                continue;
            };
            let missed = self.started;
            let new = Wait { by: [Span { since: None, missed }; 2], late: None };
            let wait = self.waits.entry(id).or_insert(new);
            let by = usize::from(!own);
            wait.by[1 - by].missed = now;
            let span = &mut wait.by[by];
            if now.since(span.missed).0 < self.bound.0 / SAMPLED {
                continue;
            }
            count += 1;
            let served = self.served.get(&client.request.tenant).copied().unwrap_or(0);
            let since = (*span.since.get_or_insert(spent_us)).max(if own { 0 } else { served });
            let us = spent_us - since;
            if us > LONGEST * self.bound.0 {
                wait.late = Some(us);
            }
        }
        count
    }

    /// Whether starts overtake a waiting sequence for no good reason: `true` if any of them is of its own
    /// tenant.
    fn overtaken(
        &self,
        id: SequenceId,
        client: &Client,
        starts: &Starts<'_>,
        made: &Made<'_>,
    ) -> Option<bool> {
        // Preempted ones come first in the queue; the engine looks at it up to the last that starts.
        if (!client.started, id) > starts.last {
            return None;
        }
        let (tenant, priority) = (client.request.tenant, client.request.priority);
        let (mut own, mut others) = (false, false);
        for &start in starts.ids {
            let other = &alive(made.clients, start).request;
            let overtakes = start > id && other.priority <= priority;
            own |= overtakes && other.tenant == tenant;
            others |= overtakes && other.tenant != tenant;
        }
        let served = self.running.values().any(|run| run.tenant == tenant);
        let counts = own || (others && !served);
        (counts && !self.is_excused(id, client, starts, made)).then_some(own)
    }

    /// Whether it may not be able to start, or may be better off waiting.
    fn is_excused(&self, id: SequenceId, client: &Client, starts: &Starts<'_>, made: &Made<'_>) -> bool {
        let Made { ledger, clients, engine, .. } = *made;
        // What an ended sequence was computing is expected until its last batch returns.
        if clients.live().len() > MOST_LIVE || ledger.outlives(clients) {
            return true;
        }
        let is_held = || {
            let detail = engine.sequence_detail(id);
            detail.is_none_or(|(shown, _)| shown.state == SequenceState::Held)
        };
        let mut computing = starts.computing.iter().filter_map(|&id| clients.get(id));
        client.len().div_ceil(self.block_size) > ledger.room_without(starts.ids)
            || computing.any(|other| self.may_share(client, other))
            || (!client.started && is_held())
    }

    /// Whether two sequences have any cached block, or their whole prompt, in common.
    fn may_share(&self, one: &Client, other: &Client) -> bool {
        let front = |client: &Client| client.len().min(self.block_size);
        one.scope() == other.scope() && one.truth[..front(one)] == other.truth[..front(other)]
    }
}

fn alive(clients: &Clients, id: SequenceId) -> &Client {
    clients.get(id).expect("a row's request is alive")
}
