//! Traffic: who asks, when, for how much, and what prompts have in common.
//!
//! A workload is one or more streams. A stream belongs to one tenant and has its arrivals, its lengths and
//! its kind of text. Open streams follow their arrival process whatever the host does; the turns of a
//! conversation wait for the answer before them. Rates are given as a part of what the device can finish,
//! so that one workload means the same pressure on every profile.

mod arrivals;
mod generator;
mod lengths;
mod named;

pub use arrivals::Arrivals;
pub(crate) use generator::text;
pub use generator::{Arrival, Generator};
pub use lengths::Lengths;

use infer_core::ids::Micros;
use serde::{Deserialize, Serialize};

/// Where requests come from.
pub(crate) trait Traffic {
    /// When the next request arrives, as far as is known now; `None` where none comes unless one ends.
    fn next_at(&self) -> Option<Micros>;

    /// The next request, if it arrives by `now`.
    fn pop(&mut self, now: Micros) -> Option<Arrival>;

    /// What has an [`Arrival::conversation`] was answered with these tokens; `None` where it ended badly.
    fn ended(&mut self, conversation: u64, reply: Option<&[u32]>, now: Micros);
}

/// Named traffic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Short name.
    pub name: String,
    /// One sentence.
    pub about: String,
    /// Requests in all; each turn of a conversation is one.
    pub requests: u64,
    /// Who asks.
    pub streams: Vec<Stream>,
}

/// Requests of one kind from one tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// Whose requests they are.
    pub tenant: u32,
    /// Larger is more urgent.
    pub priority: i32,
    /// Milliseconds within which the first token is due; `None` promises nothing.
    pub ttft_ms: Option<u64>,
    /// Offered work, as a part of what the device can finish when the load is 1.
    pub share: f64,
    /// When requests (or conversations) begin.
    pub arrivals: Arrivals,
    /// New prompt tokens of a request, without what it shares with others.
    pub prompt: Lengths,
    /// Tokens that it generates.
    pub output: Lengths,
    /// The `max_tokens` that clients send.
    pub limit: Limit,
    /// What prompts have in common.
    pub text: Text,
}

/// The `max_tokens` that clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The next power of two: they know roughly what they want.
    Tight,
    /// Always this; they don't care.
    Fixed(u32),
}

/// What prompts have in common.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Text {
    /// Nothing.
    Unique,
    /// Each begins with one of so many fixed texts: instructions, system prompts, few-shot examples.
    Shared {
        /// How many texts there are; each is as likely as the others.
        prefixes: u32,
        /// Tokens of each.
        tokens: u32,
    },
    /// Each request sends the conversation so far, replies included.
    Conversation {
        /// Mean number of turns.
        turns: u32,
        /// Mean seconds between an answer and the next question.
        think_s: f64,
        /// Longest prompt; beyond it the oldest turns are left out.
        window: u32,
    },
}

impl Stream {
    /// Mean prompt tokens that a request brings that can't be cached.
    fn fresh_tokens(&self) -> f64 {
        self.prompt.mean()
    }

    /// Begins per second (of requests, or of conversations) that offer `load` of a device's capacity.
    fn rate(&self, capacity: f64, load: f64) -> f64 {
        let requests = load * self.share * capacity;
        match self.text {
            Text::Conversation { turns, .. } => requests / f64::from(turns.max(1)),
            Text::Unique | Text::Shared { .. } => requests,
        }
    }
}
