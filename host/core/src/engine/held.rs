//! Held requests, which admission told to wait, and the one that it is asked about next.
//!
//! The most urgent come first; among equally urgent ones the tenant with the least work visible to the scheduler for
//! its weight, and within a tenant the first to arrive. By arrival alone a tenant that floods the queue would hide the
//! others from the scheduler, and no scheduler could be fair to them.
//!
//! Aging: a request may pass a more urgent one if it has been held `AGING` longer per priority level between them,
//! provided no tenant with requests held at that level or above has less work visible to the scheduler. Without the
//! first rule an endless stream of urgent requests would starve the rest; without the second a flood, which causes its
//! own wait, would pass a quiet tenant's urgent requests. A tenant that gets no turn soon has nothing visible, and so
//! its turn comes; its own urgent requests count as its turns.
//!
//! A tenant of which the policy said that it waits is passed over until the next round, as if it had nothing held. A
//! round that is too long for one step goes on in the next; what changes meanwhile leads to another one after it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::ids::{Micros, SequenceId};
use crate::policy::TenantColumns;
use crate::sequence::{SeqIx, Sequence};

/// Longest time between the beginnings of two rounds.
const INTERVAL: Micros = Micros(50_000);
/// Time held that is worth one priority level.
const AGING: Micros = Micros(5_000_000);
/// Priorities are clamped to this above and below 0, so a client that may set any priority cannot stay ahead for days.
const MOST_URGENT: i32 = 20;

/// Priority, within its bounds.
type Level = Reverse<i32>;

/// Level, row of the tenant, arrival.
type Key = (Level, u32, SequenceId);

/// The held requests, and when admission is asked about them again.
#[derive(Debug, Default)]
pub(super) struct Held {
    by_tenant: BTreeMap<Key, SeqIx>,
    /// When each arrived, by level and arrival.
    by_arrival: BTreeMap<(Level, SequenceId), Micros>,
    /// By row of the tenant columns.
    count: Vec<u32>,
    /// How many may expect outputs by what was known before the last one ended, from the one behind `renewed` on.
    outdated: usize,
    /// The last one that was renewed.
    renewed: Option<Key>,
    /// Rows of tenants that are passed over in this round.
    passed: BTreeSet<u32>,
    /// The round ended before all were asked about that it should reach, and goes on with the next step.
    interrupted: bool,
    /// Memory or load changed since the last round began.
    pub load_changed: bool,
    /// When that was.
    asked_at: Micros,
    /// Since when there have only been held requests.
    pub alone_since: Option<Micros>,
}

/// The next request of a level, and its tenant's share.
struct Next {
    share: u64,
    id: SequenceId,
    ix: SeqIx,
}

impl Held {
    pub fn len(&self) -> usize {
        self.by_tenant.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_tenant.is_empty()
    }

    /// In no meaningful order.
    pub fn values(&self) -> impl Iterator<Item = SeqIx> {
        self.by_tenant.values().copied()
    }

    pub fn insert(&mut self, sequence: &Sequence, ix: SeqIx) {
        let row = sequence.tenant_row as usize;
        if self.count.len() <= row {
            self.count.resize(row + 1, 0);
        }
        self.count[row] += 1;
        let level = level(sequence);
        self.by_tenant.insert((level, sequence.tenant_row, sequence.id), ix);
        self.by_arrival.insert((level, sequence.id), sequence.usage.arrived);
    }

    pub fn remove(&mut self, sequence: &Sequence) {
        let level = level(sequence);
        if self.by_tenant.remove(&(level, sequence.tenant_row, sequence.id)).is_some() {
            self.by_arrival.remove(&(level, sequence.id));
            self.count[sequence.tenant_row as usize] -= 1;
            if self.by_tenant.is_empty() {
                // What is held from then on has waited for nothing yet.
                self.alone_since = None;
            }
        }
    }

    pub fn contains(&self, sequence: &Sequence) -> bool {
        self.by_tenant.contains_key(&(level(sequence), sequence.tenant_row, sequence.id))
    }

    /// An output ended, so another length is expected of all of them.
    pub fn outputs_learned(&mut self) {
        self.outdated = self.len();
    }

