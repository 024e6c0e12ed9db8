//! Those that admission told to wait, and which of them is asked about next.
//!
//! The more urgent come first. Of equally urgent ones it is the turn of the tenant that has least in the scheduler's
//! sight for its weight, and of its own who arrived first: were it the order of arrival alone, a tenant that floods
//! the queue would hide the others from the scheduler, and no scheduler could be fair to them.
//!
//! Waiting makes urgent: who was held for longer by `AGING` for each step of priority between them goes before the
//! more urgent one, where its tenant has no more in sight than any that holds somebody as urgent or more. Without the
//! first, urgent ones would keep the others out for as long as they come; without the second a flood, whose wait is of
//! its own making, would go before whoever is quiet and urgent. A tenant that gets no turn soon has nothing in sight,
//! and so its turn comes; its own urgent ones count as its turns.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::ids::{Micros, SequenceId};
use crate::policy::TenantColumns;
use crate::sequence::{SeqIx, Sequence};

/// So much longer one is held until it is as urgent as another of the next higher priority.
const AGING: Micros = Micros(5_000_000);
/// Priorities beyond this, above and below 0, count as this: whoever may name any number isn't ahead for days.
const MOST_URGENT: i32 = 20;

/// Priority, within its bounds.
type Level = Reverse<i32>;

#[derive(Debug, Default)]
pub(super) struct Held {
    /// By level, row of the tenant, arrival.
    by_tenant: BTreeMap<(Level, u32, SequenceId), SeqIx>,
    /// When each arrived, by level and arrival.
    by_arrival: BTreeMap<(Level, SequenceId), Micros>,
    /// By row of the tenant columns.
    count: Vec<u32>,
}

/// Who is asked about next of some, and the share of its tenant.
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

    /// In no order that means anything.
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
        }
    }

    /// Whether somebody at least as urgent is held.
    pub fn is_before(&self, sequence: &Sequence) -> bool {
        let own = rank(level(sequence), sequence.usage.arrived);
        self.levels().any(|(level, arrived)| rank(level, arrived) <= own)
    }

    /// Who is asked about next.
    pub fn head(&self, tenants: &TenantColumns) -> Option<SeqIx> {
        let (mut least, mut best) = (u64::MAX, None);
        for (level, _) in self.levels() {
            let next = self.next_of(level, tenants);
            if next.share > least {
                continue;
            }
            least = next.share;
            let rank = rank(level, self.by_arrival[&(level, next.id)]);
            if best.is_none_or(|(first, _)| rank < first) {
                best = Some((rank, next.ix));
            }
        }
        best.map(|(_, ix)| ix)
    }

    /// Levels that somebody is held on, the most urgent first, and when the first of each arrived.
    fn levels(&self) -> impl Iterator<Item = (Level, Micros)> + '_ {
        let from = |level| {
            let (&(level, _), &arrived) = self.by_arrival.range((level, SequenceId(0))..).next()?;
            Some((level, arrived))
        };
        std::iter::successors(from(Reverse(MOST_URGENT)), move |(level, _)| from(Reverse(level.0 - 1)))
    }

    /// Whose turn it is among those of a level that somebody is held on.
    fn next_of(&self, level: Level, tenants: &TenantColumns) -> Next {
        let (mut row, mut best) = (0, None);
        // The first of each tenant, by jumps from tenant to tenant.
        while let Some((&(next, at, id), &ix)) = self.by_tenant.range((level, row, SequenceId(0))..).next()
            && next == level
        {
            let share = self.share(tenants, at as usize);
            if best.as_ref().is_none_or(|best: &Next| (share, id) < (best.share, best.id)) {
                best = Some(Next { share, id, ix });
            }
            row = at + 1;
        }
        best.expect("somebody is held on the level")
    }

    /// Sequences that a tenant has running or in the scheduler's sight, for its weight.
    fn share(&self, tenants: &TenantColumns, row: usize) -> u64 {
        let alive = u64::from(tenants.running[row]) + u64::from(tenants.waiting[row]);
        let in_sight = alive.saturating_sub(u64::from(self.count[row]));
        in_sight * 1_000_000 / u64::from(tenants.weight_permille[row].max(1))
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
