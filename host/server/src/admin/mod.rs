//! The admin plane, used by operators, `infer policy` and the console. Every path requires an operator's token.

mod adapters;
mod changes;
mod inspect;
pub mod operators;
mod order;
mod policies;
mod requests;
mod route;
mod state;
mod stream;
mod tenants;
pub mod token;
mod trace;

pub use policies::CANARY_WINDOW_S;
pub use route::route;
pub use state::{numbers, rates, report, report_within, state};
