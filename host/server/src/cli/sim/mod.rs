//! `infer sim`: the same engine and components on virtual hardware in virtual time, and what ties that to a live host:
//! recordings, replays, calibration.

mod calibrate;
mod capacity;
mod decisions;
mod devices;
mod fuzz;
mod judge;
mod needs;
mod policies;
mod progress;
mod record;
mod requests;
mod result;
mod run;
mod settings;
mod task;
mod trace;
mod traffic;

use clap::Subcommand;
pub use trace::{NO_REQUESTS, TraceFile};
pub use traffic::burstiness;

use super::out::{check_file, check_inputs, check_out, emit, is_same_file};
use super::{Failure, POLICY_LOG};

/// Commands of the simulator.
#[derive(Subcommand)]
pub enum SimCommand {
    /// Runs one set of policies on one workload or trace
    #[command(after_help = run::AFTER_HELP)]
    Run(Box<run::RunArgs>),
    /// Compares policies on workloads or traces; by default the shipped schedulers on three workloads
    #[command(after_help = run::AFTER_HELP)]
    Compare(Box<run::CompareArgs>),
    /// Finds the highest load that policies sustain within latency targets
    #[command(after_help = capacity::AFTER_HELP)]
    Capacity(Box<capacity::CapacityArgs>),
    /// Lists the named devices and model shapes, or prints one as a file to change
    #[command(after_help = devices::AFTER_HELP)]
    Devices(devices::DevicesArgs),
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
        SimCommand::Capacity(args) => capacity::run(*args),
        SimCommand::Devices(args) => devices::run(&args),
        SimCommand::Record(args) => record::run(&args),
        SimCommand::Decisions(args) => decisions::run(&args),
        SimCommand::Calibrate(args) => calibrate::run(&args),
        SimCommand::Judge(args) => judge::run(&args),
        SimCommand::Fuzz(args) => fuzz::run(&args),
    }
}
