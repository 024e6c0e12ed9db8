//! The table of live requests: order, filter and selection. The selection follows a request and not a row, so
//! that a table that changes doesn't lead to the wrong request being cancelled.
//!
//! The order is computed when rows, sorting or filter change and not when it is drawn, so that a key takes
//! effect at once even with thousands of rows.

use std::cmp::Ordering;

use infer_api::admin::{RequestDetail, RequestRow};

use super::Millis;
use super::text::Filter;

/// Time between two fetches of the request whose details are open.
pub const DETAIL_MS: Millis = 500;

/// Fields of a request that a filter can name, besides the keys of its metadata.
pub const FIELDS: [&str; 6] = ["id", "request_id", "state", "session", "user", "tenant"];

/// Sort key of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as the columns")]
pub enum SortBy {
    /// The host's order: running requests in the order in which they started, then the queue.
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
    /// All keys, in the order of the columns.
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

    /// Returns the name.
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
    /// The sort key.
    pub sort_by: SortBy,
    /// Whether the largest comes first.
    pub descending: bool,
    /// The filter.
    pub filter: Filter,
    /// The request whose details are open, with the host's response.
    pub detail: Option<(u64, Result<RequestDetail, String>)>,
    order: Vec<usize>,
    /// For each row of the host, how many requests wait before it.
    ahead: Vec<usize>,
    selected_id: Option<u64>,
    selected_row: usize,
    detail_asked: Option<(u64, Millis)>,
    detail_waiting: bool,
}

impl RequestsPane {
    /// Returns the indexes of the rows that match the filter, in the order of the table.
    #[must_use]
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Returns how many requests wait before the one at `index` of the host's rows.
    #[must_use]
    pub fn ahead(&self, index: usize) -> usize {
        self.ahead.get(index).copied().unwrap_or(0)
    }

    /// A field that the filter names and no request has.
    #[must_use]
    pub fn unknown_field(&self, rows: &[RequestRow]) -> Option<&str> {
        let is_key = |name: &str| rows.iter().any(|row| row.metadata.keys().any(|key| key.starts_with(name)));
        self.filter.unknown_field(|name| FIELDS.iter().any(|field| field.starts_with(name)) || is_key(name))
    }

    /// Returns the table row of the selection.
    #[must_use]
    pub fn selected_row(&self) -> usize {
        self.selected_row
    }

    /// Returns the selected request.
    #[must_use]
    pub fn selected<'a>(&self, rows: &'a [RequestRow]) -> Option<&'a RequestRow> {
        rows.get(*self.order.get(self.selected_row)?)
    }

    /// Recomputes the order for new rows, sorting or filter, and finds the selected request in it. If it is
    /// gone, the request in its row is selected.
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

    /// Sorts by the next column to the right (positive) or left.
    pub fn next_sort(&mut self, rows: &[RequestRow], by: isize) {
        let at = SortBy::ALL.iter().position(|&sort| sort == self.sort_by).unwrap_or(0);
        let next = (at.cast_signed() + by).rem_euclid(SortBy::ALL.len().cast_signed());
        self.sort_by = SortBy::ALL[next.cast_unsigned()];
        self.reconcile(rows);
    }

    /// Reverses the order.
    pub fn reverse(&mut self, rows: &[RequestRow]) {
        self.descending = !self.descending;
        self.reconcile(rows);
    }

    /// Whether a fetch of a request's details is due; marks it as started.
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

    /// Takes the response. A request that has ended stays as it was last seen.
    pub fn on_detail(&mut self, id: u64, result: Result<RequestDetail, String>) {
        self.detail_waiting = false;
        let seen = matches!(&self.detail, Some((of, Ok(_))) if *of == id);
        if result.is_ok() || !seen {
            self.detail = Some((id, result));
        }
    }

    /// Discards everything tied to ids, because the host restarted.
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
    fn the_selection_keeps_its_row_when_its_request_ends() {
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
    fn a_filter_hides_rows_and_moves_the_selection_to_a_visible_one() {
        let mut pane = RequestsPane::default();
        let mut rows = rows(&[(1, 0), (2, 0), (3, 0)]);
        rows[0].state = "decode".into();
        rows[1].metadata.insert("app".into(), "docs".into());
        pane.reconcile(&rows);
        pane.filter = Filter::new("app:doc");
        pane.reconcile(&rows);
        assert_eq!(pane.order(), [1]);
        assert_eq!(pane.selected(&rows).unwrap().id, 2);
        assert_eq!(pane.ahead(2), 1, "hidden requests that wait count, too");
    }

    #[test]
    fn details_are_fetched_periodically_and_without_overlap() {
        let mut pane = RequestsPane::default();
        assert!(pane.wants_detail(7, 0));
        assert!(!pane.wants_detail(7, 9_000), "the first is still in flight");
        pane.on_detail(7, Err("gone".into()));
        assert!(pane.wants_detail(7, 9_000));
        assert!(pane.wants_detail(8, 9_001), "another request's at once");
    }

    #[test]
    fn details_of_an_ended_request_stay_as_last_seen() {
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
