//! `infer bench kernels`: measures products and attention alone, beside the machine's limits.

use clap::Args;
use infer_model::shapes::SHAPES;

use super::Failure;
use super::bench_engine::{Output, Weights, shapes};
use crate::bench::Machine;
use crate::bench::kernels::{self, KernelPlan};
use crate::device::{DeviceChoice, measure_kernels};

/// Shown below the flags.
pub const AFTER_HELP: &str = "\
The four products of a layer for 1, 16 and 512 rows, and attention over blocks. The quickest of many times
counts; weights, keys and values are read in turns from half a gigabyte, so that caches don't hold them. The
last column says which share of its limit a kernel reaches: of the memory's bandwidth or of the
instructions' rate, measured in the same run.";

/// Arguments of `infer bench kernels`.
#[derive(Args)]
pub struct KernelArgs {
    /// Shapes to measure [default: smollm-135m and llama-1b]
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(SHAPES.map(|shape| shape.name)))]
    shape: Vec<String>,
    /// How weights are stored; q8 is 8 bits with a scale per 32 [default: bf16 and q8]
    #[arg(long, value_enum, value_name = "TYPE")]
    weights: Vec<Weights>,
    /// Threads that compute [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_024))]
    threads: Option<u16>,
    /// How the report is printed
    #[arg(long, value_enum, default_value_t = Output::Text)]
    format: Output,
    /// `cpu`, or a GPU (`cuda`, `cuda:N`): its shapes are its own, and the other flags don't count
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = DeviceChoice::parse)]
    device: DeviceChoice,
    /// On a GPU, a few shapes of each kernel
    #[arg(long)]
    quick: bool,
}

/// Runs the benchmark.
pub fn run(args: &KernelArgs) -> Result<(), Failure> {
    if let DeviceChoice::Cuda(index) = args.device {
        crate::log::start("info")?;
        return measure_kernels(index, args.quick).map_err(Failure::Failed);
    }
    let plan = KernelPlan {
        shapes: shapes(&args.shape),
        weights: Weights::types(&args.weights),
        threads: args.threads.map_or_else(|| Machine::here().cores, usize::from),
    };
    let report = kernels::run(&plan, |what| eprintln!("measuring {what}")).map_err(Failure::Failed)?;
    match args.format {
        Output::Text => print!("{}", report.text()),
        Output::Json => println!("{}", serde_json::to_string_pretty(&report).map_err(Failure::failed)?),
    }
    Ok(())
}
