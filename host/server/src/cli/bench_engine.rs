//! `infer bench engine`: measures steps of the model alone, beside the machine's limits.

use clap::{Args, ValueEnum};
use infer_model::WeightType;
use infer_model::shapes::{SHAPES, Shape};

use super::Failure;
use crate::bench::Machine;
use crate::bench::engine::{self, EnginePlan};
use crate::device::{DeviceChoice, measure_engine};

/// Shown below the flags.
pub const AFTER_HELP: &str = "\
Weights are random, in the shapes of known models. A prefill of 512 tokens, and decodes at
batch 1 and 16; each step includes drawing its tokens. The quickest of all steps counts: other processes
can only make a step slower. Reading bandwidth and instruction rates are measured in the same run; the last
column says which share of its limit a step reaches. The default shapes need up to 6 GB of memory.";

/// Measured where no shape is named.
const DEFAULT: [&str; 2] = ["smollm-135m", "llama-1b"];

/// Arguments of `infer bench engine`.
#[derive(Args)]
pub struct EngineArgs {
    /// Shapes to measure [default: smollm-135m and llama-1b]
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(SHAPES.map(|shape| shape.name)))]
    shape: Vec<String>,
    /// How weights are stored; q8 is 8 bits with a scale per 32 [default: bf16 and q8]
    #[arg(long, value_enum, value_name = "TYPE")]
    weights: Vec<Weights>,
    /// Threads that compute [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_024))]
    threads: Option<u16>,
    /// Tokens that sequences hold when decoding begins
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=8_000))]
    context: u32,
    /// Decode steps of a pass
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100))]
    steps: u32,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    passes: u32,
    /// Measure everything beside so many spinning threads too, and say what share of the machine is left
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1_024))]
    neighbours: u16,
    /// How the report is printed
    #[arg(long, value_enum, default_value_t = Output::Text)]
    format: Output,
    /// `cpu`, or a GPU (`cuda`, `cuda:N`): its shapes, batches and contexts are its own, and the other flags don't count
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = DeviceChoice::parse)]
    device: DeviceChoice,
    /// On a GPU, fewer batches, contexts and lengths
    #[arg(long)]
    quick: bool,
}

/// How a report is printed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    Text,
    Json,
}

/// How weights are stored.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Weights {
    F32,
    Bf16,
    Q8,
}

impl Weights {
    /// Those that were named, or else bf16 and q8.
    pub(super) fn types(named: &[Self]) -> Vec<WeightType> {
        let named = if named.is_empty() { &[Self::Bf16, Self::Q8] } else { named };
        let kind = |weights: &Self| match weights {
            Self::F32 => WeightType::F32,
            Self::Bf16 => WeightType::Bf16,
            Self::Q8 => WeightType::Q8,
        };
        named.iter().map(kind).collect()
    }
}

/// Those that were named, or else the usual ones.
pub(super) fn shapes(named: &[String]) -> Vec<Shape> {
    let wanted = |shape: &Shape| match named.is_empty() {
        true => DEFAULT.contains(&shape.name),
        false => named.iter().any(|name| name == shape.name),
    };
    SHAPES.into_iter().filter(wanted).collect()
}

/// Runs the benchmark.
pub fn run(args: &EngineArgs) -> Result<(), Failure> {
    if let DeviceChoice::Cuda(index) = args.device {
        crate::log::start("info")?;
        return measure_engine(index, args.quick).map_err(Failure::Failed);
    }
    let plan = EnginePlan {
        shapes: shapes(&args.shape),
        weights: Weights::types(&args.weights),
        threads: args.threads.map_or_else(|| Machine::here().cores, usize::from),
        context: args.context as usize,
        steps: args.steps as usize,
        passes: args.passes as usize,
        neighbours: usize::from(args.neighbours),
    };
    let report = engine::run(&plan, |what| eprintln!("measuring {what}")).map_err(Failure::Failed)?;
    match args.format {
        Output::Text => print!("{}", report.text()),
        Output::Json => println!("{}", serde_json::to_string_pretty(&report).map_err(Failure::failed)?),
    }
    Ok(())
}
