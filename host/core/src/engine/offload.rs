//! The second level of the prefix cache as steps use it: what comes back before a plan, and what a lost batch takes along.
//!
//! Before each plan, blocks come back for the waiting sequences that could start, in their order. From then on they are
//! ordinary cached blocks, so policies see a longer hit and nothing else. They may take the place of any cached block but
//! those that these sequences have found, so two of them can't rob each other. A step brings back only so many
//! (`EngineConfig::offload_step_blocks`), because all streams wait for the copies, but on an idle host all that the first
//! sequence wants. One whose prefix is still coming starts when it is complete, or when that takes so long that the
//! watchdog would call it starved: a policy may evict what comes as fast as it does.
//!
//! Deliberately absent: which slot holds what (`kv/offload`).

use super::Engine;
use crate::batch::OffloadCopy;
use crate::executor::DeviceFaultKind;
use crate::ids::{BlockId, Micros};
use crate::sequence::SeqIx;
use crate::watchdog::Mark;

/// Waiting sequences looked at in one step.
const SEQUENCES_PER_STEP: usize = 64;

impl Engine {
    /// Brings blocks back for sequences that could start now.
    pub(super) fn bring_in(&mut self, now: Micros) {
        self.arriving.clear();
        if self.kv.offload_slots().1 == 0 {
            return;
        }
        self.kv.settle(&mut self.slab);
        let places = (self.config.limits.max_running as usize).saturating_sub(self.rows.running.ix.len());
        let waiting = &self.rows.waiting.ix;
        let first = &waiting[..waiting.len().min(places).min(SEQUENCES_PER_STEP)];
        if !first.iter().any(|&ix| self.kv.goes_on(&self.slab[ix])) {
            return;
        }
        let first = first.to_vec();
        let mut pinned = Vec::new();
        self.bring_in_for(&first, &mut pinned, now);
        for block in pinned {
            self.kv.blocks.unpin(block);
        }
        self.refresh_hits(now);
    }

    fn bring_in_for(&mut self, first: &[SeqIx], pinned: &mut Vec<BlockId>, now: Micros) {
        let mark = Mark { at: now, step: self.view.number };
        // Copies that no batch has made yet count.
        let mut left = self.config.offload_step_blocks.saturating_sub(self.kv.copies());
        let mut alone = self.rows.running.ix.is_empty();
        // Blocks that the sequences before will compute.
        let mut promised = 0;
        for &ix in first {
            self.examine_hit(ix, now);
            let sequence = &self.slab[ix];
            let from = pinned.len();
            pinned.extend_from_slice(&sequence.hit.chain);
            pinned[from..].iter().for_each(|&block| self.kv.blocks.pin(block));
            let need = self.kv.blocks_for(sequence.tokens.len() as u32) - sequence.hit.chain.len() as u32;
            if promised + need > self.kv.blocks.available() {
                return;
            }
            let wanted = self.kv.offloaded(sequence);
            let most = if std::mem::take(&mut alone) { wanted } else { wanted.min(left) };
            let mut came = 0;
            if most > 0 {
                self.make_room(most, now);
                // The slots may have been needed for what was evicted.
                let blocks = self.kv.bring_in(&self.slab[ix], most, now);
                came = blocks.len() as u32;
                blocks.iter().for_each(|&block| self.kv.blocks.pin(block));
                pinned.extend(blocks);
                // At once: more sequences may watch these blocks than a step looks at.
                self.examine_hit(ix, now);
            }
            if came == most && most < wanted {
                let since = *self.slab[ix].arriving.get_or_insert(mark);
                if !self.watchdog.too_long(since, mark) {
                    self.arriving.push(ix);
                }
            } else {
                self.slab[ix].arriving = None;
            }
            left = left.saturating_sub(came);
            promised += need - came;
        }
    }

    /// A sequence whose prefix is still coming back would compute the rest of it, so it waits; but not if nothing else runs
    /// in this step: copies are made with a batch.
    pub(super) fn defer_arriving(&mut self, now: Micros) {
        let arrives = |ix: SeqIx| self.arriving.contains(&ix);
        if self.arriving.is_empty() || self.step.rows.iter().all(|row| arrives(row.ix)) {
            return;
        }
        let mark = Mark { at: now, step: self.view.number };
        for row in self.step.rows.iter().filter(|row| arrives(row.ix)) {
            self.slab[row.ix].planned = mark;
        }
        let arriving = &self.arriving;
        self.step.rows.retain(|row| !arriving.contains(&row.ix));
    }

    pub(super) fn count_copies(&mut self, copies: &[OffloadCopy]) {
        for copy in copies {
            match copy {
                OffloadCopy::Out { .. } => self.counters.offloaded_blocks += 1,
                OffloadCopy::In { .. } => self.counters.onloaded_blocks += 1,
            }
        }
    }

    /// A batch is lost, and with it these copies: its own, and all that were decided since.
    pub(super) fn lose_copies(&mut self, copies: &[OffloadCopy], kind: DeviceFaultKind, now: Micros) {
        self.kv.forget_copies(copies, now);
        if kind == DeviceFaultKind::Offload {
            self.kv.end_offload();
            self.counters.offload_failures += 1;
        } else {
            self.counters.device_faults += 1;
        }
    }

    /// Sequences that hold what a lost batch should have copied start again. One with a row in the batch behind does when
    /// that returns, which is lost, too.
    pub(super) fn restart_robbed(&mut self, now: Micros) {
        if self.config.offload_slots == 0 {
            return;
        }
        // Those that failed are gone, and their rows with them.
        self.remove_running(now);
        for at in 0..self.rows.running.ix.len() {
            let ix = self.rows.running.ix[at];
            let sequence = &self.slab[ix];
            if sequence.is_running() && sequence.out == 0 && !self.kv.holds_its_own(sequence) {
                self.back_to_queue(ix, now);
            }
        }
    }
}
