//! What `infer sim run`, `compare` and `capacity` have in common: traffic and policies from flags, and the sweep they
//! describe.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use clap::Args;
use infer_core::policy::PolicyKind;
use infer_sim::{Contender, Host, Pace, Profile, Subject, Sweep, Workload};

use super::policies::{self, Choice, choices};
use super::result::{Format, ResultArgs, made_by};
use super::settings::{HostArgs, repeated};
use super::trace::{NO_REQUESTS, TraceFile};
use super::traffic::{self, Lengths, Limits, tenant_numbers, workload};
use super::{Failure, check_inputs, check_out, emit, is_same_file};

/// Flags of all three.
#[derive(Args)]
pub struct Common {
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
    /// Exit with 1 if a policy failed in a run, so that the host's built-in decided in its place; the result is
    /// written all the same
    #[arg(long)]
    pub fail_on_fault: bool,
    /// When the first token is due after the arrival of requests that have no deadline: those of public traces, of
    /// workloads of your own without `ttft_ms`, and of recordings whose clients named none
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    ttft_deadline_ms: Option<u64>,
    #[command(flatten)]
    pub host: HostArgs,
    #[command(flatten)]
    pub result: ResultArgs,
    /// List the workloads, or those given by --workload, and exit; with --format json as a file for --workload
    #[arg(long)]
    pub list: bool,
}

impl Common {
    /// Opens the traces.
    pub fn open(&self, paths: &[PathBuf]) -> Result<Vec<TraceFile>, Failure> {
        let traces: Vec<TraceFile> =
            paths.iter().map(|path| TraceFile::find(path)).collect::<Result<_, _>>()?;
        TraceFile::check_closed_loop(self.closed_loop, &traces)?;
        if self.max_tokens.is_some() && traces.iter().all(|trace| trace.head().is_some()) {
            let why =
                "--max-tokens: only public traces lack it, not workloads and recordings; give one to --trace";
            return Err(Failure::Usage(why.to_owned()));
        }
        Ok(traces.into_iter().map(|trace| trace.closed_loop(self.closed_loop)).collect())
    }
}

/// Flags of commands that simulate several sets of policies.
#[derive(Args)]
pub struct Several {
    /// Workload, by name (see --list) or as a file; repeatable [default: chat, heavy-tail, bursty]
    #[arg(long, value_name = "NAME|FILE.json")]
    workload: Vec<String>,
    /// Burstiness of arrivals: gaps follow a gamma distribution of this shape, whose coefficient of variation is
    /// 1 / sqrt(shape); 1 is a Poisson process, less is more bursty. Repeatable: workloads are sent with each [default:
    /// as the workload says]
    #[arg(long, value_name = "SHAPE", value_parser = traffic::burstiness)]
    burstiness: Vec<f64>,
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
    /// Seed of the traffic, repeatable: everything is run with each, and tables show means, differences and their 95 %
    /// confidence intervals [default: 1]. Also several at once: 3,5,8 or 1..10, the last one included
    #[arg(long, value_name = "SEED|LIST|FIRST..LAST", value_delimiter = ',', value_parser = Seeds::parse)]
    seed: Vec<Seeds>,
    /// Parallel runs [default: the machine's cores]
    #[arg(long)]
    threads: Option<usize>,
}

/// A seed, or several in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seeds(RangeInclusive<u64>);

impl Seeds {
    /// Longest range; more seeds than this are a slip.
    const MOST: u64 = 1_000;

    fn parse(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let number = text.trim().parse::<u64>();
            number.map_err(|_| format!("`{}` is not a whole number from 0 to {}", text.trim(), u64::MAX))
        };
        let (first, last) = match text.split_once("..") {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(text)?, number(text)?),
        };
        if last < first {
            return Err(format!("the range ends before it begins; {last}..{first} does not"));
        }
        if last - first >= Self::MOST {
            return Err(format!("the range has more than {} seeds", Self::MOST));
        }
        Ok(Self(first..=last))
    }
}

impl Several {
    /// Lists the workloads.
    pub fn list(&self, common: &Common) -> Result<(), Failure> {
        list(&self.workload, &self.burstiness, common)
    }

