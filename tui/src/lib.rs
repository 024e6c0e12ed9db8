//! The live console of an infer host: shows what the admin plane reports, four times a second.
//!
//! `conn` talks HTTP, `input` turns terminal events into keys, `state` is pure (it takes the clock as an
//! argument and returns the requests to make), `view` borrows the state and draws it, and `run` connects
//! them. `state` takes keys from `input` and `view` reads `state`; beyond that the four share only vocabulary
//! (`order`, `text`, `files`), so everything but `conn` and `run` is tested without a terminal or a network.
//! Deliberately absent: any knowledge of the engine; the console knows the wire types of `infer-api` and
//! nothing else.
#![forbid(unsafe_code)]

pub mod args;
pub mod conn;
pub mod files;
pub mod input;
pub mod once;
pub mod order;
pub mod print;
pub mod record;
pub mod run;
pub mod state;
pub mod terminal;
pub mod text;
pub mod view;
