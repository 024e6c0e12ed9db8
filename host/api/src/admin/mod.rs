//! The admin plane: state, blocks, requests, policies, swaps, events.

mod blocks;
mod error;
mod events;
mod policies;
mod requests;
mod state;
mod trial;

pub use blocks::Blocks;
pub use error::{ErrorBody, ErrorInfo};
pub use events::AdminEvent;
pub use policies::{
    AvailablePolicy, FaultInfo, HistoryEntry, Policies, PolicySlot, QuarantineEntry, SwapAnswer, SwapRequest,
};
pub use requests::RequestRow;
pub use state::{Counters, HostInfo, Latencies, Memory, Pressure, Queue, Rates, State};
pub use trial::{CallCost, CanaryInfo, DivergenceInfo, ShadowInfo, WindowInfo};
