//! Runs a program of ours on untrusted input, so that the input can exhaust limits but not the host.
//!
//! Some libraries have no bound on what a hostile input makes them allocate, recurse or compute: a template engine, a
//! compiler of JSON schemas. Such a library is compiled to a core WebAssembly module without imports (its guest crate
//! depends on `infer-sandbox-guest`) and called here: bytes in, text out. Memory, stack and work of a call end at
//! [`Bounds`]; a call that reaches one costs its [`Instance`] and nothing else. Work is counted as fuel and never
//! timed, so an input passes or fails alike on every machine.
//!
//! Policies don't run here: they are components with an interface of their own, and live in `infer-wasm`.
#![forbid(unsafe_code)]

mod bounds;
mod instance;
mod program;

pub use bounds::Bounds;
pub use instance::{Failure, Function, Instance};
pub use program::{Program, SetupError};
