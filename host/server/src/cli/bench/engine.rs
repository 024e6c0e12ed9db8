//! `infer bench engine`: measures steps of the model alone, against the machine's limits.

use clap::Args;

use super::Failure;
use super::measured::Measured;
use crate::bench::engine::{self, EnginePlan, EngineReport};
use crate::startup::device::measure_engine;

/// Shown below the flags.
pub const AFTER_HELP: &str = "\
Measures a prefill of 512 tokens and decodes at batch 1 and 16, with random weights in the shapes of known
models. Each step includes sampling. The fastest step counts, because other processes can only slow a step
down. Read bandwidth and instruction rates are measured in the same run; the last column is the share of the
limit that a step reaches. The default shapes need up to 6 GB of memory.";

/// Arguments of `infer bench engine`.
#[derive(Args)]
pub struct EngineArgs {
    #[command(flatten)]
    measured: Measured,
    /// Tokens already in each sequence when decoding starts
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=8_000))]
    context: u32,
    /// Decode steps per pass
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100))]
    steps: u32,
    /// Passes over all measurements
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    passes: u32,
    /// Also measure next to N spinning threads, and report the share of throughput that remains
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1_024))]
    neighbours: u16,
}

/// Runs the benchmark.
pub fn run(args: &EngineArgs) -> Result<(), Failure> {
    let measured = &args.measured;
    if measured.on_gpu(measure_engine)? {
        return Ok(());
    }
    let plan = EnginePlan {
        shapes: measured.shapes(),
        weights: measured.weights(),
        threads: measured.threads(),
        context: args.context as usize,
        steps: args.steps as usize,
        passes: args.passes as usize,
        neighbours: usize::from(args.neighbours),
    };
    let report = engine::run(&plan, |what| eprintln!("measuring {what}")).map_err(Failure::Failed)?;
    measured.print(&report, EngineReport::text)
}
