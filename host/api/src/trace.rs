//! `POST /admin/trace/start`: what a recording says, one JSON object a line.
//!
//! Times are microseconds since the host started, lengths are tokens. Texts are never written: a prompt is
//! its length and the names of its blocks, keyed by a secret of the recording, so that equal beginnings can
//! be seen to be equal and nothing else. Tenants and sessions have names of the recording, too.

use serde::{Deserialize, Serialize};

/// Of the lines' layout.
pub const FORMAT: u32 = 1;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The first.
    Head(Box<Head>),
    /// A request arrived and was taken.
    Request(Request),
    /// A request arrived and was turned away.
    Refused(Refused),
    /// A request started for the first time.
    Started(Started),
    /// A running sequence gave its blocks back.
    Preempted {
        /// Which.
        id: u64,
    },
    /// A request ended.
    End(End),
    /// The engine made a step.
    Step(Step),
    /// The scheduler was asked.
    Decision(Box<Decision>),
    /// The admission or the prefix-cache policy was asked.
    Asked(Box<Asked>),
    /// A policy came into force.
    Policy(Policy),
    /// Lines are missing here: the recording's reader was too slow.
    Lost {
        /// How many things that happened were not written down.
        happenings: u64,
    },
    /// The last.
    Foot(Foot),
}

/// The host, and what the lines' numbers mean.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Of the lines' layout.
    pub format: u32,
    /// Version of the host.
    pub host: String,
    /// Name under which the model is served.
    pub model: String,
    /// What computes.
    pub device: String,
    /// When the recording began.
    pub at: u64,
    /// The engine's settings.
    pub engine: Settings,
    /// The three slots' policies.
    pub policies: Vec<Policy>,
    /// Whether decisions are recorded.
    pub decisions: bool,
}

/// The engine's settings, as a simulator needs them to be the same host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named as the host's flags and settings are")]
pub struct Settings {
    pub block_size: u32,
    pub total_blocks: u32,
    pub max_seq_len: u32,
    pub max_batch_tokens: u32,
    pub max_batch_size: u32,
    pub prefill_chunk: u32,
    pub max_prefill_requests: u32,
    pub max_prefill_tokens: u32,
    pub max_waiting_requests: u32,
    pub prefix_caching: bool,
    pub prompt_cache_entries: u32,
    pub prompt_cache_ttl_us: u64,
    #[serde(default)]
    pub speculate: u32,
    #[serde(default)]
    pub plan_ahead: bool,
}

/// A policy in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// `scheduler`, `admission` or `prefix-cache`.
    pub kind: String,
    /// Itself; for a list of admission policies, each of them.
    pub members: Vec<Member>,
}

/// A component, or a native policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// SHA-256 of the component; empty for a native policy.
    pub sha256: String,
    /// As it was configured.
    pub config: serde_json::Value,
}

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Its name in the other lines.
    pub id: u64,
    /// When the host had read it.
    pub sent: u64,
    /// When the engine took it: between two steps.
    pub at: u64,
    /// Whose it is.
    pub tenant: u32,
    /// Its conversation, or 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub session: u64,
    /// Larger is more urgent.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub priority: i32,
    /// Microseconds from `sent` until its first token is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft: Option<u64>,
    /// Length of the prompt.
    pub prompt: u32,
    /// Most tokens that it may generate.
    pub max: u32,
    /// Names of the prompt's full blocks, each of everything up to its end.
    pub blocks: Vec<u64>,
    /// Name of the whole prompt.
    pub whole: u64,
    /// The prompt begins with what an earlier request asked and was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<Shares>,
    /// The turn of its conversation that ended before it was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
}

/// A beginning that an earlier request had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shares {
    /// Which.
    pub id: u64,
    /// How many of its tokens, prompt and answer.
    pub tokens: u32,
}

/// A request that was turned away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Which, where it had been taken first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub id: u64,
    /// When.
    pub at: u64,
    /// Length of the prompt.
    pub prompt: u32,
    /// Most tokens that it might have generated.
    pub max: u32,
    /// As in `State::counters`.
    pub reason: String,
}

/// A request's first start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// Which.
    pub id: u64,
    /// Prompt tokens found in the prefix cache.
    pub cached: u32,
    /// The prefix-cache event, `CROSS_REQUEST_HIT` say.
    pub event: String,
}

/// A request's end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Which.
    pub id: u64,
    /// When.
    pub at: u64,
    /// `eos`, `stop`, `length`, `cancelled`, `failed`, or `open` where the recording ended first.
    pub reason: String,
    /// Tokens generated.
    pub output: u32,
}

/// One engine step: what it computed, as columns, and how long that took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its number.
    pub step: u64,
    /// When it was planned.
    pub at: u64,
    /// When its tokens were there.
    pub end: u64,
    /// Microseconds on the device.
    pub device: u64,
    /// Whether the host had been waiting before, rather than busy since the step before.
    pub waited: bool,
    /// Sequences in it.
    pub ids: Vec<u64>,
    /// Tokens that each computed.
    pub tokens: Vec<u32>,
    /// Length of each one's context afterwards.
    pub context: Vec<u32>,
    /// Tokens that came of each: mostly 1 or 0, more where guesses at the next ones were right.
    pub drew: Vec<u8>,
    /// Tokens of context that those who computed one token had in common with another, counted from the second on.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeated: u64,
}

/// A question to the scheduler and its answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// SHA-256 of the component that was asked; empty for a native policy.
    pub sha256: String,
    /// Its state before, in hex, where the decision before was not its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// What it was shown: the columns of `wit/scheduler.wit`.
    pub view: serde_json::Value,
    /// What it planned.
    pub plan: Plan,
}

/// A question to the admission or the prefix-cache policy and its answer. Layouts are those of fault files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// `admission` or `prefix-cache`.
    pub kind: String,
    /// As in `Decision`; of a list of admission policies all of them, joined by `+`.
    pub sha256: String,
    /// As in `Decision`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Blocks that a prefix cache knew besides, where its state is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knew: Option<serde_json::Value>,
    /// The function, and what it was shown.
    pub question: serde_json::Value,
    /// What it answered.
    pub answer: serde_json::Value,
}

/// A plan as it was given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Who computes.
    pub run: Vec<u64>,
    /// At most how many tokens each.
    pub tokens: Vec<u32>,
    /// Who gives its blocks back.
    pub preempt: Vec<u64>,
    /// When it wants to be asked again.
    pub wake: u64,
}

/// Why a recording ended, and what it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foot {
    /// When.
    pub at: u64,
    /// `stopped`, `full`, `shutdown`.
    pub reason: String,
    /// Requests.
    pub requests: u64,
    /// Steps.
    pub steps: u64,
    /// Things that happened and were not written down.
    pub lost: u64,
}

/// Answer to `POST /admin/trace/stop`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// Things that happened and were handed to the recording.
    pub happenings: u64,
    /// Those that its reader was too slow for.
    pub lost: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_usual(priority: &i32) -> bool {
    *priority == 0
}
