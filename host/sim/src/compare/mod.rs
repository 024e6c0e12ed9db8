//! Sweeps: every contender on every host with every workload at every load with every seed, in parallel; the order of
//! the results is fixed.

mod subject;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use infer_core::config::EngineConfig;
use infer_core::engine::Policies;
use serde::{Serialize, Serializer};

use crate::metrics::{FirstFault, Outcome, RequestOutcome, Watch};
use crate::report::{MadeBy, Setup, Slots};
use crate::run::{Settings, replay_watched, simulate_watched};
pub(crate) use subject::Full;
pub use subject::{Open, Pace, Subject};

/// A set of policies to compare.
pub struct Contender<'a> {
    /// Name in reports.
    pub name: String,
    /// Creates fresh instances; called on the thread that runs them.
    pub make: Box<dyn Fn() -> Result<Policies, String> + Sync + 'a>,
}

impl std::fmt::Debug for Contender<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contender").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A simulated host to compare.
#[derive(Clone, Debug)]
pub struct Host {
    /// Name in reports; with a single host, it isn't shown.
    pub name: String,
    /// Hardware and limits; load and seed are those of the sweep.
    pub settings: Settings,
}

/// A comparison to run.
pub struct Sweep<'a> {
    /// Simulated hosts, at least one. All get the same traffic.
    pub hosts: Vec<Host>,
    /// Sets of policies.
    pub contenders: Vec<Contender<'a>>,
    /// Traffic.
    pub subjects: Vec<Subject<'a>>,
    /// Seeds; everything is run once with each. A trace is the same with every seed, but the variation of a measured
    /// device is not, nor are errors of predictions.
    pub seeds: Vec<u64>,
    /// Parallel runs.
    pub threads: usize,
    /// The program and the command, for reports.
    pub made_by: MadeBy,
}

/// Which run of a sweep a request is from; the names are those of its [`Cell`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RunOf<'a> {
    /// Place of the run among the results.
    #[serde(skip)]
    pub at: usize,
    /// Name of the subject.
    pub workload: &'a str,
    /// Load, as in [`Cell`].
    pub load: f64,
    /// Name of the contender, and of its host if there are several.
    pub contender: &'a str,
    /// Seed of the run.
    pub seed: u64,
}

/// Takes the requests of all runs as they end, on the threads that run them.
pub trait Requests: Sync {
    /// A request has ended.
    fn request(&self, run: &RunOf<'_>, request: &RequestOutcome);

    /// The run at this place has no more of them.
    fn over(&self, at: usize);
}

impl Requests for () {
    fn request(&self, _: &RunOf<'_>, _: &RequestOutcome) {}

    fn over(&self, _: usize) {}
}

impl<R: Requests> Requests for Option<R> {
    fn request(&self, run: &RunOf<'_>, request: &RequestOutcome) {
        self.iter().for_each(|requests| requests.request(run, request));
    }

    fn over(&self, at: usize) {
        self.iter().for_each(|requests| requests.over(at));
    }
}

/// Reports the progress of a run, and its requests.
struct Reporter<'a, P, R> {
    progress: P,
    requests: &'a R,
    run: RunOf<'a>,
}

impl<P: FnMut(u64), R: Requests> Watch for Reporter<'_, P, R> {
    fn progress(&mut self, ended: u64) {
        (self.progress)(ended);
    }

    fn request(&mut self, request: &RequestOutcome) {
        self.requests.request(&self.run, request);
    }
}

/// Progress of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Finished runs, and all runs.
    pub runs: (usize, usize),
    /// Finished requests, and all requests if that is known.
    pub requests: (u64, Option<u64>),
}

/// Requests of a run between two progress reports.
const REPORT_EVERY: u64 = 64;

