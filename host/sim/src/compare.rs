//! Sweeps: every contender on every workload at every load, in parallel, in an order that doesn't depend
//! on who finishes first.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use infer_core::engine::Policies;
use serde::Serialize;

use crate::metrics::Outcome;
use crate::run::{Settings, simulate};
use crate::workload::Workload;

/// One set of policies that stands for election.
pub struct Contender<'a> {
    /// Shown in reports.
    pub name: String,
    /// Makes fresh instances; called on the thread that runs them.
    pub make: Box<dyn Fn() -> Result<Policies, String> + Sync + 'a>,
}

impl std::fmt::Debug for Contender<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contender").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What is to be compared.
#[derive(Debug)]
pub struct Sweep<'a> {
    /// Hardware, limits and seed; its load is replaced by each of `loads`.
    pub settings: Settings,
    /// Who is compared.
    pub contenders: Vec<Contender<'a>>,
    /// On what.
    pub workloads: Vec<Workload>,
    /// At how much of what the device can finish.
    pub loads: Vec<f64>,
    /// Runs at a time.
    pub threads: usize,
}

/// One run of a sweep.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The workload.
    pub workload: String,
    /// The load.
    pub load: f64,
    /// The contender.
    pub contender: String,
    /// What it came to.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// A contender that could not run.
#[derive(Debug, thiserror::Error)]
#[error("{contender}: {message}")]
pub struct SweepError {
    /// Which.
    pub contender: String,
    /// Why.
    pub message: String,
}

impl Sweep<'_> {
    /// Runs in all.
    pub fn runs(&self) -> usize {
        self.contenders.len() * self.workloads.len() * self.loads.len()
    }

    /// Runs everything: by workload, then load, then contender. `progress` hears how many runs have ended.
    pub fn run(&self, progress: impl Fn(usize) + Sync) -> Result<Vec<Cell>, SweepError> {
        let runs = self.runs();
        let cells: Vec<Mutex<Option<Result<Cell, SweepError>>>> =
            (0..runs).map(|_| Mutex::default()).collect();
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..self.threads.clamp(1, runs.max(1)) {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(cell) = cells.get(at) else { return };
                        let outcome = self.cell(at);
                        *cell.lock().expect("nobody panics while holding it") = Some(outcome);
                        progress(done.fetch_add(1, Ordering::Relaxed) + 1);
                    }
                });
            }
        });
        cells
            .into_iter()
            .map(|cell| cell.into_inner().expect("no thread panicked").expect("every cell was run"))
            .collect()
    }

    fn cell(&self, at: usize) -> Result<Cell, SweepError> {
        let contender = &self.contenders[at % self.contenders.len()];
        let rest = at / self.contenders.len();
        let load = self.loads[rest % self.loads.len()];
        let workload = &self.workloads[rest / self.loads.len()];
        let policies = (contender.make)()
            .map_err(|message| SweepError { contender: contender.name.clone(), message })?;
        let settings = Settings { load, ..self.settings.clone() };
        let outcome = simulate(&settings, policies, workload, |_| {});
        Ok(Cell { workload: workload.name.clone(), load, contender: contender.name.clone(), outcome })
    }
}
