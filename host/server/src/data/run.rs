//! One sequence of a request as its client's connection holds it: engine events in, text out, and one
//! account of how it ended to metrics, tenant and log. Dropping it takes the sequence back.

use std::sync::Arc;
use std::task::{Context, Poll};

use infer_api::admin::AdminEvent;
use infer_core::{FailureCause, FinishReason, Micros, TokenLogprobs};

use super::outcome::{Known, Outcome, reason_name};
use super::structured::Mask;
use super::text::Text;
use crate::app::{App, Served};
use crate::engine::{End, LiveRequest, StreamEvent};
use crate::http::{ApiError, RequestId};
use crate::tenants::Tenant;

/// Tokens between two reports of a stream's gaps to the metrics.
const GAPS_PER_REPORT: usize = 32;

/// A taken sequence and its text so far.
pub struct Run {
    app: Arc<App>,
    live: LiveRequest,
    text: Text,
    request_id: RequestId,
    tenant: Arc<Tenant>,
    prompt_tokens: u32,
    /// Its tokens are not for the client, who asked about the prompt alone.
    mute: bool,
    /// What its output must be; says why it failed, if that was it.
    shape: Option<Arc<Mask>>,
    /// It was ended from here; what the engine still sends is not for the client.
    stopped: bool,
    last_at: Option<Micros>,
    gaps_us: Vec<u32>,
}

/// What a run begins with.
pub struct Beginning {
    pub app: Arc<App>,
    pub live: LiveRequest,
    pub text: Text,
    pub request_id: RequestId,
    pub tenant: Arc<Tenant>,
    pub prompt_tokens: u32,
    pub mute: bool,
    pub shape: Option<Arc<Mask>>,
}

/// What an engine event is to the client.
#[derive(Debug)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// How likely the prompt's next tokens were, from its second on.
    Prompt(Vec<TokenLogprobs>),
    /// A token.
    Token(Piece),
    /// The end of this choice.
    End(Box<Outcome>),
}

/// A token and the text that became complete with it.
#[derive(Clone, Debug, Default)]
pub struct Piece {
    /// May be empty.
    pub text: String,
    /// Which.
    pub token: u32,
    /// How likely it was, where the request asked.
    pub logprobs: Option<Box<TokenLogprobs>>,
}

impl Run {
    /// A run of a sequence that the engine has taken.
    pub fn new(begin: Beginning) -> Self {
        let Beginning { app, live, text, request_id, tenant, prompt_tokens, mute, shape } = begin;
        let (stopped, last_at, gaps_us) = (false, None, Vec::new());
        Self { app, live, text, request_id, tenant, prompt_tokens, mute, shape, stopped, last_at, gaps_us }
    }

    /// Waits for the next event.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        let event = std::task::ready!(self.live.poll_next(cx));
        Poll::Ready(self.take(event))
    }

    /// The next event, if it has happened.
    pub fn try_next(&mut self) -> Option<Step> {
        let event = self.live.try_next()?;
        Some(self.take(Some(event)))
    }

    /// Ends it: what it was to say is said. Its end follows.
    pub fn stop(&mut self) {
        if !self.stopped {
            self.stopped = true;
            self.live.stop();
        }
    }

    fn take(&mut self, event: Option<StreamEvent>) -> Step {
        match event {
            Some(StreamEvent::Token { .. }) if self.stopped => Step::Nothing,
            Some(StreamEvent::Token { token, at, logprobs }) => {
                self.note_gap(at);
                let piece = self.text.push(token);
                if piece.stopped {
                    self.stop();
                }
                match self.mute {
                    true => Step::Nothing,
                    false => Step::Token(Piece { text: piece.text, token, logprobs }),
                }
            }
            Some(StreamEvent::Prompt(logprobs)) => Step::Prompt(logprobs),
            Some(StreamEvent::End(end)) => Step::End(Box::new(self.finish(Some(&end)))),
            None => Step::End(Box::new(self.finish(None))),
        }
    }

    fn note_gap(&mut self, at: Micros) {
        if let Some(last) = self.last_at.replace(at) {
            self.gaps_us.push(u32::try_from(at.since(last).0).unwrap_or(u32::MAX));
            if self.gaps_us.len() == GAPS_PER_REPORT {
                self.app.recorder.gaps(&self.gaps_us);
                self.gaps_us.clear();
            }
        }
    }

    fn finish(&mut self, end: Option<&End>) -> Outcome {
        self.app.recorder.gaps(&self.gaps_us);
        self.gaps_us.clear();
        let (block_bytes, model_end) = match self.app.served() {
            Ok(served) => (served.block_bytes, served.stop_tokens.contains(&self.text.last_token())),
            Err(_) => (0, true),
        };
        let mut outcome = Outcome::new(
            end,
            Known {
                submitted: self.live.submitted(),
                now: self.app.clock.now(),
                prompt_tokens: self.prompt_tokens,
                sent_tokens: if self.mute { 0 } else { self.text.tokens() },
                block_bytes,
                stopped: self.stopped,
                model_end,
                engine_alive: self.live.engine_is_alive(),
            },
        );
        if self.mute {
            outcome.reason = outcome.reason.map(|_| FinishReason::Length);
        }
        if let (Some(End::Failed { cause: FailureCause::Device, .. }), Some(why)) =
            (end, self.shape.as_ref().and_then(|mask| mask.fault()))
        {
            outcome.error = Some(ApiError::internal("structured_output_failed", why));
        }
        self.account(end, &outcome);
        outcome
    }

    fn account(&self, end: Option<&End>, outcome: &Outcome) {
        self.app.note_end(&self.request_id, &self.tenant, outcome, matches!(end, Some(End::Refused(_))));
        if let (Some(End::Refused(_)), Some(error), Ok(served)) = (end, &outcome.error, self.app.served()) {
            tell_of_refusal(served, &self.request_id, error);
        }
        let meta = self.live.meta();
        tracing::info!(
            request_id = self.request_id.as_str(),
            id = self.live.id().0,
            tenant = meta.tenant,
            user = meta.user,
            session = meta.session,
            metadata = ?meta.metadata,
            reason = outcome.reason.map_or("failed", reason_name),
            error = outcome.error.as_ref().map(ApiError::message),
            prompt_tokens = outcome.usage.prompt_tokens,
            cached_tokens = outcome.usage.prompt_tokens_details.cached_tokens,
            completion_tokens = outcome.usage.completion_tokens,
            ttft_ms = outcome.timings.ttft_ms,
            e2e_ms = outcome.e2e_ms,
            mask_us = self.shape.as_ref().map(|mask| mask.mean_us()),
            mask_wait_us = self.shape.as_ref().map(|mask| mask.mean_wait_us()),
            "request ended"
        );
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.live.is_ended() {
            let (request_id, id) = (self.request_id.as_str(), self.live.id().0);
            self.tenant.usage.ended(self.prompt_tokens, 0, self.text.tokens(), false);
            tracing::info!(request_id, id, completion_tokens = self.text.tokens(), "the client went away");
        }
    }
}

/// Lets consoles know that a request was turned away.
pub fn tell_of_refusal(served: &Served, request_id: &RequestId, error: &ApiError) {
    served.engine.observer().publish(AdminEvent::Refusal {
        request_id: request_id.as_str().to_owned(),
        reason: error.reason().to_owned(),
        message: error.message().to_owned(),
    });
}
