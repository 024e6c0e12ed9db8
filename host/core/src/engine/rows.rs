//! The view's rows: waiting and running sequences, and the cells that change.

use super::Engine;
use crate::columns::{Places, SequenceRow};
use crate::ids::{Micros, SequenceId};
use crate::request::SequenceState;
use crate::sequence::{SeqIx, Sequence};
use crate::watchdog::Mark;

/// The sequences behind the view's rows, in the order of those.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub running: Places,
    pub waiting: Places,
    /// Leading rows of `waiting` that were preempted.
    pub preempted: usize,
    /// Positions of rows to remove, a buffer. All of them are running rows, or all of them waiting ones.
    pub leaving: Vec<u32>,
}

impl Rows {
    /// Nothing is running or may be started.
    pub fn is_empty(&self) -> bool {
        self.running.ix.is_empty() && self.waiting.ix.is_empty()
    }

    /// Waiting rows that never ran.
    pub fn unstarted(&self) -> usize {
        self.waiting.ix.len() - self.preempted
    }
}

impl Engine {
    /// Adds a row for a sequence that may be started: preempted ones first, each part by arrival.
    pub(super) fn insert_waiting(&mut self, ix: SeqIx) {
        let preempted = self.slab[ix].state == SequenceState::Preempted;
        let at = self.waiting_position(self.slab[ix].id, preempted).unwrap_or_else(|at| at);
        let row = self.row_of(ix);
        self.rows.waiting.insert(&mut self.view.waiting, at, ix, &row);
        self.rows.preempted += usize::from(preempted);
    }

    fn waiting_position(&self, id: SequenceId, preempted: bool) -> Result<usize, usize> {
        let ids = &self.view.waiting.id;
        if preempted {
            return ids[..self.rows.preempted].binary_search(&id.0);
        }
        // Almost everyone arrives last.
        if ids.last().is_none_or(|&last| last < id.0) || ids.len() == self.rows.preempted {
            return Err(ids.len());
        }
        let found = ids[self.rows.preempted..].binary_search(&id.0);
        found.map(|at| at + self.rows.preempted).map_err(|at| at + self.rows.preempted)
    }

    /// The row of a waiting sequence.
    pub(super) fn waiting_row(&self, ix: SeqIx) -> usize {
        let sequence = &self.slab[ix];
        self.waiting_position(sequence.id, sequence.state == SequenceState::Preempted).expect("it has a row")
    }

    /// Removes the rows at the positions in `leaving`.
    pub(super) fn remove_waiting(&mut self) {
        let Rows { waiting, preempted, leaving, .. } = &mut self.rows;
        leaving.sort_unstable();
        *preempted -= leaving.partition_point(|&at| (at as usize) < *preempted);
        waiting.remove(&mut self.view.waiting, leaving);
        leaving.clear();
    }

    /// Adds a running row for a sequence that starts, behind those that started before.
    pub(super) fn push_running(&mut self, ix: SeqIx, now: Micros) {
        let row = self.row_of(ix);
        let sequence = &mut self.slab[ix];
        sequence.row = self.rows.running.ix.len() as u32;
        sequence.planned = Mark { at: now, step: self.view.number };
        self.rows.running.push(&mut self.view.running, ix, &row);
        self.view.idle_since = Micros::NEVER;
    }

    /// Removes the running rows at the positions in `leaving`.
    pub(super) fn remove_running(&mut self, now: Micros) {
        let Rows { running, leaving, .. } = &mut self.rows;
        let Some(&first) = leaving.iter().min() else { return };
        leaving.sort_unstable();
        running.remove(&mut self.view.running, leaving);
        leaving.clear();
        for (at, &ix) in running.ix.iter().enumerate().skip(first as usize) {
            self.slab[ix].row = at as u32;
        }
        if running.ix.is_empty() {
            self.view.idle_since = now;
        }
    }

    /// Updates the cells of a waiting sequence to its hit.
    pub(super) fn refresh_waiting(&mut self, ix: SeqIx) {
        let at = self.waiting_row(ix);
        let sequence = &self.slab[ix];
        self.view.waiting.computed_tokens[at] = self.kv.reusable_tokens(sequence);
        self.view.waiting.pending_tokens[at] = self.kv.pending_tokens(sequence);
        self.view.waiting.idle_blocks[at] = self.kv.idle_blocks(sequence);
    }

    /// Updates the cells that other sequences change.
    pub(super) fn refresh_shared(&mut self) {
        let mut changed = std::mem::take(&mut self.kv.blocks.notes.sole);
        for ix in changed.drain(..) {
            if let Some(sequence) = self.slab.get_mut(ix)
                && sequence.is_running()
            {
                self.view.running.freeable_blocks[sequence.row as usize] = self.kv.blocks.sole_blocks(ix);
            }
        }
        self.kv.blocks.notes.sole = changed;
        if self.kv.take_idle_changed() {
            for (at, &ix) in self.rows.waiting.ix.iter().enumerate() {
                if self.view.waiting.computed_tokens[at] > 0 {
                    self.view.waiting.idle_blocks[at] = self.kv.idle_blocks(&self.slab[ix]);
                }
            }
        }
    }

