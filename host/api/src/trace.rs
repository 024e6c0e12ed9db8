//! Response of `POST /admin/trace/start`: a recording of the host's load, as JSON lines.
//!
//! Times are microseconds on the host's clock, which begins with its first start, lengths are tokens. Text is never
//! recorded: a prompt is its length and the hashes of its blocks, keyed by a secret of the recording, so that equal
//! prefixes can be recognized and nothing else. Tenants and sessions are pseudonyms, too.

use serde::{Deserialize, Serialize};

/// Version of the format.
pub const FORMAT: u32 = 1;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The first line.
    Head(Box<Head>),
    /// A request arrived and the engine accepted it.
    Request(Request),
    /// A request arrived and was refused.
    Refused(Refused),
    /// A request started for the first time.
    Started(Started),
    /// A running sequence was preempted.
    Preempted {
        /// The request.
        id: u64,
    },
    /// A request ended.
    End(End),
    /// The engine finished a step.
    Step(Step),
    /// The scheduler made a plan.
    Decision(Box<Decision>),
    /// The admission or the prefix-cache policy made a decision.
    Asked(Box<Asked>),
    /// A policy became live, or is live where decisions resume after a loss.
    Policy(Policy),
    /// Events are missing here, because the recording's reader was too slow.
    Lost {
        /// How many.
        happenings: u64,
    },
    /// The last line.
    Foot(Foot),
}

/// The host and its settings, which a replay needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Version of the format: [`FORMAT`].
    pub format: u32,
    /// Version of the host.
    pub host: String,
    /// Name of the served model.
    pub model: String,
    /// `cpu`, or the GPU's name.
    pub device: String,
    /// When the recording started.
    pub at: u64,
    /// The engine's settings.
    pub engine: Settings,
    /// The live policies of the three slots.
    pub policies: Vec<Policy>,
    /// Tenants that were granted other than the default terms when the recording started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<Tenant>,
    /// Whether policy decisions are recorded.
    pub decisions: bool,
}

/// The engine's settings, which a simulator needs to behave like the host.
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
    pub offload_blocks: u32,
    #[serde(default)]
    pub speculate: u32,
    #[serde(default)]
    pub plan_ahead: bool,
    #[serde(default = "five_seconds")]
    pub starvation_bound_us: u64,
}

/// The bound of hosts that don't record it.
fn five_seconds() -> u64 {
    5_000_000
}

/// What a tenant is granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Its number in the other lines.
    pub tenant: u32,
    /// Share beside other tenants, in thousandths.
    pub weight_permille: u32,
    /// Tokens a minute; 0 for no limit.
    pub rate_per_minute: u32,
    /// Tokens at once; 0 for a minute's worth.
    pub burst: u32,
}

/// The live policy of a slot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// `scheduler`, `admission` or `prefix-cache`.
    pub kind: String,
    /// The policy; for a list of admission policies, each of them.
    pub members: Vec<Member>,
}

/// A component, or a native policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// SHA-256 of the component; empty for a native policy.
    pub sha256: String,
    /// Its configuration.
    pub config: serde_json::Value,
}

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Its id in the other lines.
    pub id: u64,
    /// When the host had read it.
    pub sent: u64,
    /// When the engine received it, between two steps.
    pub at: u64,
    /// Its tenant.
    pub tenant: u32,
    /// Its session, or 0.
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
    /// How many its client expected, if it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<u32>,
    /// Whether it generates none: what is wanted is the vector of its prompt.
    #[serde(default, skip_serializing_if = "is_false")]
    pub embed: bool,
    /// Hashes of the prompt's full blocks, each covering the prompt up to the block's end.
    pub blocks: Vec<u64>,
    /// Hash of the whole prompt.
    pub whole: u64,
    /// The earlier request whose prompt and output this prompt starts with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<Shares>,
    /// The request of the same session that ended before this one was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
}

/// A prefix shared with an earlier request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shares {
    /// That request.
    pub id: u64,
    /// How many of its tokens, prompt and output.
    pub tokens: u32,
}

/// A refused request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The request, if the engine had accepted it before; else 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub id: u64,
    /// When it was refused.
    pub at: u64,
    /// Length of the prompt.
    pub prompt: u32,
    /// Most tokens that it could have generated.
    pub max: u32,
    /// The reason, as in `Counters::refused`.
    pub reason: String,
}

/// A request's first start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// The request.
    pub id: u64,
    /// Prompt tokens found in the prefix cache.
    pub cached: u32,
    /// The prefix-cache event, for example `CROSS_REQUEST_HIT`.
    pub event: String,
}

/// A request's end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The request.
    pub id: u64,
    /// When it ended.
    pub at: u64,
    /// `eos`, `stop`, `length`, `cancelled`, `failed`, or `open` if the recording ended first.
    pub reason: String,
    /// Generated tokens.
    pub output: u32,
}

/// One engine step: what it computed, as columns, and how long it took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Number of the step.
    pub step: u64,
    /// When it was planned.
    pub at: u64,
    /// When its tokens were available.
    pub end: u64,
    /// Microseconds on the device.
    pub device: u64,
    /// Whether the engine was idle before it, rather than busy since the previous step.
    pub waited: bool,
    /// The sequences in the batch.
    pub ids: Vec<u64>,
    /// Tokens computed for each.
    pub tokens: Vec<u32>,
    /// Length of each one's context afterwards.
    pub context: Vec<u32>,
    /// Tokens sampled for each: 0 or 1, or more if draft tokens were accepted.
    pub drew: Vec<u8>,
    /// Tokens of context shared between sequences that computed one token, counted once for each sequence
    /// after the first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeated: u64,
    /// Blocks copied to the second level of the prefix cache and back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub copied: u64,
}

/// A call of the scheduler and its plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// SHA-256 of the called component; empty for a native policy.
    pub sha256: String,
    /// Its state before the call, in hex; only if it didn't make the previous decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Its view: the columns of `wit/scheduler.wit`.
    pub view: serde_json::Value,
    /// Its plan.
    pub plan: Plan,
}

/// A call of the admission or the prefix-cache policy and its result, in the format of fault files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// `admission` or `prefix-cache`.
    pub kind: String,
    /// As in `Decision`; for a list of admission policies all of them, joined by `+`.
    pub sha256: String,
    /// As in `Decision`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Blocks that a prefix-cache policy knew besides; only together with `state`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knew: Option<serde_json::Value>,
    /// The function and its arguments.
    pub question: serde_json::Value,
    /// Its result.
    pub answer: serde_json::Value,
}

/// A plan as the scheduler returned it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Sequences to run.
    pub run: Vec<u64>,
    /// Most tokens for each.
    pub tokens: Vec<u32>,
    /// Sequences to preempt.
    pub preempt: Vec<u64>,
    /// When it wants to be called again.
    pub wake: u64,
}

/// Why the recording ended, and its totals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foot {
    /// When it ended.
    pub at: u64,
    /// `stopped`, `full`, `shutdown`, or `dismissed` if the operator who started it lost the token or the role.
    pub reason: String,
    /// Recorded requests.
    pub requests: u64,
    /// Recorded steps.
    pub steps: u64,
    /// Events that are missing.
    pub lost: u64,
}

/// Response of `POST /admin/trace/stop`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// Events passed to the recording.
    pub happenings: u64,
    /// Events lost because its reader was too slow.
    pub lost: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_usual(priority: &i32) -> bool {
    *priority == 0
}
