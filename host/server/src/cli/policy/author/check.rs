//! `infer policy check`: the conformance report.

use clap::Args;
use infer_conformance::Options;

use super::{ComponentArgs, print_json};
use crate::cli::Failure;

/// What to check.
#[derive(Args)]
pub struct CheckArgs {
    #[command(flatten)]
    component: ComponentArgs,
    /// Seed of the generated views and loads
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

pub(super) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let options = Options { config: args.component.config()?, seed: args.seed };
    let report = infer_conformance::check(&args.component.component()?, &options).map_err(Failure::Failed)?;
    if args.component.json {
        print_json(&report)?;
    } else {
        println!("{report}");
    }
    if report.passed { Ok(()) } else { Err(Failure::Failed("the policy doesn't pass".to_owned())) }
}
