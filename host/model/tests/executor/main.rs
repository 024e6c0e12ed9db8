//! The executor on a CPU: what it guarantees to the engine, alone and under the real one, and how it samples.

#[path = "../common/mod.rs"]
mod common;

mod engine;
mod guarantees;
mod invariance;
mod sampler;
