//! `infer bench load`: time from files to a runnable model, next to a plain copy of the same bytes into new memory.
//!
//! Rules: copies and loads alternate, so that drift of the machine affects both alike, and each frees its memory
//! before the next starts. Both read through the page cache: to include the disk, drop the cache first and look at
//! round 1. Both also include the kernel's zeroing of fresh pages.

use std::fmt::Write;
use std::time::Instant;

use infer_model::Model;
use serde::Serialize;

use super::{Distribution, Machine};
use crate::config::Config;
use crate::serve::StartError;
use crate::startup::checkpoint::{self, Hub};
use crate::startup::load::LoadedModel;

/// Result of the benchmark.
#[derive(Debug, Serialize)]
pub struct LoadReport {
    /// The machine.
    pub machine: Machine,
    /// The checkpoint.
    pub model: String,
    /// Storage type of the loaded weights.
    pub weights: String,
    /// Bytes of its matrices in the files.
    pub bytes: u64,
    /// One entry per round.
    pub rounds: Vec<Round>,
}

/// Seconds of one round.
#[derive(Debug, Serialize)]
pub struct Round {
    /// Copying all matrices unchanged.
    pub copy_seconds: f64,
    /// Loading weights and tokenizer until the model can run.
    pub load_seconds: f64,
}

/// Measures `rounds` rounds with the model of `config`; calls `progress` at the start of each.
///
/// # Errors
/// If the model can't be loaded.
pub fn run(config: &Config, rounds: u32, progress: impl Fn(&str)) -> Result<LoadReport, StartError> {
    let machine = Machine::here();
    // Adapters are no part of what is copied.
    let config = &Config { lora: Vec::new(), max_adapters: 0, ..config.clone() };
    let checkpoint = checkpoint::find(&config.model, &Hub::from_env())?;
    let mut report = LoadReport {
        machine,
        model: config.model.clone(),
        weights: String::new(),
        bytes: 0,
        rounds: Vec::new(),
    };
    for round in 1..=rounds {
        progress(&format!("round {round} of {rounds}"));
        let (bytes, copied) = Model::copy_weights(&checkpoint.source)?;
        report.bytes = bytes;
        let began = Instant::now();
        let loaded = LoadedModel::load(config)?;
        let load = began.elapsed();
        report.weights = loaded.model.weight_type.to_string();
        report.rounds.push(Round { copy_seconds: copied.as_secs_f64(), load_seconds: load.as_secs_f64() });
    }
    Ok(report)
}

impl LoadReport {
    /// Renders the report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { machine, model, weights, bytes, rounds } = self;
        let mut text = format!(
            "{}, {} cores\n{model}: {:.2} GB of matrices, held as {weights}\n\n{:>18}  copied      loaded\n",
            machine.cpu,
            machine.cores,
            *bytes as f64 / 1e9,
            ""
        );
        let rate = |seconds: f64| *bytes as f64 / 1e9 / seconds;
        let mut line = |name: &str, copy: f64, load: f64| {
            let _ = writeln!(
                text,
                "{name:>18}  {copy:5.2} s {:5.2} GB/s  {load:5.2} s {:5.2} GB/s  {:4.2}x",
                rate(copy),
                rate(load),
                load / copy
            );
        };
        for (round, times) in rounds.iter().enumerate() {
            line(&format!("round {}", round + 1), times.copy_seconds, times.load_seconds);
        }
        let median = |of: fn(&Round) -> f64| rounds.iter().map(of).collect::<Distribution>().percentile(50);
        line("median", median(|round| round.copy_seconds), median(|round| round.load_seconds));
        text
    }
}