/// One run of a sweep.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Index of the subject; names need not be unique.
    #[serde(skip)]
    pub subject: usize,
    /// Index of the host; names need not be unique.
    #[serde(skip)]
    pub host: usize,
    /// Index of the host and the contender among all combinations.
    #[serde(skip)]
    pub entrant: usize,
    /// Name of the subject.
    pub workload: String,
    /// Load: the fraction of the first host's capacity, or the factor by which a trace is replayed faster than recorded;
    /// 0 if it was to be replayed at a rate, and can't be read to find that factor.
    pub load: f64,
    /// Requests per second that arrive; `None` for a trace, unless it is replayed at a rate or in a search.
    pub offered_per_second: Option<f64>,
    /// Burstiness of a workload's arrivals, see `Arrivals`; `None` for a trace, and if they have no single one.
    pub burstiness: Option<f64>,
    /// Name of the host, if there are several, and of the contender, if there are several or only one host.
    pub contender: String,
    /// Name of the host; empty if it is the only one.
    #[serde(skip)]
    pub host_name: String,
    /// Hardware, limits and seed.
    pub settings: Setup,
    /// The program and the command.
    #[serde(flatten)]
    pub made_by: MadeBy,
    /// The policies; `None` if they couldn't be created.
    pub policies: Option<Slots>,
    /// Result, or why there is none.
    #[serde(flatten, serialize_with = "flat")]
    pub outcome: Result<Outcome, String>,
}

impl Cell {
    /// Names the run, the first policy that failed in it and what was left to the built-in, if any did.
    pub fn fault(&self) -> Option<String> {
        let outcome = self.outcome.as_ref().ok().filter(|outcome| outcome.policy_faults > 0)?;
        let share = 100.0 * outcome.builtin_share;
        let what = match &outcome.fault {
            Some(FirstFault { kind, policy, message, .. }) => format!("{kind} `{policy}` failed ({message})"),
            None => "a policy failed".to_owned(),
        };
        Some(format!("{}: {what}; the built-in decided {share:.1} % of the steps instead", self.who()))
    }

    /// The contender, its load, seed and traffic.
    fn who(&self) -> String {
        let Self { workload, load, contender, settings, .. } = self;
        format!("{contender} at load {load:.2} with seed {} on {workload}", settings.seed)
    }

    /// Names the run and what went wrong, if it failed.
    pub fn failure(&self) -> Option<String> {
        let error = self.outcome.as_ref().err()?;
        Some(format!("{}: {error}", self.who()))
    }
}

/// A result as its fields, an error as the field `error`.
fn flat<S: Serializer>(outcome: &Result<Outcome, String>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Failed<'a> {
        error: &'a str,
    }
    match outcome {
        Ok(outcome) => outcome.serialize(serializer),
        Err(error) => Failed { error }.serialize(serializer),
    }
}

/// A run to make.
#[derive(Clone, Copy)]
pub(crate) struct Planned {
    pub subject: usize,
    pub pace: Pace,
    /// Index of the host and the contender among all combinations.
    pub entrant: usize,
    pub seed: u64,
}

/// Does a number of jobs on as many threads; the results have the order of the jobs.
pub(crate) fn in_parallel<T: Send>(threads: usize, jobs: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let results: Vec<Mutex<Option<T>>> = (0..jobs).map(|_| Mutex::default()).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, jobs.max(1)) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(result) = results.get(at) else { return };
                    let done = work(at);
                    *result.lock().expect("no holder panics") = Some(done);
                }
            });
        }
    });
    results
        .into_iter()
        .map(|result| result.into_inner().expect("no thread panicked").expect("every job was done"))
        .collect()
}