    /// The policies.
    pub fn chosen(&self) -> Result<Chosen, Failure> {
        let shipped: Vec<&str> =
            infer_bundle::POLICIES.iter().filter(|p| p.kind == "scheduler").map(|p| p.name).collect();
        Ok(Chosen {
            schedulers: choices(PolicyKind::Scheduler, &or_default(&self.scheduler, &shipped))?,
            admissions: choices(PolicyKind::Admission, &or_default(&self.admission, &["memory-aware"]))?,
            caches: choices(PolicyKind::PrefixCache, &or_default(&self.prefix_cache, &["lru"]))?,
        })
    }

    /// The traffic, at `usual_load` unless told otherwise.
    pub fn task(self, usual_load: f64, common: &Common) -> Result<Task, Failure> {
        let traces = common.open(&self.trace)?;
        let default: &[&str] = if traces.is_empty() { &["chat", "heavy-tail", "bursty"] } else { &[] };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Task {
            workloads: workloads(&or_default(&self.workload, default), &self.burstiness, common)?,
            traces: self.trace.into_iter().zip(traces).collect(),
            loads: Vec::new(),
            rates: Vec::new(),
            usual_load,
            seeds: match &self.seed[..] {
                [] => vec![1],
                given => given.iter().flat_map(|seeds| seeds.0.clone()).collect(),
            },
            threads: self.threads.unwrap_or(cores),
            compares: true,
            requests_out: None,
        })
    }
}

/// Workloads by names or from files, with each burstiness.
pub fn workloads(given: &[String], burstiness: &[f64], common: &Common) -> Result<Vec<Workload>, Failure> {
    let plain: Result<Vec<Workload>, _> =
        given.iter().map(|given| workload(given, common.requests)).collect();
    traffic::bursting(plain?, burstiness)
}

/// Refuses a deadline for requests without one if all have theirs. Which requests of a trace have one is known at its
/// end.
fn check_deadline(task: &Task, common: &Common) -> Result<(), Failure> {
    let mut streams = task.workloads.iter().flat_map(|workload| &workload.streams);
    if common.ttft_deadline_ms.is_some()
        && task.traces.is_empty()
        && streams.all(|stream| stream.ttft_ms.is_some())
    {
        let why = "--ttft-deadline-ms: all requests have a deadline of their own; change the `ttft_ms` of a workload in \
                   a file (--list --format json)";
        return Err(Failure::Usage(why.to_owned()));
    }
    Ok(())
}

