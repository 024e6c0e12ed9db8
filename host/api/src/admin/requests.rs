//! Live requests: a row each, one in full, and how a table of them changes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
    /// [`Mismatch`] where the change speaks of a row that isn't there; `rows` are then of no use.
    pub fn apply(self, rows: &mut Vec<RequestRow>, passed_ms: u64) -> Result<(), Mismatch> {
        let mut gone = self.gone;
        gone.sort_unstable();
        rows.retain(|row| gone.binary_search(&row.id).is_err());
        for row in rows.iter_mut() {
            row.age_ms += passed_ms;
            if !row.started {
                row.queue_ms = row.age_ms;
            }
        }
        rows.extend(self.came);
        let mut places: Vec<(u64, usize)> = rows.iter().enumerate().map(|(at, row)| (row.id, at)).collect();
        places.sort_unstable();
        let place = |id: u64| {
            let found = places.binary_search_by_key(&id, |&(id, _)| id);
            found.map(|at| places[at].1).map_err(|_| Mismatch { id })
        };
        for change in self.moved {
            let row = &mut rows[place(change.id)?];
            row.state = change.state;
            row.cached_tokens = change.cached_tokens;
            row.computed_tokens = change.computed_tokens;
            row.generated_tokens = change.generated_tokens;
            row.blocks = change.blocks;
            row.preemptions = change.preemptions;
            row.queue_ms = change.queue_ms;
            row.ttft_ms = change.ttft_ms;
            row.started = change.started;
        }
        if let Some(order) = self.order {
            let mut old: Vec<Option<RequestRow>> = std::mem::take(rows).into_iter().map(Some).collect();
            for id in order {
                rows.push(old[place(id)?].take().ok_or(Mismatch { id })?);
            }
        }
        Ok(())
    }
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
        let moved = vec![RowChange { id: 8, ..RowChange::default() }];
        let missing = RowsChange { moved, ..RowsChange::default() };
        assert_eq!(missing.apply(&mut rows(&[1]), 0), Err(Mismatch { id: 8 }));
        let twice = RowsChange { order: Some(vec![1, 1]), ..RowsChange::default() };
        assert_eq!(twice.apply(&mut rows(&[1, 2]), 0), Err(Mismatch { id: 1 }));
    }
}
