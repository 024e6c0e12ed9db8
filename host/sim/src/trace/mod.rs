//! Recorded traffic: arrival times, lengths, and what prompts had in common.
//!
//! A reader turns a file format into [`Recorded`] requests one at a time, so that memory is bounded by the longest line
//! and the few thousand rows that are sorted. Text is never recorded: the blocks of a prompt have ids, and equal ids
//! mean equal text. Deliberately absent: the host's own format, which belongs to its wire types.

mod azure;
mod burstgpt;
mod empty;
mod hashed;
mod lines;
mod order;
mod rate;
mod replay;

use std::io::BufRead;
use std::sync::Arc;

use serde::Serialize;

pub use empty::Empty;
pub use lines::Lines;
pub use order::in_order;
pub use rate::recorded_rate;
pub use replay::Replay;

/// One request of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recorded {
    /// Id in the trace, to which other requests may refer.
    pub id: u64,
    /// Arrival in microseconds since the first request of the trace; since any time before [`in_order`] is applied.
    pub at_us: u64,
    /// Tenant.
    pub tenant: u32,
    /// Its conversation, or 0.
    pub session: u64,
    /// Larger is more urgent.
    pub priority: i32,
    /// Microseconds within which its first token was due.
    pub ttft_us: Option<u64>,
    /// Tokens of its prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens that it generated, at least 1.
    pub output_tokens: u32,
    /// The request's `max_tokens`, at least `output_tokens`. Public formats don't contain it, see [`limited`].
    pub max_tokens: u32,
    /// How many tokens its client expected it to generate, if the client said so. Public formats don't contain it.
    pub expected_output: Option<u32>,
    /// Tokens at the start of its prompt that are known to be its conversation's already, beside what `text` shares.
    pub continued: u32,
    /// What its prompt has in common with others.
    pub text: Text,
    /// The request whose end it waited for.
    pub after: Option<After>,
    /// Whether later requests may follow it or share its text.
    pub followed: bool,
    /// Whether it wants the vector of its prompt, and so generates nothing, whatever the length of its output says.
    pub embeds: bool,
    /// What the file calls its tenant, if it has more than a number.
    #[serde(skip)]
    pub tenant_name: Option<Arc<str>>,
}

/// Identity of a prompt's text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Text {
    /// Tokens per block.
    pub block_tokens: u32,
    /// Ids of its full blocks, each for the whole prefix up to the block's end. Text after them is unique.
    pub blocks: Vec<u64>,
    /// Id of the whole prompt, which identifies the text after its full blocks; 0 if unknown.
    pub whole: u64,
    /// A prefix that consists of another request's prompt and output.
    pub shares: Option<Shares>,
}

/// A prefix shared with another request's prompt and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shares {
    /// The other request.
    pub id: u64,
    /// Length of the prefix.
    pub tokens: u32,
}

/// A dependency on the end of another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct After {
    /// The other request.
    pub id: u64,
    /// Microseconds between its end and this request.
    pub think_us: u64,
}

/// Maximum tokens of a prompt or an output. No model takes more, so a larger number is an error in the file.
pub const MAX_TOKENS: u64 = 1 << 24;

/// The `max_tokens` of requests in public formats, whose clients would not have known the length of the output.
pub const MAX_NEW_TOKENS: u32 = 1_024;

/// The requests of a trace.
pub type Reader<'a> = Box<dyn Iterator<Item = Result<Recorded, TraceError>> + Send + 'a>;

/// Why a trace can't be read or replayed to its end.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file can't be read.
    #[error("line {line}: can't be read: {source}")]
    Io {
        /// The line, from 1.
        line: u64,
        /// The cause.
        source: std::io::Error,
    },
    /// Too many requests wait for the end of others to read on in time.
    #[error(
        "{waiting} requests wait for others to finish, and one behind them is late: the host is far slower than the \
         recorded one; replay the trace more slowly, or a part of it"
    )]
    Behind {
        /// Number of waiting requests.
        waiting: usize,
    },
    /// No speed of the replay gives it a rate.
    #[error("its {requests} requests came at one time, which has no rate to scale; replay it without a rate")]
    AtOnce {
        /// Number of requests.
        requests: u64,
    },
    /// The file isn't in the order of time, and not nearly so.
    #[error(
        "request {request} came {early_s:.3} s before one that stands {window} or more requests ahead of it; sort the \
         trace by time"
    )]
    Unsorted {
        /// The request's id, which in public formats is its number in the file.
        request: u64,
        /// How much earlier it came, in seconds.
        early_s: f64,
        /// Requests that are sorted at once.
        window: usize,
    },
    /// A line is malformed.
    #[error("line {line}, column {column}: {message}")]
    At {
        /// The line, from 1.
        line: u64,
        /// The character in it, from 1.
        column: usize,
        /// What is wrong, and what is expected.
        message: String,
    },
}

