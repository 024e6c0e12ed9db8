//! Synthetic traffic: arrivals, lengths, and what prompts have in common.
//!
//! A workload has one or more streams. A stream belongs to a tenant and has its own arrivals, lengths and kind of text.
//! Single requests follow their arrival process regardless of the host; the turns of a conversation wait for the
//! previous turn to finish. Rates are relative to a device's capacity, so that a workload means the same pressure on
//! every profile. The seed alone determines the requests: a slower host gets the next turn of a conversation later, but
//! no other requests, and where a turn is refused or fails, the client asks its next one. Conversations that a run reports
//! on begin and end among others, so the load is what was asked for all along.
//!
//! Where several texts are shared, `zipf` says how much more popular some are than others: the k-th most popular one is
//! drawn with a probability proportional to 1 / k^zipf. With 0, the default, all are equally likely.

mod arrivals;
mod capacity;
mod file;
mod generator;
mod lengths;
mod named;
mod popularity;
mod source;

pub use arrivals::Arrivals;
pub use capacity::Capacity;
pub use file::WorkloadError;
pub(crate) use generator::text;
pub use generator::{Arrival, Generator};
pub use lengths::Lengths;

use infer_core::ids::Micros;
use popularity::Popularity;
use serde::{Deserialize, Serialize};

/// Turns of the longest conversations with this mean.
fn longest(turns: u32) -> u32 {
    turns.saturating_mul(2).saturating_sub(1).max(1)
}

/// A source of requests.
pub trait Traffic {
    /// When the next request arrives, as far as known; `None` if none arrives before one finishes.
    fn next_at(&self) -> Option<Micros>;

    /// The next request, if it arrives by `now`.
    fn pop(&mut self, now: Micros) -> Option<Arrival>;

    /// Whether everything has arrived that the run reports on.
    fn is_over(&self) -> bool {
        false
    }

    /// Reports the output of a request with an [`Arrival::conversation`]; `None` if it did not finish.
    fn ended(&mut self, conversation: u64, reply: Option<&[u32]>, now: Micros);
}

/// Named traffic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Short name.
    pub name: String,
    /// One sentence.
    #[serde(default)]
    pub about: String,
    /// Total number of requests; each turn of a conversation is one.
    #[serde(default = "usual_requests")]
    pub requests: u64,
    /// Its streams.
    pub streams: Vec<Stream>,
}

/// Requests of one kind from one tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Tenant of the requests.
    #[serde(default)]
    pub tenant: u32,
    /// Larger is more urgent.
    #[serde(default)]
    pub priority: i32,
    /// Milliseconds within which the first token is due; `None` for no deadline.
    pub ttft_ms: Option<u64>,
    /// Offered load at load 1, as a fraction of the device's capacity for this stream alone.
    pub share: f64,
    /// When requests or conversations start.
    pub arrivals: Arrivals,
    /// New prompt tokens of a request, without a shared prefix or history; of repeated prompts, all tokens.
    pub prompt: Lengths,
    /// Output tokens.
    pub output: Lengths,
    /// The `max_tokens` that clients send.
    pub limit: Limit,
    /// What prompts have in common.
    pub text: Text,
}

/// The `max_tokens` that clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Limit {
    /// The output length rounded up to a power of two: clients know it roughly.
    Tight,
    /// Always this number.
    Fixed(u32),
}

/// What prompts have in common.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Text {
    /// Nothing.
    Unique,
    /// Each starts with one of several fixed texts: instructions, system prompts, few-shot examples.
    Shared {
        /// Number of texts.
        prefixes: u32,
        /// Tokens of each.
        tokens: u32,
        /// Exponent of their popularity.
        #[serde(default)]
        zipf: f64,
    },
    /// Each is one of several whole prompts, so that all of it may be cached.
    Repeated {
        /// Number of prompts.
        prompts: u32,
        /// Exponent of their popularity.
        #[serde(default)]
        zipf: f64,
    },
    /// The prompt of each request has the conversation so far before it, outputs included.
    Conversation {
        /// Mean number of turns.
        turns: u32,
        /// Mean seconds between the end of a turn and the next one.
        think_s: f64,
        /// Longest prompt, its system prompt included; beyond it, the oldest turns are dropped.
        window: u32,
        /// What each begins with; `None` for nothing.
        #[serde(default)]
        system: Option<System>,
    },
}

