//! The data plane: what clients of the model talk to.

mod completions;
mod json;
mod models;
mod outcome;
mod route;
mod sse;
mod text;
mod validate;

pub use outcome::{Outcome, openai_reason, reason_name};
pub use route::route;
