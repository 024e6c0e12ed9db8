//! The watchdog's view of running and waiting sequences: which are left idle, which are overtaken.

use super::Engine;
use crate::ids::Micros;
use crate::sequence::SeqIx;
use crate::watchdog::Mark;

impl Engine {
    /// Removes the scheduler if it has neglected a sequence for too long.
    pub(super) fn judge_neglect(&mut self, now: Micros) {
        if self.policies.scheduler.take_removal() {
            self.forgive(now);
            return;
        }
        let message = if let Some(id) = self.watchdog.starved.take() {
            format!("later requests were started before sequence {} for too long", id.0)
        } else if self.watchdog.runs_in_circles(self.flights.last_begun) {
            "batches were computed for too long without any sequence getting further".to_owned()
        } else if self.watchdog.look_now(now)
            && let Some(id) = self.left_idle()
        {
            format!("running sequence {id} was left idle for too long while others ran")
        } else {
            return;
        };
        self.starvation(message, now);
        self.forgive(now);
    }

    /// A running sequence that no plan has named for too long, while batches were computed.
    fn left_idle(&self) -> Option<u64> {
        let last = self.flights.last_begun;
        let is_idle = |&&ix: &&SeqIx| self.watchdog.too_long(self.slab[ix].planned, last);
        let idle = self.rows.running.ix.iter().find(is_idle)?;
        Some(self.slab[*idle].id.0)
    }

    /// The next scheduler starts with a clean slate.
    pub(super) fn forgive(&mut self, now: Micros) {
        let mark = Mark { at: now, step: self.view.number };
        for &ix in &self.rows.running.ix {
            self.slab[ix].planned = mark;
        }
        for &ix in &self.rows.waiting.ix {
            self.slab[ix].overtaken = None;
            self.slab[ix].passed = None;
        }
        self.watchdog.starved = None;
        self.watchdog.advanced(mark);
        self.watchdog.progressed();
    }

    /// Notes which sequences the starts of this step overtake. `available` blocks could be allocated by any
    /// of them, and a slot was free. `leaving` holds the positions of the starts.
    pub(super) fn note_overtaken(&mut self, available: u32, now: Micros) {
        let mark = Mark { at: now, step: self.view.number };
        for &at in &self.rows.leaving {
            self.tenants.note_served(self.slab[self.rows.waiting.ix[at as usize]].tenant_row, mark);
        }
        let in_order = self.rows.leaving.iter().enumerate().all(|(nth, &at)| nth == at as usize);
        if in_order || !self.watchdog.scan_now(now) {
            return;
        }
        let last = *self.rows.leaving.last().expect("something starts") as usize;
        let mut starts = 0;
        for at in 0..last {
            if self.rows.leaving[starts] as usize == at {
                starts += 1;
                continue;
            }
            let ix = self.rows.waiting.ix[at];
            // A sequence that waits for a prefix being computed, or coming back, is better off waiting.
            let waits = self.view.waiting.pending_tokens[at] > 0 || self.arriving.contains(&ix);
            if waits || !self.would_fit(ix, available) {
                continue;
            }
            self.note_one(ix, at, mark);
        }
    }

    fn note_one(&mut self, ix: SeqIx, at: usize, now: Mark) {
        let rows = &self.view.waiting;
        let row = self.slab[ix].tenant_row;
        let served = self.view.tenants.running[row as usize] > 0;
        let mut own = false;
        let mut others = false;
        for &start in &self.rows.leaving {
            let start = start as usize;
            let overtakes = rows.id[start] > rows.id[at] && rows.priority[start] <= rows.priority[at];
            own |= overtakes && rows.tenant[start] == rows.tenant[at];
            others |= overtakes && rows.tenant[start] != rows.tenant[at];
        }
        let sequence = &mut self.slab[ix];
        let mut starved = false;
        if own {
            starved |= self.watchdog.too_long(*sequence.overtaken.get_or_insert(now), now);
        }
        if others && !own && !served {
            let passed = *sequence.passed.get_or_insert(now);
            starved |= self.watchdog.too_long(passed.max(self.tenants.served(row)), now);
        }
        if starved {
            self.watchdog.starved = Some(sequence.id);
        }
    }
}
