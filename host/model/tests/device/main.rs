//! The decoder on the emulated device. One binary, since each links candle and all kernels.

mod adapters;
mod engine;
mod experts;
mod faults;
mod fusion;
mod gpu_check;
mod integers;
mod logits;
mod refused;
mod steps;

use std::path::PathBuf;
use std::sync::Arc;

use infer_cuda_emulator::Emulator;
use infer_model::{Model, Source};

/// The folder of golden checkpoints.
fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

fn load(name: &str) -> Model {
    Model::load(&Source::Directory(golden().join(name)), None).expect("it loads")
}

fn model() -> Model {
    load("llama-f32")
}

/// A device whose threads run in an order of this seed. None without a C++ compiler.
fn seeded(seed: u64) -> Option<Emulator> {
    let emulator = Emulator::new(seed);
    if emulator.is_none() {
        eprintln!("skipped: no C++ compiler");
    }
    emulator
}

fn emulator() -> Option<Arc<Emulator>> {
    seeded(7).map(Arc::new)
}

fn passes(outcome: Result<String, String>) {
    if let Err(wrong) = outcome {
        panic!("{wrong}");
    }
}
