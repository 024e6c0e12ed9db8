//! The pure engine: requests, the waiting queue, the paged KV pool, policies and steps.
//!
//! A state machine that never waits, reads no clock, uses no randomness and does no I/O. A driver calls it:
//! the server's engine thread in real time, a simulator in virtual time, a test by hand. Deliberately absent:
//! async, threads, clocks, Wasm, serde, `unsafe`.
//!
//! ```
//! use infer_core::engine::Policies;
//! use infer_core::testing::{ScriptedExecutor, request};
//! use infer_core::{Engine, EngineConfig, Event, Executor, Micros, StepOutput};
//!
//! let config = EngineConfig::default();
//! let mut device = ScriptedExecutor::new(config.block_size, config.total_blocks, config.prompt_cache_entries, 50);
//! let mut engine = Engine::new(config, Policies::builtin());
//! engine.submit(request(vec![1, 2, 3], 4), Micros(0)).expect("the host is idle");
//!
//! let (mut now, mut output, mut events) = (Micros(0), StepOutput::default(), Vec::new());
//! while let Some(batch) = engine.begin_step(now) {
//!     let result = device.execute(&batch, &mut output);
//!     now = now.plus(Micros(1_000));
//!     engine.finish_step(batch, result.map(|()| &output), now);
//! }
//! engine.drain_events(&mut events);
//! assert_eq!(events.iter().filter(|e| matches!(e, Event::Token { .. })).count(), 4);
//! ```
#![forbid(unsafe_code)]

pub mod batch;
pub mod builtin;
pub mod config;
pub mod engine;
pub mod event;
pub mod executor;
pub mod ids;
pub mod inspect;
pub mod offload;
pub mod policy;
pub mod request;
pub mod sharing;
pub mod snapshot;
pub mod testing;
pub mod trial;

mod columns;
mod detmap;
mod durations;
mod expectation;
mod guard;
mod kv;
mod list;
mod perf;
mod rates;
mod sequence;
mod tenants;
mod verify;
mod watchdog;

pub use batch::{Batch, BlockCopy, OffloadCopy, Row};
pub use config::{EngineConfig, Limits};
pub use durations::{Durations, nearest_rank};
pub use engine::Engine;
pub use event::{Change, Event, FailureCause, Handover, PrefixEvent};
pub use executor::{AdapterWeights, DeviceFault, DeviceFaultKind, Executor, StepOutput, TokenLogprobs};
pub use ids::{AdapterId, BlockId, LogitsSlot, Micros, OffloadSlot, SequenceId, SessionId, TenantId};
pub use kv::cached::CachedBlock;
pub use kv::feed as kv_events;
pub use request::{Constraint, FinishReason, Refusal, Request, SamplingExtras, SamplingParams, Usage};
pub use tenants::{TenantHistory, TenantTerms};
