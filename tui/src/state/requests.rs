//! The table of live requests: its order and its selection. The selection follows a request and not a
//! row, so nothing else gets cancelled because the table moved under the finger.

use std::cmp::Ordering;

use infer_api::admin::RequestRow;

/// What the table is sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as the columns")]
pub enum SortBy {
    /// As the host sends them: running ones in the order in which they started, then the queue.
    #[default]
    Engine,
    Id,
    State,
    Prompt,
    Cached,
    Generated,
    Blocks,
    Age,
    Ttft,
}

impl SortBy {
    const ALL: [Self; 9] = [
        Self::Engine,
        Self::Id,
        Self::State,
        Self::Prompt,
        Self::Cached,
        Self::Generated,
        Self::Blocks,
        Self::Age,
        Self::Ttft,
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine order",
            Self::Id => "id",
            Self::State => "state",
            Self::Prompt => "prompt",
            Self::Cached => "cached",
            Self::Generated => "generated",
            Self::Blocks => "blocks",
            Self::Age => "age",
            Self::Ttft => "ttft",
        }
    }

    fn compare(self, a: &RequestRow, b: &RequestRow) -> Ordering {
        match self {
            Self::Engine => Ordering::Equal,
            Self::Id => a.id.cmp(&b.id),
            Self::State => a.state.cmp(&b.state),
            Self::Prompt => a.prompt_tokens.cmp(&b.prompt_tokens),
            Self::Cached => a.cached_tokens.cmp(&b.cached_tokens),
            Self::Generated => a.generated_tokens.cmp(&b.generated_tokens),
            Self::Blocks => a.blocks.cmp(&b.blocks),
            Self::Age => a.age_ms.cmp(&b.age_ms),
            Self::Ttft => a.ttft_ms.cmp(&b.ttft_ms),
        }
    }
}

/// The screen's state.
#[derive(Clone, Debug, Default)]
pub struct RequestsPane {
    /// What the table is sorted by.
    pub sort_by: SortBy,
    /// Whether the largest comes first.
    pub descending: bool,
    selected_id: Option<u64>,
    selected_row: usize,
}

impl RequestsPane {
    /// Indexes into `rows` in the order of the table.
    #[must_use]
    pub fn order(&self, rows: &[RequestRow]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by(|&a, &b| self.sort_by.compare(&rows[a], &rows[b]));
        if self.descending {
            order.reverse();
        }
        order
    }

    /// Place of the selection in the table.
    #[must_use]
    pub fn selected_row(&self) -> usize {
        self.selected_row
    }

    /// The selected request.
    #[must_use]
    pub fn selected<'a>(&self, rows: &'a [RequestRow]) -> Option<&'a RequestRow> {
        rows.iter().find(|row| Some(row.id) == self.selected_id)
    }

    /// Finds the selected request in a new snapshot; where it is gone, the row in its place is selected.
    pub fn reconcile(&mut self, rows: &[RequestRow]) {
        let order = self.order(rows);
        match order.iter().position(|&index| Some(rows[index].id) == self.selected_id) {
            Some(row) => self.selected_row = row,
            None => self.select(rows, &order, self.selected_row),
        }
    }

    /// Moves the selection.
    pub fn move_by(&mut self, rows: &[RequestRow], by: isize) {
        let order = self.order(rows);
        self.select(rows, &order, self.selected_row.saturating_add_signed(by));
    }

    /// Sorts by a column further right or left.
    pub fn next_sort(&mut self, rows: &[RequestRow], by: isize) {
        let at = SortBy::ALL.iter().position(|&sort| sort == self.sort_by).unwrap_or(0);
        let next = (at.cast_signed() + by).rem_euclid(SortBy::ALL.len().cast_signed());
        self.sort_by = SortBy::ALL[next.cast_unsigned()];
        self.reconcile(rows);
    }

    /// Turns the order round.
    pub fn reverse(&mut self, rows: &[RequestRow]) {
        self.descending = !self.descending;
        self.reconcile(rows);
    }

    fn select(&mut self, rows: &[RequestRow], order: &[usize], row: usize) {
        self.selected_row = row.min(order.len().saturating_sub(1));
        self.selected_id = order.get(self.selected_row).map(|&index| rows[index].id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(ids_and_blocks: &[(u64, u32)]) -> Vec<RequestRow> {
        ids_and_blocks
            .iter()
            .map(|&(id, blocks)| RequestRow { id, blocks, ..RequestRow::default() })
            .collect()
    }

    #[test]
    fn the_selection_follows_its_request() {
        let mut pane = RequestsPane::default();
        let before = rows(&[(1, 5), (2, 9), (3, 7)]);
        pane.reconcile(&before);
        pane.move_by(&before, 2);
        assert_eq!(pane.selected(&before).unwrap().id, 3);
        pane.reconcile(&rows(&[(3, 7), (4, 1)]));
        assert_eq!(pane.selected_row(), 0);
    }

    #[test]
    fn when_it_finishes_its_place_is_kept() {
        let mut pane = RequestsPane::default();
        let before = rows(&[(1, 0), (2, 0), (3, 0)]);
        pane.reconcile(&before);
        pane.move_by(&before, 1);
        let after = rows(&[(1, 0), (3, 0)]);
        pane.reconcile(&after);
        assert_eq!(pane.selected(&after).unwrap().id, 3);
        pane.reconcile(&[]);
        assert_eq!(pane.selected(&[]), None);
    }

    #[test]
    fn sorting_keeps_the_selection_and_equal_rows_keep_their_order() {
        let mut pane = RequestsPane::default();
        let rows = rows(&[(1, 5), (2, 9), (3, 5)]);
        pane.reconcile(&rows);
        while pane.sort_by != SortBy::Blocks {
            pane.next_sort(&rows, 1);
        }
        assert_eq!(pane.order(&rows), [0, 2, 1]);
        assert_eq!(pane.selected_row(), 0);
        pane.reverse(&rows);
        assert_eq!(pane.order(&rows), [1, 2, 0]);
        assert_eq!(pane.selected_row(), 2);
    }
}
