//! The table of live requests: sort keys, filter, and the details of one request. Order and selection are every
//! table's (`table`).

use std::cmp::Ordering;

use infer_api::admin::{RequestDetail, RequestRow};

use super::Millis;
use super::table::{Row, SortKey, Table};
use super::text::Filter;

/// Time between two fetches of the request whose details are open.
pub const DETAIL_MS: Millis = 500;

/// Fields of a request that a filter can name, besides the keys of its metadata.
pub const FIELDS: [&str; 8] =
    ["id", "request_id", "state", "session", "user", "tenant", "tenant_name", "adapter"];

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

impl SortKey for SortBy {
    type Row = RequestRow;

    const ALL: &'static [Self] = &[
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

    fn name(self) -> &'static str {
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
    /// Its order, filter and selection.
    pub table: Table<SortBy>,
    /// The request whose details are open, with the host's response.
    pub detail: Option<(u64, Result<RequestDetail, String>)>,
    /// For each row of the host, how many requests wait before it.
    ahead: Vec<usize>,
    detail_asked: Option<(u64, Millis)>,
    detail_waiting: bool,
}

impl RequestsPane {
    /// Returns how many requests wait before the one at `index` of the host's rows.
    #[must_use]
    pub fn ahead(&self, index: usize) -> usize {
        self.ahead.get(index).copied().unwrap_or(0)
    }

    /// A field that the filter names and no request has.
    #[must_use]
    pub fn unknown_field(&self, rows: &[RequestRow]) -> Option<&str> {
        let is_key = |name: &str| rows.iter().any(|row| row.metadata.keys().any(|key| key.starts_with(name)));
        self.table
            .filter
            .unknown_field(|name| FIELDS.iter().any(|field| field.starts_with(name)) || is_key(name))
    }

    /// Takes new rows.
    pub fn reconcile(&mut self, rows: &[RequestRow]) {
        self.table.reconcile(rows);
        let mut waiting = 0;
        self.ahead.clear();
        self.ahead.extend(rows.iter().map(|row| {
            let waits = !matches!(row.state.as_str(), "prefill" | "decode");
            let before = waiting;
            waiting += usize::from(waits);
            before
        }));
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
        self.table.forget();
    }
}

impl Row for RequestRow {
    fn id(&self) -> u64 {
        self.id
    }

    fn is_shown(&self, filter: &Filter) -> bool {
        let id = self.id.to_string();
        let tenant = self.tenant.to_string();
        let named = [
            ("id", id.as_str()),
            ("request_id", self.request_id.as_str()),
            ("state", self.state.as_str()),
            ("session", self.session.as_str()),
            ("user", self.user.as_str()),
            ("tenant", tenant.as_str()),
            ("tenant_name", self.tenant_name.as_str()),
            ("adapter", self.adapter.as_deref().unwrap_or_default()),
        ];
        let metadata = self.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        filter.matches(named.into_iter().chain(metadata))
    }

    /// Sequences of one request are alike until they generate. Its name doesn't tell it from others: clients choose it.
    fn kin(&self) -> Option<(u64, &str)> {
        let first_id = self.first_id?;
        (self.state != "decode").then_some((first_id, self.state.as_str()))
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
        pane.table.move_by(&before, 2);
        assert_eq!(pane.table.selected(&before).unwrap().id, 3);
        pane.reconcile(&rows(&[(3, 7), (4, 1)]));
        assert_eq!(pane.table.selected_row(), 0);
    }

    #[test]
    fn the_selection_keeps_its_row_when_its_request_ends() {
        let mut pane = RequestsPane::default();
        let before = rows(&[(1, 0), (2, 0), (3, 0)]);
        pane.reconcile(&before);
        pane.table.move_by(&before, 1);
        let after = rows(&[(1, 0), (3, 0)]);
        pane.reconcile(&after);
        assert_eq!(pane.table.selected(&after).unwrap().id, 3);
        pane.reconcile(&[]);
        assert_eq!(pane.table.selected(&[]), None);
    }

    #[test]
    fn sorting_keeps_the_selection_and_equal_rows_keep_their_order() {
        let mut pane = RequestsPane::default();
        let rows = rows(&[(1, 5), (2, 9), (3, 5)]);
        pane.reconcile(&rows);
        while pane.table.sort_by != SortBy::Blocks {
            pane.table.next_sort(&rows, 1);
        }
        assert_eq!(pane.table.order(), [0, 2, 1]);
        assert_eq!(pane.table.selected_row(), 0);
        pane.table.reverse(&rows);
        assert_eq!(pane.table.order(), [1, 2, 0]);
        assert_eq!(pane.table.selected_row(), 2);
    }

    #[test]
    fn a_filter_hides_rows_and_moves_the_selection_to_a_visible_one() {
        let mut pane = RequestsPane::default();
        let mut rows = rows(&[(1, 0), (2, 0), (3, 0)]);
        rows[0].state = "decode".into();
        rows[1].metadata.insert("app".into(), "docs".into());
        pane.reconcile(&rows);
        pane.table.filter = Filter::new("app:doc");
        pane.reconcile(&rows);
        assert_eq!(pane.table.order(), [1]);
        assert_eq!(pane.table.selected(&rows).unwrap().id, 2);
        assert_eq!(pane.ahead(2), 1, "hidden requests that wait count, too");
    }

    #[test]
    fn sequences_of_one_request_share_a_row_until_they_generate() {
        let mut pane = RequestsPane::default();
        let of = |id, first_id, request_id: &str, state: &str| RequestRow {
            id,
            first_id,
            request_id: request_id.into(),
            state: state.into(),
            ..RequestRow::default()
        };
        let rows = [
            of(1, Some(1), "many", "decode"),
            of(2, Some(1), "many", "decode"),
            of(3, Some(1), "many", "waiting"),
            of(4, Some(4), "many", "waiting"),
            of(5, Some(1), "many", "waiting"),
            of(6, None, "old", "waiting"),
            of(7, None, "old", "waiting"),
            of(8, Some(1), "many", "waiting"),
        ];
        pane.reconcile(&rows);
        assert_eq!(pane.table.order(), [0, 1, 2, 3, 5, 6], "another request of the same name has its own");
        let others: Vec<usize> = (0..6).map(|row| pane.table.others(row)).collect();
        assert_eq!(others, [0, 0, 2, 0, 0, 0]);
        assert_eq!(pane.ahead(3), 1, "all that wait count");
        pane.table.filter = Filter::new("request_id=many");
        pane.reconcile(&rows);
        assert_eq!((pane.table.order(), pane.table.others(2)), (&[0, 1, 2, 3, 4, 7][..], 0));
        pane.table.move_by(&rows, 5);
        assert_eq!(pane.table.selected(&rows).unwrap().id, 8);
        pane.table.filter = Filter::default();
        pane.reconcile(&rows);
        assert_eq!((pane.table.selected_row(), pane.table.selected(&rows).unwrap().id), (2, 3));
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
