//! A client's request in the engine's terms, and how it ends.

use std::fmt;
use std::sync::Arc;

use crate::ids::{AdapterId, Micros, SessionId, TenantId};

/// Sampling parameters. Greedy if `temperature` is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy; otherwise logits are divided by it.
    pub temperature: f32,
    /// Nucleus: the smallest set of tokens whose probability reaches this, in `(0, 1]`.
    pub top_p: f32,
    /// Only the k likeliest tokens; 0 is no limit.
    pub top_k: u32,
    /// Only tokens at least this fraction as likely as the likeliest; 0 is no limit.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens in the output, once each; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens in the output, as often as they occur; 0 is off.
    pub frequency_penalty: f32,
    /// The stream of random numbers is a pure function of this and the token's index.
    pub seed: u64,
    /// Rarely used parameters, kept apart because a step copies the others for each row.
    pub extras: Option<Arc<SamplingExtras>>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            extras: None,
        }
    }
}

impl SamplingParams {
    /// Whether sampling depends on earlier tokens.
    #[allow(clippy::float_cmp, reason = "these exact values turn the penalties off")]
    pub fn needs_history(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || self.extras.as_ref().is_some_and(|extras| extras.constraint.is_some())
    }

    /// Whether the host takes part in sampling: in its input or in what is reported of it.
    pub fn needs_host(&self) -> bool {
        self.extras.is_some() || self.needs_history()
    }

    /// Whether no token is sampled: what is wanted is the vector of the prompt's last token.
    pub fn embeds(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.embed)
    }

    /// How many alternatives are reported for each prompt token; `None` if they are not wanted.
    pub fn prompt_logprobs(&self) -> Option<u32> {
        self.extras.as_ref()?.prompt_logprobs
    }
}

/// Rarely used sampling parameters.
#[derive(Clone, Debug, Default)]
pub struct SamplingExtras {
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Report the log-probability of the sampled token and of this many likeliest tokens.
    pub logprobs: Option<u32>,
    /// The same for each prompt token but the first. Such a prompt is computed as a whole.
    pub prompt_logprobs: Option<u32>,
    /// What the output must be.
    pub constraint: Option<Arc<dyn Constraint>>,
    /// Sample nothing: report the last token's hidden state after the model's last norm, and end the sequence. Such a
    /// request has a `max_new_tokens` of 1, for policies, and no use for what else is said here.
    pub embed: bool,
}

impl PartialEq for SamplingExtras {
    fn eq(&self, other: &Self) -> bool {
        let same = match (&self.constraint, &other.constraint) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        same && self.logit_bias == other.logit_bias
            && self.logprobs == other.logprobs
            && self.prompt_logprobs == other.prompt_logprobs
            && self.embed == other.embed
    }
}

/// Restricts which tokens may follow in one sequence. Called where tokens are sampled; what it allows is a
/// function of the output alone, so sampling that is repeated after a fault sees the same.
pub trait Constraint: Send + Sync + fmt::Debug {
    /// Sets the logits of all tokens that may not follow `output` to -infinity. False if it can't tell any
    /// more, which fails the sequence.
    fn restrict(&self, output: &[u32], logits: &mut [f32]) -> bool;

    /// `token` was sampled after the last `restrict`. The next mask can be computed while the device works;
    /// this call doesn't wait for it.
    fn drawn(self: Arc<Self>, token: u32) {
        let _ = token;
    }
}

