//! `infer bench serve`: a load generator for any completions endpoint, with the in-process sequential
//! baseline measured beside it, in the same run and on the same prompts.
//!
//! Rules: one warm-up request on each side, a monotonic clock, exact lengths (token ids in, end tokens
//! ignored), prompts that share nothing unless asked, every error counted and shown. The generator lives
//! in the process of the server that it starts, so client work competes with the engine as it would on
//! one machine; `--url` measures a server elsewhere. Deliberately absent: open-loop arrival processes
//! and traces, which belong to the simulator.

mod client;
mod machine;
mod report;
mod sse;
mod stats;
mod workload;

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use infer_core::SamplingParams;

pub use client::{Dialect, Target};
pub use machine::Machine;
pub use report::{Comparison, Report, WorkloadReport};
pub use stats::{Distribution, Summary};
pub use workload::{Job, Shape, Workload};

use crate::generate::{Generated, Generation, Sequential};
use client::{Client, Outcome};

/// Results of a workload's jobs, in the jobs' order.
struct Served {
    outcomes: Vec<Outcome>,
    wall_s: f64,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where requests go.
    pub target: Target,
    /// What is sent.
    pub workloads: Vec<Workload>,
    /// Seed of the workloads, for the report.
    pub seed: u64,
    /// Says what is served and by whom, for the report.
    pub subject: String,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The endpoint doesn't answer as one.
    #[error("--url: {0}")]
    Target(String),
    /// The baseline failed; a comparison without it would be a guess.
    #[error("the in-process baseline failed: {0}")]
    Baseline(String),
}

/// Measures every workload over HTTP, and in process where a baseline is given.
///
/// # Errors
/// [`BenchError`] where nothing could be measured; requests that fail are part of the report.
pub async fn run(plan: Plan, baseline: Option<Sequential>) -> Result<Report, BenchError> {
    let client = Client::connect(plan.target.clone()).await.map_err(BenchError::Target)?;
    let mut baseline = baseline;
    let machine = Machine::here();
    let mut workloads = Vec::new();
    for workload in &plan.workloads {
        let progress = Progress::new(workload);
        client.run_one(&workload.warm_up).await.map_err(|error| {
            BenchError::Target(format!("{}: the warm-up request failed: {error}", client.url()))
        })?;
        let (served, local, returned) = measure(&client, workload, baseline, &progress).await?;
        baseline = returned;
        workloads.push(WorkloadReport::new(workload, &served.outcomes, served.wall_s, local.as_deref()));
        progress.end();
    }
    Ok(Report {
        subject: plan.subject,
        url: client.url().to_owned(),
        dialect: plan.target.dialect,
        model: client.model().to_owned(),
        seed: plan.seed,
        load_average_after: machine::load_average(),
        machine,
        workloads,
    })
}

/// Serves the workload between two halves of the baseline, so that a machine that drifts (another busy
/// process, a clock that throttles) treats both sides alike.
async fn measure(
    client: &Client,
    workload: &Workload,
    baseline: Option<Sequential>,
    progress: &Progress,
) -> Result<(Served, Option<Vec<Generated>>, Option<Sequential>), BenchError> {
    let middle = workload.jobs.len().div_ceil(2);
    let Some(model) = baseline else {
        return Ok((serve(client, workload, progress).await, None, None));
    };
    let warm = generate_all(model, vec![workload.warm_up.clone()], None).await?;
    let first = generate_all(warm.0, workload.jobs[..middle].to_vec(), Some(progress.clone())).await?;
    let served = serve(client, workload, progress).await;
    let second = generate_all(first.0, workload.jobs[middle..].to_vec(), Some(progress.clone())).await?;
    let mut local = first.1;
    local.extend(second.1);
    Ok((served, Some(local), Some(second.0)))
}

/// Sends the workload's jobs, as many at a time as it says; each slot sends its next when one ends.
async fn serve(client: &Client, workload: &Workload, progress: &Progress) -> Served {
    let next = Arc::new(AtomicUsize::new(0));
    let jobs = Arc::new(workload.jobs.clone());
    let begun = Instant::now();
    let mut slots = tokio::task::JoinSet::new();
    for _ in 0..workload.concurrency.min(jobs.len()) {
        let (client, next, jobs, progress) = (client.clone(), next.clone(), jobs.clone(), progress.clone());
        slots.spawn(async move {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(job) = jobs.get(index) else { return done };
                let outcome = client.run_one(job).await;
                progress.step("served", outcome.is_err());
                done.push((index, outcome));
            }
        });
    }
    let mut indexed: Vec<(usize, Outcome)> = slots.join_all().await.into_iter().flatten().collect();
    let wall_s = begun.elapsed().as_secs_f64();
    indexed.sort_by_key(|(index, _)| *index);
    Served { outcomes: indexed.into_iter().map(|(_, outcome)| outcome).collect(), wall_s }
}

/// One job after the other in this process, on a thread that may compute.
async fn generate_all(
    mut model: Sequential,
    jobs: Vec<Job>,
    progress: Option<Progress>,
) -> Result<(Sequential, Vec<Generated>), BenchError> {
    let work = move || {
        let mut all = Vec::with_capacity(jobs.len());
        for job in jobs {
            let what = Generation {
                prompt: job.prompt,
                max_tokens: job.max_tokens,
                sampling: greedy(),
                ignore_eos: true,
                stop: Vec::new(),
            };
            let generated =
                model.generate(&what, |_| {}).map_err(|error| BenchError::Baseline(error.to_string()))?;
            if let Some(progress) = &progress {
                progress.step("in process", false);
            }
            all.push(generated);
        }
        Ok((model, all))
    };
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// The likeliest token each time, so that both sides do the same work on the same tokens.
fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

/// Progress on stderr: a line that rewrites itself on a terminal, else one line per workload.
#[derive(Clone)]
struct Progress {
    name: &'static str,
    jobs: usize,
    steps: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
    terminal: bool,
}

impl Progress {
    fn new(workload: &Workload) -> Self {
        eprintln!("{}: {}", workload.name, workload.describe());
        Self {
            name: workload.name,
            jobs: workload.jobs.len(),
            steps: Arc::default(),
            failed: Arc::default(),
            terminal: std::io::stderr().is_terminal(),
        }
    }

    fn step(&self, side: &str, failed: bool) {
        let steps = self.steps.fetch_add(1, Ordering::Relaxed) + 1;
        let failures = self.failed.fetch_add(usize::from(failed), Ordering::Relaxed) + usize::from(failed);
        if self.terminal {
            let jobs = self.jobs;
            eprint!("\r\x1b[K{}: {side}, {steps} done (each side has {jobs}), {failures} failed", self.name);
            let _ = std::io::stderr().flush();
        }
    }

    fn end(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
        let failed = self.failed.load(Ordering::Relaxed);
        if failed > 0 {
            eprintln!("{}: {failed} of {} served requests failed", self.name, self.jobs);
        }
    }
}
