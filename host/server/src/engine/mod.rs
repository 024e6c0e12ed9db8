//! The engine on its own thread, and the handle through which everything else reaches it.
//!
//! The thread owns the engine; all communication goes through bounded channels. Commands are applied between
//! steps; tokens leave on one bounded channel per request. The engine never waits for a client: a reader that lags
//! too far behind loses its request.

mod change;
mod clock;
mod command;
mod gate;
mod handle;
mod hits;
mod lasting;
mod mailbox;
mod observer;
mod quarantine;
mod stream;
mod thread;
mod wire;

pub use change::{By, NotChanged, Provided, Seen, SlotChange, SwapMode, Swapped};
pub use clock::Clock;
pub use command::{
    AdapterNames, EngineReport, KvBatch, KvListener, KvSnapshot, NewAdapter, RequestReport, Submission,
    Wanted,
};
pub use gate::StepGate;
pub use handle::{EngineHandle, EngineStopped};
pub use hits::PrefixHits;
pub use lasting::{Changes, Count, Lasting, Left, Standing};
pub use observer::Observer;
pub use quarantine::Quarantine;
pub use stream::{End, LiveRequest, NewRequest, RequestMeta, StreamEvent, SubmitError};
pub use thread::{AtEnd, ChannelBounds, EngineThread, spawn};
pub use wire::{canary_info, gauges, shadow_info};
