//! The live console of an infer host: what the admin plane says, drawn four times a second.
//!
//! Four parts that only meet here: `conn` talks HTTP, `input` turns terminal events into keys, `state`
//! is pure (it takes the clock as an argument and returns the requests to make), `view` borrows the
//! state and draws it. So everything but `conn` and `run` is tested without a terminal or a network.
//! Deliberately absent: any knowledge of the engine; the wire types of `infer-api` are all there is.
#![forbid(unsafe_code)]

pub mod args;
pub mod conn;
pub mod files;
pub mod input;
pub mod once;
pub mod print;
pub mod record;
pub mod run;
pub mod state;
pub mod terminal;
pub mod view;
