//! `infer sim run` and `infer sim compare`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use infer_core::policy::PolicyKind;
use infer_sim::{Cell, Contender, Host, Pace, Profile, RequestOutcome, Subject, Sweep, Workload, report};

use super::policies::{self, Choice, Components, choice, choices};
use super::progress::Bar;
use super::requests::RequestsFile;
use super::result::{Format, ResultArgs};
use super::settings::{HostArgs, repeated};
use super::trace::TraceFile;
use super::traffic::{self, Lengths, Limits, tenant_numbers, workload};
use super::{Failure, check_inputs, check_out, emit, is_same_file};

pub const AFTER_HELP: &str = "\
Policies are names (see `infer policy list --bundled`), `builtin`, or .wasm files, each with an optional
configuration; admission policies also form lists, which are configured by name:
  infer sim compare --scheduler continuous --scheduler 'srpt={\"patience_ms\": 1000}' --workload heavy-tail
  infer sim run --admission 'slo,memory-aware={\"memory-aware\": {\"reserve\": 0.2}}'
A workload of your own is a JSON file like those that --list prints:
  infer sim run --list --workload chat --format json --out mine.json
  infer sim run --workload mine.json
Traces are recordings of a host (`infer sim record`), or files of Azure's LLM inference traces (CSV), Mooncake's
(JSONL) and BurstGPT's (CSV). A recording also provides the default settings of the host and, for `run`, its
policies, but neither its device nor its model: name them, or fit a profile (`infer sim calibrate`):
  infer sim run --trace requests.csv --device l4 --model 8b --load 2
`compare` also compares hosts: it takes several values of the flags that describe them, from --device to
--plan-ahead, and simulates all combinations with the same requests. A load is a fraction of the first one's
capacity:
  infer sim compare --scheduler continuous --device l4 --device a100 --model 8b --rate 4
  infer sim compare --scheduler continuous --prefill-chunk 256 --prefill-chunk 1024 --workload heavy-tail
Durations in tables are in milliseconds; a `*` marks the best of a group. The output depends only on the
arguments and the seed. INFER_LOG=policy=debug shows all that policies log; by default, only their warnings
appear.";

