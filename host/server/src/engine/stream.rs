//! A live request as its client's connection holds it. Dropping it takes the request back, so that a
//! client that goes away frees its blocks within a step, whatever state the request is in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll};

use infer_core::{FailureCause, FinishReason, Micros, Refusal, SequenceId, TokenLogprobs, Usage};
use tokio::sync::mpsc;

use super::handle::EngineHandle;

/// What the engine thread tells a request.
#[derive(Debug)]
pub enum StreamEvent {
    /// It drew a token.
    Token {
        /// Which.
        token: u32,
        /// When the step was done.
        at: Micros,
        /// How likely it was, where the request asked.
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// How likely the prompt's next tokens were, from its second on, where the request asked.
    Prompt(Vec<TokenLogprobs>),
    /// Its last.
    End(Box<End>),
}

/// How a request ended.
#[derive(Debug)]
pub enum End {
    /// Well, or cancelled.
    Finished {
        /// Why.
        reason: FinishReason,
        /// What it cost.
        usage: Usage,
    },
    /// By an error.
    Failed {
        /// Which kind.
        cause: FailureCause,
        /// For the client.
        message: String,
        /// What it had cost.
        usage: Usage,
    },
    /// It had waited and was refused after all.
    Refused(Refusal),
}

/// What operators see of a request that the engine doesn't need.
#[derive(Clone, Debug, Default)]
pub struct RequestMeta {
    /// `x-request-id`.
    pub request_id: String,
    /// The tenant's name.
    pub tenant: String,
    /// The client's conversation id.
    pub session: String,
    /// The client's `user`.
    pub user: String,
    /// The client's `metadata`.
    pub metadata: BTreeMap<String, String>,
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
    /// Turned away.
    Refused(Refusal),
    /// The engine thread is gone.
    Stopped,
}

/// A request that the engine has taken.
pub struct LiveRequest {
    id: SequenceId,
    submitted: Micros,
    meta: Arc<RequestMeta>,
    events: mpsc::Receiver<StreamEvent>,
    engine: EngineHandle,
    ended: bool,
}

impl LiveRequest {
    pub(super) fn new(
        id: SequenceId,
        submitted: Micros,
        meta: Arc<RequestMeta>,
        events: mpsc::Receiver<StreamEvent>,
        engine: EngineHandle,
    ) -> Self {
        Self { id, submitted, meta, events, engine, ended: false }
    }

    /// The engine's name for it.
    pub fn id(&self) -> SequenceId {
        self.id
    }

    /// What operators see of it.
    pub fn meta(&self) -> &RequestMeta {
        &self.meta
    }

    /// When it was handed to the engine; a step may have been running then.
    pub fn submitted(&self) -> Micros {
        self.submitted
    }

    /// What happens next. `None` where the engine let go of it: its reader lagged too far behind, or
    /// the engine stopped.
    pub async fn next(&mut self) -> Option<StreamEvent> {
        let event = self.events.recv().await;
        self.note(event)
    }

    /// As `next`, to be waited for together with others.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<StreamEvent>> {
        self.events.poll_recv(cx).map(|event| self.note(event))
    }

    /// What has happened already, without waiting.
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

    /// Whether nothing more can happen.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Ends it because a stop string was seen; its `End` follows.
    pub fn stop(&self) {
        self.engine.finish(self.id, FinishReason::Stop);
    }

    /// Whether the engine still runs, and lets go of requests for other reasons than its own end.
    pub fn engine_is_alive(&self) -> bool {
        self.engine.is_alive() && !self.engine.is_ending()
    }
}

impl Drop for LiveRequest {
    fn drop(&mut self) {
        // Before the engine may look whether it has gone.
        self.events.close();
        if !self.ended {
            self.engine.finish(self.id, FinishReason::Cancelled);
        }
        self.engine.forget(self.id);
    }
}
