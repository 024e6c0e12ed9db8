//! Simulated runs: the effects that load and caching must have, sweeps, searches, and replays of traces.
//!
//! One binary with a module for each concept. Alone stay the one that many seeds are played with (`fuzz`) and the one
//! that counts the memory of its process (`memory`).

mod compare;
mod effects;
mod predictions;
mod search;
mod traces;

use infer_core::config::EngineConfig;
use infer_core::ids::Micros;
use infer_sim::{Predictions, Profile, Settings, Slo, Workload};

/// A host with the device and the model of most tests.
fn settings(load: f64, seed: u64) -> Settings {
    let profile = Profile::named("h100", "8b").expect("a known profile");
    let engine = EngineConfig { total_blocks: 8_000, max_seq_len: 8_192, ..EngineConfig::default() };
    Settings {
        engine,
        profile,
        host: Micros::ZERO,
        load,
        seed,
        slo: Slo::default(),
        tenants: Vec::new(),
        predictions: Predictions::Learned,
    }
}

fn named(workload: &str, requests: u64) -> Workload {
    Workload::named(workload, requests).expect("a known workload")
}
