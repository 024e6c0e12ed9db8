//! Those that admission told to wait, and which of them is asked about next.
//!
//! The most urgent come first. Among these the tenant that has least in the scheduler's sight for its
//! weight is next, and of one tenant who arrived first: were it the order of arrival alone, a tenant that
//! floods the queue would hide the others from the scheduler, and no scheduler could be fair to them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::ids::SequenceId;
use crate::policy::TenantColumns;
use crate::sequence::{SeqIx, Sequence};

/// Urgency, row of the tenant, arrival.
type Key = (Reverse<i32>, u32, SequenceId);

#[derive(Debug, Default)]
pub(super) struct Held {
    by_key: BTreeMap<Key, SeqIx>,
    /// By row of the tenant columns.
    count: Vec<u32>,
}

impl Held {
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// In no order that means anything.
    pub fn values(&self) -> impl Iterator<Item = SeqIx> {
        self.by_key.values().copied()
    }

    pub fn insert(&mut self, sequence: &Sequence, ix: SeqIx) {
        let row = sequence.tenant_row as usize;
        if self.count.len() <= row {
            self.count.resize(row + 1, 0);
        }
        self.count[row] += 1;
        self.by_key.insert(key(sequence), ix);
    }

    pub fn remove(&mut self, sequence: &Sequence) {
        if self.by_key.remove(&key(sequence)).is_some() {
            self.count[sequence.tenant_row as usize] -= 1;
        }
    }

    /// Whether somebody at least as urgent is held.
    pub fn is_before(&self, sequence: &Sequence) -> bool {
        self.by_key
            .first_key_value()
            .is_some_and(|(&(urgency, ..), _)| urgency <= Reverse(sequence.request.priority))
    }

    /// Who is asked about next.
    pub fn head(&self, tenants: &TenantColumns) -> Option<SeqIx> {
        let (&(urgency, mut row, _), _) = self.by_key.first_key_value()?;
        let mut best = None;
        // The first of each tenant, by jumps from tenant to tenant.
        while let Some((&(next, at, id), &ix)) = self.by_key.range((urgency, row, SequenceId(0))..).next()
            && next == urgency
        {
            let share = self.share(tenants, at as usize);
            if best.is_none_or(|(least, first, _)| (share, id) < (least, first)) {
                best = Some((share, id, ix));
            }
            row = at + 1;
        }
        best.map(|(_, _, ix)| ix)
    }

    /// Sequences that a tenant has running or in the scheduler's sight, for its weight.
    fn share(&self, tenants: &TenantColumns, row: usize) -> u64 {
        let alive = u64::from(tenants.running[row]) + u64::from(tenants.waiting[row]);
        let in_sight = alive.saturating_sub(u64::from(self.count[row]));
        in_sight * 1_000_000 / u64::from(tenants.weight_permille[row].max(1))
    }
}

fn key(sequence: &Sequence) -> Key {
    (Reverse(sequence.request.priority), sequence.tenant_row, sequence.id)
}
