//! Wire types: the data plane's requests and answers, the admin plane, the console's feed.
//!
//! Only shapes live here, and how a change is applied to what it changes: server, console and tools agree
//! on these and on nothing else.
#![forbid(unsafe_code)]

pub mod admin;
pub mod chat;
pub mod completions;
pub mod models;
#[cfg(feature = "schema")]
mod schema;
pub mod tokenize;
pub mod trace;
pub mod usage;
