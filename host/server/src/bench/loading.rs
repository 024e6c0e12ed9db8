//! `infer bench load`: from files to a model that can run, beside a plain copy of the same bytes into new memory.
//!
//! Rules: copies and loads alternate, so that a drift of the machine hits both alike; each gives its memory back
//! before the next. Both read through the page cache: whoever wants the disk's share empties it first, and looks at
//! the first round. Pages are new to the process, so the system clears them: that is in both.

use std::fmt::Write;
use std::time::Instant;

use infer_model::Model;
use serde::Serialize;

use super::{Distribution, Machine};
use crate::checkpoint::{self, Hub};
use crate::config::Config;
use crate::load::{Loaded, StartError};

/// What was measured.
#[derive(Debug, Serialize)]
pub struct LoadReport {
    /// The machine.
    pub machine: Machine,
    /// The checkpoint.
    pub model: String,
    /// How its weights are held.
    pub weights: String,
    /// Bytes of its matrices as they are stored.
    pub bytes: u64,
    /// One entry a round.
    pub rounds: Vec<Round>,
}

/// Seconds of one round.
#[derive(Debug, Serialize)]
pub struct Round {
    /// All matrices copied as they are.
    pub copy_seconds: f64,
    /// Weights and tokenizer loaded, ready to run.
    pub load_seconds: f64,
}

/// Measures so many rounds of the model that `config` names; `says` is told what begins.
///
/// # Errors
/// What keeps the model from being loaded.
pub fn run(config: &Config, rounds: u32, says: impl Fn(&str)) -> Result<LoadReport, StartError> {
    let machine = Machine::here();
    let checkpoint = checkpoint::find(&config.model, &Hub::from_env())?;
    let mut report = LoadReport {
        machine,
        model: config.model.clone(),
        weights: String::new(),
        bytes: 0,
        rounds: Vec::new(),
    };
    for round in 1..=rounds {
        says(&format!("round {round} of {rounds}"));
        let (bytes, copied) = Model::copy_weights(&checkpoint.source)?;
        report.bytes = bytes;
        let began = Instant::now();
        let loaded = Loaded::load(config)?;
        let load = began.elapsed();
        report.weights = loaded.model.weight_type.to_string();
        report.rounds.push(Round { copy_seconds: copied.as_secs_f64(), load_seconds: load.as_secs_f64() });
    }
    Ok(report)
}

impl LoadReport {
    /// For a terminal.
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
        let median = |of: fn(&Round) -> f64| rounds.iter().map(of).collect::<Distribution>().percentile(50.0);
        line("median", median(|round| round.copy_seconds), median(|round| round.load_seconds));
        text
    }
}
