//! What a console that follows has been sent, and so what it must be told next: the numbers, and of the
//! requests only those that came, moved or went.

use std::collections::HashMap;

use infer_api::admin::{AdminEvent, Change, PolicySlot, RowsChange, State};
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
    rows: HashMap<u64, RequestSnapshot>,
    order: Vec<u64>,
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

    fn rows(&mut self, served: &Served, rows: Vec<RequestSnapshot>, at: infer_core::Micros) -> RowsChange {
        let mut change = RowsChange::default();
        let mut sent = std::mem::take(&mut self.rows);
        let mut order = Vec::with_capacity(rows.len().min(state::MAX_ROWS));
        for row in rows {
            if order.len() == state::MAX_ROWS {
                break;
            }
            match sent.remove(&row.id.0) {
                Some(before) if before == row => {}
                Some(_) => change.moved.push(state::row_change(&row, at)),
                // Its name is noted a moment after its arrival; until then nobody misses it.
                None if served.engine.request_meta(row.id.0).is_none() => continue,
                None => change.came.push(state::request_row(served, &row, at)),
            }
            order.push(row.id.0);
            self.rows.insert(row.id.0, row);
        }
        change.gone = sent.into_keys().collect();
        change.gone.sort_unstable();
        let stayed = self.order.iter().filter(|id| change.gone.binary_search(id).is_err());
        if !stayed.copied().chain(change.came.iter().map(|row| row.id)).eq(order.iter().copied()) {
            change.order = Some(order.clone());
        }
        self.order = order;
        change
    }
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
