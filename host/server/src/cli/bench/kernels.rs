//! `infer bench kernels`: measures matrix products and attention alone, against the machine's limits.

use clap::Args;

use super::Failure;
use super::measured::Measured;
use crate::bench::kernels::{self, KernelPlan, KernelReport};
use crate::startup::device::measure_kernels;

/// Shown below the flags.
pub const AFTER_HELP: &str = "\
On a CPU: the four matrix products of a layer for 1, 16 and 512 rows, and paged attention. Each figure is the \
median of many repetitions, which cycle through half a gigabyte of weights, or of keys and values, so that \
caches can't hold them. Memory bandwidth and instruction rates are measured in the same run; the last column \
is the share of the limit that a kernel reaches. The bandwidth probe needs 1 GB of memory, the rest less.

On a GPU: paged attention of decodes and prompts, by default in the shapes of llama-1b, qwen3-1.7b, gemma3-1b \
and llama-8b; the products, the small kernels between them and sampling, by default in that of llama-8b. In \
bf16, but attention_plain in f32; as shares of the copy and product rates measured in the same run, sampling \
as time alone, and adapters as shares of the products' time. And layers of experts in the shapes of Qwen3 30B A3B and \
Mixtral 8x7B, for which it needs 3 GB. Only --shape, --quick and --format apply.";

/// Arguments of `infer bench kernels`.
#[derive(Args)]
pub struct KernelArgs {
    #[command(flatten)]
    measured: Measured,
}

/// Runs the benchmark.
pub fn run(args: &KernelArgs) -> Result<(), Failure> {
    let measured = &args.measured;
    if measured.on_gpu(&[("--weights", measured.names_weights())], measure_kernels)? {
        return Ok(());
    }
    let plan =
        KernelPlan { shapes: measured.shapes(), weights: measured.weights(), threads: measured.threads() };
    let report = kernels::run(&plan, |what| eprintln!("measuring {what}")).map_err(Failure::Failed)?;
    measured.print(&report, KernelReport::text)
}
