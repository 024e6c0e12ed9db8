//! `infer bench serve`: a load generator for any completions endpoint, with the in-process sequential
//! baseline measured beside it, in the same run and on the same prompts.
//!
//! Rules: one warm-up request per side, a monotonic clock, exact lengths (token ids in, end tokens ignored),
//! prompts that share nothing unless requested, every error counted and shown. Unless `--url` names a server,
//! the load generator runs in the same process as the server that it starts, so both compete for the cores as
//! they would on one machine.

mod about;
mod client;
pub mod engine;
mod engine_text;
mod history;
mod html;
pub mod kernels;
pub mod limits;
mod load;
pub mod loading;
mod machine;
mod neighbours;
mod recording;
mod report;
mod report_text;
pub mod robust;
mod sse;
mod stats;
mod subject;
mod sustained;
mod workload;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use infer_core::SamplingParams;

pub use about::About;
pub use client::{Api, Dialect, Lengths, Target};
pub use html::html;
pub use machine::Machine;
pub use recording::{Recording, tenant_name};
pub use report::{Comparison, Goodput, Report, Sample, Targets, WorkloadReport};
pub(crate) use sse::read;
pub use stats::{Distribution, Summary};
pub use subject::SlotPolicy;
pub use sustained::{RateSearch, Sustained};
pub use workload::{Arrival, Job, Shape, Workload};

use crate::generate::{Generated, Generation, Sequential};
use client::{Ask, Client};
use history::History;
use load::Served;

/// A measurement to run.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The server, and how to talk to it.
    pub target: Target,
    /// Workloads to send, in order.
    pub workloads: Vec<Workload>,
    /// Traces to replay, after the workloads.
    pub recordings: Vec<Recording>,
    /// Seed of the workloads, for the report.
    pub seed: u64,
    /// Latency targets of goodput.
    pub targets: Targets,
    /// Searches for the highest rate of each workload that meets the targets, instead of sending it once; without a
    /// baseline.
    pub search: Option<RateSearch>,
    /// Describes the model and the server, for the report.
    pub subject: String,
    /// Settings other than the defaults, for the report.
    pub settings: BTreeMap<String, String>,
    /// Live policies of the server by slot, for the report; empty if they are unknown.
    pub policies: BTreeMap<String, SlotPolicy>,
}

/// Why there is nothing to report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The endpoint can't be reached, or doesn't serve completions.
    #[error("--url: {0}")]
    Target(String),
    /// The baseline failed, so there is nothing to compare with.
    #[error("the in-process baseline failed: {0}")]
    Baseline(String),
}

/// Measures every workload over HTTP, and in process if a baseline is given.
///
/// # Errors
/// [`BenchError`] if nothing could be measured; failed requests are part of the report instead.
pub async fn run(plan: Plan, baseline: Option<Sequential>) -> Result<Report, BenchError> {
    let client = Client::connect(plan.target.clone()).await.map_err(BenchError::Target)?;
    let mut baseline = baseline;
    let machine = Machine::here();
    let (mut workloads, mut sustained) = (Vec::new(), Vec::new());
    for workload in &plan.workloads {
        if let Some(search) = &plan.search {
            // Boxed, because it would make this large future twice as large.
            let (found, runs) = Box::pin(search.run(&client, workload, &plan)).await?;
            sustained.push(found);
            workloads.extend(runs);
            continue;
        }
        let progress = Progress::new(&workload.about());
        if let Err(error) = warm_up(&client, &workload.warm_up, None).await {
            if workloads.is_empty() {
                return Err(BenchError::Target(format!("{}: {error}", client.url())));
            }
            // Keep the report of the workloads that were measured before this one.
            let error = format!("not sent: {error}");
            eprintln!("{}: {error}", workload.name);
            let served = Served::failed(workload.jobs.len(), &error);
            workloads.push(WorkloadReport::new(workload.about(), &served, Targets::default(), None));
            continue;
        }
        let (served, local, returned) =
            Box::pin(measure(&client, workload, plan.seed, baseline, &progress)).await?;
        baseline = returned;
        workloads.push(WorkloadReport::new(workload.about(), &served, plan.targets, local.as_deref()));
        progress.end();
    }
    for recording in &plan.recordings {
        let progress = Progress::new(&recording.about());
        warn_of_long_requests(recording, client.longest().await);
        let key = recording.keys.values().next().map(String::as_str);
        let wrong = |error| BenchError::Target(format!("{}: {error}", client.url()));
        warm_up(&client, &recording.warm_up(), key).await.map_err(wrong)?;
        let served = recording.replay(&client, |failed| progress.step("served", failed)).await;
        workloads.push(WorkloadReport::new(recording.about(), &served, plan.targets, None));
        progress.end();
    }
    Ok(Report {
        subject: plan.subject,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        settings: plan.settings,
        policies: plan.policies,
        policies_after: BTreeMap::new(),
        url: client.url().to_owned(),
        dialect: plan.target.dialect,
        api: plan.target.api,
        model: client.model().to_owned(),
        seed: plan.seed,
        load_average_after: machine::load_average(),
        machine,
        workloads,
        sustained,
    })
}

