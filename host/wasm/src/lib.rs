//! Runs policies as WebAssembly components: loads and checks them, limits them, and presents them to the
//! engine as its policy traits.
//!
//! A policy sees what the engine passes it, and can write to the log and publish gauges; it can reach no clock,
//! randomness, file or network. Whatever goes wrong in a guest (trap, endless loop, memory, unreadable answer) becomes a
//! `PolicyFault`, and its store is dropped. Deliberately absent: deciding what happens after a fault; that is
//! the engine's guard.
#![deny(unsafe_code)]

#[allow(
    unsafe_code,
    unused_variables,
    dead_code,
    clippy::all,
    reason = "generated; the unsafe calls skip type checks that were made at instantiation"
)]
mod bindings;
mod cache;
mod check;
mod compiled;
mod deadline;
mod error;
mod fault;
mod gauges;
mod instance;
mod limits;
mod loader;
mod log;
mod policy;
mod precompiled;
mod room;
mod runtime;
mod self_test;
mod shape;
mod stats;
mod text;
mod ticker;
mod usage;
mod world;

#[cfg(feature = "wasi-runner")]
pub mod wasi;

pub use check::INTERFACE;
pub use compiled::compile_module;
pub use error::LoadError;
pub use fault::lack;
pub use loader::{LoaderConfig, PolicyLoader, is_reserved};
pub use runtime::bare_config;
pub use usage::Usage;
