//! The order, filter and selection of a table. The selection follows a row's id and not its place, so that a table
//! that changes doesn't lead to a key acting on the wrong row.
//!
//! The order is computed when rows, sorting or filter change and not when it is drawn, so that a key takes
//! effect at once even with thousands of rows. The rows stay with the snapshot they came with.

use std::cmp::Ordering;

use super::text::Filter;
use crate::input::Key;

/// Rows that a page key moves by.
pub const PAGE: isize = 10;

/// A row of a table.
pub trait Row {
    /// What the selection follows.
    fn id(&self) -> u64;

    /// Whether a filter shows the row.
    fn is_shown(&self, filter: &Filter) -> bool;
}

/// Sort key of a table. The default one is the host's order.
pub trait SortKey: Copy + Default + PartialEq + 'static {
    /// What is sorted.
    type Row: Row;

    /// All keys, in the order of the columns.
    const ALL: &'static [Self];

    /// Returns the name.
    fn name(self) -> &'static str;

    /// Compares two rows by this key.
    fn compare(self, a: &Self::Row, b: &Self::Row) -> Ordering;
}

/// A table's state.
#[derive(Clone, Debug, Default)]
pub struct Table<K> {
    /// The sort key.
    pub sort_by: K,
    /// Whether the largest comes first.
    pub descending: bool,
    /// The filter.
    pub filter: Filter,
    order: Vec<usize>,
    selected_id: Option<u64>,
    selected_row: usize,
}

impl<K: SortKey> Table<K> {
    /// Returns the indexes of the rows that match the filter, in the order of the table.
    #[must_use]
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Returns the table row of the selection.
    #[must_use]
    pub fn selected_row(&self) -> usize {
        self.selected_row
    }

    /// Returns the selected row of the host.
    #[must_use]
    pub fn selected<'a>(&self, rows: &'a [K::Row]) -> Option<&'a K::Row> {
        rows.get(*self.order.get(self.selected_row)?)
    }

    /// Recomputes the order for new rows, sorting or filter, and finds the selected row in it. If it is gone,
    /// the one in its place is selected.
    pub fn reconcile(&mut self, rows: &[K::Row]) {
        self.order.clear();
        let filter = &self.filter;
        let shown = |at: &usize| filter.is_empty() || rows[*at].is_shown(filter);
        self.order.extend((0..rows.len()).filter(shown));
        if self.sort_by != K::default() {
            self.order.sort_by(|&a, &b| self.sort_by.compare(&rows[a], &rows[b]));
        }
        if self.descending {
            self.order.reverse();
        }
        match self.order.iter().position(|&index| Some(rows[index].id()) == self.selected_id) {
            Some(row) => self.selected_row = row,
            None => self.select(rows, self.selected_row),
        }
    }

    /// Handles a key that moves the selection or sorts; false if the key does neither.
    pub fn on_key(&mut self, rows: &[K::Row], key: Key) -> bool {
        match key.motion() {
            Key::Up => self.move_by(rows, -1),
            Key::Down => self.move_by(rows, 1),
            Key::PageUp => self.move_by(rows, -PAGE),
            Key::PageDown => self.move_by(rows, PAGE),
            Key::Home => self.move_by(rows, isize::MIN),
            Key::End => self.move_by(rows, isize::MAX),
            Key::Char('s') | Key::Right => self.next_sort(rows, 1),
            Key::Left => self.next_sort(rows, -1),
            Key::Char('S') => self.reverse(rows),
            _ => return false,
        }
        true
    }

    /// Moves the selection.
    pub fn move_by(&mut self, rows: &[K::Row], by: isize) {
        self.select(rows, self.selected_row.saturating_add_signed(by));
    }

    /// Selects a row of the table.
    pub fn select(&mut self, rows: &[K::Row], row: usize) {
        self.selected_row = row.min(self.order.len().saturating_sub(1));
        self.selected_id = self.selected(rows).map(Row::id);
    }

    /// Sorts by the next column to the right (positive) or left.
    pub fn next_sort(&mut self, rows: &[K::Row], by: isize) {
        let at = K::ALL.iter().position(|&sort| sort == self.sort_by).unwrap_or(0);
        let next = (at.cast_signed() + by).rem_euclid(K::ALL.len().cast_signed());
        self.sort_by = K::ALL[next.cast_unsigned()];
        self.reconcile(rows);
    }

    /// Reverses the order.
    pub fn reverse(&mut self, rows: &[K::Row]) {
        self.descending = !self.descending;
        self.reconcile(rows);
    }

    /// Discards what is tied to ids, because the host restarted.
    pub fn forget(&mut self) {
        self.selected_id = None;
    }
}
