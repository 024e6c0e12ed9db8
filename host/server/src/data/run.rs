//! One sequence of a request as its client's connection holds it: engine events in, text out, and how it
//! ended to the metrics. Dropping it takes the sequence back.

use std::sync::Arc;
use std::task::{Context, Poll};

use infer_core::{FailureCause, FinishReason, Micros, TokenLogprobs};

use super::outcome::{Known, Outcome};
use super::structured::Mask;
use super::text::Text;
use crate::app::App;
use crate::engine::{End, LiveRequest, StreamEvent};
use crate::http::ApiError;

/// Tokens between two reports of a stream's gaps to the metrics.
const GAPS_PER_REPORT: usize = 32;

/// A taken sequence and its text so far.
pub struct Run {
    app: Arc<App>,
    live: LiveRequest,
    text: Text,
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
    /// Characters of the token's own text.
    pub chars: u32,
    /// Which.
    pub token: u32,
    /// How likely it was, where the request asked.
    pub logprobs: Option<Box<TokenLogprobs>>,
}

impl Run {
    /// A run of a sequence that the engine has taken.
    pub fn new(begin: Beginning) -> Self {
        let Beginning { app, live, text, prompt_tokens, mute, shape } = begin;
        let (stopped, last_at, gaps_us) = (false, None, Vec::new());
        Self { app, live, text, prompt_tokens, mute, shape, stopped, last_at, gaps_us }
    }

    /// Length of the prompt.
    pub fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Tokens sent so far.
    pub fn tokens(&self) -> u32 {
        if self.mute { 0 } else { self.text.tokens() }
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
                    false => Step::Token(Piece { text: piece.text, chars: piece.chars, token, logprobs }),
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
                sent_tokens: self.tokens(),
                block_bytes,
                stopped: self.stopped,
                model_end,
                engine_alive: self.live.engine_is_alive(),
            },
        );
        if self.mute {
            // The one token that was drawn is nobody's business, and so is what ended it.
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
        self.app.recorder.ended(&outcome);
        outcome
    }
}