/// Arguments of `infer sim run`.
#[derive(Args)]
pub struct RunArgs {
    /// Workload, by name (see --list) or as a file [default: chat]
    #[arg(long, value_name = "NAME|FILE.json", conflicts_with = "trace")]
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
    /// Offered load in requests per second
    #[arg(long, value_name = "PER_SECOND", conflicts_with_all = ["load", "trace"])]
    rate: Option<f64>,
    /// Component that the recording names but that isn't bundled; repeatable
    #[arg(long, value_name = "FILE.wasm")]
    component: Vec<PathBuf>,
    /// Seed of the traffic
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// CSV file for a row per request: what it found cached, its times, and how it ended
    #[arg(long, value_name = "FILE")]
    requests_out: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `infer sim compare`.
#[derive(Args)]
pub struct CompareArgs {
    /// Workload, by name (see --list) or as a file; repeatable [default: chat, heavy-tail, bursty]
    #[arg(long, value_name = "NAME|FILE.json")]
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
    /// Offered load as a fraction of the first host's capacity, repeatable [default: 0.9]; for a trace, the factor
    /// by which it is replayed faster than recorded [default: 1]
    #[arg(long)]
    load: Vec<f64>,
    /// Offered load in requests per second, repeatable
    #[arg(long, value_name = "PER_SECOND", conflicts_with_all = ["load", "trace"])]
    rate: Vec<f64>,
    /// Seed of the traffic, repeatable: everything is run with each, and tables show means and standard deviations
    /// [default: 1]
    #[arg(long)]
    seed: Vec<u64>,
    /// Parallel runs [default: the machine's cores]
    #[arg(long)]
    threads: Option<usize>,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Common {
    /// Requests per run [default: 2000, or as in the workload's file; all of a trace]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Closed loop: requests of a recording sent right after another one finished wait for that one, as with a
    /// client that keeps a fixed number in flight
    #[arg(long)]
    closed_loop: bool,
    /// `max_tokens` of the requests of public traces, which don't contain it: at most what fits after the prompt, at
    /// least the length of the output. With 1, policies know that length exactly [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    #[command(flatten)]
    host: HostArgs,
    #[command(flatten)]
    result: ResultArgs,
    /// List the workloads, or those given by --workload, and exit; with --format json as a file for --workload
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
        if self.max_tokens.is_some() && traces.iter().all(|trace| trace.head().is_some()) {
            let why =
                "--max-tokens: only public traces lack it, not workloads and recordings; give one to --trace";
            return Err(Failure::Usage(why.to_owned()));
        }
        Ok(traces.into_iter().map(|trace| trace.closed_loop(self.closed_loop)).collect())
    }
}

/// Simulates one set of policies.
pub fn run(args: RunArgs) -> Result<(), Failure> {
    if args.common.list {
        return list(args.workload.as_slice(), &args.common);
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
        workloads: workloads(given.as_slice(), &args.common)?,
        traces: args.trace.into_iter().zip(traces).collect(),
        loads: args.load.into_iter().collect(),
        rates: args.rate.into_iter().collect(),
        usual_load: 0.8,
        seeds: vec![args.seed],
        threads: 1,
        compares: false,
        requests_out: args.requests_out,
    };
    sweep(&task, &chosen, &loader, &args.common)
}

/// Simulates several sets of policies.
pub fn compare(args: CompareArgs) -> Result<(), Failure> {
    if args.common.list {
        return list(&args.workload, &args.common);
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
        workloads: workloads(&or_default(&args.workload, default), &args.common)?,
        traces: args.trace.into_iter().zip(traces).collect(),
        loads: args.load,
        rates: args.rate,
        usual_load: 0.9,
        seeds: if args.seed.is_empty() { vec![1] } else { args.seed },
        threads: args.threads.unwrap_or(cores),
        compares: true,
        requests_out: None,
    };
    sweep(&task, &chosen, &loader, &args.common)
}

fn workloads(given: &[String], common: &Common) -> Result<Vec<Workload>, Failure> {
    given.iter().map(|given| workload(given, common.requests)).collect()
}

fn list(given: &[String], common: &Common) -> Result<(), Failure> {
    let listed = workloads(&or_default(given, &Workload::NAMES), common)?;
    let text: String = match (common.result.format, &listed[..]) {
        (Format::Text, _) => {
            listed.iter().map(|workload| format!("{:12} {}\n", workload.name, workload.about)).collect()
        }
        // A file for --workload has one.
        (Format::Json, [one]) => serde_json::to_string_pretty(one).map_err(Failure::failed)? + "\n",
        (Format::Json, all) => serde_json::to_string_pretty(all).map_err(Failure::failed)? + "\n",
        (Format::Csv | Format::Html, _) => {
            let why = "--list: workloads are listed as text or JSON; choose one of them by --format";
            return Err(Failure::Usage(why.to_owned()));
        }
    };
    emit(common.result.out.as_deref(), &text)
}

struct Task {
    workloads: Vec<Workload>,
    traces: Vec<(PathBuf, TraceFile)>,
    /// Given loads; if empty, `usual_load` for workloads without `rates`, and 1 for traces.
    loads: Vec<f64>,
    /// Given requests per second of workloads.
    rates: Vec<f64>,
    usual_load: f64,
    /// At least one.
    seeds: Vec<u64>,
    threads: usize,
    /// Whether several hosts may be simulated.
    compares: bool,
    /// File for a row per request of the only run.
    requests_out: Option<PathBuf>,
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
    check_files(task, common.result.out.as_deref())?;
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
    if let Some(seed) = repeated(&task.seeds) {
        return Err(Failure::Usage(format!("--seed {seed} is given twice; give each seed once")));
    }
    let hosts = hosts(task, common)?;
    if hosts.len() > 1 && !task.compares {
        let (one, other) = (&hosts[0].name, &hosts[1].name);
        return Err(Failure::Usage(format!(
            "`infer sim run` simulates one host, not several ({one}; {other}); `infer sim compare` compares hosts"
        )));
    }
    // Flags of the host have one maximum sequence length.
    let (subjects, lengths) = subjects(task, common, hosts[0].settings.engine.max_seq_len)?;
    let contenders = contenders(chosen, loader);
    // Report a policy that can't be loaded before an hour of simulation.
    for contender in &contenders {
        (contender.make)().map_err(Failure::Usage)?;
    }
    for (_, trace) in &task.traces {
        if trace.read().map_err(Failure::Failed)?.next().is_none() {
            return Err(Failure::Failed(format!("{}: the trace has no requests to replay", trace.name())));
        }
        note_other_host(trace, &hosts);
    }
    let requests = task.requests_out.as_deref().map(RequestsFile::create).transpose()?;
    let sweep = Sweep { hosts, contenders, subjects, seeds: task.seeds.clone(), threads: task.threads };
    let bar = Bar::new();
    let note = |request: &RequestOutcome| requests.iter().for_each(|file| file.add(request));
    let cells = sweep.run_each(|progress| bar.show(progress), note);
    let written = requests.map_or(Ok(()), RequestsFile::end);
    lengths.iter().filter_map(Lengths::note).for_each(|note| eprintln!("{note}"));
    let failures: Vec<String> = cells.iter().filter_map(Cell::failure).collect();
    if failures.len() < cells.len() {
        let text = match common.result.format {
            Format::Text => report::table(&cells),
            Format::Json => report::json(&cells) + "\n",
            Format::Csv => report::csv(&cells),
            Format::Html => report::html(&cells),
        };
        emit(common.result.out.as_deref(), &text)?;
    }
    written?;
    match &failures[..] {
        [] => Ok(()),
        [only] if cells.len() == 1 => Err(Failure::Failed(only.clone())),
        [first, ..] => {
            let (failed, all) = (failures.len(), cells.len());
            Err(Failure::Failed(format!("{failed} of {all} runs failed, the first: {first}")))
        }
    }
}

/// Fails if a result can't be written, or would overwrite the other one or a trace.
fn check_files(task: &Task, out: Option<&Path>) -> Result<(), Failure> {
    check_out(out)?;
    let requests_out = task.requests_out.as_deref();
    if requests_out.zip(out).is_some_and(|(one, other)| is_same_file(one, other)) {
        let why = "--requests-out: the file is that of --out; choose another one";
        return Err(Failure::Usage(why.to_owned()));
    }
    for (flag, file) in [("--out", out), ("--requests-out", requests_out)] {
        check_inputs(flag, file, "--trace", task.traces.iter().map(|(path, _)| path))?;
    }
    Ok(())
}

/// Says on stderr that a recording's host had another device or model than the simulated ones.
fn note_other_host(trace: &TraceFile, hosts: &[Host]) {
    let Some(head) = trace.head() else { return };
    let is_same = |profile: &Profile| match profile {
        Profile::Roofline(roofline) => {
            roofline.hardware.name == head.device && roofline.model.name == head.model
        }
        Profile::Fitted(fitted) => fitted.name == format!("{} on {}", head.model, head.device),
    };
    let others: BTreeSet<String> = hosts
        .iter()
        .map(|host| &host.settings.profile)
        .filter(|profile| !is_same(profile))
        .map(Profile::about)
        .collect();
    if !others.is_empty() {
        eprintln!(
            "{} was recorded with {} on {}, and is replayed on {}; see --device and --model",
            trace.name(),
            head.model,
            head.device,
            Vec::from_iter(others).join(", ")
        );
    }
}

/// The simulated hosts. Recordings that are compared must have the same settings unless flags override them,
/// and one with terms of tenants leaves no room for other traffic, whose tenants are others.
fn hosts(task: &Task, common: &Common) -> Result<Vec<Host>, Failure> {
    let names_tenants = common.host.names_tenants();
    let numbers = match names_tenants {
        true => tenant_numbers(&task.workloads, !task.traces.is_empty())?,
        false => None,
    };
    let of = |trace: Option<&TraceFile>| {
        common.host.hosts(trace.and_then(TraceFile::head), task.seeds[0], numbers.as_deref())
    };
    let mut recordings = task.traces.iter().filter(|(_, trace)| trace.head().is_some());
    let Some((first, trace)) = recordings.next() else { return of(None) };
    let hosts = of(Some(trace))?;
    // Flags override the same settings of all hosts.
    let settings = &hosts[0].settings;
    for (path, trace) in recordings {
        let other = &of(Some(trace))?[0].settings;
        let (what, how) = match (other.engine == settings.engine, other.tenants == settings.tenants) {
            (true, true) => continue,
            (true, false) => ("weights or rates of tenants", "give all the same by --api-keys"),
            (false, _) => ("settings", "set the host's size by flags"),
        };
        return Err(Failure::Usage(format!(
            "--trace {}: its host had other {what} than that of {}; replay one at a time, or {how}",
            path.display(),
            first.display()
        )));
    }
    let is_mixed = !task.workloads.is_empty() || task.traces.iter().any(|(_, trace)| trace.head().is_none());
    if is_mixed && !settings.tenants.is_empty() && !names_tenants {
        return Err(Failure::Usage(format!(
            "--trace {}: its host's weights and rates of tenants don't apply to other traffic; replay it by itself, \
             or give all tenants theirs by --api-keys",
            first.display()
        )));
    }
    Ok(hosts)
}

/// Workloads and traces, and the traces' lengths.
fn subjects<'a>(
    task: &'a Task,
    common: &Common,
    max_seq_len: u32,
) -> Result<(Vec<Subject<'a>>, Vec<Lengths>), Failure> {
    let loads = |usual: f64| if task.loads.is_empty() { vec![usual] } else { task.loads.clone() };
    let paces: Vec<Pace> = match &task.rates[..] {
        [] => loads(task.usual_load).into_iter().map(Pace::Load).collect(),
        rates => rates.iter().copied().map(Pace::Rate).collect(),
    };
    let (mut subjects, mut lengths) = (Vec::new(), Vec::new());
    for workload in &task.workloads {
        let (name, longest) = (&workload.name, workload.longest());
        if longest > max_seq_len {
            return Err(Failure::Usage(format!(
                "--max-seq-len {max_seq_len}: requests of `{name}` have up to {longest} tokens"
            )));
        }
        subjects.push(Subject::Made { workload: workload.clone(), paces: paces.clone() });
    }
    let limits =
        Limits { requests: common.requests.unwrap_or(u64::MAX), max_tokens: common.max_tokens, max_seq_len };
    for (path, trace) in &task.traces {
        let name = trace.name();
        let others = task.traces.iter().filter(|(other, trace)| other != path && trace.name() == name);
        let alike = others.count() + task.workloads.iter().filter(|workload| workload.name == name).count();
        let shown = if alike > 0 { path.display().to_string() } else { name };
        let (subject, seen) = traffic::subject(trace, shown, loads(1.0), limits);
        subjects.push(subject);
        lengths.push(seen);
    }
    Ok((subjects, lengths))
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
