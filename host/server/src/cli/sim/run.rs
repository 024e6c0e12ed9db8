//! `infer sim run` and `infer sim compare`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use infer_core::policy::PolicyKind;
use infer_sim::{Contender, Profile, Settings, Subject, Sweep, Workload, report};

use super::policies::{self, Choice, Components, choice, choices};
use super::progress::Bar;
use super::settings::{HostArgs, about, host};
use super::trace::TraceFile;
use super::{Failure, emit};

pub const AFTER_HELP: &str = "\
Policies are names (see `infer policy list --bundled`), `builtin`, or .wasm files, each with an optional
configuration:
  infer sim compare --scheduler continuous --scheduler 'srpt={\"patience_ms\": 1000}' --workload heavy-tail
Traces are recordings of a host (`infer sim record`), or files of Azure's LLM inference traces (CSV), Mooncake's
(JSONL) and BurstGPT's (CSV). A recording also provides the default settings of the host and, for `run`, its
policies, but neither its device nor its model: name them, or fit a profile (`infer sim calibrate`):
  infer sim run --trace requests.csv --device l4 --model 8b --load 2
Durations in tables are in milliseconds; a `*` marks the best of a group. The output depends only on the
arguments and the seed.";

/// Arguments of `infer sim run`.
#[derive(Args)]
pub struct RunArgs {
    /// Workload, see --list [default: chat]
    #[arg(long, conflicts_with = "trace")]
    workload: Option<String>,
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
    /// Component that the recording names but that isn't bundled; repeatable
    #[arg(long, value_name = "FILE.wasm")]
    component: Vec<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `infer sim compare`.
#[derive(Args)]
pub struct CompareArgs {
    /// Workload, repeatable; see --list [default: chat, heavy-tail, bursty]
    #[arg(long)]
    workload: Vec<String>,
    /// Trace to replay, repeatable
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Scheduler, repeatable [default: every shipped scheduler]
    #[arg(long)]
    scheduler: Vec<String>,
    /// Admission policy, repeatable [default: memory-aware]
    #[arg(long)]
    admission: Vec<String>,
    /// Prefix cache, repeatable [default: lru]
    #[arg(long)]
    prefix_cache: Vec<String>,
    /// Offered load as a fraction of the device's capacity, repeatable [default: 0.9]; for a trace, the factor
    /// by which it is replayed faster than recorded [default: 1]
    #[arg(long)]
    load: Vec<f64>,
    /// Parallel runs [default: the machine's cores]
    #[arg(long)]
    threads: Option<usize>,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Common {
    /// Requests per run [default: 2000; all of a trace]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Closed loop: requests of a recording sent right after another one finished wait for that one, as with a
    /// client that keeps a fixed number in flight
    #[arg(long)]
    closed_loop: bool,
    #[command(flatten)]
    host: HostArgs,
    /// Format of the result
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    format: OutputFormat,
    /// File for the result [default: stdout]
    #[arg(long)]
    out: Option<PathBuf>,
    /// List the workloads and exit
    #[arg(long)]
    list: bool,
}

impl Common {
    fn open(&self, paths: &[PathBuf]) -> Result<Vec<TraceFile>, Failure> {
        let traces: Vec<TraceFile> =
            paths.iter().map(|path| TraceFile::find(path)).collect::<Result<_, _>>()?;
        if self.closed_loop && traces.iter().all(|trace| trace.head().is_none()) {
            let why = "--closed-loop: only a recording of a host tells which request followed which; give one to --trace";
            return Err(Failure::Usage(why.to_owned()));
        }
        Ok(traces.into_iter().map(|trace| trace.closed_loop(self.closed_loop)).collect())
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum OutputFormat {
    Text,
    Json,
    Csv,
    /// A page with charts
    Html,
}

/// Simulates one set of policies.
pub fn run(args: RunArgs) -> Result<(), Failure> {
    if args.common.list {
        return list();
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
    let workload = args.workload.or_else(|| traces.is_empty().then(|| "chat".to_owned()));
    let task = Task {
        workloads: workload.into_iter().collect(),
        traces: args.trace.into_iter().zip(traces).collect(),
        loads: args.load.into_iter().collect(),
        usual_load: 0.8,
        threads: 1,
    };
    sweep(&task, &chosen, &loader, &args.common)
}

/// Simulates several sets of policies.
pub fn compare(args: CompareArgs) -> Result<(), Failure> {
    if args.common.list {
        return list();
    }
    let traces = args.common.open(&args.trace)?;
    let loader = policies::loader()?;
    let shipped: Vec<&str> =
        infer_bundle::POLICIES.iter().filter(|p| p.kind == "scheduler").map(|p| p.name).collect();
    let chosen = Chosen {
        schedulers: choices(PolicyKind::Scheduler, &or_default(&args.scheduler, &shipped))?,
        admissions: choices(PolicyKind::Admission, &or_default(&args.admission, &["memory-aware"]))?,
        caches: choices(PolicyKind::PrefixCache, &or_default(&args.prefix_cache, &["lru"]))?,
    };
    let default: &[&str] = if traces.is_empty() { &["chat", "heavy-tail", "bursty"] } else { &[] };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let task = Task {
        workloads: or_default(&args.workload, default),
        traces: args.trace.into_iter().zip(traces).collect(),
        loads: args.load,
        usual_load: 0.9,
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
    traces: Vec<(PathBuf, TraceFile)>,
    /// Given loads; if empty, `usual_load` for workloads and 1 for traces.
    loads: Vec<f64>,
    usual_load: f64,
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
    if let Some(load) = task.loads.iter().find(|load| !(0.01..=100.0).contains(*load)) {
        return Err(Failure::Usage(format!("--load must be from 0.01 to 100, not {load}")));
    }
    let settings = settings(task, common)?;
    let subjects = subjects(task, common, settings.engine.max_seq_len)?;
    let contenders = contenders(chosen, loader);
    // Report a policy that can't be loaded before an hour of simulation.
    for contender in &contenders {
        (contender.make)().map_err(|message| Failure::Usage(format!("{}: {message}", contender.name)))?;
    }
    for (_, trace) in &task.traces {
        if trace.read().map_err(Failure::Failed)?.next().is_none() {
            return Err(Failure::Failed(format!("{}: the trace has no requests to replay", trace.name())));
        }
        note_other_host(trace, &settings.profile);
    }
    let (host, about) = (host(&settings), about(&settings));
    let sweep = Sweep { settings, contenders, subjects, threads: task.threads };
    let bar = Bar::new();
    let cells = sweep.run(|progress| bar.show(progress)).map_err(Failure::failed)?;
    let text = match common.format {
        OutputFormat::Text => format!("simulated host: {host}\n\n{}", report::table(&cells)),
        OutputFormat::Json => report::json(&cells) + "\n",
        OutputFormat::Csv => report::csv(&cells),
        OutputFormat::Html => report::html(&cells, &about),
    };
    emit(common.out.as_deref(), &text)
}

/// Says on stderr that a recording's host had another device or model than the simulated one.
fn note_other_host(trace: &TraceFile, profile: &Profile) {
    let Some(head) = trace.head() else { return };
    let is_same = match profile {
        Profile::Roofline(roofline) => {
            roofline.hardware.name == head.device && roofline.model.name == head.model
        }
        Profile::Fitted(fitted) => fitted.name == format!("{} on {}", head.model, head.device),
    };
    if !is_same {
        eprintln!(
            "{} was recorded with {} on {}, and is replayed on {}; see --device and --model",
            trace.name(),
            head.model,
            head.device,
            profile.about()
        );
    }
}

/// Settings of the simulated host. Recordings that are compared must have the same settings unless flags override them.
fn settings(task: &Task, common: &Common) -> Result<Settings, Failure> {
    let mut recordings = task.traces.iter().filter(|(_, trace)| trace.head().is_some());
    let Some((first, trace)) = recordings.next() else { return common.host.settings(None) };
    let settings = common.host.settings(trace.head())?;
    for (path, trace) in recordings {
        if common.host.settings(trace.head())?.engine != settings.engine {
            return Err(Failure::Usage(format!(
                "--trace {}: its host had other settings than that of {}; replay one at a time, or set the host's \
                 size by flags",
                path.display(),
                first.display()
            )));
        }
    }
    Ok(settings)
}

/// Workloads and traces, each with its loads.
fn subjects<'a>(
    task: &'a Task,
    common: &Common,
    max_seq_len: u32,
) -> Result<Vec<(Subject<'a>, Vec<f64>)>, Failure> {
    let loads = |usual: f64| if task.loads.is_empty() { vec![usual] } else { task.loads.clone() };
    let mut subjects = Vec::new();
    for name in &task.workloads {
        let workload = Workload::named(name, common.requests.unwrap_or(2_000)).ok_or_else(|| {
            let known = Workload::NAMES.join(", ");
            Failure::Usage(format!("--workload: unknown workload `{name}`; use one of {known}"))
        })?;
        let longest = workload.longest();
        if longest > max_seq_len {
            return Err(Failure::Usage(format!(
                "--max-seq-len {max_seq_len}: requests of `{name}` have up to {longest} tokens"
            )));
        }
        subjects.push((Subject::Made(workload), loads(task.usual_load)));
    }
    for (path, trace) in &task.traces {
        let mut subject = trace.subject(common.requests.unwrap_or(u64::MAX));
        let name = trace.name();
        let others = task.traces.iter().filter(|(other, trace)| other != path && trace.name() == name);
        if let Subject::Recorded { name: shown, .. } = &mut subject
            && others.count() + task.workloads.iter().filter(|workload| **workload == name).count() > 0
        {
            *shown = path.display().to_string();
        }
        subjects.push((subject, loads(1.0)));
    }
    Ok(subjects)
}

/// All combinations of the chosen policies, each named by the slots that vary.
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
