//! Live requests: rows of a table, details of one, and changes to the table.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Most live requests in a snapshot: about twice the default queue plus the largest possible batch.
pub const MAX_ROWS: usize = 10_000;
/// Largest size of a listed row as JSON, in bytes ([`RequestRow::listed`]).
pub const MAX_ROW_BYTES: usize = 1_920;

/// Most JSON bytes of a request id. It has at most 128 visible ASCII characters, so it is never cut.
const REQUEST_ID_BYTES: usize = 256;
/// Most JSON bytes of any other name.
const NAME_BYTES: usize = 128;
/// Most JSON bytes of a key or a value of the metadata.
const ENTRY_BYTES: usize = 64;
/// Most JSON bytes of all keys and values of the metadata.
const METADATA_BYTES: usize = 512;
/// Most entries of the metadata.
const MAX_ENTRIES: usize = 16;
const CUT: char = '…';

/// One live request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named as in the data plane")]
pub struct RequestRow {
    pub id: u64,
    /// Id of the first sequence of its request; `None` from hosts that don't send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_id: Option<u64>,
    /// Its `x-request-id`.
    pub request_id: String,
    pub tenant: u32,
    /// The tenant's name; `default` if no keys are configured.
    #[serde(default)]
    pub tenant_name: String,
    pub session: String,
    pub user: String,
    pub metadata: BTreeMap<String, String>,
    /// The name of its adapter; `None` for the model itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    pub priority: i32,
    /// `held`, `waiting`, `preempted`, `prefill`, `decode`.
    pub state: String,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub computed_tokens: u32,
    pub generated_tokens: u32,
    pub max_tokens: u32,
    pub blocks: u32,
    pub preemptions: u32,
    /// Milliseconds since it arrived.
    pub age_ms: u64,
    /// Milliseconds it waited before it first started; its age until then.
    pub queue_ms: u64,
    /// Milliseconds from arrival to its first token; null until then.
    pub ttft_ms: Option<u64>,
    /// Whether it has started; until then `queue_ms` grows with `age_ms`.
    #[serde(default)]
    pub started: bool,
}

impl RequestRow {
    /// Returns the row as a snapshot lists it: long values chosen by clients are cut and end in `…`, and
    /// metadata beyond a limit is left out, so that a flood of requests with long names neither costs the
    /// host much nor exceeds what consoles accept. `GET /admin/requests/{id}` has everything.
    #[must_use]
    pub fn listed(mut self) -> Self {
        self.request_id = cut(self.request_id, REQUEST_ID_BYTES);
        self.tenant_name = cut(self.tenant_name, NAME_BYTES);
        self.session = cut(self.session, NAME_BYTES);
        self.user = cut(self.user, NAME_BYTES);
        self.adapter = self.adapter.map(|adapter| cut(adapter, NAME_BYTES));
        let mut room = METADATA_BYTES;
        let entries = std::mem::take(&mut self.metadata).into_iter().take(MAX_ENTRIES);
        let entries = entries.map(|(key, value)| (cut(key, ENTRY_BYTES), cut(value, ENTRY_BYTES)));
        self.metadata = entries
            .take_while(|(key, value)| {
                let left = room.checked_sub(json_bytes(key) + json_bytes(value));
                room = left.unwrap_or(0);
                left.is_some()
            })
            .collect();
        self
    }
}

/// Cuts a text to at most `bytes` bytes of JSON, including a mark that it was cut.
fn cut(mut text: String, bytes: usize) -> String {
    // `end` is where to cut so that the mark fits, too.
    let (mut used, mut end) = (0, 0);
    for (at, c) in text.char_indices() {
        used += json_bytes_of(c);
        if used > bytes {
            text.truncate(end);
            text.push(CUT);
            break;
        }
        if used + CUT.len_utf8() <= bytes {
            end = at + c.len_utf8();
        }
    }
    text
}

fn json_bytes(text: &str) -> usize {
    text.chars().map(json_bytes_of).sum()
}

/// Returns the bytes of a character in a JSON string.
fn json_bytes_of(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..' ' => 6,
        c => c.len_utf8(),
    }
}

