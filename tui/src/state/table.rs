//! The order, filter and selection of a table. The selection follows a row's id and not its place, so that a table
//! that changes doesn't lead to a key acting on the wrong row.
//!
//! The order is computed when rows, sorting or filter change and not when it is drawn, so that a key takes
//! effect at once even with thousands of rows. The rows stay with the snapshot they came with.
//!
//! Rows of the host that are alike share a row of the table, so that one request with hundreds of sequences hides no
//! other. A filter lists each.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

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

    /// What rows that are alike have in common; `None` for a row that shares its place with no other.
    fn kin(&self) -> Option<(u64, &str)> {
        None
    }
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
    /// For each of `order`, how many rows of the host share its place.
    others: Vec<usize>,
    selected_id: Option<u64>,
    selected_row: usize,
}

impl<K: SortKey> Table<K> {
    /// Returns the indexes of the rows that match the filter, in the order of the table; of rows that are alike, the
    /// first one's.
    #[must_use]
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Returns how many other rows of the host share a row of the table.
    #[must_use]
    pub fn others(&self, row: usize) -> usize {
        self.others.get(row).copied().unwrap_or(0)
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

    /// Recomputes the order for new rows, sorting or filter, and finds the selected row in it, or the one that it
    /// shares. If it is gone, the one in its place is selected.
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
        let shared = self.fold(rows);
        let own = self.order.iter().position(|&index| Some(rows[index].id()) == self.selected_id);
        self.select(rows, own.or(shared).unwrap_or(self.selected_row));
    }

    /// Keeps the first of rows that are alike, and counts the others. Returns the place that the selected row shares,
    /// if it is one of them.
    fn fold(&mut self, rows: &[K::Row]) -> Option<usize> {
        self.others.clear();
        if !self.filter.is_empty() {
            return None;
        }
        let (others, selected) = (&mut self.others, self.selected_id);
        let mut places = HashMap::new();
        let mut shared = None;
        self.order.retain(|&index| {
            let row = &rows[index];
            if let Some(kin) = row.kin() {
                match places.entry(kin) {
                    Entry::Occupied(place) => {
                        let place: usize = *place.get();
                        others[place] += 1;
                        if Some(row.id()) == selected {
                            shared = Some(place);
                        }
                        return false;
                    }
                    Entry::Vacant(free) => free.insert(others.len()),
                };
            }
            others.push(0);
            true
        });
        shared
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
