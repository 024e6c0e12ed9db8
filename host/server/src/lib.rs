//! The inference host: configuration, engine thread, data plane, admin plane, command line.
//!
//! `main` only calls `cli::main`; the rest is a library so that tests can start hosts in-process. Policy
//! decisions, KV blocks and arithmetic are deliberately elsewhere: in the policies, `host/core` and
//! `host/model`.
#![forbid(unsafe_code)]

pub mod adapters;
pub mod admin;
pub mod app;
pub mod bench;
pub mod cache_file;
pub mod cli;
pub mod config;
pub mod data;
pub mod edges;
pub mod engine;
pub mod faults;
pub mod generate;
pub mod http;
pub mod kv_events;
pub mod log;
pub mod metrics;
pub mod notify;
pub mod offload;
pub mod otel;
pub mod policies;
pub mod policy_state;
pub mod reload;
pub mod serve;
pub mod shares;
pub mod sockets;
pub mod startup;
pub mod tenants;
pub mod texts;
pub mod trace;
pub mod trust;
pub mod utc;
pub mod web;
