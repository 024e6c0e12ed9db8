//! `infer sim run` and `infer sim compare`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use infer_core::policy::PolicyKind;
use infer_sim::{Cell, Contender, Subject, Sweep, Workload, report};

use super::policies::{self, Choice, Components, choice, choices};
use super::progress::Bar;
use super::settings::{HostArgs, about};
use super::trace::TraceFile;
use super::{Failure, emit};

pub const AFTER_HELP: &str = "\
Policies are names (see `infer policy list`), `builtin`, or .wasm files, each with an optional configuration:
  infer sim compare --scheduler continuous --scheduler 'srpt={\"patience_ms\": 1000}' --workload heavy-tail
Traces are recordings of a host (`infer sim record`), whose settings and policies are the default then, or
files of Azure's LLM inference traces (CSV), Mooncake's (JSONL) and BurstGPT's (CSV):
  infer sim run --trace requests.csv --device l4 --model 8b --load 2
Durations in tables are milliseconds; a `*` marks the best of a group. The output depends on the arguments and
the seed alone.";

/// Arguments of `infer sim run`.
#[derive(Args)]
pub struct RunArgs {
    /// What clients ask: see --list [default: chat]
    #[arg(long, conflicts_with = "trace")]
    workload: Option<String>,
    /// A trace to play instead
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Who runs next [default: the recorded host's, or continuous]
    #[arg(long)]
    scheduler: Option<String>,
    /// Who is let in [default: the recorded host's, or memory-aware]
    #[arg(long)]
    admission: Option<String>,
    /// Which prefix is kept [default: the recorded host's, or lru]
    #[arg(long)]
    prefix_cache: Option<String>,
    /// Offered work, as a part of what the device can finish [default: 0.8]; of a trace, how much faster it
    /// is played than it was recorded [default: 1]
    #[arg(long)]
    load: Option<f64>,
    /// A component that the recording names and that isn't shipped, repeatable
    #[arg(long, value_name = "FILE.wasm")]
    component: Vec<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `infer sim compare`.
#[derive(Args)]
pub struct CompareArgs {
    /// What clients ask, repeatable [default: chat, heavy-tail, bursty]
    #[arg(long)]
    workload: Vec<String>,
    /// A trace to play, repeatable
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Who runs next, repeatable [default: every shipped scheduler]
    #[arg(long)]
    scheduler: Vec<String>,
    /// Who is let in, repeatable [default: memory-aware]
    #[arg(long)]
    admission: Vec<String>,
    /// Which prefix is kept, repeatable [default: lru]
    #[arg(long)]
    prefix_cache: Vec<String>,
    /// Offered work, as a part of what the device can finish, repeatable [default: 0.9]; of a trace, how much
    /// faster it is played than it was recorded [default: 1]
    #[arg(long)]
    load: Vec<f64>,
    /// Runs at a time [default: the machine's cores]
    #[arg(long)]
    threads: Option<usize>,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Common {
    /// Requests of a run [default: 2000; of a trace, all]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Requests of a recording that came right after another one's end wait for that end, as a client's do that
    /// keeps a fixed number under way
    #[arg(long)]
    closed_loop: bool,
    #[command(flatten)]
    host: HostArgs,
    /// How the result is written
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    format: OutputFormat,
    /// Writes the result here instead of to the terminal
    #[arg(long)]
    out: Option<PathBuf>,
    /// Lists the known workloads and ends
    #[arg(long)]
    list: bool,
}

impl Common {
    fn open(&self, path: &Path) -> Result<TraceFile, Failure> {
        Ok(TraceFile::find(path)?.closed_loop(self.closed_loop))
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum OutputFormat {
    Text,
    Json,
    Csv,
    /// One page with charts
    Html,
}

/// One set of policies.
pub fn run(args: RunArgs) -> Result<(), Failure> {
    if args.common.list {
        return list();
    }
    let traces: Vec<TraceFile> =
        args.trace.iter().map(|path| args.common.open(path)).collect::<Result<_, _>>()?;
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
    let workload = args.workload.or_else(|| traces.is_empty().then(|| "chat".to_owned()));
    let loads = vec![args.load.unwrap_or(if traces.is_empty() { 0.8 } else { 1.0 })];
    let task = Task { workloads: workload.into_iter().collect(), traces, loads, threads: 1 };
    sweep(&task, &chosen, &loader, &args.common)
}

/// Several.
pub fn compare(args: CompareArgs) -> Result<(), Failure> {
    if args.common.list {
        return list();
    }
    let traces: Vec<TraceFile> =
        args.trace.iter().map(|path| args.common.open(path)).collect::<Result<_, _>>()?;
    let loader = policies::loader()?;
    let shipped: Vec<&str> =
        infer_bundle::POLICIES.iter().filter(|p| p.kind == "scheduler").map(|p| p.name).collect();
    let chosen = Chosen {
        schedulers: choices(PolicyKind::Scheduler, &or_default(&args.scheduler, &shipped))?,
        admissions: choices(PolicyKind::Admission, &or_default(&args.admission, &["memory-aware"]))?,
        caches: choices(PolicyKind::PrefixCache, &or_default(&args.prefix_cache, &["lru"]))?,
    };
    let default: &[&str] = if traces.is_empty() { &["chat", "heavy-tail", "bursty"] } else { &[] };
    let load = if args.workload.is_empty() && !traces.is_empty() { 1.0 } else { 0.9 };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let task = Task {
        workloads: or_default(&args.workload, default),
        traces,
        loads: if args.load.is_empty() { vec![load] } else { args.load.clone() },
        threads: args.threads.unwrap_or(cores),
    };
    sweep(&task, &chosen, &loader, &args.common)
}

fn list() -> Result<(), Failure> {
    let mut text = String::new();
    for workload in Workload::NAMES.iter().filter_map(|name| Workload::named(name, 1)) {
        text.push_str(&format!("{:12} {}\n", workload.name, workload.about));
    }
    emit(None, &text)
}

struct Task {
    workloads: Vec<String>,
    traces: Vec<TraceFile>,
    loads: Vec<f64>,
    threads: usize,
}

struct Chosen {
    schedulers: Vec<Choice>,
    admissions: Vec<Choice>,
    caches: Vec<Choice>,
}

fn sweep(
    task: &Task,
    chosen: &Chosen,
    loader: &infer_wasm::PolicyLoader,
    common: &Common,
) -> Result<(), Failure> {
    let settings = common.host.settings(task.traces.iter().find_map(TraceFile::head))?;
    let mut subjects = Vec::new();
    for name in &task.workloads {
        let workload = Workload::named(name, common.requests.unwrap_or(2_000)).ok_or_else(|| {
            let known = Workload::NAMES.join(", ");
            Failure::Usage(format!("--workload: there is no `{name}`; there are {known}"))
        })?;
        subjects.push(Subject::Made(workload));
    }
    subjects.extend(task.traces.iter().map(|trace| trace.subject(common.requests.unwrap_or(u64::MAX))));
    if let Some(load) = task.loads.iter().find(|load| !(0.01..=100.0).contains(*load)) {
        return Err(Failure::Usage(format!("--load must be from 0.01 to 100, not {load}")));
    }
    let contenders = contenders(chosen, loader);
    // What can't be loaded is better known before an hour of simulation.
    for contender in &contenders {
        (contender.make)().map_err(|message| Failure::Usage(format!("{}: {message}", contender.name)))?;
    }
    let about = about(&settings);
    let sweep = Sweep { settings, contenders, subjects, loads: task.loads.clone(), threads: task.threads };
    let bar = Bar::new();
    let cells = sweep.run(|progress| bar.tell(progress)).map_err(Failure::failed)?;
    emit(common.out.as_deref(), &render(common.format, &cells, &about))
}

/// Every scheduler with every admission policy and every prefix cache, named by what differs.
fn contenders<'a>(chosen: &'a Chosen, loader: &'a infer_wasm::PolicyLoader) -> Vec<Contender<'a>> {
    let Chosen { schedulers, admissions, caches } = chosen;
    let mut contenders = Vec::new();
    for scheduler in schedulers {
        for admission in admissions {
            for cache in caches {
                let varying = [(schedulers, scheduler), (admissions, admission), (caches, cache)];
                let names =
                    varying.iter().filter(|(all, _)| all.len() > 1).map(|(_, one)| one.label.as_str());
                let name = names.collect::<Vec<_>>().join(" ");
                let name = if name.is_empty() { scheduler.label.clone() } else { name };
                let make = move || policies::slots(loader, [scheduler, admission, cache]);
                contenders.push(Contender { name, make: Box::new(make) });
            }
        }
    }
    contenders
}

fn or_default(given: &[String], default: &[&str]) -> Vec<String> {
    if given.is_empty() { default.iter().map(|&name| name.to_owned()).collect() } else { given.to_vec() }
}

fn render(format: OutputFormat, cells: &[Cell], about: &str) -> String {
    match format {
        OutputFormat::Text => report::table(cells),
        OutputFormat::Json => report::json(cells) + "\n",
        OutputFormat::Csv => report::csv(cells),
        OutputFormat::Html => report::html(cells, about),
    }
}
