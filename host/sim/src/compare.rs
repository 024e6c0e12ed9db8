//! Sweeps: every contender on every workload at every load, in parallel; the order of the results is fixed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use infer_core::engine::Policies;
use serde::Serialize;

use crate::metrics::Outcome;
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
}

impl std::fmt::Debug for Subject<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Subject").field(&self.name()).finish()
    }
}

/// A comparison to run.
#[derive(Debug)]
pub struct Sweep<'a> {
    /// Hardware, limits and seed; the load is replaced by those of the subjects.
    pub settings: Settings,
    /// Sets of policies.
    pub contenders: Vec<Contender<'a>>,
    /// Traffic, each with its loads.
    pub subjects: Vec<(Subject<'a>, Vec<f64>)>,
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
    /// Name of the subject.
    pub workload: String,
    /// Load.
    pub load: f64,
    /// Name of the contender.
    pub contender: String,
    /// Result.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// A run to make.
struct Planned<'a> {
    subject: usize,
    load: f64,
    contender: &'a Contender<'a>,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {message}")]
pub struct SweepError {
    /// The contender, or the trace.
    pub what: String,
    /// What went wrong.
    pub message: String,
}

impl Sweep<'_> {
    /// Runs everything; results are ordered by subject, then load, then contender. Calls `progress` regularly.
    ///
    /// # Errors
    /// If a contender can't be created or a trace can't be read.
    pub fn run(&self, progress: impl Fn(Progress) + Sync) -> Result<Vec<Cell>, SweepError> {
        let plan: Vec<Planned<'_>> = self.plan().collect();
        let runs = plan.len();
        let all: Option<u64> = plan.iter().map(|planned| self.subjects[planned.subject].0.requests()).sum();
        let cells: Vec<Mutex<Option<Result<Cell, SweepError>>>> =
            (0..runs).map(|_| Mutex::default()).collect();
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
                        let (Some(cell), Some(planned)) = (cells.get(at), plan.get(at)) else { return };
                        let mut reported = 0;
                        let outcome = self.cell(planned, |so_far| {
                            if so_far >= reported + REPORT_EVERY {
                                report(so_far - reported, 0);
                                reported = so_far;
                            }
                        });
                        let in_all = outcome.as_ref().map_or(reported, |cell| cell.outcome.requests);
                        *cell.lock().expect("no holder panics") = Some(outcome);
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

    fn plan(&self) -> impl Iterator<Item = Planned<'_>> {
        self.subjects.iter().enumerate().flat_map(move |(subject, (_, loads))| {
            let of = move |&load| {
                self.contenders.iter().map(move |contender| Planned { subject, load, contender })
            };
            loads.iter().flat_map(of)
        })
    }

    fn cell(&self, planned: &Planned<'_>, progress: impl FnMut(u64)) -> Result<Cell, SweepError> {
        let Planned { subject: at, load, contender } = *planned;
        let subject = &self.subjects[at].0;
        let wrong = |what: &str, message: String| SweepError { what: what.to_owned(), message };
        let policies = (contender.make)().map_err(|message| wrong(&contender.name, message))?;
        let settings = Settings { load, ..self.settings.clone() };
        let outcome = match subject {
            Subject::Made(workload) => simulate(&settings, policies, workload, progress),
            Subject::Recorded { name, requests, open } => {
                let trace = open().map_err(|message| wrong(name, message))?;
                replay(&settings, policies, trace, *requests, progress)
                    .map_err(|error| wrong(name, error.to_string()))?
            }
        };
        let (workload, contender) = (subject.name().to_owned(), contender.name.clone());
        Ok(Cell { subject: at, workload, load, contender, outcome })
    }
}
