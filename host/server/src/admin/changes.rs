//! What a console that follows has been sent, and so what it must be told next: the numbers, and of the
//! requests only those that came, moved or went.

use std::collections::HashMap;

use infer_api::admin::{AdminEvent, Change, MAX_ROWS, PolicySlot, RowsChange, State};
use infer_core::snapshot::RequestSnapshot;

use super::state;
use crate::app::{App, Served};
use crate::http::ApiError;

/// Refusals and preemptions that one change tells of; the rest are counted.
const EVENTS: usize = 32;

/// One console's view of the host.
#[derive(Default)]
pub struct Changes {
    begun: bool,
    /// In the order of the last snapshot.
    rows: Vec<RequestSnapshot>,
    slots: Vec<PolicySlot>,
    events: Vec<AdminEvent>,
    left_out: u64,
}

impl Changes {
    /// Keeps what comes in floods for the next change; hands back what is to be told at once.
    pub fn take(&mut self, event: AdminEvent) -> Option<AdminEvent> {
        match event {
            AdminEvent::Refusal { .. } | AdminEvent::Preemption { .. } => {
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

    /// The next thing to say: a whole snapshot first, then changes.
    pub async fn next(&mut self, app: &App) -> Result<AdminEvent, ApiError> {
        let served = app.served()?;
        let report = state::report(served).await?;
        let mut numbers = state::numbers(app, served, &report);
        let rows = self.rows(served, report.snapshot.requests, report.at);
        let slots = numbers.policies.clone();
        if !std::mem::replace(&mut self.begun, true) {
            self.slots = slots;
            return Ok(AdminEvent::Snapshot(Box::new(State { requests: rows.came, ..numbers })));
        }
        for (slot, sent) in numbers.policies.iter_mut().zip(&self.slots) {
            leave_out_what_is_known(slot, sent);
        }
        self.slots = slots;
        Ok(AdminEvent::Change(Box::new(Change {
            state: numbers,
            rows,
            events: std::mem::take(&mut self.events),
            events_left_out: std::mem::take(&mut self.left_out),
        })))
    }

    fn rows(
        &mut self,
        served: &Served,
        mut rows: Vec<RequestSnapshot>,
        at: infer_core::Micros,
    ) -> RowsChange {
        let mut change = RowsChange::default();
        rows.truncate(MAX_ROWS);
        let before = places(&self.rows, &rows);
        let mut listed = Vec::with_capacity(rows.len());
        for (row, before) in rows.into_iter().zip(&before) {
            match before {
                Some(place) if self.rows[*place] == row => {}
                Some(_) => change.moved.push(state::row_change(&row, at)),
                // Its name is noted a moment after its arrival; until then nobody misses it.
                None if served.engine.request_meta(row.id.0).is_none() => continue,
                None => change.came.push(state::request_row(served, &row, at).listed()),
            }
            listed.push(row);
        }
        let mut stayed = vec![false; self.rows.len()];
        before.iter().flatten().for_each(|&place| stayed[place] = true);
        let sent = |that_stayed: bool| {
            let rows = self.rows.iter().zip(&stayed).filter(move |(_, stayed)| **stayed == that_stayed);
            rows.map(|(row, _)| row.id.0)
        };
        change.gone = sent(false).collect();
        change.gone.sort_unstable();
        let told = sent(true).chain(change.came.iter().map(|row| row.id));
        let order = listed.iter().map(|row| row.id.0);
        if !told.eq(order.clone()) {
            change.order = Some(order.collect());
        }
        self.rows = listed;
        change
    }
}

/// Where each of `rows` stood in `sent`. Nearly all are found beside their neighbours, without a table of
/// thousands that a busy host would have to fetch from memory four times a second.
fn places(sent: &[RequestSnapshot], rows: &[RequestSnapshot]) -> Vec<Option<usize>> {
    /// Rows that may have gone between two neighbours.
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

fn leave_out_what_is_known(slot: &mut PolicySlot, sent: &PolicySlot) {
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

    proptest! {
        /// Whatever came, went or moved, and however far.
        #[test]
        fn every_row_is_found_where_it_stood(
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
