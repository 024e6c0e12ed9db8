//! What is recorded of the engine's work, one value per happening, and the memory that it occupies while it waits.
//!
//! Deliberately absent: texts, log-probabilities, vectors, and how a happening looks in a recording (`writer`).

use std::mem::size_of;
use std::sync::Arc;

use infer_api::trace::Step;
use infer_core::engine::Decision;
use infer_core::policy::{CacheEvents, FaultView, PolicyInfo, PolicyKind, StepView};
use infer_core::request::RefusalReason;
use infer_core::{Event, FinishReason, Micros, PrefixEvent, Refusal, Request, SequenceId};

/// Something that happened, as far as it is recorded.
pub enum Happening {
    /// The engine took a request.
    Taken {
        /// The engine's id.
        id: SequenceId,
        /// When it was submitted.
        sent: Micros,
        /// When the engine took it.
        at: Micros,
        /// The request.
        request: Box<Request>,
    },
    /// A request was refused at once.
    Refused {
        /// When.
        at: Micros,
        /// Length of its prompt.
        prompt: u32,
        /// Most tokens that it could have generated.
        max: u32,
        /// Why.
        reason: RefusalReason,
    },
    /// A request started for the first time.
    Started {
        /// Which.
        id: SequenceId,
        /// What its prompt found in the cache.
        prefix: PrefixEvent,
        /// Prompt tokens found.
        cached: u32,
    },
    /// A token was sampled.
    Token {
        /// Its sequence.
        id: SequenceId,
        /// The token.
        token: u32,
    },
    /// A running sequence was preempted.
    Preempted {
        /// Which.
        id: SequenceId,
    },
    /// A request ended.
    Ended {
        /// Which.
        id: SequenceId,
        /// When.
        at: Micros,
        /// Why; `None` if it failed.
        reason: Option<FinishReason>,
    },
    /// A request was refused after it had waited.
    TurnedAway {
        /// Which.
        id: SequenceId,
        /// When.
        at: Micros,
        /// Why.
        reason: RefusalReason,
    },
    /// A policy became live, or is live where the recording resumes.
    Policy {
        /// The slot.
        kind: PolicyKind,
        /// The policy.
        policy: Arc<PolicyInfo>,
    },
    /// A step was computed.
    Step(Box<Step>),
    /// A policy was called.
    Decision(Box<Decision>),
    /// This many happenings were lost here.
    Lost(u64),
}

impl Happening {
    /// Returns the happening of a refusal.
    pub fn refused(at: Micros, request: &Request, refusal: &Refusal) -> Self {
        let prompt = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        Self::Refused { at, prompt, max: request.max_new_tokens, reason: refusal.reason }
    }

    /// Returns what is recorded of an event; `None` if nothing is. Log-probabilities and messages are left out, so that
    /// `weight` is right.
    pub fn of(event: &Event, at: Micros) -> Option<Self> {
        Some(match *event {
            Event::Token { id, token, .. } => Self::Token { id, token },
            Event::Started { id, prefix, cached_tokens, .. } => {
                Self::Started { id, prefix, cached: cached_tokens }
            }
            Event::Preempted { id } => Self::Preempted { id },
            Event::Finished { id, reason, .. } => Self::Ended { id, at, reason: Some(reason) },
            Event::Failed { id, .. } => Self::Ended { id, at, reason: None },
            Event::Refused { id, ref refusal } => Self::TurnedAway { id, at, reason: refusal.reason },
            Event::PolicyChanged { kind, ref policy, .. } => {
                Self::Policy { kind, policy: Arc::clone(policy) }
            }
            Event::Prompt { .. }
            | Event::Embedding { .. }
            | Event::PolicyFault(_)
            | Event::Shadow { .. }
            | Event::Canary(_) => return None,
        })
    }

    /// Returns roughly the bytes that it occupies.
    pub(super) fn weight(&self) -> usize {
        let heap = match self {
            Self::Taken { request, .. } => size_of::<Request>() + 4 * request.prompt.len(),
            Self::Step(step) => size_of::<Step>() + 17 * step.ids.len(),
            Self::Decision(decision) => {
                let state = decision.state.as_ref().map_or(0, Vec::len);
                let events = |events: &CacheEvents| size_of::<CacheEvents>() + 33 * events.len();
                let shown = match &decision.question {
                    FaultView::Schedule(view) => {
                        let rows = view.running.len() + view.waiting.len();
                        size_of::<StepView>() + 96 * rows + 40 * view.tenants.id.len()
                    }
                    FaultView::Observe(observed) => events(observed),
                    _ => 0,
                };
                size_of::<Decision>() + state + shown + decision.knew.as_ref().map_or(0, events)
            }
            Self::Refused { .. }
            | Self::Started { .. }
            | Self::Token { .. }
            | Self::Preempted { .. }
            | Self::Ended { .. }
            | Self::TurnedAway { .. }
            | Self::Policy { .. }
            | Self::Lost(_) => 0,
        };
        size_of::<Self>() + heap
    }
}
