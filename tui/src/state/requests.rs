//! The table of live requests: its order, its filter and its selection. The selection follows a request
//! and not a row, so nothing else gets cancelled because the table moved under the finger.
//!
//! The order is worked out when rows or wishes change, not when it is drawn: with thousands of rows a key
//! must still be answered at once.

use std::cmp::Ordering;

use infer_api::admin::{RequestDetail, RequestRow};

use super::Millis;
use super::text::Filter;

/// Time between two looks at a request that is shown in full.
pub const DETAIL_MS: Millis = 500;

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
    /// All of them, in the order of the keys, which is that of the columns.
    pub const ALL: [Self; 9] = [
        Self::Engine,
        Self::Id,
        Self::State,
        Self::Age,
        Self::Prompt,
        Self::Cached,
        Self::Blocks,
        Self::Ttft,
        Self::Generated,
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
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
    /// What is let through.
    pub filter: Filter,
    /// The request that is shown in full, once the host told of it.
    pub detail: Option<(u64, Result<RequestDetail, String>)>,
    order: Vec<usize>,
    /// For each row of the table, how many wait before it in the host's order.
    ahead: Vec<usize>,
    selected_id: Option<u64>,
    selected_row: usize,
    detail_asked: Option<(u64, Millis)>,
    detail_waiting: bool,
}

impl RequestsPane {
    /// Indexes into the rows in the order of the table, those that the filter lets through.
    #[must_use]
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// How many of the requests that wait come before the one at `index` of the rows.
    #[must_use]
    pub fn ahead(&self, index: usize) -> usize {
        self.ahead.get(index).copied().unwrap_or(0)
    }

    /// Place of the selection in the table.
    #[must_use]
    pub fn selected_row(&self) -> usize {
        self.selected_row
    }

    /// The selected request.
    #[must_use]
    pub fn selected<'a>(&self, rows: &'a [RequestRow]) -> Option<&'a RequestRow> {
        rows.get(*self.order.get(self.selected_row)?)
    }

    /// Takes new rows or wishes: works the order out anew and finds the selected request in it; where it
    /// is gone, the row in its place is selected.
    pub fn reconcile(&mut self, rows: &[RequestRow]) {
        self.order.clear();
        let filter = &self.filter;
        self.order.extend((0..rows.len()).filter(|&at| shows(filter, &rows[at])));
        if self.sort_by != SortBy::Engine {
            self.order.sort_by(|&a, &b| self.sort_by.compare(&rows[a], &rows[b]));
        }
        if self.descending {
            self.order.reverse();
        }
        let mut waiting = 0;
        self.ahead.clear();
        self.ahead.extend(rows.iter().map(|row| {
            let waits = !matches!(row.state.as_str(), "prefill" | "decode");
            let before = waiting;
            waiting += usize::from(waits);
            before
        }));
        match self.order.iter().position(|&index| Some(rows[index].id) == self.selected_id) {
            Some(row) => self.selected_row = row,
            None => self.select(rows, self.selected_row),
        }
    }

    /// Moves the selection.
    pub fn move_by(&mut self, rows: &[RequestRow], by: isize) {
        self.select(rows, self.selected_row.saturating_add_signed(by));
    }

    /// Selects a row of the table.
    pub fn select(&mut self, rows: &[RequestRow], row: usize) {
        self.selected_row = row.min(self.order.len().saturating_sub(1));
        self.selected_id = self.selected(rows).map(|row| row.id);
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

    /// Whether it is time to look at a request again; then the look counts as begun.
    pub fn wants_detail(&mut self, id: u64, now: Millis) -> bool {
        let due = match self.detail_asked {
            Some((asked, at)) if asked == id => !self.detail_waiting && now.saturating_sub(at) >= DETAIL_MS,
            _ => true,
        };
        if due {
            self.detail_asked = Some((id, now));
            self.detail_waiting = true;
        }
        due
    }

    /// Takes the host's answer. One that ended stays as it was last seen.
    pub fn on_detail(&mut self, id: u64, result: Result<RequestDetail, String>) {
        self.detail_waiting = false;
        let seen = matches!(&self.detail, Some((of, Ok(_))) if *of == id);
        if result.is_ok() || !seen {
            self.detail = Some((id, result));
        }
    }

    /// Ids mean other requests from now on.
    pub fn forget(&mut self) {
        self.detail = None;
        self.detail_asked = None;
        self.selected_id = None;
    }
}

fn shows(filter: &Filter, row: &RequestRow) -> bool {
    if filter.is_empty() {
        return true;
    }
    let id = row.id.to_string();
    let tenant = row.tenant.to_string();
    let named = [
        ("id", id.as_str()),
        ("request_id", row.request_id.as_str()),
        ("state", row.state.as_str()),
        ("session", row.session.as_str()),
        ("user", row.user.as_str()),
        ("tenant", tenant.as_str()),
        ("tenant", row.tenant_name.as_str()),
    ];
    let metadata = row.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    filter.matches(named.into_iter().chain(metadata))
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
        assert_eq!(pane.order(), [0, 2, 1]);
        assert_eq!(pane.selected_row(), 0);
        pane.reverse(&rows);
        assert_eq!(pane.order(), [1, 2, 0]);
        assert_eq!(pane.selected_row(), 2);
    }

    #[test]
    fn a_filter_hides_rows_and_moves_the_selection_to_one_that_is_shown() {
        let mut pane = RequestsPane::default();
        let mut rows = rows(&[(1, 0), (2, 0), (3, 0)]);
        rows[0].state = "decode".into();
        rows[1].metadata.insert("app".into(), "docs".into());
        pane.reconcile(&rows);
        pane.filter = Filter::new("app:doc");
        pane.reconcile(&rows);
        assert_eq!(pane.order(), [1]);
        assert_eq!(pane.selected(&rows).unwrap().id, 2);
        assert_eq!(pane.ahead(2), 1, "those that wait count whether they are shown or not");
    }

    #[test]
    fn a_detail_is_asked_for_again_after_a_while_and_one_at_a_time() {
        let mut pane = RequestsPane::default();
        assert!(pane.wants_detail(7, 0));
        assert!(!pane.wants_detail(7, 9_000), "the first is not answered");
        pane.on_detail(7, Err("gone".into()));
        assert!(pane.wants_detail(7, 9_000));
        assert!(pane.wants_detail(8, 9_001), "another one at once");
    }

    #[test]
    fn one_that_ended_stays_as_it_was_last_seen() {
        let mut pane = RequestsPane::default();
        pane.on_detail(7, Err("busy".into()));
        assert!(matches!(&pane.detail, Some((7, Err(_)))));
        let detail = RequestDetail { max_blocks: 3, ..RequestDetail::default() };
        pane.on_detail(7, Ok(detail.clone()));
        pane.on_detail(7, Err("no live request `7`".into()));
        assert_eq!(pane.detail, Some((7, Ok(detail))));
        pane.on_detail(8, Err("no live request `8`".into()));
        assert!(matches!(&pane.detail, Some((8, Err(_)))));
    }
}
