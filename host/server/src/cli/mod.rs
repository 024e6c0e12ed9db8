//! The command line: raw flags in, exit codes out. 0 fine, 1 failed, 2 bad usage.

// First, for its macros are those of all that follow.
#[macro_use]
mod out;

mod admin;
mod bench;
mod config;
mod flags;
mod generate;
mod gpu;
mod health;
mod keys;
mod policy;
mod serve;
mod sim;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// An inference host whose scheduling, admission and caching are swappable policies.
#[derive(Parser)]
#[command(name = "infer", version, max_term_width = 110, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves a model over HTTP
    #[command(after_help = serve::AFTER_HELP)]
    Serve(serve::ServeArgs),
    /// Checks and prints settings
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Generates one completion in this process, without a server
    Generate(generate::GenerateArgs),
    /// Makes policies, and lists and swaps those of a running host
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Asks a host whether it takes requests
    Health(health::HealthArgs),
    /// Makes API keys and shows whose there are
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Tries policies on virtual hardware, in virtual time
    #[command(subcommand)]
    Sim(sim::SimCommand),
    /// Compares what a GPU computes with references
    #[command(name = "gpu-check", after_help = gpu::AFTER_HELP)]
    GpuCheck(gpu::CheckArgs),
    /// Measures serving, and the in-process baseline beside it
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

/// Why a command ended badly.
pub enum Failure {
    /// Another command line would help.
    Usage(String),
    /// It was tried and failed.
    Failed(String),
}

impl Failure {
    fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<crate::config::ConfigError> for Failure {
    fn from(error: crate::config::ConfigError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<crate::serve::StartError> for Failure {
    fn from(error: crate::serve::StartError) -> Self {
        if error.is_usage() { Self::Usage(error.to_string()) } else { Self::Failed(error.to_string()) }
    }
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve(args) => serve::run(args),
        Command::Config(command) => config::run(command),
        Command::Generate(args) => generate::run(args),
        Command::Policy(command) => policy::run(command),
        Command::Health(args) => health::run(&args),
        Command::Keys(command) => keys::run(command),
        Command::Sim(command) => sim::run(command),
        Command::GpuCheck(args) => gpu::check(args),
        Command::Bench(command) => bench::run(command),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Failed(message)) => {
            eprintln!("error: {message}");
            ExitCode::from(1)
        }
        Err(Failure::Usage(message)) => {
            eprintln!("error: {message}");
            ExitCode::from(2)
        }
    }
}
