//! The events of `GET /admin/events`.

use serde::{Deserialize, Deserializer, Serialize};

use super::{CanaryInfo, FaultInfo, Mismatch, RowsChange, State, SwapAnswer};

/// One event of `GET /admin/events`; the SSE event name is the variant's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", content = "data", rename_all = "snake_case")]
pub enum AdminEvent {
    /// The whole state, `?hz=` times per second; with `?changes=true` only once, at the start.
    Snapshot(Box<State>),
    /// With `?changes=true`: the difference to the last snapshot or change, `?hz=` times per second.
    Change(Box<Change>),
    /// A policy became live.
    Swap(SwapAnswer),
    /// A policy faulted.
    Fault(FaultInfo),
    /// A canary started or ended.
    Canary(Box<CanaryInfo>),
    /// A request was refused.
    Refusal {
        /// Its `x-request-id`.
        request_id: String,
        /// Machine-readable reason.
        reason: String,
        /// The error message that the client received.
        message: String,
    },
    /// A request failed after it had been accepted, other than by a late refusal.
    Failure {
        /// The request: the engine's id of its first sequence.
        id: u64,
        /// Its `x-request-id`.
        request_id: String,
        /// Machine-readable code of the error.
        code: String,
        /// The error message that the client received.
        message: String,
    },
    /// A running request was preempted.
    Preemption {
        /// The request.
        id: u64,
    },
    /// The subscriber was too slow and missed events.
    Lagged {
        /// How many.
        missed: u64,
    },
}

impl AdminEvent {
    /// Returns the SSE event name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Snapshot(_) => "snapshot",
            Self::Change(_) => "change",
            Self::Swap(_) => "swap",
            Self::Fault(_) => "fault",
            Self::Canary(_) => "canary",
            Self::Refusal { .. } => "refusal",
            Self::Failure { .. } => "failure",
            Self::Preemption { .. } => "preemption",
            Self::Lagged { .. } => "lagged",
        }
    }
}

/// The difference between two snapshots. Its size depends on what changed: a thousand waiting requests add
/// nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The new state without `requests`. The policies' configurations and schemas, which are large and rarely
    /// change, are null if they are the same as before.
    pub state: State,
    /// The changes to `requests`.
    pub rows: RowsChange,
    /// The first refusals, failures and preemptions since the last change.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "known")]
    pub events: Vec<AdminEvent>,
    /// Number of further ones, which are left out.
    #[serde(default)]
    pub events_left_out: u64,
}

impl Change {
    /// Updates a state. Handling `events` is left to the caller.
    ///
    /// # Errors
    /// [`Mismatch`] if the change is based on another state; `state` is then unchanged.
    pub fn apply(self, state: &mut State) -> Result<(), Mismatch> {
        let passed_ms = self.state.uptime_ms.saturating_sub(state.uptime_ms);
        self.rows.apply(&mut state.requests, passed_ms)?;
        let old = std::mem::replace(state, self.state);
        state.requests = old.requests;
        for (slot, old) in state.policies.iter_mut().zip(old.policies) {
            if (&slot.name, &slot.sha256) != (&old.name, &old.sha256) {
                continue;
            }
            if slot.config_schema.is_null() {
                slot.config_schema = old.config_schema;
            }
            if slot.config.is_null() {
                slot.config = old.config;
            }
        }
        Ok(())
    }
}

/// Leaves out kinds that only a newer host knows.
fn known<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<AdminEvent>, D::Error> {
    let all = Vec::<serde_json::Value>::deserialize(from)?;
    Ok(all.into_iter().filter_map(|event| serde_json::from_value(event).ok()).collect())
}
