//! The engine on a thread of its own, and the handle by which everything else reaches it.
//!
//! One owner: the engine lives on its thread and is reached by bounded channels only. Commands go in
//! and are applied between steps; tokens come out on one bounded channel per request. Nothing here
//! ever makes the engine wait for a client: a reader that lags too far behind loses its request.

mod clock;
mod command;
mod gate;
mod handle;
mod mailbox;
mod observer;
mod quarantine;
mod stream;
mod thread;
mod wire;

pub use clock::Clock;
pub use command::{EngineReport, KvListener, OtherOnTrial, Submission, SwapMode, Swapped};
pub use gate::StepGate;
pub use handle::{EngineHandle, EngineStopped};
pub use observer::Observer;
pub use quarantine::Quarantine;
pub use stream::{End, LiveRequest, NewRequest, RequestMeta, StreamEvent, SubmitError};
pub use thread::{ChannelBounds, EngineThread, spawn};
pub use wire::{canary_info, shadow_info};
