//! What tables have in common: columns that a narrow terminal drops, a header that names the sort key, a selected
//! row. Only visible rows are formatted. What is in a row is not decided here.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::text::{Line, Span};

use super::Look;
use super::format::{count, fit, padded};
use super::parts::{below, first_shown, inset, put};
use crate::state::table::{SortKey, Table};

/// A column: its title, its sort key, its width, and from which table width it is shown.
pub(super) struct Column<K: SortKey> {
    pub(super) title: &'static str,
    pub(super) sort: Option<K>,
    pub(super) width: usize,
    pub(super) from: usize,
    /// Whether it is right-aligned, as numbers are.
    right: bool,
    pub(super) text: fn(&K::Row) -> String,
}

impl<K: SortKey> Column<K> {
    /// A column of names.
    pub(super) const fn left(
        title: &'static str,
        sort: Option<K>,
        width: usize,
        from: usize,
        text: fn(&K::Row) -> String,
    ) -> Self {
        Self { title, sort, width, from, right: false, text }
    }

    /// A column of numbers.
    pub(super) const fn right(
        title: &'static str,
        sort: Option<K>,
        width: usize,
        from: usize,
        text: fn(&K::Row) -> String,
    ) -> Self {
        Self { right: true, ..Self::left(title, sort, width, from, text) }
    }

    /// Returns a row's text, aligned, and a space.
    pub(super) fn cell(&self, row: &K::Row) -> String {
        self.aligned(&(self.text)(row))
    }

    /// Returns a text as wide as the column, and a space.
    pub(super) fn aligned(&self, text: &str) -> String {
        let text = padded(text, self.width);
        if self.right {
            format!("{:>width$} ", text.trim_end(), width = self.width)
        } else {
            format!("{text} ")
        }
    }

    /// Returns the title; highlighted if the table is sorted by this column.
    pub(super) fn head(&self, look: Look<'_>, table: &Table<K>) -> Span<'static> {
        let sorted = self.sort == Some(table.sort_by);
        Span::styled(self.aligned(self.title), if sorted { look.theme.key } else { look.theme.label })
    }
}

/// Returns the area of the table's header and rows within its box.
pub(super) fn inner(inside: Rect) -> Rect {
    inset(inside, u16::from(inside.width > 60), 0)
}

/// Returns the area of the rows within the body of the screen.
pub(super) fn rows_area(body: Rect) -> Rect {
    below(inner(inset(body, 1, 1)), 1)
}

/// Returns the table's row at a point of the terminal; `None` if there is none.
pub(super) fn row_at<K: SortKey>(table: &Table<K>, body: Rect, point: Position) -> Option<usize> {
    let rows = rows_area(body);
    let shown = table.order().len();
    let first = first_shown(table.selected_row(), shown, usize::from(rows.height));
    let row = first + usize::from(point.y.checked_sub(rows.y)?);
    (rows.contains(point) && row < shown).then_some(row)
}

/// Draws the visible rows, each as `line` formats the one at an index of the host's rows, which so many others share.
pub(super) fn rows<'a, K: SortKey>(
    look: Look<'_>,
    table: &Table<K>,
    body: Rect,
    buffer: &mut Buffer,
    line: impl Fn(usize, usize) -> Option<Line<'a>>,
) {
    let area = rows_area(body);
    let width = usize::from(area.width);
    let selected = table.selected_row();
    let order = table.order();
    let first = first_shown(selected, order.len(), usize::from(area.height));
    for (y, (index, &at)) in (0..area.height).zip(order.iter().enumerate().skip(first)) {
        let Some(mut line) = line(at, table.others(index)) else { continue };
        if index == selected {
            // Highlight the row up to its last column.
            let missing = width.saturating_sub(line.width());
            line.push_span(Span::raw(" ".repeat(missing)));
            line = line.style(look.theme.selected);
        }
        put(line, area, y, buffer);
    }
}

/// Returns what a title says of the filter.
pub(super) fn filtered<K: SortKey>(look: Look<'_>, table: &Table<K>) -> Option<Span<'static>> {
    let matching = count(table.order().len() as u64);
    let text = format!("{matching} match /{} ", fit(table.filter.text(), 30));
    (!table.filter.is_empty()).then(|| Span::styled(text, look.theme.key))
}

/// Returns what a title says if the host lists only the first of its rows.
pub(super) fn first_of(look: Look<'_>, listed: usize, total: u32) -> Option<Span<'static>> {
    let text = format!("(first {} of {}) ", count(listed as u64), count(total.into()));
    (listed < total as usize).then(|| Span::styled(text, look.theme.warning))
}

/// Returns what a title says of the order, unless it is the host's.
pub(super) fn sorted<K: SortKey>(look: Look<'_>, table: &Table<K>) -> Option<Span<'static>> {
    let arrow = if table.descending { "▼" } else { "▲" };
    let text = format!("{arrow} by {} ", table.sort_by.name());
    (table.sort_by != K::default() || table.descending).then(|| Span::styled(text, look.theme.key))
}
