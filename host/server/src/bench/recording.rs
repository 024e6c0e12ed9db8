//! A trace as a load: its requests at their recorded times, or after the requests that they waited for.
//!
//! Text isn't in a trace, so prompts are generated such that they share with each other what the recorded ones shared.
//! An output is as long as the recorded one, which its `max_tokens` tells the server: an admission policy that counts on
//! limits has it easier here than it had with the recorded clients.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use infer_core::Micros;
use infer_sim::trace::{Recorded, Replay};
use infer_sim::workload::{Arrival as Due, Traffic as _};
use tokio::task::JoinSet;

use super::about::About;
use super::client::{Ask, Client, Outcome};
use super::history::History;
use super::load::Served;
use super::workload::{Arrival, Job, Shape};

/// A trace to be replayed.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The trace's name.
    pub name: String,
    /// Its requests, in order.
    pub requests: Vec<Recorded>,
    /// Factor by which it is replayed faster than recorded.
    pub speed: f64,
    /// The mean rate per second to which that scales its times, if that was asked for.
    pub rate: Option<f64>,
    /// Token ids of prompts are below this.
    pub vocab_size: u32,
    /// Determines the prompts' tokens.
    pub seed: u64,
    /// Keys of its tenants, by their numbers in the trace; the others use the target's key.
    pub keys: BTreeMap<u32, String>,
}

impl Recording {
    /// What a report says of it.
    #[must_use]
    pub fn about(&self) -> About {
        let range = |of: fn(&Recorded) -> u32| {
            let (least, most) = (self.requests.iter().map(of).min(), self.requests.iter().map(of).max());
            (least.unwrap_or(0), most.unwrap_or(0))
        };
        let shape = Shape {
            prompt_tokens: range(|request| request.prompt_tokens),
            output_tokens: range(|request| request.output_tokens),
            shared_prefix: 0,
            vocab_size: self.vocab_size,
        };
        About {
            name: self.name.clone(),
            requests: self.requests.len(),
            turns: 1,
            arrival: match self.rate {
                None => Arrival::Recorded(self.speed),
                Some(per_second) => Arrival::Scaled { per_second, speed: self.speed },
            },
            shape,
        }
    }

    /// A short request, which shares nothing with the trace's. Its output has a usual length, because hosts learn from it
    /// what to expect.
    #[must_use]
    pub fn warm_up(&self) -> Job {
        let mut outputs: Vec<u32> = self.requests.iter().map(|request| request.output_tokens).collect();
        outputs.sort_unstable();
        let max_tokens = outputs.get(outputs.len() / 2).copied().unwrap_or(1);
        Job { prompt: (0..32).map(|at| at % self.vocab_size).collect(), max_tokens }
    }

    /// How many requests need more tokens, prompt and output together, than a server takes.
    #[must_use]
    pub fn beyond(&self, limit: u32) -> usize {
        let tokens = |request: &Recorded| u64::from(request.prompt_tokens) + u64::from(request.output_tokens);
        self.requests.iter().filter(|request| tokens(request) > limit.into()).count()
    }

    /// Whether prompts contain outputs of earlier requests.
    #[must_use]
    pub fn has_turns(&self) -> bool {
        self.requests.iter().any(|request| request.text.shares.is_some())
    }

    /// Whether its requests belong to several tenants.
    fn has_tenants(&self) -> bool {
        self.requests.iter().any(|request| request.tenant != self.requests[0].tenant)
    }

    fn traffic(&self) -> Replay<'_> {
        let reader = Box::new(self.requests.iter().cloned().map(Ok));
        Replay::new(reader, self.speed, u64::MAX, u32::MAX).within(self.vocab_size).seeded(self.seed)
    }

    /// Sends all requests; calls `step` after each with whether it failed.
    pub(super) async fn replay(&self, client: &Client, step: impl Fn(bool)) -> Served {
        let begun = Instant::now();
        let now = || Micros(u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX));
        let mut traffic = self.traffic();
        let mut talks = JoinSet::new();
        let mut all = Vec::with_capacity(self.requests.len());
        let mut sent = 0;
        loop {
            while let Some(due) = traffic.pop(now()) {
                let key = self.keys.get(&due.request.tenant.0).cloned();
                talks.spawn(talk(client.clone(), begun, Turn { due, key, index: sent }));
                sent += 1;
            }
            let next = traffic.next_at().map(|at| begun + Duration::from_micros(at.0));
            tokio::select! {
                Some(said) = talks.join_next() => {
                    let said = said.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
                    step(said.outcome.is_err());
                    if let Some(id) = said.followed {
                        traffic.ended(id, said.outcome.as_ref().ok().map(|timing| &timing.tokens[..]), now());
                    }
                    all.push(said);
                }
                () = tokio::time::sleep_until(next.unwrap_or(begun).into()), if next.is_some() => {}
                else => break,
            }
        }
        let wall_s = begun.elapsed().as_secs_f64();
        all.sort_by_key(|said| said.index);
        let late_ms = all.iter().map(|said| said.sent_ms - said.due_ms).fold(0.0, f64::max);
        let tenants = match self.has_tenants() {
            true => all.iter().map(|said| tenant_name(said.tenant)).collect(),
            false => Vec::new(),
        };
        let sent_ms = all.iter().map(|said| said.sent_ms).collect();
        let mut outcomes: Vec<Outcome> = all.into_iter().map(|said| said.outcome).collect();
        let error = traffic.error().map_or_else(String::new, |error| format!("not sent: {error}"));
        outcomes.resize(self.requests.len(), Err(error));
        Served { outcomes, sent_ms, tenants, late_ms, wall_s }
    }
}

/// The name of a trace's tenant.
#[must_use]
pub fn tenant_name(tenant: u32) -> String {
    format!("tenant-{tenant}")
}

/// A request that is due.
struct Turn {
    due: Due,
    /// Its tenant's key.
    key: Option<String>,
    /// Its place among all.
    index: usize,
}

/// A request that was sent.
struct Said {
    index: usize,
    tenant: u32,
    /// Its key in the traffic, if others may wait for it.
    followed: Option<u64>,
    due_ms: f64,
    sent_ms: f64,
    outcome: Outcome,
}

async fn talk(client: Client, begun: Instant, Turn { due, key, index }: Turn) -> Said {
    let Due { at, conversation, request, output_tokens, .. } = due;
    let mut history = History::default();
    history.ask(&Job { prompt: request.prompt.to_vec(), max_tokens: output_tokens });
    // A recorded deadline is a little shorter than its client's, which was in whole milliseconds.
    let deadline_ms = request.deadline.since(at).0.div_ceil(1_000).max(1);
    let ask = Ask {
        history: &history,
        max_tokens: output_tokens,
        api_key: key.as_deref(),
        session: request.session.0,
        priority: request.priority,
        ttft_deadline_ms: (request.deadline != Micros::NEVER).then_some(deadline_ms),
        expected_output_tokens: request.expected_output,
    };
    let sent_ms = begun.elapsed().as_secs_f64() * 1e3;
    let outcome = client.run_one(&ask).await;
    let due_ms = at.0 as f64 / 1e3;
    Said { index, tenant: request.tenant.0, followed: conversation, due_ms, sent_ms, outcome }
}