    /// The next one whose expected output may be out of date. They take turns, so that all are renewed in the end although
    /// outputs end meanwhile.
    pub fn next_outdated(&mut self) -> Option<SeqIx> {
        self.outdated = self.outdated.checked_sub(1)?;
        let behind = (self.renewed.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let next = self.by_tenant.range(behind).next().or_else(|| self.by_tenant.iter().next());
        let (&key, &ix) = next?;
        self.renewed = Some(key);
        Some(ix)
    }

    /// When to ask about them, even if nothing changes from now on.
    pub fn next_call(&self) -> Option<Micros> {
        let wait = if self.load_changed || self.interrupted { Micros::ZERO } else { INTERVAL };
        (!self.is_empty()).then(|| self.asked_at.plus(wait))
    }

    /// Whether to ask about them now.
    pub fn is_due(&self, now: Micros) -> bool {
        self.next_call().is_some_and(|at| now >= at)
    }

    /// Admission is being asked: in a new round, about the load as it is, unless the last one was interrupted.
    pub fn asked(&mut self, now: Micros) {
        if !std::mem::take(&mut self.interrupted) {
            self.load_changed = false;
            self.asked_at = now;
            self.passed.clear();
        }
    }

    /// This round took long enough for one step.
    pub fn interrupt(&mut self) {
        self.interrupted = true;
    }

    /// Passes over a request's tenant in this round.
    pub fn pass_over(&mut self, sequence: &Sequence) {
        self.passed.insert(sequence.tenant_row);
    }

    /// A request holds the queue behind it, whatever was said of its tenant in this round.
    pub fn stop_at(&mut self, sequence: &Sequence) {
        self.passed.remove(&sequence.tenant_row);
    }

    /// Another admission policy is live: it starts with a clean slate, and is asked at once.
    pub fn start_over(&mut self) {
        self.alone_since = None;
        self.interrupted = false;
        self.load_changed = true;
    }

    /// Whether a request at least as urgent is held, of the same tenant or of one that isn't passed over.
    pub fn is_before(&self, sequence: &Sequence) -> bool {
        let own = rank(level(sequence), sequence.usage.arrived);
        self.levels().any(|(level, arrived)| {
            rank(level, arrived) <= own
                && (self.passed.is_empty()
                    || self.firsts(level).any(|(row, id, _)| {
                        let counts = row == sequence.tenant_row || !self.passed.contains(&row);
                        counts && rank(level, self.by_arrival[&(level, id)]) <= own
                    }))
        })
    }

    /// The request that admission is asked about next.
    pub fn head(&self, tenants: &TenantColumns) -> Option<SeqIx> {
        let (mut least, mut best) = (u64::MAX, None);
        for (level, _) in self.levels() {
            let Some(next) = self.next_of(level, tenants).filter(|next| next.share <= least) else {
                continue;
            };
            least = next.share;
            let rank = rank(level, self.by_arrival[&(level, next.id)]);
            if best.is_none_or(|(first, _)| rank < first) {
                best = Some((rank, next.ix));
            }
        }
        best.map(|(_, ix)| ix)
    }

    /// Levels with held requests, the most urgent first, and when the first request of each arrived.
    fn levels(&self) -> impl Iterator<Item = (Level, Micros)> + '_ {
        let from = |level| {
            let (&(level, _), &arrived) = self.by_arrival.range((level, SequenceId(0))..).next()?;
            Some((level, arrived))
        };
        std::iter::successors(from(Reverse(MOST_URGENT)), move |(level, _)| from(Reverse(level.0 - 1)))
    }

    /// The next request of a level, unless all its tenants are passed over.
    fn next_of(&self, level: Level, tenants: &TenantColumns) -> Option<Next> {
        let asked = self.firsts(level).filter(|(row, ..)| !self.passed.contains(row));
        let next = asked.map(|(row, id, ix)| Next { share: self.share(tenants, row as usize), id, ix });
        next.min_by_key(|next| (next.share, next.id))
    }

    /// Each tenant's first request of a level: the tenant's row, and the request.
    fn firsts(&self, level: Level) -> impl Iterator<Item = (u32, SequenceId, SeqIx)> + '_ {
        let from = move |row| {
            let (&(next, row, id), &ix) = self.by_tenant.range((level, row, SequenceId(0))..).next()?;
            (next == level).then_some((row, id, ix))
        };
        // Jumps from each tenant's first request to the next tenant's.
        std::iter::successors(from(0), move |(row, ..)| from(row + 1))
    }

    /// Sequences of a tenant that run or are visible to the scheduler, relative to its weight.
    fn share(&self, tenants: &TenantColumns, row: usize) -> u64 {
        let in_sight = u64::from(self.in_sight(tenants, row));
        in_sight * 1_000_000 / u64::from(tenants.weight_permille[row].max(1))
    }

    /// Held sequences of the tenant in a row of the columns.
    pub fn of_tenant(&self, row: usize) -> u32 {
        self.count.get(row).copied().unwrap_or(0)
    }

    /// Sequences of a tenant that run or are visible to the scheduler.
    pub fn in_sight(&self, tenants: &TenantColumns, row: usize) -> u32 {
        let cell = |column: &[u32]| column.get(row).copied().unwrap_or(0);
        (cell(&tenants.running) + cell(&tenants.waiting)).saturating_sub(self.of_tenant(row))
    }
}

fn level(sequence: &Sequence) -> Level {
    Reverse(sequence.request.priority.clamp(-MOST_URGENT, MOST_URGENT))
}

/// When it would have arrived with priority 0; the smallest is next. In microseconds, signed.
fn rank(level: Level, arrived: Micros) -> i64 {
    let arrived = i64::try_from(arrived.0).unwrap_or(i64::MAX);
    arrived.saturating_sub(i64::from(level.0) * AGING.0 as i64)
}
