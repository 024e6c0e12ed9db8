//! The admin plane: state, blocks, requests, adapters, policies, swaps, events, and where its token is kept.

mod adapters;
mod blocks;
mod cache;
mod error;
mod events;
pub mod place;
mod policies;
mod requests;
mod state;
mod tenants;
mod trial;

pub use adapters::{AdapterList, AdapterOrder, AdapterRow, AdapterUnloaded};
pub use blocks::{BlockCounts, BlockInfo, BlockMap, Blocks};
pub use cache::{CacheReport, PrefixInfo, SessionInfo};
pub use error::{ErrorBody, ErrorInfo};
pub use events::{AdminEvent, Change};
pub use policies::{
    AvailablePolicy, FaultInfo, GaugeInfo, HistoryEntry, Policies, PolicySlot, QuarantineEntry, SwapAnswer,
    SwapRequest,
};
pub use requests::{
    MAX_ROW_BYTES, MAX_ROWS, Mismatch, RequestDetail, RequestRow, RowChange, RowsChange, TableBlock,
};
pub use state::{
    CacheLengths, Counters, HostInfo, Latencies, MAX_STATE_BYTES, Memory, Offload, OperatorInfo, PolicyState,
    Pressure, Queue, Rates, RestoredState, State,
};
pub use tenants::{MAX_TENANT_ROWS, TenantRow};
pub use trial::{CallCost, CanaryInfo, DivergenceInfo, ShadowInfo, WindowInfo};