/// One validated request; the server has checked shapes and ranges that need no engine state.
#[derive(Clone, Debug)]
pub struct Request {
    /// The tenant that pays; keys the prefix cache together with `cache_salt` and `adapter`.
    pub tenant: TenantId,
    /// The conversation it continues, or 0.
    pub session: SessionId,
    /// Separates prefix caches of one tenant; 0 for none.
    pub cache_salt: u64,
    /// What changes the model for it. Keys and values of one adapter are of no use to another, nor to the model alone.
    pub adapter: AdapterId,
    /// Larger is more urgent.
    pub priority: i32,
    /// When the first token is due, on the driver's clock.
    pub deadline: Micros,
    /// Non-empty.
    pub prompt: Arc<[u32]>,
    /// Upper bound of generated tokens, the end token included; at least 1.
    pub max_new_tokens: u32,
    /// How many tokens its client expects it to generate, the end token included. Policies are shown this in place of what
    /// the engine has learned of the tenant, until as many are generated. Changes nothing that is learned.
    pub expected_output: Option<u32>,
    /// Until this many tokens an end token can't be sampled.
    pub min_new_tokens: u32,
    /// Tokens that end the sequence; empty if the request ignores them.
    pub stop_tokens: Arc<[u32]>,
    /// Sampling parameters.
    pub sampling: SamplingParams,
}

impl Request {
    /// Tokens that it may append to its prompt.
    pub(crate) fn longest_output(&self) -> u32 {
        if self.sampling.embeds() { 0 } else { self.max_new_tokens }
    }
}

/// Why a sequence ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// It sampled one of its stop tokens.
    Eos,
    /// The driver found one of its stop strings, or its vector is there (`SamplingExtras::embed`).
    Stop,
    /// It reached `max_new_tokens`.
    Length,
    /// The client or an operator cancelled it.
    Cancelled,
}

impl FinishReason {
    /// All reasons, in declaration order.
    pub const ALL: [Self; 4] = [Self::Eos, Self::Stop, Self::Length, Self::Cancelled];

    /// The name used in metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eos => "eos",
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What a request cost, reported with its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// Prompt tokens found cached when it first started.
    pub cached_tokens: u32,
    /// Prompt (and, after preemption, output) tokens that were computed for it.
    pub prefilled_tokens: u32,
    /// Most KV blocks it held at once.
    pub peak_blocks: u32,
    /// Times it was preempted.
    pub preemptions: u32,
    /// When it arrived.
    pub arrived: Micros,
    /// When it first started to run; `NEVER` if it never did.
    pub started: Micros,
    /// When its first token, or its vector, was ready; `NEVER` if none was.
    pub first_token: Micros,
    /// When it ended.
    pub ended: Micros,
}

/// Why `submit` refused, or why a waiting request was refused later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Machine-readable reason.
    pub reason: RefusalReason,
    /// Shown to the client; says what is wrong and, if possible, what is missing.
    pub message: String,
    /// Becomes `Retry-After`; 0 if retrying cannot help.
    pub retry_after_ms: u32,
}

/// Machine-readable reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The waiting queue is at its bound.
    QueueFull,
    /// It can never fit, or memory is short.
    Memory,
    /// The tenant's rate.
    Rate,
    /// Prompt plus output exceed the model's or host's limit.
    TooLong,
    /// The policy sheds load.
    Backpressure,
    /// The policy's own reason.
    Other,
    /// The host is draining.
    Draining,
}

impl RefusalReason {
    /// All reasons, in declaration order.
    pub const ALL: [Self; 7] = [
        Self::QueueFull,
        Self::Memory,
        Self::Rate,
        Self::TooLong,
        Self::Backpressure,
        Self::Other,
        Self::Draining,
    ];

    /// The name used in metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Memory => "memory",
            Self::Rate => "rate",
            Self::TooLong => "too_long",
            Self::Backpressure => "backpressure",
            Self::Other => "other",
            Self::Draining => "draining",
        }
    }
}

/// State of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceState {
    /// In the queue, not shown to the scheduler (admission said `wait`).
    Held,
    /// In the queue, the scheduler may start it.
    Waiting,
    /// Was running, gave its blocks back, waits again.
    Preempted,
    /// Holds blocks, its prompt is being computed.
    Prefill,
    /// Holds blocks, generates.
    Decode,
    /// Ended well.
    Finished,
    /// Ended by an error.
    Failed,
}
