//! `infer sim capacity`.

use clap::Args;
use infer_sim::{Cell, Found, Search, report};

use super::needs;
use super::policies;
use super::progress::Bar;
use super::result::{Format, check, check_faults};
use super::task::{Common, Several};
use super::traffic::Lengths;
use super::{Failure, emit};

pub const AFTER_HELP: &str = "\
Finds the highest load at which --share percent of the requests meet both targets, --slo-ttft-ms and --slo-itl-ms: the \
rate that a host can promise with these policies. Each search doubles or halves the load until it has one that is \
sustained and one that isn't, and ends when they are within 2 % of each other; below the first, others may fail, too.
  infer sim capacity --device l4 --model 8b --workload chat --slo-ttft-ms 1000 --slo-itl-ms 100
  infer sim capacity --scheduler continuous --prefill-chunk 256 --prefill-chunk 1024 --share 99
  infer sim capacity --trace requests.csv --device l4 --device h100 --scheduler continuous
A load of a workload is a fraction of the first host's capacity with all slots busy; that of a trace, how much faster \
it is replayed than it was recorded, and its requests/s are the mean rate of its recorded times at that speed.
`limited by` names what most of the requests missed that missed the targets just beyond: ITL (a smaller \
--prefill-chunk or --max-batch-size may help), TTFT, or refusals.
The output depends only on the arguments and the seed. With few --requests, a load that would be too high later on may \
still pass.";

/// Arguments of `infer sim capacity`.
#[derive(Args)]
pub struct CapacityArgs {
    #[command(flatten)]
    several: Several,
    /// Percentage of the requests that must meet both targets
    #[arg(long, value_name = "PERCENT", default_value_t = 90.0)]
    share: f64,
    #[command(flatten)]
    common: Common,
}

/// Where a search begins.
const LOAD: f64 = 0.8;

/// Searches for the highest loads.
pub fn run(args: CapacityArgs) -> Result<(), Failure> {
    let CapacityArgs { several, share, common } = args;
    if common.list {
        return several.list(&common);
    }
    if !(share > 0.0 && share <= 100.0) {
        return Err(Failure::Usage(format!(
            "--share must be more than 0 and at most 100 percent, not {share}"
        )));
    }
    let share = share / 100.0;
    let loader = policies::loader()?;
    let chosen = several.chosen()?;
    let task = several.task(LOAD, &common)?;
    let (sweep, lengths) = task.sweep(&chosen, &loader, &common)?;
    let bar = Bar::new("searches");
    let search = Search { sweep, share };
    let all = search.run(|progress| bar.show(progress));
    lengths.iter().filter_map(Lengths::note).for_each(|note| eprintln!("{note}"));
    needs::notes(&chosen, &search.sweep.subjects, &lengths).iter().for_each(|note| eprintln!("{note}"));
    task.note_left_out();
    let failures: Vec<String> =
        all.iter().filter_map(|found| found.failed.as_ref()).filter_map(Cell::failure).collect();
    if failures.len() < all.len() {
        let text = match common.result.format {
            Format::Text => report::sustained_table(&all, share),
            Format::Json => report::sustained_json(&all) + "\n",
            Format::Csv => report::sustained_csv(&all),
            Format::Html => report::sustained_html(&all, share),
        };
        emit(common.result.out.as_deref(), &text)?;
    }
    check(&failures, all.len(), "searches")?;
    let fault = |found: &Found| {
        let runs = [&found.sustained, &found.beyond];
        runs.into_iter().flatten().find_map(Cell::fault)
    };
    let faults: Vec<String> = match common.fail_on_fault {
        true => all.iter().filter_map(fault).collect(),
        false => Vec::new(),
    };
    check_faults(&faults, all.len(), "searches")
}
