//! The admin plane: what operators, `infer policy` and the console talk to. Every path asks for the token.

mod changes;
mod inspect;
mod policies;
mod requests;
mod route;
mod state;
mod stream;
pub mod token;
mod trace;

pub use route::route;
pub use state::{rates, refusal_name, report, state, state_within};