/// Response of `GET /admin/requests/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestDetail {
    /// Its row, uncut.
    pub row: RequestRow,
    /// Its block table, in the order of its tokens.
    pub table: Vec<TableBlock>,
    /// Blocks that it needs if it generates `max_tokens`.
    pub max_blocks: u32,
    /// Expected length of the output in tokens, as shown to the scheduler.
    pub expected_tokens: u32,
    /// Tokens taken from the cache when it last started; while it waits, the tokens it would take.
    pub reusable_tokens: u32,
    /// Tokens of its prompt that other requests are computing now, and that it can reuse if it waits a
    /// little.
    pub pending_tokens: u32,
    /// Milliseconds from its arrival until its first token is due; null without a deadline.
    pub deadline_ms: Option<i64>,
    /// Whether a later request started before it.
    pub overtaken: bool,
}

/// One entry of a block table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableBlock {
    /// The block.
    pub block: u32,
    /// Number of block tables that contain it.
    pub references: u32,
    /// Whether other requests can reuse it.
    pub indexed: bool,
}

/// Changes to the rows since the last snapshot or change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowsChange {
    /// New rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub came: Vec<RequestRow>,
    /// The variable fields of rows in which one of them changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<RowChange>,
    /// Ids of rows that are not listed any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<u64>,
    /// All ids in the new order; absent if the order is the old one without `gone`, followed by `came`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Vec<u64>>,
}

/// The variable fields of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named as in `RequestRow`")]
pub struct RowChange {
    pub id: u64,
    pub state: String,
    pub cached_tokens: u32,
    pub computed_tokens: u32,
    pub generated_tokens: u32,
    pub blocks: u32,
    pub preemptions: u32,
    pub queue_ms: u64,
    pub ttft_ms: Option<u64>,
    pub started: bool,
}

/// A change doesn't fit the rows it is applied to: the reader has missed one and must start over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The request that is missing or listed twice.
    pub id: u64,
}

impl RowsChange {
    /// Updates `rows`. `passed_ms` is the time since they were current; ages grow by it.
    ///
    /// # Errors
    /// [`Mismatch`] if the change refers to a row that doesn't exist; `rows` are then unchanged.
    pub fn apply(mut self, rows: &mut Vec<RequestRow>, passed_ms: u64) -> Result<(), Mismatch> {
        self.gone.sort_unstable();
        let stays = |row: &RequestRow| self.gone.binary_search(&row.id).is_err();
        let ids = rows.iter().filter(|row| stays(row)).chain(&self.came).map(|row| row.id);
        let mut places: Vec<(u64, usize)> = ids.zip(0..).collect();
        places.sort_unstable();
        let place = |id: u64| {
            let found = places.binary_search_by_key(&id, |&(id, _)| id);
            found.map(|at| places[at].1).map_err(|_| Mismatch { id })
        };
        // Look everything up before changing anything.
        let moved: Vec<usize> = self.moved.iter().map(|row| place(row.id)).collect::<Result<_, _>>()?;
        let order = match &self.order {
            Some(order) => Some(each_once(order, places.len(), place)?),
            None => None,
        };
        rows.retain(stays);
        for row in rows.iter_mut() {
            row.age_ms = row.age_ms.saturating_add(passed_ms);
            if !row.started {
                row.queue_ms = row.age_ms;
            }
        }
        rows.append(&mut self.came);
        for (change, at) in self.moved.into_iter().zip(moved) {
            change.apply(&mut rows[at]);
        }
        if let Some(order) = order {
            *rows = order.into_iter().map(|at| std::mem::take(&mut rows[at])).collect();
        }
        Ok(())
    }
}

impl RowChange {
    fn apply(self, row: &mut RequestRow) {
        row.state = self.state;
        row.cached_tokens = self.cached_tokens;
        row.computed_tokens = self.computed_tokens;
        row.generated_tokens = self.generated_tokens;
        row.blocks = self.blocks;
        row.preemptions = self.preemptions;
        row.queue_ms = self.queue_ms;
        row.ttft_ms = self.ttft_ms;
        row.started = self.started;
    }
}

