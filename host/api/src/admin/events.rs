//! What `GET /admin/events` sends.

use serde::{Deserialize, Serialize};

use super::{CanaryInfo, FaultInfo, State, SwapAnswer};

/// One event of `GET /admin/events`; the SSE event name is the variant's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", content = "data", rename_all = "snake_case")]
pub enum AdminEvent {
    /// The whole state, at `?hz=`.
    Snapshot(Box<State>),
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
