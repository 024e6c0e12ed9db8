//! A request's life in the engine: submission, the events of each of its sequences, and how they ended.

mod account;
pub mod group;
pub mod head;
pub mod job;
pub mod marks;
pub mod outcome;
pub mod patience;
pub mod place;
pub mod run;
mod text;
