//! `infer bench streams`, `overload` and `abuse`: the server without a model.

use clap::{Args, Subcommand};

use super::super::serve::raise_open_files;
use super::{Failure, runtime, show};
use crate::bench::robust::{self, HostOptions};

/// Benchmarks of a host without a model, which runs as a child process.
#[derive(Subcommand)]
pub enum RobustCommand {
    /// Measures many concurrent streams without a model, against a bare hyper loop
    Streams(StreamsArgs),
    /// Sends more load than a host without a model can serve; measures refusals and latency
    Overload(OverloadArgs),
    /// Attacks a host without a model with hostile clients, next to an honest one
    Abuse(AbuseArgs),
    /// Runs as the host under test of the three above
    #[command(hide = true)]
    Host(HostOptions),
}

/// Arguments of `infer bench streams`.
#[derive(Args)]
pub struct StreamsArgs {
    /// Concurrent streams
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=4_000))]
    streams: u32,
    /// Tokens per stream
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    tokens: u32,
    /// Rounds per server, alternating
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `infer bench overload`.
#[derive(Args)]
pub struct OverloadArgs {
    /// Offered load as a multiple of the host's capacity
    #[arg(long, default_value_t = 10.0, value_parser = factor)]
    times: f64,
    /// Seconds per storm
    #[arg(long, default_value_t = 60.0, value_parser = seconds)]
    seconds: f64,
    /// Storms, one after the other
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Requests that may wait
    #[arg(long, default_value_t = 2)]
    waiting: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `infer bench abuse`.
#[derive(Args)]
pub struct AbuseArgs {
    /// Hostile clients of each kind
    #[arg(long, default_value_t = 100)]
    peers: u32,
    /// Seconds that they keep going; longer if four honest requests take longer
    #[arg(long, default_value_t = 30.0, value_parser = seconds)]
    seconds: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs one of them.
pub fn run(command: RobustCommand) -> Result<(), Failure> {
    let exe = std::env::current_exe().map_err(Failure::failed)?;
    let runtime = runtime()?;
    raise_open_files(1 << 16);
    runtime.block_on(async {
        match command {
            RobustCommand::Streams(a) => {
                let (streams, rounds) = (a.streams as usize, a.rounds.max(1) as usize);
                let report =
                    robust::streams(&exe, streams, a.tokens, rounds).await.map_err(Failure::failed)?;
                show(a.json, &report, &report.text())?;
                verdict(report.is_right(), "a stream did not deliver exactly the expected tokens")
            }
            RobustCommand::Overload(a) => {
                let storm = robust::Storm {
                    times: a.times,
                    seconds: a.seconds,
                    rounds: a.rounds,
                    waiting: a.waiting,
                };
                let report = robust::overload(&exe, storm).await.map_err(Failure::failed)?;
                show(a.json, &report, &report.text())?;
                verdict(report.wrong == 0, "a response was neither complete nor a proper refusal")
            }
            RobustCommand::Abuse(a) => {
                let report =
                    robust::abuse(&exe, a.peers as usize, a.seconds).await.map_err(Failure::failed)?;
                show(a.json, &report, &report.text())?;
                verdict(report.harmed == 0, "an honest request was harmed")
            }
            RobustCommand::Host(options) => robust::run_host(options).await.map_err(Failure::failed),
        }
    })
}

fn verdict(holds: bool, otherwise: &str) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::Failed(otherwise.to_owned())) }
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (0.01..=1_000.0).contains(factor));
    factor.ok_or_else(|| "expected a number from 0.01 to 1000".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds from 0.1 to 86400".to_owned())
}