    fn row_of(&self, ix: SeqIx) -> SequenceRow {
        let sequence = &self.slab[ix];
        let mut row = fixed_cells(sequence);
        if sequence.is_waiting() {
            row.computed_tokens = self.kv.reusable_tokens(sequence);
            row.pending_tokens = self.kv.pending_tokens(sequence);
            row.idle_blocks = self.kv.idle_blocks(sequence);
        } else {
            row.computed_tokens = sequence.computed;
            row.blocks = sequence.table.len() as u32;
            row.freeable_blocks = self.kv.blocks.sole_blocks(ix);
        }
        row
    }

    /// Asserts that the columns match the sequences.
    pub(super) fn check_rows(&self) {
        assert!(self.view.running.is_even() && self.view.waiting.is_even());
        assert_eq!(self.view.running.len(), self.rows.running.ix.len());
        assert_eq!(self.view.waiting.len(), self.rows.waiting.ix.len());
        let mut expected = 0;
        for (at, &ix) in self.rows.running.ix.iter().enumerate() {
            let sequence = &self.slab[ix];
            assert!(sequence.is_running() && sequence.row as usize == at, "running row {at}");
            let row = self.row_of(ix);
            let view = &self.view.running;
            assert_eq!(view.id[at], sequence.id.0);
            assert_eq!(view.computed_tokens[at], row.computed_tokens, "computed tokens of {:?}", sequence.id);
            assert_eq!(view.generated_tokens[at], row.generated_tokens);
            assert_eq!(view.expected_tokens[at], row.expected_tokens);
            assert!(sequence.generated < sequence.expected, "{:?} goes on", sequence.id);
            expected += sequence.expected_ahead();
            assert_eq!(view.blocks[at], row.blocks, "blocks of {:?}", sequence.id);
            assert!(sequence.table.len() as u32 >= self.kv.blocks_for(sequence.reached()));
        }
        let (mut tokens, mut prompts) = (0, 0);
        for (at, &ix) in self.rows.waiting.ix.iter().enumerate() {
            let sequence = &self.slab[ix];
            assert!(sequence.is_waiting() && self.waiting_row(ix) == at, "waiting row {at}");
            assert_eq!(sequence.state == SequenceState::Preempted, at < self.rows.preempted);
            assert!(sequence.table.is_empty() && sequence.out == 0);
            let shown = self.view.waiting.computed_tokens[at];
            assert!(
                shown <= self.kv.reusable_tokens(sequence) || self.kv.is_unsettled(),
                "{:?}",
                sequence.id
            );
            tokens += if at < self.rows.preempted { 0 } else { sequence.tokens_ahead() };
            prompts += if at < self.rows.preempted { 0 } else { u64::from(sequence.prompt_len) };
            expected += sequence.expected_ahead();
        }
        for held in self.held.values().map(|ix| &self.slab[ix]) {
            tokens += held.tokens_ahead();
            prompts += u64::from(held.prompt_len);
            expected += held.expected_ahead();
        }
        assert_eq!(tokens, self.demand.waiting_tokens, "tokens that wait");
        assert_eq!(prompts, self.demand.waiting_prompt_tokens, "prompt tokens that wait");
        assert_eq!(expected, self.demand.expected_output_tokens, "output tokens that are expected");
        let alive = self.rows.running.ix.len() + self.rows.waiting.ix.len() + self.held.len();
        let lingering = self.flights.lingering.len();
        assert_eq!(alive + lingering, self.slab.len(), "every sequence is running, waiting or held");
        let known: usize = self.slab.iter().map(|(_, sequence)| sequence.out as usize).sum();
        let out: usize = self.flights.out.iter().map(|flight| flight.rows.len()).sum();
        assert_eq!(known, out, "rows that are out");
        let c = &self.counters;
        let gone = c.refused.iter().sum::<u64>() + c.finished.iter().sum::<u64>() + c.failed;
        assert_eq!(c.submitted, gone + alive as u64, "no request is lost");
    }
}

fn fixed_cells(sequence: &Sequence) -> SequenceRow {
    SequenceRow {
        id: sequence.id.0,
        tenant: sequence.request.tenant.0,
        session: sequence.request.session.0,
        priority: sequence.request.priority,
        arrived: sequence.usage.arrived.0,
        deadline: sequence.request.deadline.0,
        prompt_tokens: sequence.prompt_len,
        generated_tokens: sequence.generated,
        max_new_tokens: sequence.request.max_new_tokens,
        expected_tokens: sequence.expected,
        preemptions: sequence.usage.preemptions,
        ..SequenceRow::default()
    }
}
