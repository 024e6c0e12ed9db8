//! Recorded traffic: who asked when, for how much, and what prompts had in common.
//!
//! A reader turns one file format into [`Recorded`] requests, one at a time, so that a file of any length
//! takes no more memory than its longest line and the few thousand rows that are put in order. Texts are
//! never recorded; blocks of a prompt have names, and equal names are equal text. Deliberately absent: the
//! host's own format, which belongs to its wire types.

mod azure;
mod burstgpt;
mod lines;
mod mooncake;
mod order;
mod replay;

use std::io::BufRead;

use serde::Serialize;

pub use lines::Lines;
pub use order::in_order;
pub(crate) use replay::Replay;

/// One request of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recorded {
    /// Its name in the trace: others may follow it, or share its text.
    pub id: u64,
    /// Microseconds to its arrival from the trace's first; of a reader that isn't put `in_order` yet, from any time.
    pub at_us: u64,
    /// Whose it is.
    pub tenant: u32,
    /// The conversation that it belongs to, or 0.
    pub session: u64,
    /// Larger is more urgent.
    pub priority: i32,
    /// Microseconds within which its first token was due.
    pub ttft_us: Option<u64>,
    /// Tokens of its prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens that it generated, at least 1.
    pub output_tokens: u32,
    /// Tokens that it might have generated, at least `output_tokens`.
    pub max_tokens: u32,
    /// What its prompt has in common with others.
    pub text: Text,
    /// It was sent after another one had ended.
    pub after: Option<After>,
    /// Whether later requests may follow it or share its text.
    pub followed: bool,
}

/// A prompt without its words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Text {
    /// Tokens in a block.
    pub block_tokens: u32,
    /// Names of its full blocks, each of everything up to its end. Blocks beyond these are like nobody's.
    pub blocks: Vec<u64>,
    /// Name of the whole prompt, for what stands behind its full blocks; 0 where nothing is known.
    pub whole: u64,
    /// It begins with what another request asked and was answered.
    pub shares: Option<Shares>,
}

/// The beginning of a prompt that another request had, answer included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shares {
    /// Whose.
    pub id: u64,
    /// How many of its tokens.
    pub tokens: u32,
}

/// A request that could not be sent before another one had ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct After {
    /// Which.
    pub id: u64,
    /// How long after.
    pub think_us: u64,
}

/// Most tokens of a prompt or of an answer: no model reads more, so a larger count is a fault of the file.
pub const MAX_TOKENS: u64 = 1 << 24;

/// Requests of a trace, one after another.
pub type Reader<'a> = Box<dyn Iterator<Item = Result<Recorded, TraceError>> + Send + 'a>;

/// A file that is no trace, or not wholly.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file can't be read.
    #[error("line {line}: can't be read: {source}")]
    Io {
        /// The line that was to be read, from 1.
        line: u64,
        /// Why.
        source: std::io::Error,
    },
    /// Of those who wait for answers there are too many to read on.
    #[error(
        "{waiting} requests wait for answers, and one behind them came late: this host is far slower than the \
         recorded one, so play the trace slower (a smaller load), or a part of it"
    )]
    Behind {
        /// Those who wait.
        waiting: usize,
    },
    /// A line says something else than it should.
    #[error("line {line}, column {column}: {message}")]
    At {
        /// Which line, from 1.
        line: u64,
        /// Which character of it, from 1.
        column: usize,
        /// What is wrong, and what would be right.
        message: String,
    },
}

/// The public formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Azure's LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`, a time of day each.
    Azure,
    /// Mooncake's traces: JSON lines with milliseconds, lengths, and a name for every 512 tokens.
    Mooncake,
    /// BurstGPT's traces: `Timestamp,Model,Request tokens,..`, seconds; each model becomes a tenant.
    BurstGpt,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Azure, Self::Mooncake, Self::BurstGpt];

    /// Short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Azure => "azure",
            Self::Mooncake => "mooncake",
            Self::BurstGpt => "burstgpt",
        }
    }

    /// The format whose files begin with this line.
    pub fn of(first_line: &str) -> Option<Self> {
        let line = first_line.trim_start_matches('\u{feff}').trim();
        match line {
            _ if line.starts_with('{') && line.contains("\"hash_ids\"") => Some(Self::Mooncake),
            _ if azure::is_head(line) => Some(Self::Azure),
            _ if burstgpt::is_head(line) => Some(Self::BurstGpt),
            _ => None,
        }
    }

    /// Reads a file of this format, in the order of its times.
    pub fn read<'a>(self, file: impl BufRead + Send + 'a) -> Reader<'a> {
        match self {
            Self::Azure => in_order(azure::Azure::new(file)),
            Self::Mooncake => in_order(mooncake::Mooncake::new(file)),
            Self::BurstGpt => in_order(burstgpt::BurstGpt::new(file)),
        }
    }
}