/// Texts of which each conversation begins with one. It is never dropped.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// Number of texts.
    pub prompts: u32,
    /// Tokens of each.
    pub tokens: u32,
    /// Exponent of their popularity.
    #[serde(default)]
    pub zipf: f64,
}

impl Workload {
    /// Requests of a run unless it says otherwise.
    pub const REQUESTS: u64 = 2_000;

    /// The workload with this `ttft_ms` for the streams whose requests have no deadline.
    #[must_use]
    pub fn due(mut self, ttft_ms: u64) -> Self {
        self.streams.iter_mut().for_each(|stream| _ = stream.ttft_ms.get_or_insert(ttft_ms));
        self
    }

    /// The workload with gamma-distributed gaps of this burstiness in place of Poisson processes. Streams with other
    /// arrivals keep theirs.
    #[must_use]
    pub fn bursting(mut self, burstiness: f64) -> Self {
        let arrivals = self.streams.iter_mut().map(|stream| &mut stream.arrivals);
        arrivals
            .filter(|arrivals| arrivals.burstiness().is_some())
            .for_each(|arrivals| *arrivals = Arrivals::Gamma { burstiness });
        self
    }

    /// That of its arrivals; `None` if streams differ, or if any has another process.
    pub fn burstiness(&self) -> Option<f64> {
        let mut all = self.streams.iter().map(|stream| stream.arrivals.burstiness());
        let first = all.next()??;
        all.all(|other| other == Some(first)).then_some(first)
    }

    /// Tokens of its longest request, prompt plus output, which a host must accept. Of a conversation, only the last
    /// turn counts, because earlier ones may be dropped.
    pub fn longest(&self) -> u32 {
        let longest = |stream: &Stream| stream.text.head() + stream.prompt.max() + stream.output.max();
        self.streams.iter().map(longest).max().unwrap_or(0)
    }
}

fn usual_requests() -> u64 {
    Workload::REQUESTS
}

impl Text {
    /// Tokens of the text before what a request or conversation has for itself.
    fn head(self) -> u32 {
        match self {
            Self::Shared { tokens, .. } => tokens,
            Self::Conversation { system, .. } => system.map_or(0, |system| system.tokens),
            Self::Unique | Self::Repeated { .. } => 0,
        }
    }

    /// How popular the shared texts are.
    fn popularity(self) -> Popularity {
        match self {
            Self::Shared { prefixes, zipf, .. } => Popularity::zipf(prefixes, zipf),
            Self::Repeated { prompts, zipf }
            | Self::Conversation { system: Some(System { prompts, zipf, .. }), .. } => {
                Popularity::zipf(prompts, zipf)
            }
            Self::Unique | Self::Conversation { system: None, .. } => Popularity::zipf(1, 0.0),
        }
    }

    /// Maximum tokens of a conversation's turns before it drops its oldest, given the maximum sequence length and the
    /// output length.
    fn window(self, max_seq_len: u32, output_tokens: u32) -> usize {
        let fits = max_seq_len.saturating_sub(output_tokens);
        let prompt = match self {
            Self::Conversation { window, .. } => window.min(fits),
            Self::Unique | Self::Shared { .. } | Self::Repeated { .. } => fits,
        };
        prompt.saturating_sub(self.head()) as usize
    }

    /// Mean seconds from the first to the last turn of the longest conversations, if a response takes `answer_s`.
    fn lasts_s(self, answer_s: f64) -> f64 {
        match self {
            Self::Conversation { turns, think_s, .. } => {
                f64::from(longest(turns) - 1) * (think_s.max(0.0) + answer_s)
            }
            Self::Unique | Self::Shared { .. } | Self::Repeated { .. } => 0.0,
        }
    }

    /// Mean number of requests per arrival.
    fn turns(self) -> f64 {
        match self {
            Self::Conversation { turns, .. } => f64::from(turns.max(1)),
            Self::Unique | Self::Shared { .. } | Self::Repeated { .. } => 1.0,
        }
    }
}
