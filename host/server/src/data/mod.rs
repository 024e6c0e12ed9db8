//! The data plane: what clients of the model talk to.

mod account;
mod answer;
mod chat;
mod common;
mod completions;
mod echo;
mod fields;
mod frames;
mod group;
mod job;
mod json;
mod logprobs;
mod models;
mod named;
mod openai;
mod openapi;
mod outcome;
mod route;
mod router_fields;
mod run;
mod structured;
mod text;

pub use outcome::{Outcome, reason_name};
pub use route::route;
pub use structured::{Compiler, Shape};

pub use chat::PendingTemplate;
pub(crate) use chat::{Calls, Part, check as check_chat};
pub(crate) use completions::check as check_completion;
