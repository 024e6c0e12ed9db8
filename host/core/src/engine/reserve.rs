//! From a verified plan to memory: hits are pinned, the tail that doesn't fit is cut, blocks are allocated.

use super::Engine;
use crate::event::{Event, PrefixEvent};
use crate::ids::Micros;
use crate::kv::{Continuity, Keep};
use crate::request::SequenceState;
use crate::sequence::SeqIx;
use crate::snapshot::Counters;
use crate::verify::{PlannedRow, VerifiedPlan};
use crate::watchdog::Mark;

impl Engine {
    /// Reserves blocks for the plan in its order. `rows` is the part of it that fits in memory.
    pub(super) fn reserve(&mut self, plan: &VerifiedPlan, now: Micros) {
        self.step.available_before = self.kv.blocks.available();
        self.step.rows.clear();
        self.step.rows.extend_from_slice(plan.rows());
        self.defer_repeats(now);
        self.defer_arriving(now);
        for at in 0..self.step.rows.len() {
            if self.step.rows[at].starts {
                self.kv.take_hit(&mut self.slab, self.step.rows[at].ix, now);
            }
        }
        let blocks = self.cut_to_memory(now);
        self.make_room(blocks, now);
        for at in 0..self.step.rows.len() {
            let PlannedRow { ix, tokens, starts, .. } = self.step.rows[at];
            let sequence = &mut self.slab[ix];
            let held = sequence.table.len();
            self.kv.grow(sequence, ix, sequence.reached() + tokens, now);
            if !starts && sequence.table.len() != held {
                self.view.running.blocks[sequence.row as usize] = sequence.table.len() as u32;
            }
        }
    }

    /// Of rows with the same prompt only the first computes it; the others wait until it is in the pool, and
    /// then need nothing but a copy of its last block.
    fn defer_repeats(&mut self, now: Micros) {
        let mark = Mark { at: now, step: self.view.number };
        let mut at = 1;
        while at < self.step.rows.len() {
            let PlannedRow { ix, starts, .. } = self.step.rows[at];
            let sequence = &self.slab[ix];
            let before = &self.step.rows[..at];
            if starts && before.iter().any(|row| self.kv.will_answer(&self.slab[row.ix], sequence)) {
                self.step.rows.remove(at);
                self.slab[ix].planned = mark;
            } else {
                at += 1;
            }
        }
    }

    /// Cuts rows from the end until the rest fits. Returns the new blocks that it needs.
    fn cut_to_memory(&mut self, now: Micros) -> u32 {
        let mark = Mark { at: now, step: self.view.number };
        let mut needed = 0;
        let mut at = 0;
        while at < self.step.rows.len() {
            let need = self.need(self.step.rows[at]);
            self.slab[self.step.rows[at].ix].planned = mark;
            if needed + need <= self.kv.blocks.available() {
                needed += need;
                at += 1;
                continue;
            }
            let cut = self.step.rows.pop().expect("the row that doesn't fit is there");
            self.counters.cut_rows += 1;
            self.slab[cut.ix].planned = mark;
            if cut.starts {
                // Those behind it are cut first, and are not short of anything themselves.
                let itself = self.step.rows.len() == at;
                self.kv.give_back_hit(&mut self.slab, cut.ix, itself, now);
                self.refresh_waiting(cut.ix);
            }
        }
        needed
    }

    /// Blocks that a row needs beyond those it holds.
    fn need(&self, row: PlannedRow) -> u32 {
        let sequence = &self.slab[row.ix];
        self.kv.blocks_for(sequence.reached() + row.tokens).saturating_sub(sequence.table.len() as u32)
    }

    /// Moves starting sequences from the waiting to the running ones.
    pub(super) fn start_planned(&mut self, now: Micros) {
        let starts = |row: &&PlannedRow| row.starts;
        for row in self.step.rows.iter().filter(starts) {
            let at = self.waiting_row(row.ix) as u32;
            self.rows.leaving.push(at);
        }
        if self.rows.leaving.is_empty() {
            return;
        }
        self.rows.leaving.sort_unstable();
        if self.has_place() {
            self.note_overtaken(self.step.available_before, now);
        }
        self.remove_waiting();
        self.held.load_changed = true;
        for at in 0..self.step.rows.len() {
            if self.step.rows[at].starts {
                self.start(self.step.rows[at].ix, now);
            }
        }
    }

