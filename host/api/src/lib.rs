//! Wire types: the data plane's requests and answers, the admin plane, the console's feed.
//!
//! This crate holds what server, console and tools must agree on, and nothing else: the shapes, how a stream of
//! events is read, how a change is applied to what it changes, that no key of an object occurs twice, and where the
//! admin token is kept.
#![forbid(unsafe_code)]

pub mod admin;
pub mod chat;
pub mod completions;
pub mod embeddings;
pub mod messages;
pub mod models;
pub mod responses;
#[cfg(feature = "schema")]
mod schema;
pub mod sse;
pub mod tokenize;
pub mod trace;
pub mod unique;
pub mod usage;
