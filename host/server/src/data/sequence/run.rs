//! One sequence as its client's connection sees it: turns engine events into text and reports times to the
//! metrics. Dropping it cancels the sequence.

use std::sync::Arc;
use std::task::{Context, Poll};

use infer_core::{FailureCause, FinishReason, Micros, TokenLogprobs};

use super::outcome::{Known, Outcome};
use super::text::Text;
use crate::app::App;
use crate::data::structured::Mask;
use crate::engine::{End, LiveRequest, StreamEvent};
use crate::http::ApiError;
use crate::tenants::Tenant;

/// Inter-token gaps that are collected before they are reported to the metrics.
const GAPS_PER_REPORT: usize = 32;

/// A live sequence and its text so far.
pub struct Run {
    app: Arc<App>,
    tenant: Arc<Tenant>,
    live: LiveRequest,
    text: Text,
    prompt_tokens: u32,
    /// The client asked about the prompt alone: it gets no tokens.
    mute: bool,
    /// The output's constraint, which may explain a failure.
    shape: Option<Arc<Mask>>,
    /// Ended from this side; further tokens of the engine are dropped.
    stopped: bool,
    last_at: Option<Micros>,
    gaps_us: Vec<u32>,
}

/// Arguments of `Run::new`.
pub struct Beginning {
    pub app: Arc<App>,
    pub tenant: Arc<Tenant>,
    pub live: LiveRequest,
    pub text: Text,
    pub prompt_tokens: u32,
    pub mute: bool,
    pub shape: Option<Arc<Mask>>,
}

/// What an engine event means for the client.
#[derive(Debug)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// Log-probabilities of the prompt's next tokens, from the second token on.
    Prompt(Vec<TokenLogprobs>),
    /// A token.
    Token(Piece),
    /// The vector of a prompt that is embedded.
    Vector(Vec<f32>),
    /// The end of this choice.
    End(Box<Outcome>),
}

/// A token and the text that became complete with it.
#[derive(Clone, Debug, Default)]
pub struct Piece {
    /// Empty while the token's text is incomplete or held back.
    pub text: String,
    /// Characters that the token adds to the text, including those held back.
    pub chars: u32,
    pub token: u32,
    /// The token's log-probabilities, if requested.
    pub logprobs: Option<Box<TokenLogprobs>>,
}

impl Run {
    /// A run of a sequence that the engine has admitted to its queue.
    pub fn new(begin: Beginning) -> Self {
        let Beginning { app, tenant, live, text, prompt_tokens, mute, shape } = begin;
        let (stopped, last_at, gaps_us) = (false, None, Vec::new());
        Self { app, tenant, live, text, prompt_tokens, mute, shape, stopped, last_at, gaps_us }
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Prompt tokens that were cached when it started; `None` if it has not.
    pub fn cached_tokens(&self) -> Option<u32> {
        self.has_run().then(|| self.live.cached_tokens())
    }

    /// Tokens sent so far.
    pub fn tokens(&self) -> u32 {
        if self.mute { 0 } else { self.text.tokens() }
    }

    /// Whether the engine has started it.
    pub fn has_run(&self) -> bool {
        self.live.has_started()
    }

    /// Waits for the next event.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        let event = std::task::ready!(self.live.poll_next(cx));
        Poll::Ready(self.take(event))
    }

    /// Returns the next event if there is one already.
    pub fn try_next(&mut self) -> Option<Step> {
        let event = self.live.try_next()?;
        Some(self.take(Some(event)))
    }

    /// Ends the sequence because its output is complete. Its end event follows.
    pub fn stop(&mut self) {
        if !self.stopped {
            self.stopped = true;
            self.live.stop();
        }
    }

    fn take(&mut self, event: Option<StreamEvent>) -> Step {
        match event {
            Some(StreamEvent::Started { at }) => {
                // Like a first token reported at once: its stream may last for minutes.
                let after = at.since(self.live.submitted());
                self.app.recorder.started(after);
                self.tenant.usage.started(after);
                Step::Nothing
            }
            Some(StreamEvent::Token { .. }) if self.stopped => Step::Nothing,
            Some(StreamEvent::Token { token, at, logprobs }) => {
                self.note_time(at);
                let piece = self.text.push(token);
                if self.lacks_text() {
                    return Step::End(Box::new(self.finish(None)));
                }
                if piece.stopped {
                    self.stop();
                }
                match self.mute {
                    true => Step::Nothing,
                    false => Step::Token(Piece { text: piece.text, chars: piece.chars, token, logprobs }),
                }
            }
            Some(StreamEvent::Prompt(logprobs)) => Step::Prompt(logprobs),
            Some(StreamEvent::Embedding { vector, at }) => {
                self.note_time(at);
                Step::Vector(vector)
            }
            Some(StreamEvent::End(end)) => Step::End(Box::new(self.finish(Some(&end)))),
            None => Step::End(Box::new(self.finish(None))),
        }
    }

    /// Whether the client would get an output in which text is missing.
    fn lacks_text(&self) -> bool {
        !self.mute && self.text.has_failed()
    }

    fn note_time(&mut self, at: Micros) {
        let Some(last) = self.last_at.replace(at) else {
            // Reported at once, because the client may leave before the end.
            let after = at.since(self.live.submitted());
            self.app.recorder.first_token(after);
            return self.tenant.usage.first_token(after);
        };
        self.gaps_us.push(u32::try_from(at.since(last).0).unwrap_or(u32::MAX));
        if self.gaps_us.len() == GAPS_PER_REPORT {
            self.report_gaps();
        }
    }

    fn report_gaps(&mut self) {
        self.app.recorder.gaps(&self.gaps_us);
        self.tenant.usage.gaps(&self.gaps_us);
        self.gaps_us.clear();
    }

    fn finish(&mut self, end: Option<&End>) -> Outcome {
        self.report_gaps();
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
                cached_tokens: self.live.cached_tokens(),
                sent_tokens: self.tokens(),
                block_bytes,
                stopped: self.stopped,
                model_end,
                engine_alive: self.live.engine_is_alive(),
            },
        );
        if self.mute {
            // With `max_tokens: 0` one token is still sampled; neither it nor its finish reason is shown to
            // the client.
            let cancelled = |&reason: &FinishReason| reason == FinishReason::Cancelled;
            outcome.reason =
                outcome.reason.map(|reason| Some(reason).filter(cancelled).unwrap_or(FinishReason::Length));
        } else if outcome.reason == Some(FinishReason::Cancelled) {
            outcome.rest = self.text.finish();
        }
        if let (Some(End::Failed { cause: FailureCause::Device, .. }), Some(_), Some(why)) =
            (end, &outcome.error, self.shape.as_ref().and_then(|mask| mask.fault()))
        {
            outcome.error = Some(ApiError::internal("structured_output_failed", why).for_good());
        }
        if self.lacks_text() {
            let why = "the tokenizer can't turn a token of the output into text; stderr of the host has its message";
            outcome.error = Some(ApiError::internal("tokenizer", why));
            outcome.reason = None;
        }
        outcome.stop_string = self.text.stop_string().map(str::to_owned);
        // A refused sequence never ran, so it has no times.
        if !outcome.refused {
            self.app.recorder.ended(&outcome, self.app.config.block_size);
        }
        outcome
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // The last ones of a stream whose client has left; no others remain.
        if !self.gaps_us.is_empty() {
            self.report_gaps();
        }
    }
}
