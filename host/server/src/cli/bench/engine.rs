//! `infer bench engine`: measures steps of the model alone, against the machine's limits.

use clap::Args;

use super::Failure;
use super::measured::Measured;
use crate::bench::engine::{self, EnginePlan, EngineReport};
use crate::startup::device::measure_engine;

/// Shown below the flags.
pub const AFTER_HELP: &str = "\
On a CPU: a prefill of 512 tokens and decodes at batch 1 and 16, with random weights in the shapes of known \
models. Each step includes sampling. The fastest step counts, because other processes can only slow a step \
down. Read bandwidth and instruction rates are measured in the same run; the last column is the share of the \
limit that a step reaches. The default shapes need up to 6 GB of memory.

On a GPU: decodes at batches of 1 to 256 and contexts of 256 to 16,384 tokens, and prompts of 512 to 16,384, \
as far as model and memory allow, in bf16 or with --weights; with and without graphs, and deterministic. The \
median of decodes and the best prompt count, as shares of the copy and product rates measured in the same run. \
The default shapes are llama-1b, qwen3-1.7b, gemma3-1b and llama-8b, which needs 16 GB and more. Only --shape, \
--weights, --quick and --format apply.";

/// Arguments of `infer bench engine`.
#[derive(Args)]
pub struct EngineArgs {
    #[command(flatten)]
    measured: Measured,
    /// Tokens already in each sequence when decoding starts [default: 128]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=8_000))]
    context: Option<u32>,
    /// Decode steps per pass [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    steps: Option<u32>,
    /// Passes over all measurements [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    passes: Option<u32>,
    /// Also measure next to N spinning threads, and report the share of throughput that remains [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1_024))]
    neighbours: Option<u16>,
    /// Also measure with an adapter of this rank in every row, and report the share of throughput that remains
    #[arg(long, value_name = "RANK", value_parser = clap::value_parser!(u16).range(1..=512))]
    lora_rank: Option<u16>,
}

/// Runs the benchmark.
pub fn run(args: &EngineArgs) -> Result<(), Failure> {
    let measured = &args.measured;
    let of_a_cpu = [
        ("--context", args.context.is_some()),
        ("--steps", args.steps.is_some()),
        ("--passes", args.passes.is_some()),
        ("--neighbours", args.neighbours.is_some()),
        ("--lora-rank", args.lora_rank.is_some()),
    ];
    if measured.on_gpu(&of_a_cpu, measure_engine)? {
        return Ok(());
    }
    let plan = EnginePlan {
        shapes: measured.shapes(),
        weights: measured.weights(),
        threads: measured.threads(),
        context: args.context.unwrap_or(128) as usize,
        steps: args.steps.unwrap_or(16) as usize,
        passes: args.passes.unwrap_or(3) as usize,
        neighbours: usize::from(args.neighbours.unwrap_or(0)),
        lora_rank: args.lora_rank.map(usize::from),
    };
    let report = engine::run(&plan, |what| eprintln!("measuring {what}")).map_err(Failure::Failed)?;
    measured.print(&report, EngineReport::text)
}
