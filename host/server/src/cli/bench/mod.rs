//! `infer bench`: what each benchmark takes from the command line; the measuring is in `crate::bench`.

mod engine;
mod kernels;
mod measured;
mod policies;
mod rate;
mod report;
mod robust;
mod serve;
mod trace;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Failure;
use super::flags::Flags;
use super::out::{check_out, emit};
use crate::bench::{self, Report, loading};

/// Benchmarks.
#[derive(Subcommand)]
pub enum BenchCommand {
    /// Generates load over HTTP and compares it with the same prompts run in process
    #[command(after_help = serve::AFTER_HELP)]
    Serve(Box<serve::ServeArgs>),
    /// Measures matrix products and attention alone, on a CPU or a GPU, against the machine's limits
    #[command(after_help = kernels::AFTER_HELP)]
    Kernels(kernels::KernelArgs),
    #[command(flatten)]
    Robust(robust::RobustCommand),
    /// Measures model steps with random weights, against the machine's limits
    #[command(after_help = engine::AFTER_HELP)]
    Engine(engine::EngineArgs),
    /// Measures how long a checkpoint takes to load, next to a plain copy of its weights
    Load(LoadArgs),
    /// Renders earlier reports (--format json) side by side on one page
    Report(ReportArgs),
}

/// Arguments of `infer bench load`.
#[derive(Args)]
pub struct LoadArgs {
    /// Rounds; each copies the weights, then loads the checkpoint
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: Flags<false>,
}

/// Arguments of `infer bench report`.
#[derive(Args)]
pub struct ReportArgs {
    /// Reports written by `infer bench serve --format json`
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// File for the page [default: stdout]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs a benchmark.
pub fn run(command: BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Serve(args) => serve::run(&args),
        BenchCommand::Kernels(args) => kernels::run(&args),
        BenchCommand::Robust(command) => robust::run(command),
        BenchCommand::Engine(args) => engine::run(&args),
        BenchCommand::Load(args) => load(&args),
        BenchCommand::Report(args) => page(&args),
    }
}

fn load(args: &LoadArgs) -> Result<(), Failure> {
    let config = args.flags.config()?;
    let report = loading::run(&config, args.rounds, |what| eprintln!("{what}")).map_err(Failure::failed)?;
    show(args.json, &report, &report.text())
}

fn page(args: &ReportArgs) -> Result<(), Failure> {
    check_out(args.out.as_deref())?;
    let read = |path: &PathBuf| {
        let wrong = |error: &dyn std::fmt::Display| Failure::Failed(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| wrong(&e))?;
        serde_json::from_str(&text).map_err(|e| wrong(&e))
    };
    let reports: Vec<Report> = args.files.iter().map(read).collect::<Result<_, _>>()?;
    emit(args.out.as_deref(), &bench::html(&reports))
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)
}

/// Prints a report to stdout, as JSON or as text.
fn show(json: bool, report: &impl serde::Serialize, text: &str) -> Result<(), Failure> {
    let json = if json { Some(serde_json::to_string_pretty(report).map_err(Failure::failed)?) } else { None };
    println!("{}", json.as_deref().unwrap_or(text.trim_end()));
    Ok(())
}
