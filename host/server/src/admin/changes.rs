//! Incremental updates for a console: remembers what was sent and computes the next change, which holds all numbers
//! but only those requests that came, moved or went.

use std::collections::HashMap;

use infer_api::admin::{AdminEvent, Change, MAX_ROWS, OperatorInfo, PolicySlot, RowsChange, State};
use infer_core::snapshot::RequestSnapshot;

use super::state;
use crate::app::App;
use crate::engine::EngineReport;
use crate::http::ApiError;

/// Refusals, failures and preemptions listed in one change; the rest are counted.
const EVENTS: usize = 32;

/// What one console has been sent.
#[derive(Default)]
pub struct Changes {
    /// Whose console it is.
    operator: Option<OperatorInfo>,
    begun: bool,
    /// In the order in which the engine reported them last.
    rows: Vec<RequestSnapshot>,
    slots: Vec<PolicySlot>,
    events: Vec<AdminEvent>,
    left_out: u64,
}

impl Changes {
    /// Nothing yet.
    pub fn of(operator: OperatorInfo) -> Self {
        Self { operator: Some(operator), ..Self::default() }
    }

    /// Keeps events that may come in floods for the next change; returns others, to be sent at once.
    pub fn take(&mut self, event: AdminEvent) -> Option<AdminEvent> {
        match event {
            AdminEvent::Refusal { .. } | AdminEvent::Failure { .. } | AdminEvent::Preemption { .. } => {
                if self.events.len() < EVENTS {
                    self.events.push(event);
                } else {
                    self.left_out += 1;
                }
                None
            }
            other => Some(other),
        }
    }

    /// Returns the next update: first a whole snapshot, then changes.
    pub async fn next(&mut self, app: &App) -> Result<AdminEvent, ApiError> {
        let served = app.served()?;
        let report = state::report(app, served).await?;
        let mut numbers = state::numbers(app, served, &report);
        numbers.operator.clone_from(&self.operator);
        let rows = self.rows(*report);
        let slots = numbers.policies.clone();
        if !std::mem::replace(&mut self.begun, true) {
            self.slots = slots;
            return Ok(AdminEvent::Snapshot(Box::new(State { requests: rows.came, ..numbers })));
        }
        for (slot, sent) in numbers.policies.iter_mut().zip(&self.slots) {
            omit_unchanged(slot, sent);
        }
        self.slots = slots;
        Ok(AdminEvent::Change(Box::new(Change {
            state: numbers,
            rows,
            events: std::mem::take(&mut self.events),
            events_left_out: std::mem::take(&mut self.left_out),
        })))
    }

    fn rows(&mut self, EngineReport { snapshot, metas, at, .. }: EngineReport) -> RowsChange {
        let mut change = RowsChange::default();
        let mut rows = snapshot.requests;
        rows.truncate(MAX_ROWS);
        let before = places(&self.rows, &rows);
        for ((row, before), meta) in rows.iter().zip(&before).zip(&metas) {
            match before {
                Some(place) if self.rows[*place] == *row => {}
                Some(_) => change.moved.push(state::row_change(row, at)),
                None => change.came.push(state::request_row(row, meta, at).listed()),
            }
        }
        let mut stayed = vec![false; self.rows.len()];
        before.iter().flatten().for_each(|&place| stayed[place] = true);
        let sent = |that_stayed: bool| {
            let rows = self.rows.iter().zip(&stayed).filter(move |(_, stayed)| **stayed == that_stayed);
            rows.map(|(row, _)| row.id.0)
        };
        change.gone = sent(false).collect();
        change.gone.sort_unstable();
        let known = sent(true).chain(change.came.iter().map(|row| row.id));
        let order = rows.iter().map(|row| row.id.0);
        if !known.eq(order.clone()) {
            change.order = Some(order.collect());
        }
        self.rows = rows;
        change
    }
}

/// Returns the index in `sent` of each of `rows`. Nearly all are found near their neighbour's, without a hash table of
/// thousands of entries four times a second.
fn places(sent: &[RequestSnapshot], rows: &[RequestSnapshot]) -> Vec<Option<usize>> {
    /// Rows that may have been removed between two neighbours.
    const NEAR: usize = 16;
    let mut places = Vec::with_capacity(rows.len());
    let (mut at, mut passed, mut unfound) = (0, Vec::new(), Vec::new());
    for (i, row) in rows.iter().enumerate() {
        let near = sent[at..].iter().take(NEAR).position(|sent| sent.id == row.id);
        match near {
            Some(skip) => {
                passed.extend(at..at + skip);
                at += skip + 1;
            }
            None => unfound.push(i),
        }
        places.push(near.map(|_| at - 1));
    }
    if !unfound.is_empty() {
        let rest: HashMap<_, _> =
            passed.into_iter().chain(at..sent.len()).map(|at| (sent[at].id, at)).collect();
        unfound.into_iter().for_each(|i| places[i] = rest.get(&rows[i].id).copied());
    }
    places
}

/// Clears the configuration and its schema if they were sent before.
fn omit_unchanged(slot: &mut PolicySlot, sent: &PolicySlot) {
    if (&slot.name, &slot.sha256) != (&sent.name, &sent.sha256) {
        return;
    }
    if slot.config_schema == sent.config_schema {
        slot.config_schema = serde_json::Value::Null;
    }
    if slot.config == sent.config {
        slot.config = serde_json::Value::Null;
    }
}

#[cfg(test)]
mod tests {
    use infer_core::{Micros, SequenceId, SessionId, TenantId, request::SequenceState};
    use proptest::prelude::*;

    use super::*;

    fn row(id: u64) -> RequestSnapshot {
        RequestSnapshot {
            id: SequenceId(id),
            tenant: TenantId(0),
            session: SessionId(0),
            priority: 0,
            state: SequenceState::Held,
            prompt_tokens: 1,
            cached_tokens: 0,
            computed_tokens: 0,
            generated_tokens: 0,
            max_new_tokens: 1,
            blocks: 0,
            preemptions: 0,
            arrived: Micros(id),
            started: Micros::NEVER,
            first_token: Micros::NEVER,
        }
    }

    #[test]
    fn failures_wait_for_the_next_change_and_a_flood_is_counted() {
        let mut changes = Changes::default();
        for id in 0..EVENTS as u64 + 5 {
            let failure = AdminEvent::Failure {
                id,
                request_id: format!("r-{id}"),
                code: "device_fault".to_owned(),
                message: "out of device memory".to_owned(),
            };
            assert_eq!(changes.take(failure), None);
        }
        assert_eq!((changes.events.len(), changes.left_out), (EVENTS, 5));
    }

    proptest! {
        /// Also with rows added, removed and moved far.
        #[test]
        fn every_row_is_found_at_its_index(
            sent in proptest::sample::subsequence((0..200_u64).collect::<Vec<_>>(), 0..200),
            now in proptest::sample::subsequence((0..200_u64).collect::<Vec<_>>(), 0..200),
            swaps in proptest::collection::vec((0..200_usize, 0..200_usize), 0..20),
        ) {
            let mut now = now;
            for (a, b) in swaps {
                if a < now.len() && b < now.len() {
                    now.swap(a, b);
                }
            }
            let rows = |ids: &[u64]| ids.iter().map(|&id| row(id)).collect::<Vec<_>>();
            let want: Vec<_> = now.iter().map(|id| sent.iter().position(|sent| sent == id)).collect();
            prop_assert_eq!(places(&rows(&sent), &rows(&now)), want);
        }
    }
}