    fn start(&mut self, ix: SeqIx, now: Micros) {
        let sequence = &mut self.slab[ix];
        let tenant = sequence.tenant_row as usize;
        self.demand.dequeue(sequence);
        sequence.state = SequenceState::Prefill;
        sequence.overtaken = None;
        sequence.passed = None;
        sequence.arriving = None;
        self.view.tenants.waiting[tenant] -= 1;
        self.view.tenants.running[tenant] += 1;
        if sequence.usage.started == Micros::NEVER {
            self.first_start(ix, now);
        }
        self.kv.announce(&mut self.slab, ix);
        self.push_running(ix, now);
    }

    fn first_start(&mut self, ix: SeqIx, now: Micros) {
        let sequence = &mut self.slab[ix];
        let left = sequence.request.max_new_tokens as usize;
        sequence.tokens.reserve_exact(left);
        sequence.table.reserve((sequence.max_blocks as usize).saturating_sub(sequence.table.len()));
        let cached = sequence.computed;
        sequence.usage.started = now;
        sequence.usage.cached_tokens = cached;
        let full = sequence.logits_from.is_some();
        let sequence = &self.slab[ix];
        let prefix = match self.kv.continuity(sequence, cached) {
            _ if full => PrefixEvent::FullHitNoPrefillNeeded,
            Continuity::Shares => PrefixEvent::ConversationalHit,
            Continuity::Diverges => PrefixEvent::ConversationalMissUnexpectedPrompt,
            _ if cached > 0 => PrefixEvent::CrossRequestHit,
            _ => PrefixEvent::MissFull,
        };
        self.kv.begin_turn(&mut self.slab[ix]);
        let sequence = &self.slab[ix];
        let prefill_tokens = sequence.prompt_len - cached;
        self.counters.prompt_tokens += u64::from(sequence.prompt_len);
        if self.config.prefix_caching {
            self.counters.prefix_queries += u64::from(sequence.prompt_len);
            self.counters.prefix_hits += u64::from(cached);
        }
        let event = Counters::prefix_index(prefix);
        self.counters.prefix_events[event] += 1;
        self.counters.prefix_eligible[event] += u64::from(sequence.prompt_len >= self.kv.block_size());
        self.counters.prefix_cached_tokens[event] += u64::from(cached);
        self.counters.prefix_prefilled_tokens[event] += u64::from(prefill_tokens);
        let (id, cached_tokens) = (sequence.id, cached);
        self.outbox.events.push(Event::Started { id, at: now, prefix, cached_tokens, prefill_tokens });
    }

    /// Preempts a running sequence. Its row is removed by `remove_running`.
    pub(super) fn preempt(&mut self, ix: SeqIx, now: Micros) {
        self.counters.preemptions += 1;
        self.slab[ix].usage.preemptions += 1;
        self.outbox.events.push(Event::Preempted { id: self.slab[ix].id });
        self.back_to_queue(ix, now);
    }

    /// Frees a running sequence's blocks and puts it before those that never ran.
    pub(super) fn back_to_queue(&mut self, ix: SeqIx, now: Micros) {
        self.rows.leaving.push(self.slab[ix].row);
        self.kv.end(&mut self.slab, ix, Keep::Indexed, now);
        self.flights.released.push(self.slab[ix].id);
        let sequence = &mut self.slab[ix];
        sequence.state = SequenceState::Preempted;
        sequence.hit.asked = 0;
        sequence.hit.answer = 0;
        sequence.hit.no_full = false;
        sequence.logits_from = None;
        let tenant = sequence.tenant_row as usize;
        self.tenants.note_served(sequence.tenant_row, Mark { at: now, step: self.view.number });
        self.view.tenants.running[tenant] -= 1;
        self.view.tenants.waiting[tenant] += 1;
        self.held.load_changed = true;
        // `leaving` holds running rows at this point, so nothing here may remove waiting ones.
        self.kv.hash(&mut self.slab[ix]);
        self.kv.watch(&mut self.slab, ix);
        self.ask_reuse(ix, now);
        self.insert_waiting(ix);
    }
}
