//! The engine, stepped by hand with scripted policies and devices.
//!
//! One binary with a module for each concept, because every test binary links the engine once more. Alone stay those
//! that many seeds are played with (`random`, `canary`) and the one that counts the allocations of its process
//! (`allocation`).

#[path = "../common/mod.rs"]
mod common;

mod admission;
mod ahead;
mod budget;
mod cache_events;
mod carried;
mod chain;
mod decisions;
mod device;
mod embeddings;
mod eviction;
mod expectations;
mod found;
mod guard;
mod held_tenants;
mod load;
mod logprobs;
mod offload;
mod plans;
mod prefix;
mod prompt_cache;
mod restart;
mod restored;
mod shadow;
mod speculation;
mod starvation;
mod streams;
mod whole_requests;
