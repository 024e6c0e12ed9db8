//! Live requests: a row each, one in full, and how a table of them changes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Live requests that a snapshot lists at most; what the queue holds by default and as many sequences as
/// can run at once, twice over.
pub const MAX_ROWS: usize = 10_000;
/// Most bytes of a listed row as JSON ([`RequestRow::listed`]).
pub const MAX_ROW_BYTES: usize = 1_792;

/// JSON bytes of a request id, which has at most 128 visible ASCII characters: it is never cut.
const REQUEST_ID_BYTES: usize = 256;
/// JSON bytes of any other name.
const NAME_BYTES: usize = 128;
/// JSON bytes of a key or a value of the metadata, and of all of them.
const ENTRY_BYTES: usize = 64;
const METADATA_BYTES: usize = 512;
/// Entries of the metadata.
const MAX_ENTRIES: usize = 16;
const CUT: char = '…';

/// One live request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named as in the data plane")]
pub struct RequestRow {
    pub id: u64,
    /// `x-request-id`.
    pub request_id: String,
    pub tenant: u32,
    /// The tenant's name; `default` where no keys are configured.
    #[serde(default)]
    pub tenant_name: String,
    pub session: String,
    pub user: String,
    pub metadata: BTreeMap<String, String>,
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
    /// Milliseconds it waited before it first started; its age while it waits.
    pub queue_ms: u64,
    /// Milliseconds from arrival to its first token.
    pub ttft_ms: Option<u64>,
    /// Whether it ever started; until then `queue_ms` grows with `age_ms`.
    #[serde(default)]
    pub started: bool,
}

impl RequestRow {
    /// The row as a snapshot lists it: what clients chose is cut and ends in `…` where it is long, and
    /// metadata for which there is no room is left out, so that a flood of requests with long names
    /// neither costs the host much nor blinds its consoles. `GET /admin/requests/{id}` has it whole.
    #[must_use]
    pub fn listed(mut self) -> Self {
        self.request_id = cut(self.request_id, REQUEST_ID_BYTES);
        self.tenant_name = cut(self.tenant_name, NAME_BYTES);
        self.session = cut(self.session, NAME_BYTES);
        self.user = cut(self.user, NAME_BYTES);
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

/// The beginning of a text that is too long for so many bytes of JSON, with a mark that it was cut.
fn cut(mut text: String, bytes: usize) -> String {
    // Where it is cut so that the mark fits, too.
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

/// What a character takes in a string of JSON.
fn json_bytes_of(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..' ' => 6,
        c => c.len_utf8(),
    }
}

/// `GET /admin/requests/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestDetail {
    /// Its row.
    pub row: RequestRow,
    /// Its block table in the order of its tokens.
    pub table: Vec<TableBlock>,
    /// Blocks that it holds if it runs to its last token.
    pub max_blocks: u32,
    /// How many tokens it will probably generate, as the scheduler is told.
    pub expected_tokens: u32,
    /// Tokens taken from the cache when it last started; what it would find, while it waits.
    pub reusable_tokens: u32,
    /// Tokens that others are computing for it right now: waiting a little would spare them.
    pub pending_tokens: u32,
    /// Milliseconds from its arrival until its first token is due; none where it has no deadline.
    pub deadline_ms: Option<i64>,
    /// Whether a later one was started before it.
    pub overtaken: bool,
}

/// One place of a block table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableBlock {
    /// Which block.
    pub block: u32,
    /// Tables that hold it.
    pub references: u32,
    /// Whether other requests can find it.
    pub indexed: bool,
}

/// What became of the rows since the last time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowsChange {
    /// Requests that are new, in full.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub came: Vec<RequestRow>,
    /// Requests of which something moved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<RowChange>,
    /// Requests that are no longer listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<u64>,
    /// Every id in the new order; none where the old order, less those gone, plus those that came, is right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Vec<u64>>,
}

/// The fields of a row that move.
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

/// A change that doesn't fit the rows it is applied to: the reader missed something and starts over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The request that is not there.
    pub id: u64,
}

impl RowsChange {
    /// Brings `rows` up to date. `passed_ms` is the time since they were; ages grow by it.
    ///
    /// # Errors
    /// [`Mismatch`] where the change speaks of a row that isn't there; `rows` are then as they were.
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
        // Everything is looked up before anything is touched.
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

/// The places of `ids`, none of them twice, among so many rows.
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
    fn rows_come_move_go_and_change_places() {
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
    fn a_change_for_other_rows_is_refused() {
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
            assert_eq!(table, rows(&[1, 2, 7]), "nothing is touched");
        }
    }

    #[test]
    fn a_listed_row_is_bounded_whatever_clients_call_things() {
        for c in ['a', '"', '\u{1}', '\n', '\u{7f}', '\u{9b}', 'é', '会', '😀', '\u{2028}'] {
            let name = |bytes: usize| c.to_string().repeat(bytes / c.len_utf8());
            let entry = |n: usize| (format!("{n}{}", name(500)), name(512));
            let row = RequestRow {
                id: u64::MAX,
                request_id: "\"".repeat(128),
                tenant: u32::MAX,
                tenant_name: name(100_000),
                session: name(512),
                user: name(512),
                metadata: (0..16).map(entry).collect(),
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
            assert_eq!(listed.request_id, row.request_id, "it names the request");
            assert!(listed.session.ends_with('…') && listed.metadata.len() > 1, "{listed:?}");
            let short =
                RequestRow { metadata: (0..16).map(|n| (n.to_string(), "x".into())).collect(), ..listed };
            let twice = short.clone().listed();
            assert_eq!(twice, short, "what is short stays whole");
        }
    }

    #[test]
    fn what_json_makes_of_a_character_is_what_is_counted() {
        for c in (0..0x3000).filter_map(char::from_u32) {
            assert_eq!(json_bytes_of(c), serde_json::to_string(&c).unwrap().len() - 2, "{c:?}");
        }
    }
}
