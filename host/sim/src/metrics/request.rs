//! What became of a single request.

use infer_core::event::PrefixEvent;
use infer_core::ids::Micros;
use infer_core::request::Usage;
use serde::Serialize;

use super::{count, millis};

/// A request that has ended. Durations are in milliseconds of virtual time from its arrival.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestOutcome {
    /// Number in the order of arrival, from 1.
    pub request: u64,
    /// Its tenant.
    pub tenant: u32,
    /// Its conversation; `None` for a single request.
    pub conversation: Option<u64>,
    /// Time of arrival in seconds.
    pub arrived_s: f64,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// What the prompt found in the cache; `None` if it never started.
    pub event: Option<&'static str>,
    /// Prompt tokens found in the cache when it first started.
    pub cached_tokens: u32,
    /// Tokens computed for its prompt and, after preemptions, for its output again.
    pub prefilled_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// Time until it first ran; `None` if it never did.
    pub queue_ms: Option<f64>,
    /// Time until its first token; `None` if there was none.
    pub ttft_ms: Option<f64>,
    /// Time until it ended.
    pub latency_ms: f64,
    /// Times that it was preempted.
    pub preemptions: u32,
    /// How it ended.
    pub ending: Ending,
    /// Tokens of the prompt behind the conversation so far: all that a client sends if the host keeps the history.
    pub new_tokens: u32,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// With its whole output.
    Finished,
    /// In an error.
    Failed,
    /// It was not let in.
    Refused,
}

/// Follows a run. A closure follows the number of requests that have ended.
pub trait Watch {
    /// `ended` requests have ended so far.
    fn progress(&mut self, ended: u64);

    /// A request has ended.
    fn request(&mut self, _request: &RequestOutcome) {}
}

impl<F: FnMut(u64)> Watch for F {
    fn progress(&mut self, ended: u64) {
        self(ended);
    }
}

/// What is known of a request when it arrives, and what its prompt found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub request: u64,
    pub tenant: u32,
    pub conversation: Option<u64>,
    pub arrived: Micros,
    pub prompt_tokens: u32,
    pub new_tokens: u32,
    pub event: Option<PrefixEvent>,
}

impl Known {
    /// The request at its end, `now`; without `usage` if it never started.
    pub fn outcome(self, ending: Ending, usage: Option<&Usage>, now: Micros) -> RequestOutcome {
        let Self { request, tenant, conversation, arrived, prompt_tokens, new_tokens, event } = self;
        let after = |at: Micros| (at != Micros::NEVER).then(|| millis(at.since(arrived)));
        RequestOutcome {
            request,
            tenant,
            conversation,
            arrived_s: count(arrived.0) / 1e6,
            prompt_tokens,
            event: event.map(PrefixEvent::name),
            cached_tokens: usage.map_or(0, |usage| usage.cached_tokens),
            prefilled_tokens: usage.map_or(0, |usage| usage.prefilled_tokens),
            output_tokens: usage.map_or(0, |usage| usage.generated_tokens),
            queue_ms: usage.and_then(|usage| after(usage.started)),
            ttft_ms: usage.and_then(|usage| after(usage.first_token)),
            latency_ms: millis(now.since(arrived)),
            preemptions: usage.map_or(0, |usage| usage.preemptions),
            ending,
            new_tokens,
        }
    }
}
