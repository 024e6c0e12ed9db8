//! Sends a workload: closed loop (a fixed number at a time) or open loop (at times drawn in advance, so that a
//! slow server can't slow down its own load).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::client::{Ask, Client, Outcome};
use super::history::History;
use super::workload::{Arrival, Job, Workload};

/// Results of a workload's jobs, in the jobs' order.
#[derive(Default)]
pub struct Served {
    /// One per job.
    pub outcomes: Vec<Outcome>,
    /// When each was sent, in milliseconds from the start; 0 for a request that was never sent.
    pub sent_ms: Vec<f64>,
    /// Whose each was; empty if all are one tenant's.
    pub tenants: Vec<String>,
    /// Longest delay with which a request of an open loop was sent, in milliseconds.
    pub late_ms: f64,
    /// Seconds from the first request sent to the last one finished.
    pub wall_s: f64,
}

impl Served {
    /// Results of so many requests that were never sent, all with this error.
    pub fn failed(requests: usize, error: &str) -> Self {
        Self {
            outcomes: vec![Err(error.to_owned()); requests],
            sent_ms: vec![0.0; requests],
            ..Self::default()
        }
    }
}

/// A finished job.
struct Done {
    index: usize,
    sent_ms: f64,
    outcome: Outcome,
}

/// Sends all jobs; calls `step` after each with whether it failed.
pub async fn serve(
    client: &Client,
    workload: &Workload,
    seed: u64,
    step: impl Fn(bool) + Clone + Send + 'static,
) -> Served {
    let jobs: Arc<[Job]> = workload.jobs.clone().into();
    let turns = workload.turns;
    let begun = Instant::now();
    let talk = {
        let (client, jobs) = (client.clone(), Arc::clone(&jobs));
        move |conversation: usize| {
            let (client, jobs, step) = (client.clone(), Arc::clone(&jobs), step.clone());
            async move { converse(&client, &jobs, conversation * turns, turns, begun, step).await }
        }
    };
    let conversations = jobs.len().div_ceil(turns);
    let mut tasks = tokio::task::JoinSet::new();
    let moments = workload.arrivals_ms(seed);
    match &moments {
        Some(moments) => {
            for (conversation, at) in moments.iter().enumerate() {
                tokio::time::sleep_until((begun + Duration::from_secs_f64(at / 1e3)).into()).await;
                tasks.spawn(talk(conversation));
            }
        }
        None => {
            let Arrival::Closed(at_once) = workload.arrival else { unreachable!("no arrival times") };
            let next = Arc::new(AtomicUsize::new(0));
            for _ in 0..at_once.min(conversations) {
                let (talk, next) = (talk.clone(), Arc::clone(&next));
                tasks.spawn(async move {
                    let mut done = Vec::new();
                    loop {
                        let conversation = next.fetch_add(1, Ordering::Relaxed);
                        if conversation >= conversations {
                            return done;
                        }
                        done.extend(talk(conversation).await);
                    }
                });
            }
        }
    }
    let mut all: Vec<Done> = tasks.join_all().await.into_iter().flatten().collect();
    let wall_s = begun.elapsed().as_secs_f64();
    all.sort_by_key(|done| done.index);
    let sent_ms: Vec<f64> = all.iter().map(|done| done.sent_ms).collect();
    let firsts = sent_ms.iter().step_by(turns);
    let late = firsts.zip(moments.iter().flatten()).map(|(sent, at)| sent - at);
    let late_ms = late.fold(0.0, f64::max);
    let outcomes = all.into_iter().map(|done| done.outcome).collect();
    Served { outcomes, sent_ms, tenants: Vec::new(), late_ms, wall_s }
}

/// Sends a conversation turn by turn. Turns after a failed one are not sent.
async fn converse(
    client: &Client,
    jobs: &[Job],
    first: usize,
    turns: usize,
    begun: Instant,
    step: impl Fn(bool),
) -> Vec<Done> {
    let mut history = History::default();
    let mut done = Vec::new();
    let mut broken = false;
    for (index, job) in jobs.iter().enumerate().skip(first).take(turns) {
        history.ask(job);
        let (sent_ms, outcome) = if broken {
            (0.0, Err("not sent: an earlier turn of its conversation failed".to_owned()))
        } else {
            let sent_ms = begun.elapsed().as_secs_f64() * 1e3;
            (sent_ms, client.run_one(&Ask::new(&history, job.max_tokens)).await)
        };
        match &outcome {
            Ok(timing) => history.answered(&timing.tokens, &timing.text),
            Err(_) => broken = true,
        }
        step(outcome.is_err());
        done.push(Done { index, sent_ms, outcome });
    }
    done
}
