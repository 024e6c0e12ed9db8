//! What the engine reports to its driver after each call. Drained, never accumulated.

use std::sync::Arc;

use crate::executor::TokenLogprobs;
use crate::ids::{Micros, SequenceId};
use crate::policy::{Fault, PolicyInfo, PolicyKind};
use crate::request::{FinishReason, Refusal, Usage};
use crate::trial::{CanaryReport, ShadowReport};

/// An event.
#[derive(Clone, Debug)]
pub enum Event {
    /// A sequence drew a token.
    Token {
        /// Its sequence.
        id: SequenceId,
        /// Which.
        token: u32,
        /// Its log-probabilities, if its request asked for them.
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// The model has read a part of a prompt whose request asked for prompt log-probabilities. Parts come in
    /// order and end before the first `Token`.
    Prompt {
        /// Its sequence.
        id: SequenceId,
        /// Those of the prompt's next tokens, from its second on.
        logprobs: Vec<TokenLogprobs>,
    },
    /// The vector of a request that embeds. `Finished` follows.
    Embedding {
        /// Its sequence.
        id: SequenceId,
        /// As the device computed it.
        vector: Vec<f32>,
    },
    /// A sequence ended well or was cancelled. Its last event.
    Finished {
        /// Its sequence.
        id: SequenceId,
        /// Why.
        reason: FinishReason,
        /// What it cost.
        usage: Usage,
    },
    /// A sequence failed. Its last.
    Failed {
        /// Its sequence.
        id: SequenceId,
        /// What ended it.
        cause: FailureCause,
        /// Shown to the client.
        message: String,
        /// What it had cost.
        usage: Usage,
    },
    /// A held request was refused after all. Its last event.
    Refused {
        /// Its sequence.
        id: SequenceId,
        /// Why.
        refusal: Refusal,
    },
    /// A sequence started for the first time. Once per request.
    Started {
        /// Its sequence.
        id: SequenceId,
        /// When the step that it started in was planned.
        at: Micros,
        /// What its prompt found in the cache.
        prefix: PrefixEvent,
        /// Prompt tokens found.
        cached_tokens: u32,
        /// Prompt tokens left to compute.
        prefill_tokens: u32,
    },
    /// A running sequence was preempted and waits again.
    Preempted {
        /// Its sequence.
        id: SequenceId,
    },
    /// A policy misbehaved; if it was live, the built-in answered instead.
    PolicyFault(Box<Fault>),
    /// A slot's policy changed: by a swap, a rollback, strikes or the watchdog.
    PolicyChanged {
        /// Which slot.
        kind: PolicyKind,
        /// Name of the policy that left.
        from: String,
        /// Name of the live policy.
        to: String,
        /// The policy that was replaced.
        left: Arc<PolicyInfo>,
        /// The live policy.
        policy: Arc<PolicyInfo>,
        /// When.
        at: Micros,
        /// The step that is planned next, or is being planned.
        step: u64,
        /// What caused it.
        change: Change,
        /// Why, for a person; also why the policy doesn't have the state that there was for it.
        reason: String,
    },
    /// A shadow started or ended.
    Shadow {
        /// Which slot.
        kind: PolicyKind,
        /// Name of the live policy.
        live: String,
        /// Its report.
        report: Box<ShadowReport>,
        /// If it started: why it doesn't have the live policy's state although there was one for it.
        state_note: Option<String>,
    },
    /// A canary's trial began or ended.
    Canary(Box<CanaryReport>),
}

/// What ended a sequence that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// The device, or a fault in what it was to compute.
    Device,
    /// It was alone and did not fit in the pool.
    Memory,
    /// The queue was cleared.
    Cleared,
    /// The driver's time for it was over.
    Overdue,
}

/// How a policy became live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was swapped in.
    Swap,
    /// It was swapped in on trial.
    Canary,
    /// It ran in shadow before.
    Promote,
    /// It was brought back.
    Rollback,
    /// Its successor misbehaved.
    Fault,
    /// Clients were worse off under its successor, which was on trial.
    Verdict,
}

impl Change {
    /// All changes, in declaration order.
    pub const ALL: [Self; 6] =
        [Self::Swap, Self::Canary, Self::Promote, Self::Rollback, Self::Fault, Self::Verdict];

    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Swap => "swap",
            Self::Canary => "canary",
            Self::Promote => "promote",
            Self::Rollback => "rollback",
            Self::Fault => "fault",
            Self::Verdict => "verdict",
        }
    }
}

/// With which state a policy becomes live, or begins to run beside the live one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handover {
    /// It took the state that its predecessor exported.
    Restored,
    /// It goes on with the state that it had itself.
    Kept,
    /// It begins with nothing; of a list that is swapped in, at least one member does.
    Cold,
}

impl Handover {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Restored => "restored",
            Self::Kept => "kept",
            Self::Cold => "cold",
        }
    }
}

/// What a request's prompt found when it first started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PrefixEvent {
    /// Blocks that its session computed, in an earlier turn or in one that isn't over, behind any that others did.
    ConversationalHit,
    /// Only blocks that other requests computed.
    CrossRequestHit,
    /// Nothing.
    MissFull,
    /// All of it, with its last logits.
    FullHitNoPrefillNeeded,
    /// The last of its session's turns that are over began differently, up to the first block that the session computed.
    /// Blocks before that one may have been found.
    ConversationalMissUnexpectedPrompt,
}

impl PrefixEvent {
    /// All kinds, in declaration order.
    pub const ALL: [Self; 5] = [
        Self::ConversationalHit,
        Self::CrossRequestHit,
        Self::MissFull,
        Self::FullHitNoPrefillNeeded,
        Self::ConversationalMissUnexpectedPrompt,
    ];

    /// The name used in metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::ConversationalHit => "CONVERSATIONAL_HIT",
            Self::CrossRequestHit => "CROSS_REQUEST_HIT",
            Self::MissFull => "MISS_FULL",
            Self::FullHitNoPrefillNeeded => "FULL_HIT_NO_PREFILL_NEEDED",
            Self::ConversationalMissUnexpectedPrompt => "CONVERSATIONAL_MISS_UNEXPECTED_PROMPT",
        }
    }
}
