//! Sweeps: every contender on every workload at every load with every seed, in parallel; the order of the results is
//! fixed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use infer_core::config::EngineConfig;
use infer_core::engine::Policies;
use serde::{Serialize, Serializer};

use crate::metrics::Outcome;
use crate::report::Setup;
use crate::run::{Settings, replay, simulate};
use crate::trace::Reader;
use crate::workload::Workload;

/// Opens a trace at its start.
pub type Open<'a> = Box<dyn Fn() -> Result<Reader<'a>, String> + Sync + 'a>;

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

/// Traffic for the contenders.
pub enum Subject<'a> {
    /// Synthetic traffic.
    Made(Workload),
    /// Recorded traffic; its load is the factor by which it is replayed faster than recorded.
    Recorded {
        /// Name in reports.
        name: String,
        /// Maximum number of requests.
        requests: u64,
        /// Opens the trace, once per run.
        open: Open<'a>,
    },
}

impl Subject<'_> {
    /// Name in reports.
    pub fn name(&self) -> &str {
        match self {
            Self::Made(workload) => &workload.name,
            Self::Recorded { name, .. } => name,
        }
    }

    /// Number of requests, if known in advance.
    fn requests(&self) -> Option<u64> {
        match self {
            Self::Made(workload) => Some(workload.requests),
            Self::Recorded { .. } => None,
        }
    }

    fn run(
        &self,
        settings: &Settings,
        policies: Policies,
        progress: impl FnMut(u64),
    ) -> Result<Outcome, String> {
        match self {
            Self::Made(workload) => Ok(simulate(settings, policies, workload, progress)),
            Self::Recorded { requests, open, .. } => {
                replay(settings, policies, open()?, *requests, progress).map_err(|error| error.to_string())
            }
        }
    }
}

impl std::fmt::Debug for Subject<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Subject").field(&self.name()).finish()
    }
}

/// A comparison to run.
#[derive(Debug)]
pub struct Sweep<'a> {
    /// Hardware and limits; load and seed are replaced by those below.
    pub settings: Settings,
    /// Sets of policies.
    pub contenders: Vec<Contender<'a>>,
    /// Traffic, each with its loads.
    pub subjects: Vec<(Subject<'a>, Vec<f64>)>,
    /// Seeds; everything is run once with each. A trace is the same with every seed, but the variation of a measured
    /// device is not.
    pub seeds: Vec<u64>,
    /// Parallel runs.
    pub threads: usize,
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
    /// Index of the contender; names need not be unique.
    #[serde(skip)]
    pub entrant: usize,
    /// Name of the subject.
    pub workload: String,
    /// Load.
    pub load: f64,
    /// Name of the contender.
    pub contender: String,
    /// Hardware, limits and seed.
    pub settings: Setup,
    /// Result, or why there is none.
    #[serde(flatten, serialize_with = "flat")]
    pub outcome: Result<Outcome, String>,
}

impl Cell {
    /// Names the run and what went wrong, if it failed.
    pub fn failure(&self) -> Option<String> {
        let error = self.outcome.as_ref().err()?;
        let Self { workload, load, contender, settings, .. } = self;
        Some(format!("{contender} at load {load:.2} with seed {} on {workload}: {error}", settings.seed))
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
struct Planned {
    subject: usize,
    load: f64,
    entrant: usize,
    seed: u64,
}

impl Sweep<'_> {
    /// Runs everything; results are ordered by subject, then load, then contender, then seed. A run fails if its
    /// contender can't be created or its trace can't be replayed, and leaves the others alone. Calls `progress`
    /// regularly.
    pub fn run(&self, progress: impl Fn(Progress) + Sync) -> Vec<Cell> {
        let plan = self.plan();
        let runs = plan.len();
        let all: Option<u64> = plan.iter().map(|planned| self.subjects[planned.subject].0.requests()).sum();
        let cells: Vec<Mutex<Option<Cell>>> = (0..runs).map(|_| Mutex::default()).collect();
        let (next, done, ended) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicU64::new(0));
        let report = |more: u64, runs_more: usize| {
            let requests = (ended.fetch_add(more, Ordering::Relaxed) + more, all);
            let ended_runs = done.fetch_add(runs_more, Ordering::Relaxed) + runs_more;
            progress(Progress { runs: (ended_runs, runs), requests });
        };
        std::thread::scope(|scope| {
            for _ in 0..self.threads.clamp(1, runs.max(1)) {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let (Some(cell), Some(&planned)) = (cells.get(at), plan.get(at)) else { return };
                        let mut reported = 0;
                        let ran = self.cell(planned, |so_far| {
                            if so_far >= reported + REPORT_EVERY {
                                report(so_far - reported, 0);
                                reported = so_far;
                            }
                        });
                        let in_all = ran.outcome.as_ref().map_or(reported, |outcome| outcome.requests);
                        *cell.lock().expect("no holder panics") = Some(ran);
                        report(in_all.saturating_sub(reported), 1);
                    }
                });
            }
        });
        cells
            .into_iter()
            .map(|cell| cell.into_inner().expect("no thread panicked").expect("every cell was run"))
            .collect()
    }

    fn plan(&self) -> Vec<Planned> {
        let mut plan = Vec::new();
        for (subject, (_, loads)) in self.subjects.iter().enumerate() {
            for &load in loads {
                for entrant in 0..self.contenders.len() {
                    plan.extend(self.seeds.iter().map(|&seed| Planned { subject, load, entrant, seed }));
                }
            }
        }
        plan
    }

    fn cell(&self, planned: Planned, progress: impl FnMut(u64)) -> Cell {
        let Planned { subject: at, load, entrant, seed } = planned;
        let (subject, contender) = (&self.subjects[at].0, &self.contenders[entrant]);
        // As in a sweep with this seed alone.
        let engine = EngineConfig { hash_key: [seed, 0], ..self.settings.engine.clone() };
        let settings = Settings { engine, load, seed, ..self.settings.clone() };
        let outcome = (contender.make)().and_then(|policies| subject.run(&settings, policies, progress));
        Cell {
            subject: at,
            entrant,
            workload: subject.name().to_owned(),
            load,
            contender: contender.name.clone(),
            settings: Setup::of(&settings),
            outcome,
        }
    }
}
