//! How sequences end: done, stopped, cancelled, failed, cleared, overdue.

use super::Engine;
use crate::event::{Event, FailureCause};
use crate::ids::{Micros, SequenceId};
use crate::kv::Keep;
use crate::request::{FinishReason, SequenceState, Usage};
use crate::sequence::SeqIx;
use crate::snapshot::Counters;
use crate::watchdog::Mark;

impl Engine {
    /// Ends a sequence from outside (cancelled, or a stop string was seen). False if it is unknown.
    pub fn finish(&mut self, id: SequenceId, reason: FinishReason, now: Micros) -> bool {
        let now = self.tick(now);
        let Some(ix) = self.slab.find(id).filter(|&ix| !self.slab[ix].has_ended()) else { return false };
        if self.slab[ix].is_running() {
            self.complete(ix, reason, now);
            self.remove_running(now);
        } else {
            let usage = self.close(ix, now);
            self.counters.finished[Counters::finish_index(reason)] += 1;
            self.outbox.events.push(Event::Finished { id, reason, usage });
            self.release_name(ix);
            self.forget_queued(ix);
        }
        self.note_load(now);
        true
    }

    /// Fails everything that waits (held, waiting, preempted). Returns how many.
    pub fn clear_queue(&mut self, message: &str, now: Micros) -> usize {
        let now = self.tick(now);
        // From the end, so that no row has to move up.
        let waiting = self.rows.waiting.ix.iter().rev().copied();
        let queued: Vec<SeqIx> = waiting.chain(self.held.values()).collect();
        for &ix in &queued {
            self.fail_queued(ix, FailureCause::Cleared, message.into(), now);
        }
        self.note_load(now);
        queued.len()
    }

    /// Fails a sequence from outside because its time limit is over. False if it is unknown.
    pub fn expire(&mut self, id: SequenceId, message: String, now: Micros) -> bool {
        let now = self.tick(now);
        let Some(ix) = self.slab.find(id).filter(|&ix| !self.slab[ix].has_ended()) else { return false };
        if self.slab[ix].is_running() {
            self.fail(ix, FailureCause::Overdue, message, now);
            self.remove_running(now);
        } else {
            self.fail_queued(ix, FailureCause::Overdue, message, now);
        }
        self.note_load(now);
        true
    }

    fn fail_queued(&mut self, ix: SeqIx, cause: FailureCause, message: String, now: Micros) {
        let usage = self.close(ix, now);
        self.counters.failed += 1;
        self.outbox.events.push(Event::Failed { id: self.slab[ix].id, cause, message, usage });
        self.release_name(ix);
        self.forget_queued(ix);
    }

    /// Removes a sequence from the queue for good.
    pub(super) fn forget_queued(&mut self, ix: SeqIx) {
        let sequence = &self.slab[ix];
        match sequence.state {
            SequenceState::Held => {
                self.held.remove(sequence);
            }
            _ => {
                let at = self.waiting_row(ix) as u32;
                self.rows.leaving.push(at);
                self.remove_waiting();
            }
        }
        let sequence = &self.slab[ix];
        self.demand.dequeue(sequence);
        self.demand.end(sequence);
        self.view.tenants.waiting[sequence.tenant_row as usize] -= 1;
        self.kv.unwatch(&mut self.slab, ix);
        self.kv.note_turn(&self.slab[ix]);
        self.slab.remove(ix);
        self.held.load_changed = true;
    }

    /// A running sequence ends well. Its row is removed by `remove_running`.
    pub(super) fn complete(&mut self, ix: SeqIx, reason: FinishReason, now: Micros) {
        let usage = self.close(ix, now);
        if reason != FinishReason::Cancelled && !self.slab[ix].request.sampling.embeds() {
            // A cancelled request says nothing about how long its output would have been, and one that embeds says
            // nothing about how long those of others will be.
            self.tenants.learn_output(self.slab[ix].tenant_row, usage.generated_tokens);
            self.held.outputs_learned();
        }
        self.counters.finished[Counters::finish_index(reason)] += 1;
        self.outbox.events.push(Event::Finished { id: self.slab[ix].id, reason, usage });
        self.leave_running(ix, SequenceState::Finished, now);
    }

    /// A running sequence fails. Its row is removed by `remove_running`.
    pub(super) fn fail(&mut self, ix: SeqIx, cause: FailureCause, message: String, now: Micros) {
        let usage = self.close(ix, now);
        self.counters.failed += 1;
        self.outbox.events.push(Event::Failed { id: self.slab[ix].id, cause, message, usage });
        self.leave_running(ix, SequenceState::Failed, now);
    }

    fn close(&mut self, ix: SeqIx, now: Micros) -> Usage {
        let sequence = &mut self.slab[ix];
        sequence.usage.ended = now;
        sequence.usage.generated_tokens = sequence.generated;
        sequence.usage
    }

    fn leave_running(&mut self, ix: SeqIx, state: SequenceState, now: Micros) {
        let sequence = &mut self.slab[ix];
        sequence.state = state;
        self.demand.end(sequence);
        self.rows.leaving.push(sequence.row);
        self.tenants.note_served(sequence.tenant_row, Mark { at: now, step: self.view.number });
        self.view.tenants.running[sequence.tenant_row as usize] -= 1;
        self.held.load_changed = true;
        if sequence.out > 0 {
            // The device may still write to its blocks.
            self.flights.lingering.push(ix);
        } else {
            self.bury(ix, now);
        }
    }

    /// Frees the blocks of a sequence that has ended, unless they are kept.
    pub(super) fn bury(&mut self, ix: SeqIx, now: Micros) {
        if let Some(slot) = self.slab[ix].logits_to.take() {
            self.kv.cancel_logits(slot);
        }
        let keep = match self.slab[ix].state {
            SequenceState::Finished => self.ask_retain(ix, now),
            _ => Keep::Indexed,
        };
        self.kv.note_turn(&self.slab[ix]);
        self.kv.end(&mut self.slab, ix, keep, now);
        self.release_name(ix);
        self.slab.remove(ix);
    }

    /// Notifies backends that keep state per sequence that this one is gone.
    fn release_name(&mut self, ix: SeqIx) {
        let sequence = &self.slab[ix];
        if sequence.usage.started != Micros::NEVER && sequence.state != SequenceState::Preempted {
            self.flights.released.push(sequence.id);
        }
    }
}
