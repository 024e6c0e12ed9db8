//! `infer bench kernels`: measures products and attention alone, beside the machine's limits.

use clap::Args;

use super::Failure;
use super::measured::Measured;
use crate::bench::kernels::{self, KernelPlan, KernelReport};
use crate::device::measure_kernels;

/// Shown below the flags.
pub const AFTER_HELP: &str = "\
The four products of a layer for 1, 16 and 512 rows, and attention over blocks. The median of many times
counts; weights, keys and values are read in turns from half a gigabyte, so that caches don't hold them. The
last column says which share of its limit a kernel reaches: of the memory's bandwidth or of the
instructions' rate, measured in the same run.";

/// Arguments of `infer bench kernels`.
#[derive(Args)]
pub struct KernelArgs {
    #[command(flatten)]
    measured: Measured,
}

/// Runs the benchmark.
pub fn run(args: &KernelArgs) -> Result<(), Failure> {
    let measured = &args.measured;
    if measured.on_gpu(measure_kernels)? {
        return Ok(());
    }
    let plan =
        KernelPlan { shapes: measured.shapes(), weights: measured.weights(), threads: measured.threads() };
    let report = kernels::run(&plan, |what| eprintln!("measuring {what}")).map_err(Failure::Failed)?;
    measured.print(&report, KernelReport::text)
}
