//! What `GET /admin/events` sends.

use serde::{Deserialize, Serialize};

use super::{CanaryInfo, FaultInfo, Mismatch, RowsChange, State, SwapAnswer};

/// One event of `GET /admin/events`; the SSE event name is the variant's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", content = "data", rename_all = "snake_case")]
pub enum AdminEvent {
    /// The whole state, at `?hz=`; with `?changes=true` only the first.
    Snapshot(Box<State>),
    /// With `?changes=true`: what changed since the last snapshot or change, at `?hz=`.
    Change(Box<Change>),
    /// A policy came into force.
    Swap(SwapAnswer),
    /// A policy misbehaved.
    Fault(FaultInfo),
    /// A policy's trial began or ended.
    Canary(Box<CanaryInfo>),
    /// A request was refused.
    Refusal {
        /// Its `x-request-id`.
        request_id: String,
        /// Machine-readable reason.
        reason: String,
        /// What the client was told.
        message: String,
    },
    /// A running request gave its blocks back.
    Preemption {
        /// Which.
        id: u64,
    },
    /// The subscriber was too slow and lost this many events.
    Lagged {
        /// How many.
        missed: u64,
    },
}

impl AdminEvent {
    /// The SSE event name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Snapshot(_) => "snapshot",
            Self::Change(_) => "change",
            Self::Swap(_) => "swap",
            Self::Fault(_) => "fault",
            Self::Canary(_) => "canary",
            Self::Refusal { .. } => "refusal",
            Self::Preemption { .. } => "preemption",
            Self::Lagged { .. } => "lagged",
        }
    }
}

/// The difference between two snapshots. It costs what moved and not what there is: a thousand requests
/// that wait are silent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The state, its `requests` left out; of the policies' configurations and schemas, which are large
    /// and rarely new, only those that differ from the last (else null).
    pub state: State,
    /// What became of the requests.
    pub rows: RowsChange,
    /// Refusals and preemptions since the last time: the first of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<AdminEvent>,
    /// Refusals and preemptions beyond those.
    #[serde(default)]
    pub events_left_out: u64,
}

impl Change {
    /// Brings a state up to date; events are the caller's.
    ///
    /// # Errors
    /// [`Mismatch`] where it was made for another state; `state` is then as it was.
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
