//! Batches in flight, and what waits for their return or for the next batch.

use std::collections::VecDeque;

use crate::batch::{Batch, OffloadCopy};
use crate::ids::{Micros, SequenceId};
use crate::sequence::SeqIx;
use crate::verify::PlannedRow;
use crate::watchdog::Mark;

/// A batch in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    pub begun: Mark,
    /// When the device could turn to it.
    pub since: Micros,
    pub rows: Vec<PlannedRow>,
    /// Its copies from and to the second level of the prefix cache.
    pub copies: Vec<OffloadCopy>,
    /// The host takes part in some row's sampling.
    pub needs_host: bool,
    /// The batch before it was lost, and so is what it computes.
    pub void: bool,
}

/// The batches that the device has, and what may happen only once one returns or the next one is made.
#[derive(Debug, Default)]
pub(super) struct Flights {
    /// Oldest first.
    pub out: VecDeque<InFlight>,
    /// Sequences that ended while a batch in flight has a row of them: their blocks return with it.
    pub lingering: Vec<SeqIx>,
    /// Sequences to name in the next batch's `released`.
    pub released: Vec<SequenceId>,
    /// Buffers of returned batches.
    pub spare: Vec<Batch>,
    /// When the last batch was made.
    pub last_begun: Mark,
}

impl Flights {
    /// An empty batch in old buffers, which names what was released since the last one.
    pub fn begin(&mut self, now: Mark) -> Batch {
        let mut batch = self.spare.pop().unwrap_or_default();
        batch.clear();
        batch.step = now.step;
        batch.released.append(&mut self.released);
        self.last_begun = now;
        batch
    }

    /// The batch that was begun last is complete.
    pub fn launch(&mut self, rows: Vec<PlannedRow>, needs_host: bool, copies: Vec<OffloadCopy>) {
        let begun = self.last_begun;
        self.out.push_back(InFlight { begun, since: begun.at, rows, copies, needs_host, void: false });
    }

    /// The oldest batch is back, and the device turns to the one behind it.
    pub fn take_oldest(&mut self, batch: &Batch, now: Micros) -> InFlight {
        let flight = self.out.pop_front().expect("a batch is out");
        assert_eq!(batch.step, flight.begun.step, "batches return in the order in which they were made");
        assert_eq!(batch.rows.len(), flight.rows.len(), "with its rows");
        if let Some(behind) = self.out.front_mut() {
            behind.since = now;
        }
        flight
    }

    /// The batch that was taken last is lost, and with it the input of the one behind it. Returns what that one copies.
    pub fn void_next(&mut self) -> Vec<OffloadCopy> {
        let Some(behind) = self.out.front_mut() else { return Vec::new() };
        behind.void = true;
        std::mem::take(&mut behind.copies)
    }
}
