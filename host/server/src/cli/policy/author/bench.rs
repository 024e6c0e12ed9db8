//! `infer policy bench`: a table of what a policy's calls cost.

use clap::Args;
use infer_conformance::cost::{self, Cost};

use super::{ComponentArgs, print_json};
use crate::cli::Failure;

/// What to measure.
#[derive(Args)]
pub struct BenchArgs {
    #[command(flatten)]
    component: ComponentArgs,
}

pub(super) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let config = args.component.config()?;
    let costs = cost::measure(&args.component.component()?, &config).map_err(Failure::failed)?;
    if args.component.json {
        return print_json(&costs);
    }
    show(&costs);
    Ok(())
}

fn show(costs: &[Cost]) {
    if cfg!(debug_assertions) {
        println!("This is a debug build: the built-in and the host's part of each call are slow.");
    }
    println!(
        "{:<42} {:>8} {:>10} {:>10} {:>13} {:>13} {:>8}",
        "microseconds of wall time a call", "calls", "p50", "p99", "built-in p50", "built-in p99", "of 5 ms"
    );
    for cost in costs {
        if let Some(fault) = &cost.fault {
            println!("{:<42} {fault}", cost.call);
            continue;
        }
        println!(
            "{:<42} {:>8} {:>10.1} {:>10.1} {:>13.2} {:>13.2} {:>7.2}%",
            cost.call,
            cost.calls,
            cost.p50_us,
            cost.p99_us,
            cost.builtin_p50_us,
            cost.builtin_p99_us,
            cost.percent_of_step
        );
    }
}
