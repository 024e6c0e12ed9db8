//! `infer sim`: the same engine and components on virtual hardware in virtual time, and what ties that to a live host:
//! recordings, replays, calibration.

mod calibrate;
mod decisions;
mod fuzz;
mod judge;
mod policies;
mod progress;
mod record;
mod run;
mod settings;
mod trace;
mod traffic;

use std::fs::File;
use std::path::Path;

use clap::Subcommand;

use super::{Failure, POLICY_LOG, out};

/// Commands of the simulator.
#[derive(Subcommand)]
pub enum SimCommand {
    /// Runs one set of policies on one workload or trace
    #[command(after_help = run::AFTER_HELP)]
    Run(Box<run::RunArgs>),
    /// Compares policies on workloads or traces; by default the shipped schedulers on three workloads
    #[command(after_help = run::AFTER_HELP)]
    Compare(Box<run::CompareArgs>),
    /// Records the traffic and the steps of a running host as a trace
    Record(record::RecordArgs),
    /// Repeats the recorded policy calls of a live host and compares the answers
    #[command(after_help = decisions::AFTER_HELP)]
    Decisions(decisions::DecisionsArgs),
    /// Fits a device profile to recorded traces
    #[command(after_help = calibrate::AFTER_HELP)]
    Calibrate(calibrate::CalibrateArgs),
    /// Compares a profile's predictions for recorded traces with what was measured
    #[command(after_help = judge::AFTER_HELP)]
    Judge(judge::JudgeArgs),
    /// Searches for violated invariants under random traffic, policies and faults
    #[command(after_help = fuzz::AFTER_HELP)]
    Fuzz(fuzz::FuzzArgs),
}

/// Runs a command.
pub fn run(command: SimCommand) -> Result<(), Failure> {
    crate::log::start(POLICY_LOG)?;
    match command {
        SimCommand::Run(args) => run::run(*args),
        SimCommand::Compare(args) => run::compare(*args),
        SimCommand::Record(args) => record::run(&args),
        SimCommand::Decisions(args) => decisions::run(&args),
        SimCommand::Calibrate(args) => calibrate::run(&args),
        SimCommand::Judge(args) => judge::run(&args),
        SimCommand::Fuzz(args) => fuzz::run(&args),
    }
}

/// Fails if no result could be written to `file`, so that a wrong path costs no simulation. A file that exists keeps
/// its content.
fn check_out(file: Option<&Path>) -> Result<(), Failure> {
    // Opening a pipe waits for its reader.
    let is_stream = |path: &&Path| path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
    let Some(path) = file.filter(|path| !is_stream(path)) else { return Ok(()) };
    let is_new = path.symlink_metadata().is_err();
    File::options().write(true).create(true).truncate(false).open(path).map_err(|error| {
        Failure::Usage(format!("--out: can't write {}: {error}; choose another file", path.display()))
    })?;
    if is_new {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// Writes a result to a file, or to stdout if none is given.
fn emit(file: Option<&Path>, text: &str) -> Result<(), Failure> {
    match file {
        Some(path) => std::fs::write(path, text)
            .map_err(|error| Failure::Failed(format!("can't write {}: {error}", path.display()))),
        None => {
            out::put(format_args!("{text}"));
            Ok(())
        }
    }
}
