//! Components, as the host loads and calls them.
//!
//! One binary with a module for each concept, because every test binary links wasmtime. Alone stay `guest_log`, because
//! whether a line is logged is cached for the whole process and other tests' policies log the same lines to nobody, and
//! `wasi_runner`, which needs the runner's feature.

#[path = "../support/mod.rs"]
mod support;

mod cache;
mod faults;
mod gauges;
mod loading;
mod seeds;
mod shipped;
