//! The data plane: the API that clients of the model use.
//!
//! `request` reads and checks bodies, `sequence` runs them on the engine, `response` writes what comes back.
//! `completions`, `chat` and `embeddings` combine the three, `anthropic` and `responses_api` are other forms of chats, and
//! `structured` constrains outputs.

mod anthropic;
mod chat;
mod completions;
mod embeddings;
mod models;
mod openapi;
mod request;
mod response;
mod responses_api;
mod route;
mod sequence;
mod structured;

pub use chat::{GivenTemplate, PendingTemplate, no_template};
pub use embeddings::Embeds;
pub use route::route;
pub use sequence::outcome::Outcome;
pub use structured::{Compiler, Prelude, Shape};

pub(crate) use anthropic::check as check_messages;
pub(crate) use chat::{Expected, Opening, Part, Speaker, Speech, check as check_chat};
pub(crate) use completions::check as check_completion;
pub(crate) use embeddings::check as check_embedding;
pub(crate) use request::model_names::Models;
pub(crate) use responses_api::check as check_response;
pub(crate) use sequence::job::beyond_context;
pub(crate) use sequence::marks::marked;

// Shorter paths for `structured`.
use request::{fields, json};