/// Lists workloads, with each burstiness.
pub fn list(given: &[String], burstiness: &[f64], common: &Common) -> Result<(), Failure> {
    let listed = workloads(&or_default(given, &Workload::NAMES), burstiness, common)?;
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

/// What to simulate.
pub struct Task {
    pub workloads: Vec<Workload>,
    /// With their paths.
    pub traces: Vec<(PathBuf, TraceFile)>,
    /// Given loads; if there are no `rates` either, `usual_load` for workloads and 1 for traces.
    pub loads: Vec<f64>,
    /// Given requests per second.
    pub rates: Vec<f64>,
    pub usual_load: f64,
    /// At least one.
    pub seeds: Vec<u64>,
    /// Parallel runs.
    pub threads: usize,
    /// Whether several hosts may be simulated.
    pub compares: bool,
    /// File for a row per request.
    pub requests_out: Option<PathBuf>,
}

/// The policies of each slot.
pub struct Chosen {
    pub schedulers: Vec<Choice>,
    pub admissions: Vec<Choice>,
    pub caches: Vec<Choice>,
}

impl Task {
    /// The sweep, and the lengths of its traces. Whatever can be found wrong without a simulation is: it may take an hour.
    pub fn sweep<'a>(
        &'a self,
        chosen: &'a Chosen,
        loader: &'a infer_wasm::PolicyLoader,
        common: &Common,
    ) -> Result<(Sweep<'a>, Vec<Lengths>), Failure> {
        check_files(self, common.result.out.as_deref())?;
        check_deadline(self, common)?;
        if let Some(seed) = repeated(&self.seeds) {
            return Err(Failure::Usage(format!("--seed {seed} is given twice; give each seed once")));
        }
        let hosts = hosts(self, common)?;
        if hosts.len() > 1 && !self.compares {
            let (one, other) = (&hosts[0].name, &hosts[1].name);
            return Err(Failure::Usage(format!(
                "`infer sim run` simulates one host, not several ({one}; {other}); `infer sim compare` compares hosts"
            )));
        }
        // Flags of the host have one maximum sequence length.
        let (subjects, lengths) = subjects(self, common, hosts[0].settings.engine.max_seq_len)?;
        let contenders = contenders(chosen, loader);
        for contender in &contenders {
            (contender.make)().map_err(Failure::Usage)?;
        }
        for (_, trace) in &self.traces {
            if trace.read().map_err(Failure::Failed)?.next().is_none() {
                return Err(Failure::Failed(format!("{}: {}", trace.name(), trace.lacks(NO_REQUESTS))));
            }
            note_other_host(trace, &hosts);
        }
        let (seeds, threads) = (self.seeds.clone(), self.threads);
        Ok((Sweep { hosts, contenders, subjects, seeds, threads, made_by: made_by() }, lengths))
    }

    /// Says on stderr what replays left out of recordings: changes of policies, and requests that were refused; and what
    /// became of rows without tokens in public traces.
    pub fn note_left_out(&self) {
        let simulated = match self.compares {
            true => "only the chosen ones are simulated",
            false => "only the chosen ones are simulated, or else those at its start",
        };
        for changes in self.traces.iter().filter_map(|(_, trace)| trace.changes()) {
            eprintln!("{changes}; {simulated}");
        }
        self.traces
            .iter()
            .filter_map(|(_, trace)| trace.refused())
            .for_each(|refused| eprintln!("{refused}"));
        self.traces.iter().filter_map(|(_, trace)| trace.empty()).for_each(|empty| eprintln!("{empty}"));
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
    let paces = |usual_load: f64| -> Vec<Pace> {
        match (&task.rates[..], &task.loads[..]) {
            ([], []) => vec![Pace::Load(usual_load)],
            ([], loads) => loads.iter().copied().map(Pace::Load).collect(),
            (rates, _) => rates.iter().copied().map(Pace::Rate).collect(),
        }
    };
    let (mut subjects, mut lengths) = (Vec::new(), Vec::new());
    for workload in &task.workloads {
        let (name, longest) = (&workload.name, workload.longest());
        if longest > max_seq_len {
            return Err(Failure::Usage(format!(
                "--max-seq-len {max_seq_len}: requests of `{name}` have up to {longest} tokens"
            )));
        }
        let workload = match common.ttft_deadline_ms {
            Some(ms) => workload.clone().due(ms),
            None => workload.clone(),
        };
        subjects.push(Subject::Made { workload, paces: paces(task.usual_load) });
    }
    let limits = Limits {
        requests: common.requests.unwrap_or(u64::MAX),
        max_tokens: common.max_tokens,
        ttft_ms: common.ttft_deadline_ms,
        max_seq_len,
    };
    for (path, trace) in &task.traces {
        let name = trace.name();
        let others = task.traces.iter().filter(|(other, trace)| other != path && trace.name() == name);
        let alike = others.count() + task.workloads.iter().filter(|workload| workload.name == name).count();
        let shown = if alike > 0 { path.display().to_string() } else { name };
        let (subject, seen) = traffic::subject(trace, shown, paces(1.0), limits);
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

/// What was given, or else the default.
fn or_default(given: &[String], default: &[&str]) -> Vec<String> {
    if given.is_empty() { default.iter().map(|&name| name.to_owned()).collect() } else { given.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_numbers_or_ranges_that_have_their_ends() {
        for (text, seeds) in [("7", 7..=7), ("1..10", 1..=10), (" 3 .. 3 ", 3..=3), ("0..999", 0..=999)] {
            assert_eq!(Seeds::parse(text), Ok(Seeds(seeds)), "{text}");
        }
        for (text, says) in [
            ("", "`` is not a whole number from 0 to 18446744073709551615"),
            ("1..", "`` is not a whole number"),
            ("1..=3", "`=3` is not a whole number"),
            ("-1", "`-1` is not a whole number"),
            ("9..2", "ends before it begins; 2..9 does not"),
            ("0..1000", "more than 1000 seeds"),
            ("0..18446744073709551615", "more than 1000 seeds"),
        ] {
            let why = Seeds::parse(text).expect_err(text);
            assert!(why.contains(says), "{text}: {why}");
        }
    }
}