/// When the server at a target was started, in seconds since 1970; `None` unless it is a host of ours that tells.
pub async fn started(target: &Target) -> Option<u64> {
    Client::connect(target.clone()).await.ok()?.started().await
}

/// Sends a workload without a baseline.
async fn served(client: &Client, workload: &Workload, plan: &Plan) -> Result<WorkloadReport, BenchError> {
    let progress = Progress::new(&workload.about());
    let wrong = |error| BenchError::Target(format!("{}: {error}", client.url()));
    warm_up(client, &workload.warm_up, None).await.map_err(wrong)?;
    let (served, ..) = Box::pin(measure(client, workload, plan.seed, None, &progress)).await?;
    progress.end();
    Ok(WorkloadReport::new(workload.about(), &served, plan.targets, None))
}

/// Says how many requests of a trace the server will refuse for their lengths, if it tells its limit.
fn warn_of_long_requests(recording: &Recording, limit: Option<u32>) {
    let Some(limit) = limit else { return };
    let (beyond, all) = (recording.beyond(limit), recording.requests.len());
    if beyond > 0 {
        eprintln!(
            "{}: {beyond} of {all} requests have more tokens, prompt and output together, than the {limit} that the server takes \
             (--max-seq-len); it refuses them, and the report counts them as failed",
            recording.name
        );
    }
}

async fn warm_up(client: &Client, job: &Job, api_key: Option<&str>) -> Result<(), String> {
    let mut history = History::default();
    history.ask(job);
    let outcome = client.run_one(&Ask { api_key, ..Ask::new(&history, job.max_tokens) }).await;
    outcome.map(drop).map_err(|error| format!("the warm-up request failed: {error}"))
}

/// Sends the workload between two halves of the baseline, so that drift of the machine (another busy process,
/// thermal throttling) affects both sides alike.
async fn measure(
    client: &Client,
    workload: &Workload,
    seed: u64,
    baseline: Option<Sequential>,
    progress: &Progress,
) -> Result<(Served, Option<Vec<Generated>>, Option<Sequential>), BenchError> {
    let serve = async || {
        let progress = progress.clone();
        load::serve(client, workload, seed, move |failed| progress.step("served", failed)).await
    };
    let Some(model) = baseline else { return Ok((serve().await, None, None)) };
    let mut conversations: Vec<Vec<Job>> = workload.conversations_of().map(<[Job]>::to_vec).collect();
    let second_half = conversations.split_off(conversations.len().div_ceil(2));
    let warm = generate_all(model, vec![vec![workload.warm_up.clone()]], None).await?;
    let first = generate_all(warm.0, conversations, Some(progress.clone())).await?;
    let served = serve().await;
    let second = generate_all(first.0, second_half, Some(progress.clone())).await?;
    let mut local = first.1;
    local.extend(second.1);
    Ok((served, Some(local), Some(second.0)))
}

/// Generates the conversations sequentially in this process, on a blocking thread.
async fn generate_all(
    mut model: Sequential,
    conversations: Vec<Vec<Job>>,
    progress: Option<Progress>,
) -> Result<(Sequential, Vec<Generated>), BenchError> {
    let work = move || {
        let mut all = Vec::new();
        for jobs in conversations {
            let mut history = History::default();
            for job in jobs {
                history.ask(&job);
                let what = Generation {
                    prompt: history.tokens().to_vec(),
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
                history.answered(&generated.tokens, "");
                all.push(generated);
            }
        }
        Ok((model, all))
    };
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Greedy sampling, so that both sides compute the same tokens.
fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

/// Progress on stderr: a line that is redrawn on a terminal, else one line per workload.
#[derive(Clone)]
struct Progress {
    name: String,
    jobs: usize,
    steps: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
    terminal: bool,
}

impl Progress {
    fn new(about: &About) -> Self {
        eprintln!("{}: {}", about.name, about.describe());
        Self {
            name: about.name.clone(),
            jobs: about.requests,
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