/// The public formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Azure's LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`.
    Azure,
    /// Mooncake's traces: JSON lines with milliseconds, lengths, and an id per 512 tokens.
    Mooncake,
    /// Alibaba Bailian's traces: JSON lines with seconds, lengths, chats, and an id per 16 tokens.
    Bailian,
    /// BurstGPT's traces: `Timestamp,Model,Request tokens,..` in seconds, since version 2 with sessions; each model
    /// becomes a tenant.
    BurstGpt,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::Azure, Self::Mooncake, Self::Bailian, Self::BurstGpt];

    /// Short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Azure => "azure",
            Self::Mooncake => "mooncake",
            Self::Bailian => "bailian",
            Self::BurstGpt => "burstgpt",
        }
    }

    /// What a file of this format begins with, or what each of its lines has.
    pub fn expects(self) -> String {
        match self {
            Self::Azure => format!("the columns {}", azure::NAMES.join(", ")),
            Self::Mooncake => "JSON lines with timestamp, input_length, output_length, hash_ids".to_owned(),
            Self::Bailian => "these and chat_id".to_owned(),
            Self::BurstGpt => format!("the columns {}", burstgpt::NAMES.join(", ")),
        }
    }

    /// The format of a file with this first line.
    pub fn of(first_line: &str) -> Option<Self> {
        let line = first_line.trim_start_matches('\u{feff}').trim();
        match line {
            _ if hashed::is_bailian(line) => Some(Self::Bailian),
            _ if hashed::is_first(line) => Some(Self::Mooncake),
            _ if azure::is_head(line) => Some(Self::Azure),
            _ if burstgpt::is_head(line) => Some(Self::BurstGpt),
            _ => None,
        }
    }

    /// Reads a file of this format, sorted by time. Requests have a `max_tokens` of [`MAX_NEW_TOKENS`], or of their
    /// output's length if that is more.
    pub fn read<'a>(self, file: impl BufRead + Send + 'a) -> Reader<'a> {
        self.read_counting(file, &Empty::default())
    }

    /// Reads like [`Self::read`], and counts in `empty` the rows without prompt or output tokens, see
    /// [`Self::leaves_out_empty`].
    pub fn read_counting<'a>(self, file: impl BufRead + Send + 'a, empty: &Empty) -> Reader<'a> {
        match self {
            Self::Azure => in_order(azure::Azure::new(file, empty)),
            Self::Mooncake => in_order(hashed::Hashed::mooncake(file, empty)),
            Self::Bailian => in_order(hashed::Hashed::bailian(file, empty)),
            Self::BurstGpt => in_order(burstgpt::BurstGpt::new(file, empty)),
        }
    }

    /// Whether rows without prompt or output tokens are left out; otherwise they get a token of each that they lack.
    pub fn leaves_out_empty(self) -> bool {
        self == Self::BurstGpt
    }
}

/// Requests of a public format with another `max_tokens`: `max_tokens`, or less if a host that takes `max_seq_len`
/// tokens has no more room after the prompt, but at least the output's length. 1 stands for exactly that length, which
/// no host knows beforehand.
pub fn limited(reader: Reader<'_>, max_tokens: u32, max_seq_len: u32) -> Reader<'_> {
    let limit = move |recorded: Recorded| {
        let room = max_seq_len.saturating_sub(recorded.prompt_tokens);
        Recorded { max_tokens: max_tokens.min(room).max(recorded.output_tokens), ..recorded }
    };
    Box::new(reader.map(move |recorded| recorded.map(limit)))
}

/// Requests of which the first token is due `ttft_us` microseconds after their arrival, if they name no time
/// themselves. Public formats don't.
pub fn due(reader: Reader<'_>, ttft_us: u64) -> Reader<'_> {
    let due = move |recorded: Recorded| Recorded { ttft_us: recorded.ttft_us.or(Some(ttft_us)), ..recorded };
    Box::new(reader.map(move |recorded| recorded.map(due)))
}