impl Sweep<'_> {
    /// Runs everything; results are ordered by subject, then pace or load, then host, then contender, then seed. A run
    /// fails if its contender can't be created or its trace can't be replayed, and leaves the others alone. Calls
    /// `progress` regularly.
    pub fn run(&self, progress: impl Fn(Progress) + Sync) -> Vec<Cell> {
        self.run_each(progress, &())
    }

    /// Runs everything like [`Self::run`], and hands on the requests of all runs.
    pub fn run_each(&self, progress: impl Fn(Progress) + Sync, requests: &impl Requests) -> Vec<Cell> {
        let plan = self.plan();
        let runs = plan.len();
        let full: Vec<Full> = self.subjects.iter().map(|_| Full::default()).collect();
        let all: Option<u64> = plan.iter().map(|planned| self.subjects[planned.subject].requests()).sum();
        let (done, ended) = (AtomicUsize::new(0), AtomicU64::new(0));
        let report = |more: u64, runs_more: usize| {
            let requests = (ended.fetch_add(more, Ordering::Relaxed) + more, all);
            let ended_runs = done.fetch_add(runs_more, Ordering::Relaxed) + runs_more;
            progress(Progress { runs: (ended_runs, runs), requests });
        };
        in_parallel(self.threads, runs, |at| {
            let planned = plan[at];
            let full = &full[planned.subject];
            let cell = self.watched(at, planned, full, &|more| report(more, 0), requests);
            requests.over(at);
            report(0, 1);
            cell
        })
    }

    /// One run, the `at`th. Tells `report` how many more requests have ended, regularly and at its end.
    pub(crate) fn watched(
        &self,
        at: usize,
        planned: Planned,
        full: &Full,
        report: &impl Fn(u64),
        requests: &impl Requests,
    ) -> Cell {
        let mut reported = 0;
        let progress = |so_far| {
            if so_far >= reported + REPORT_EVERY {
                report(so_far - reported);
                reported = so_far;
            }
        };
        let (_, contender) = self.names(planned.entrant);
        let workload = self.subjects[planned.subject].name();
        let run = RunOf { at, workload, load: 0.0, contender: &contender, seed: planned.seed };
        let cell = self.cell(planned, full, Reporter { progress, requests, run });
        let in_all = cell.outcome.as_ref().map_or(reported, |outcome| outcome.requests);
        report(in_all.saturating_sub(reported));
        cell
    }

    fn plan(&self) -> Vec<Planned> {
        let mut plan = Vec::new();
        for (subject, traffic) in self.subjects.iter().enumerate() {
            for pace in traffic.paces() {
                for entrant in 0..self.entrants() {
                    plan.extend(self.seeds.iter().map(|&seed| Planned { subject, pace, entrant, seed }));
                }
            }
        }
        plan
    }

    /// Combinations of a host and a contender.
    pub(crate) fn entrants(&self) -> usize {
        self.hosts.len() * self.contenders.len()
    }

    /// Names of a host, empty if it is the only one, and of the contender on it.
    fn names(&self, entrant: usize) -> (String, String) {
        let host = &self.hosts[entrant / self.contenders.len()].name;
        let contender = &self.contenders[entrant % self.contenders.len()].name;
        match (self.hosts.len(), self.contenders.len()) {
            (1, _) => (String::new(), contender.clone()),
            (_, 1) => (host.clone(), host.clone()),
            _ => (host.clone(), format!("{host} {contender}")),
        }
    }

    /// One run; its load is known only here.
    fn cell<P: FnMut(u64), R: Requests>(
        &self,
        planned: Planned,
        full: &Full,
        mut watch: Reporter<'_, P, R>,
    ) -> Cell {
        let Planned { subject: at, pace, entrant, seed } = planned;
        let (at_host, at_contender) = (entrant / self.contenders.len(), entrant % self.contenders.len());
        let (subject, host, contender) =
            (&self.subjects[at], &self.hosts[at_host], &self.contenders[at_contender]);
        // As in a sweep with this seed alone.
        let engine = EngineConfig { hash_key: [seed, 0], ..host.settings.engine.clone() };
        let mut settings = Settings { engine, seed, ..host.settings.clone() };
        let policies = (contender.make)();
        let slots = policies.as_ref().ok().map(Slots::of);
        let (offered_per_second, outcome) = match subject {
            Subject::Made { workload, .. } => {
                let capacity = full.capacity(workload, &self.hosts[0].settings);
                let at_full = capacity.requests_per_second();
                let (load, offered) = match pace {
                    Pace::Load(load) => (load, load * at_full),
                    Pace::Rate(rate) => (rate / at_full, rate),
                };
                settings.load = load;
                watch.run.load = load;
                let run = |policies| simulate_watched(&settings, policies, workload, capacity, watch);
                (Some(offered), policies.map(run))
            }
            Subject::Recorded { requests, open, .. } => {
                let load = full.load(pace, *requests, open);
                settings.load = load.as_ref().copied().unwrap_or(0.0);
                watch.run.load = settings.load;
                let offered = match pace {
                    Pace::Load(_) => None,
                    Pace::Rate(rate) => Some(rate),
                };
                let run = |policies| {
                    replay_watched(&settings, policies, open()?, *requests, watch)
                        .map_err(|error| error.to_string())
                };
                (offered, load.and(policies).and_then(run))
            }
        };
        let (host_name, contender) = self.names(entrant);
        Cell {
            subject: at,
            host: at_host,
            entrant,
            workload: subject.name().to_owned(),
            load: settings.load,
            offered_per_second,
            burstiness: subject.burstiness(),
            contender,
            host_name,
            settings: Setup::of(&settings),
            made_by: self.made_by.clone(),
            policies: slots,
            outcome,
        }
    }
}