/// Returns the indexes of `ids` among `rows` rows, each at most once.
fn each_once(
    ids: &[u64],
    rows: usize,
    place: impl Fn(u64) -> Result<usize, Mismatch>,
) -> Result<Vec<usize>, Mismatch> {
    let mut taken = vec![false; rows];
    let once = |&id: &u64| {
        let at = place(id)?;
        if std::mem::replace(&mut taken[at], true) { Err(Mismatch { id }) } else { Ok(at) }
    };
    ids.iter().map(once).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(ids: &[u64]) -> Vec<RequestRow> {
        ids.iter().map(|&id| RequestRow { id, ..RequestRow::default() }).collect()
    }

    #[test]
    fn changes_add_update_remove_and_reorder_rows() {
        let mut table = rows(&[1, 2, 3]);
        table[1].started = true;
        table[1].queue_ms = 7;
        let change = RowsChange {
            came: rows(&[9]),
            moved: vec![RowChange { id: 3, state: "decode".into(), blocks: 4, ..RowChange::default() }],
            gone: vec![1],
            order: Some(vec![3, 2, 9]),
        };
        change.apply(&mut table, 250).unwrap();
        let seen: Vec<_> = table.iter().map(|row| (row.id, row.blocks, row.age_ms, row.queue_ms)).collect();
        assert_eq!(seen, [(3, 4, 250, 0), (2, 0, 250, 7), (9, 0, 0, 0)]);
        assert_eq!(table[0].state, "decode");
    }

    #[test]
    fn a_change_for_other_rows_is_refused_and_changes_nothing() {
        let moved = |id| vec![RowChange { id, blocks: 9, ..RowChange::default() }];
        for (moved, order, missing) in [
            (moved(8), None, 8),
            (moved(1), Some(vec![1, 1]), 1),
            (moved(1), Some(vec![2, 1, 5]), 5),
            (moved(7), None, 7),
        ] {
            let change = RowsChange { gone: vec![7], came: rows(&[3]), moved, order };
            let mut table = rows(&[1, 2, 7]);
            assert_eq!(change.apply(&mut table, 50), Err(Mismatch { id: missing }));
            assert_eq!(table, rows(&[1, 2, 7]), "unchanged");
        }
    }

    #[test]
    fn listed_rows_are_bounded_whatever_names_clients_choose() {
        for c in ['a', '"', '\u{1}', '\n', '\u{7f}', '\u{9b}', 'é', '会', '😀', '\u{2028}'] {
            let name = |bytes: usize| c.to_string().repeat(bytes / c.len_utf8());
            let entry = |n: usize| (format!("{n}{}", name(500)), name(512));
            let row = RequestRow {
                id: u64::MAX,
                first_id: Some(u64::MAX),
                request_id: "\"".repeat(128),
                tenant: u32::MAX,
                tenant_name: name(100_000),
                session: name(512),
                user: name(512),
                metadata: (0..16).map(entry).collect(),
                adapter: Some(name(100_000)),
                priority: i32::MIN,
                state: "preempted".into(),
                prompt_tokens: u32::MAX,
                cached_tokens: u32::MAX,
                computed_tokens: u32::MAX,
                generated_tokens: u32::MAX,
                max_tokens: u32::MAX,
                blocks: u32::MAX,
                preemptions: u32::MAX,
                age_ms: u64::MAX,
                queue_ms: u64::MAX,
                ttft_ms: Some(u64::MAX),
                started: false,
            };
            let listed = row.clone().listed();
            let bytes = serde_json::to_string(&listed).unwrap().len();
            assert!(bytes <= MAX_ROW_BYTES, "{c:?}: {bytes}");
            assert_eq!(listed.request_id, row.request_id, "never cut");
            assert!(listed.session.ends_with('…') && listed.metadata.len() > 1, "{listed:?}");
            let short =
                RequestRow { metadata: (0..16).map(|n| (n.to_string(), "x".into())).collect(), ..listed };
            let twice = short.clone().listed();
            assert_eq!(twice, short, "short values are not cut");
        }
    }

    #[test]
    fn counted_bytes_match_the_json_encoding() {
        for c in (0..0x3000).filter_map(char::from_u32) {
            assert_eq!(json_bytes_of(c), serde_json::to_string(&c).unwrap().len() - 2, "{c:?}");
        }
    }
}
