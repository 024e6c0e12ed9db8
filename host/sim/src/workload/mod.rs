//! Traffic: who asks, when, for how much, and what prompts have in common.
//!
//! A workload is one or more streams. A stream belongs to one tenant and has its arrivals, its lengths and
//! its kind of text. Open streams follow their arrival process whatever the host does; the turns of a
//! conversation wait for the answer before them. Rates are given as a part of what the device can finish,
//! so that one workload means the same pressure on every profile. What is asked is drawn from the seed alone:
//! a host that answers later is asked later, but nothing else.

mod arrivals;
mod capacity;
mod generator;
mod lengths;
mod named;
mod source;

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
    /// Offered work when the load is 1, as a part of what the device could finish of this stream alone.
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

impl Workload {
    /// Tokens of its longest request, prompt and answer: less no host may take. Of a conversation the last turn
    /// counts, since those before it may be left out.
    pub fn longest(&self) -> u32 {
        let longest = |stream: &Stream| {
            let shared = match stream.text {
                Text::Shared { tokens, .. } => tokens,
                Text::Unique | Text::Conversation { .. } => 0,
            };
            shared + stream.prompt.max() + stream.output.max()
        };
        self.streams.iter().map(longest).max().unwrap_or(0)
    }
}

impl Text {
    /// Most tokens that a prompt may have before a conversation's oldest turns are left out, where it and an answer
    /// of `output_tokens` have so much room.
    fn window(self, max_seq_len: u32, output_tokens: u32) -> usize {
        let fits = max_seq_len.saturating_sub(output_tokens);
        match self {
            Self::Conversation { window, .. } => window.min(fits) as usize,
            Self::Unique | Self::Shared { .. } => fits as usize,
        }
    }

    /// Mean requests of what begins at once.
    fn turns(self) -> f64 {
        match self {
            Self::Conversation { turns, .. } => f64::from(turns.max(1)),
            Self::Unique | Self::Shared { .. } => 1.0,
        }
    }
}
