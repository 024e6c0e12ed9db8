//! `infer sim run` and `infer sim compare`.

use std::path::PathBuf;

use clap::Args;
use infer_core::policy::PolicyKind;
use infer_sim::{Cell, report};

use super::needs;
use super::policies::{self, Components, choice};
use super::progress::Bar;
use super::requests::RequestsFile;
use super::result::{Format, check, check_faults};
use super::settings::repeated;
use super::task::{Chosen, Common, Several, Task, list, workloads};
use super::trace::TraceFile;
use super::traffic::{Lengths, burstiness};
use super::{Failure, emit};

pub const AFTER_HELP: &str = "\
Policies are names (see `infer policy list --bundled`), `builtin`, or .wasm files, each with an optional \
configuration; admission policies also form lists, which are configured by name:
  infer sim compare --scheduler continuous --scheduler 'srpt={\"patience_ms\": 1000}' --workload heavy-tail
  infer sim run --admission 'slo,memory-aware={\"memory-aware\": {\"reserve\": 0.2}}'
A workload of your own is a JSON file like those that --list prints:
  infer sim run --list --workload chat --format json --out mine.json
  infer sim run --workload mine.json
Traces are recordings of a host (`infer sim record`), or files of Azure's LLM inference traces (CSV), Mooncake's \
and Alibaba Bailian's (JSONL) and BurstGPT's (CSV). A recording also provides the default settings of the host and, for `run`, its \
policies, but neither its device nor its model: name them, or fit a profile (`infer sim calibrate`):
  infer sim run --trace requests.csv --device l4 --model 8b --load 2
--rate scales the times of a trace to a mean rate, and keeps their order and their bursts:
  infer sim compare --trace requests.csv --rate 2 --rate 4 --scheduler continuous --scheduler srpt
`compare` also compares hosts: it takes several values of the flags that describe them, from --device to \
--plan-ahead, and simulates all combinations with the same requests. A load is a fraction of the first one's \
capacity:
  infer sim compare --scheduler continuous --device l4 --device a100 --model 8b --rate 4
  infer sim compare --scheduler continuous --prefill-chunk 256 --prefill-chunk 1024 --workload heavy-tail
Gaps between arrivals vary as much as --burstiness says, which is the shape of their gamma distribution as in vLLM's \
benchmark; this compares Poisson arrivals and gaps with a coefficient of variation of 4:
  infer sim compare --scheduler continuous --scheduler srpt --workload diverse --burstiness 1 --burstiness 0.0625
What policies would gain by knowing how long outputs get, exactly or by a predictor that errs:
  infer sim compare --scheduler srpt --workload open-ended --predictions learned --predictions exact --predictions 0.5
Durations in tables are in milliseconds. TPOT is a request's mean time per token after its first, ITL every time \
between two tokens; a p99.9 takes 10,000 values. With several --seed, tables show means with 95 % confidence intervals, \
mark the best of a column with `*`, and are followed by the differences from the first contender, in pairs of runs \
with the same seed; one seed can't tell which is best. The output depends only on the arguments and the seed. \
INFER_LOG=policy=debug shows all that policies log; by default, only their warnings appear.";

