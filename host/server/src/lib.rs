//! The inference host: configuration, engine thread, data plane, admin plane, command line.
//!
//! `main` is a call of `cli::main`; everything else is here so that tests can start hosts in-process.
//! Policy decisions, KV blocks and arithmetic are deliberately elsewhere: in policies, core and model.
#![forbid(unsafe_code)]

pub mod admin;
pub mod app;
pub mod bench;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod data;
pub mod device;
pub mod edges;
pub mod engine;
pub mod faults;
pub mod generate;
pub mod http;
#[cfg(feature = "kv-events")]
pub mod kv_events;
pub mod load;
pub mod log;
pub mod metrics;
pub mod otel;
pub mod policies;
pub mod progress;
pub mod reload;
pub mod serve;
pub mod sizing;
pub mod tenants;
pub mod trace;
pub mod web;
