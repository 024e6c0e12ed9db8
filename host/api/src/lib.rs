//! Wire types: the data plane's requests and answers, the admin plane, the console's feed.
//!
//! Only shapes live here, no behaviour: server, console and tools agree on these and on nothing else.
#![forbid(unsafe_code)]

pub mod admin;
pub mod completions;
pub mod trace;