/// Arguments of `infer sim run`.
#[derive(Args)]
pub struct RunArgs {
    /// Workload, by name (see --list) or as a file [default: chat]
    #[arg(long, value_name = "NAME|FILE.json", conflicts_with = "trace")]
    workload: Option<String>,
    /// Burstiness of arrivals: gaps follow a gamma distribution of this shape, whose coefficient of variation is
    /// 1 / sqrt(shape); 1 is a Poisson process, less is more bursty [default: as the workload says]
    #[arg(long, value_name = "SHAPE", conflicts_with = "trace", value_parser = burstiness)]
    burstiness: Option<f64>,
    /// Trace to replay instead of a workload
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Scheduler [default: the recorded host's, or continuous]
    #[arg(long)]
    scheduler: Option<String>,
    /// Admission policy [default: the recorded host's, or memory-aware]
    #[arg(long)]
    admission: Option<String>,
    /// Prefix cache [default: the recorded host's, or lru]
    #[arg(long)]
    prefix_cache: Option<String>,
    /// Offered load as a fraction of the device's capacity [default: 0.8]; for a trace, the factor by which it
    /// is replayed faster than recorded [default: 1]
    #[arg(long)]
    load: Option<f64>,
    /// Offered load in requests per second; the times of a trace are scaled so that they have this mean rate
    #[arg(long, value_name = "PER_SECOND", conflicts_with_all = ["load", "closed_loop"])]
    rate: Option<f64>,
    /// Component that the recording names but that isn't bundled; repeatable
    #[arg(long, value_name = "FILE.wasm")]
    component: Vec<PathBuf>,
    /// Seed of the traffic
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// CSV file for a row per request: what it asked for, what it found cached, its times, and how it ended
    #[arg(long, value_name = "FILE")]
    requests_out: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `infer sim compare`.
#[derive(Args)]
pub struct CompareArgs {
    #[command(flatten)]
    several: Several,
    /// Offered load as a fraction of the first host's capacity, repeatable [default: 0.9]; for a trace, the factor
    /// by which it is replayed faster than recorded [default: 1]
    #[arg(long)]
    load: Vec<f64>,
    /// Offered load in requests per second, repeatable; the times of a trace are scaled so that they have this mean rate
    #[arg(long, value_name = "PER_SECOND", conflicts_with_all = ["load", "closed_loop"])]
    rate: Vec<f64>,
    /// With --format json or csv: in place of runs, the mean of each quantity over the seeds and its difference from
    /// the first contender, with 95 % confidence intervals
    #[arg(long)]
    summary: bool,
    /// CSV file for a row per request of all runs, with workload, load, contender and seed: what it asked for, what it
    /// found cached, its times, and how it ended
    #[arg(long, value_name = "FILE")]
    requests_out: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Simulates one set of policies.
pub fn run(args: RunArgs) -> Result<(), Failure> {
    if args.common.list {
        return list(args.workload.as_slice(), args.burstiness.as_slice(), &args.common);
    }
    let traces = args.common.open(args.trace.as_slice())?;
    let head = traces.first().and_then(TraceFile::head);
    let loader = policies::loader()?;
    let components = Components::new(&loader, &args.component)?;
    let slot = |kind: PolicyKind, given: &Option<String>, default: &str| {
        let recorded = head.and_then(|head| head.policies.iter().find(|policy| policy.kind == kind.name()));
        match (given, recorded) {
            (Some(given), _) => choice(kind, given),
            (None, Some(recorded)) => components
                .find(recorded)
                .map_err(|error| Failure::Usage(format!("{error} with --component, or choose a --{kind}"))),
            (None, None) => choice(kind, default),
        }
    };
    let chosen = Chosen {
        schedulers: vec![slot(PolicyKind::Scheduler, &args.scheduler, "continuous")?],
        admissions: vec![slot(PolicyKind::Admission, &args.admission, "memory-aware")?],
        caches: vec![slot(PolicyKind::PrefixCache, &args.prefix_cache, "lru")?],
    };
    let given = args.workload.or_else(|| traces.is_empty().then(|| "chat".to_owned()));
    let task = Task {
        workloads: workloads(given.as_slice(), args.burstiness.as_slice(), &args.common)?,
        traces: args.trace.into_iter().zip(traces).collect(),
        loads: args.load.into_iter().collect(),
        rates: args.rate.into_iter().collect(),
        usual_load: 0.8,
        seeds: vec![args.seed],
        threads: 1,
        compares: false,
        requests_out: args.requests_out,
    };
    sweep(&task, &chosen, &loader, &args.common, false)
}

/// Simulates several sets of policies.
pub fn compare(args: CompareArgs) -> Result<(), Failure> {
    if args.common.list {
        return args.several.list(&args.common);
    }
    if args.summary && matches!(args.common.result.format, Format::Text | Format::Html) {
        let why = "--summary: tables and pages have it; choose --format json or csv";
        return Err(Failure::Usage(why.to_owned()));
    }
    let loader = policies::loader()?;
    let chosen = args.several.chosen()?;
    let task = args.several.task(0.9, &args.common)?;
    let task = Task { loads: args.load, rates: args.rate, requests_out: args.requests_out, ..task };
    sweep(&task, &chosen, &loader, &args.common, args.summary)
}

fn sweep(
    task: &Task,
    chosen: &Chosen,
    loader: &infer_wasm::PolicyLoader,
    common: &Common,
    summary: bool,
) -> Result<(), Failure> {
    check_paces(task)?;
    let (sweep, lengths) = task.sweep(chosen, loader, common)?;
    let requests = task.requests_out.as_deref().map(RequestsFile::create).transpose()?;
    let bar = Bar::new("runs");
    let cells = sweep.run_each(|progress| bar.show(progress), &requests);
    let written = requests.map_or(Ok(()), RequestsFile::end);
    lengths.iter().filter_map(Lengths::note).for_each(|note| eprintln!("{note}"));
    needs::notes(chosen, &sweep.subjects, &lengths).iter().for_each(|note| eprintln!("{note}"));
    task.note_left_out();
    let failures: Vec<String> = cells.iter().filter_map(Cell::failure).collect();
    if failures.len() < cells.len() {
        let text = match common.result.format {
            Format::Text => report::table(&cells),
            Format::Json if summary => report::summary_json(&cells) + "\n",
            Format::Json => report::json(&cells) + "\n",
            Format::Csv if summary => report::summary_csv(&cells),
            Format::Csv => report::csv(&cells),
            Format::Html => report::html(&cells),
        };
        emit(common.result.out.as_deref(), &text)?;
    }
    written?;
    check(&failures, cells.len(), "runs")?;
    let faults: Vec<String> = match common.fail_on_fault {
        true => cells.iter().filter_map(Cell::fault).collect(),
        false => Vec::new(),
    };
    check_faults(&faults, cells.len(), "runs")
}

/// Checks loads and rates.
fn check_paces(task: &Task) -> Result<(), Failure> {
    if let Some(load) = task.loads.iter().find(|load| !(0.01..=100.0).contains(*load)) {
        return Err(Failure::Usage(format!("--load must be from 0.01 to 100, not {load}")));
    }
    if let Some(rate) = task.rates.iter().find(|rate| !(0.001..=1e6).contains(*rate)) {
        return Err(Failure::Usage(format!(
            "--rate must be from 0.001 to 1000000 requests per second, not {rate}"
        )));
    }
    if let Some(rate) = repeated(&task.rates) {
        return Err(Failure::Usage(format!("--rate {rate} is given twice; give each rate once")));
    }
    if let Some(load) = repeated(&task.loads) {
        return Err(Failure::Usage(format!("--load {load} is given twice; give each load once")));
    }
    Ok(())
}
