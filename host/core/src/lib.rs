//! The pure engine: requests, the waiting queue, the paged KV pool, policies and steps.
//!
//! A state machine that never waits, reads no clock, draws no randomness and does no I/O. A driver
//! turns it: the server's engine thread in real time, a simulator in virtual time, a test by hand.
//! Deliberately absent: async, threads, clocks, Wasm, serde, `unsafe`.
#![forbid(unsafe_code)]

pub mod batch;
pub mod builtin;
pub mod config;
pub mod engine;
pub mod event;
pub mod executor;
pub mod ids;
pub mod policy;
pub mod request;
pub mod snapshot;
pub mod testing;

mod columns;
mod detmap;
mod guard;
mod kv;
mod list;
mod rates;
mod sequence;
mod tenants;
mod verify;
mod watchdog;

pub use batch::{Batch, BlockCopy, Row};
pub use config::{EngineConfig, Limits};
pub use engine::Engine;
pub use event::{Event, PrefixEvent};
pub use executor::{DeviceFault, DeviceFaultKind, Executor, StepOutput};
pub use ids::{BlockId, LogitsSlot, Micros, SequenceId, SessionId, TenantId};
pub use request::{FinishReason, Refusal, Request, SamplingParams, Usage};
