//! A live request, held by its client's connection. Dropping it cancels the request, so that a client that
//! disconnects frees its blocks within a step.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use infer_core::{FailureCause, FinishReason, Micros, Refusal, SequenceId, TokenLogprobs, Usage};
use tokio::sync::mpsc;

use super::handle::EngineHandle;
use crate::adapters::AdapterHold;

/// An event of a request.
#[derive(Debug)]
pub enum StreamEvent {
    /// The engine has started it. The first event of a request that runs, and sent once.
    Started {
        /// When its first step was planned.
        at: Micros,
    },
    /// A token was sampled.
    Token {
        /// The token.
        token: u32,
        /// When its step was done.
        at: Micros,
        /// Its log-probabilities, if requested.
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// Log-probabilities of the next prompt tokens, from the second token on, if requested.
    Prompt(Vec<TokenLogprobs>),
    /// The vector of a request that embeds.
    Embedding {
        /// As the model computed it.
        vector: Vec<f32>,
        /// When its step was done.
        at: Micros,
    },
    /// The last event.
    End(Box<End>),
}

/// How a request ended.
#[derive(Debug)]
pub enum End {
    /// It was finished or cancelled.
    Finished {
        /// Why.
        reason: FinishReason,
        /// What it used.
        usage: Usage,
    },
    /// It failed.
    Failed {
        /// The kind of failure.
        cause: FailureCause,
        /// For the client.
        message: String,
        /// What it used.
        usage: Usage,
    },
    /// It was refused after it had waited.
    Refused(Refusal),
}

/// What operators see of a request and the engine does not need.
#[derive(Clone, Debug, Default)]
pub struct RequestMeta {
    /// `x-request-id`, which clients may choose: several requests may have the same.
    pub request_id: String,
    /// The first of its sequences, once the engine has taken them.
    pub first: OnceLock<SequenceId>,
    /// The tenant's name.
    pub tenant: String,
    /// The client's session id.
    pub session: String,
    /// The client's `user`.
    pub user: String,
    /// The client's `metadata`.
    pub metadata: BTreeMap<String, String>,
    /// Its adapter; `None` for the model itself.
    pub adapter: Option<Arc<AdapterHold>>,
}

/// A request to submit.
pub struct NewRequest {
    /// For the engine.
    pub request: infer_core::Request,
    /// For operators.
    pub meta: RequestMeta,
}

/// Why a request was not taken.
#[derive(Debug)]
pub enum SubmitError {
    /// It was refused.
    Refused(Refusal),
    /// The engine thread is in a long step, and its mailbox is full.
    Busy,
    /// The engine thread has ended.
    Stopped,
}

/// What a request's client and the engine thread tell each other besides commands and events.
#[derive(Debug, Default)]
pub struct Marks {
    /// The engine has started it.
    pub started: AtomicBool,
    /// Prompt tokens that were cached then. Written before `started`.
    pub cached_tokens: AtomicU32,
    /// Its output is complete. The engine thread looks at it if it was asked to scan.
    pub stopped: AtomicBool,
}

/// A request that the engine has taken. Dropping it cancels the request.
pub struct LiveRequest {
    pub(super) id: SequenceId,
    pub(super) submitted: Micros,
    pub(super) events: mpsc::Receiver<StreamEvent>,
    pub(super) marks: Arc<Marks>,
    pub(super) engine: EngineHandle,
    /// Its last event was read.
    pub(super) ended: bool,
}

impl LiveRequest {
    /// Returns the engine's id.
    pub fn id(&self) -> SequenceId {
        self.id
    }

    /// Returns when it was submitted, possibly during a step.
    pub fn submitted(&self) -> Micros {
        self.submitted
    }

    /// Whether the engine has started it, even if the event that says so has not been read.
    pub fn has_started(&self) -> bool {
        self.marks.started.load(Ordering::Acquire)
    }

    /// Returns the prompt tokens that were cached when the engine started it; none before.
    pub fn cached_tokens(&self) -> u32 {
        if self.has_started() { self.marks.cached_tokens.load(Ordering::Relaxed) } else { 0 }
    }

    /// Returns the next event. `None` if the engine dropped the request: the reader lagged too far behind, or the
    /// engine stopped.
    pub async fn next(&mut self) -> Option<StreamEvent> {
        let event = self.events.recv().await;
        self.note(event)
    }

    /// Polls for the next event, as `next` does.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<StreamEvent>> {
        self.events.poll_recv(cx).map(|event| self.note(event))
    }

    /// Returns the next event if there is one already.
    pub fn try_next(&mut self) -> Option<StreamEvent> {
        let event = self.events.try_recv().ok()?;
        self.note(Some(event))
    }

    fn note(&mut self, event: Option<StreamEvent>) -> Option<StreamEvent> {
        if matches!(event, None | Some(StreamEvent::End(_))) {
            self.ended = true;
        }
        event
    }

    /// Ends the request because a stop string was found. Its `End` follows.
    pub fn stop(&self) {
        // First: the message may not fit, and then the engine scans for it.
        self.marks.stopped.store(true, Ordering::Release);
        self.engine.finish(self.id, FinishReason::Stop);
    }

    /// Whether the engine runs, so that a `None` of `next` means a lagging reader.
    pub fn engine_is_alive(&self) -> bool {
        self.engine.is_alive() && !self.engine.is_ending()
    }
}

impl Drop for LiveRequest {
    fn drop(&mut self) {
        // First: the engine may scan for closed streams at any time.
        self.events.close();
        if !self.ended {
            self.engine.finish(self.id, FinishReason::Cancelled);
        }
        self.engine.forget();
    }
}
