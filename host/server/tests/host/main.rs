//! A host in this process, driven over HTTP and through its public functions.
//!
//! One binary, not one for each file: every test binary links the whole server, which is 140 MB and seconds of
//! linking. Alone stay those that a command selects by name (`clients`, `scale_out`, `strangers`) and the one that
//! overloads the machine (`robust`).

#[path = "../common/mod.rs"]
mod common;

mod adapters;
mod bench;
mod cache_file;
mod channels;
mod chat_template;
mod checkpoints;
mod console;
mod continued;
mod contract;
mod cors;
mod crowd;
mod deploy;
mod embeddings;
mod engine_thread;
mod exported_state;
mod foreign;
mod gauges;
mod hub;
mod kv_events;
mod lora;
mod messages;
mod offload;
mod openai;
mod operation;
mod operators;
mod policies;
mod policy_state;
mod reasoning;
mod responses;
mod structured;
mod tags;
mod telemetry;
mod tenants;
mod texts;
mod timeouts;
mod tls_and_reload;
mod token_ids;
mod trace;
mod transformers;
