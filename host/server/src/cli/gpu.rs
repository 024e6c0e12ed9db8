//! `infer gpu-check`: checks the results of a GPU.

use std::path::PathBuf;

use clap::Args;

use super::Failure;
use crate::startup::device::{DeviceChoice, gpu_check};

/// Text below the flags.
pub const AFTER_HELP: &str = "\
Compares every GPU kernel with a plain reference on random shapes. With --golden, also compares whole models with \
the results of another implementation (the repository's tests/golden). Exits with code 1 if anything differs.";

/// Arguments of `infer gpu-check`.
#[derive(Args)]
pub struct CheckArgs {
    /// The GPU: `cuda` or `cuda:N`
    #[arg(long, value_name = "DEVICE", default_value = "cuda", value_parser = cuda)]
    device: u32,
    /// Number of random shapes per kernel
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// Directory of golden checkpoints
    #[arg(long, value_name = "DIR")]
    golden: Option<PathBuf>,
    /// Only checks whose name contains this; may be repeated
    #[arg(long, value_name = "WORDS", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    only: Vec<String>,
}

/// Checks the GPU.
pub fn check(args: CheckArgs) -> Result<(), Failure> {
    crate::log::start("info")?;
    gpu_check(args.device, args.seeds, args.golden.as_deref(), &args.only).map_err(Failure::Failed)
}

fn cuda(text: &str) -> Result<u32, String> {
    match DeviceChoice::parse(text)? {
        DeviceChoice::Cuda(index) => Ok(index),
        DeviceChoice::Auto | DeviceChoice::Cpu => Err("this needs a GPU: `cuda` or `cuda:N`".to_owned()),
    }
}
