//! Turns the events of a group of sequences into an HTTP response: a stream of frames, or one body.

pub mod echo;
pub mod frames;
pub mod logprobs;
pub mod named;
pub mod openai;

use std::sync::Arc;

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Response};
use infer_core::TokenLogprobs;
use infer_model::Tokenizer;
use tokio::time::{Instant, timeout_at};

use crate::app::App;
use crate::data::sequence::group::{Group, Totals};
use crate::data::sequence::outcome::Outcome;
use crate::data::sequence::patience::{after, engine_hangs};
use crate::data::sequence::run::{Piece, Step};
use crate::http::{Answer, ApiError};

/// Most events in one chunk of a stream.
const EVENTS_PER_CHUNK: usize = 64;
/// A chunk of this many bytes takes no further events.
const CHUNK_BYTES: usize = 64 << 10;
/// An SSE comment that keeps proxies from closing a silent stream.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// Whether a choice continues after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    /// Continue.
    On,
    /// End: the output is complete.
    Stop,
}

/// Receives the events of a request's choices in order.
pub trait Sink: Send {
    /// Log-probabilities of the prompt's next tokens, from the second token on.
    fn prompt(&mut self, choice: usize, logprobs: Vec<TokenLogprobs>);
    /// The next token.
    fn token(&mut self, choice: usize, piece: Piece) -> Go;
    /// The vector of a prompt that is embedded, in place of tokens. Only embeddings have one.
    fn vector(&mut self, choice: usize, vector: Vec<f32>) {
        let _ = (choice, vector);
    }
    /// The end of a choice.
    fn end(&mut self, choice: usize, outcome: &Outcome);
}

/// The first frames of a choice. Serializing a long echoed prompt takes seconds, so it runs on a blocking
/// thread.
pub struct Preface {
    /// Estimated bytes of token names to serialize.
    pub spelled_bytes: usize,
    /// Serializes the frames.
    pub write: WritePreface,
}

type WritePreface = Box<dyn FnOnce(&Tokenizer) -> Vec<u8> + Send>;

/// A sink that writes frames incrementally.
pub trait Frames: Sink {
    /// Returns, once, what precedes a choice's first token, or its end if it has no tokens.
    fn preface(&mut self, choice: usize) -> Option<Preface>;
    /// The frames written since the buffer was last emptied.
    fn buffer(&mut self) -> &mut Vec<u8>;
    /// The end of all choices.
    fn done(&mut self, totals: &Totals);
    /// The end of a stream that fails after it has begun.
    fn failed(&mut self, error: &ApiError);
}

fn take(group: &mut Group, sink: &mut (impl Sink + ?Sized), (choice, step): (usize, Step)) {
    match step {
        Step::Nothing => {}
        Step::Prompt(logprobs) => sink.prompt(choice, logprobs),
        Step::Vector(vector) => sink.vector(choice, vector),
        Step::Token(piece) => {
            if sink.token(choice, piece) == Go::Stop {
                group.stop(choice);
            }
        }
        Step::End(outcome) if outcome.error.is_none() => sink.end(choice, &outcome),
        Step::End(_) => {}
    }
}

/// Drives a group to its end.
pub async fn collect(mut group: Group, sink: &mut impl Sink) -> Result<Totals, ApiError> {
    while !group.is_done() {
        let Ok(next) = timeout_at(group.last_moment(), group.next()).await else {
            let error = engine_hangs();
            group.fail(&error);
            return Err(error);
        };
        let failed = failure(&next.1);
        take(&mut group, sink, next);
        if let Some(error) = failed {
            return Err(error);
        }
    }
    group.totals()
}

fn failure(step: &Step) -> Option<ApiError> {
    if let Step::End(outcome) = step { outcome.error.clone() } else { None }
}

/// Responds with a stream of what `frames` writes.
pub fn stream_answer(app: &Arc<App>, group: Group, frames: Box<dyn Frames>) -> Answer {
    let streamed = Streamed { app: Arc::clone(app), group, frames };
    let chunks = stream::unfold(Some(streamed), |streamed| async {
        let mut streamed = streamed?;
        let (chunk, more) = streamed.next().await;
        Some((Ok(Frame::data(chunk)), more.then_some(streamed)))
    });
    let mut answer = Response::new(StreamBody::new(chunks).boxed_unsync());
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    answer
}

/// A response stream in progress.
struct Streamed {
    app: Arc<App>,
    group: Group,
    frames: Box<dyn Frames>,
}

impl Streamed {
    /// Waits for the next chunk. Returns it with whether more follow.
    async fn next(&mut self) -> (Bytes, bool) {
        if !self.frames.buffer().is_empty() {
            // What a stream begins with, which waits for no token.
            return (self.written(), true);
        }
        // Measured from the last chunk: many tokens may pass without completing any text.
        let quiet = after(self.app.config.bounds.keep_alive);
        let last = self.group.last_moment();
        loop {
            let Ok(event) = timeout_at(quiet.min(last), self.group.next()).await else {
                if Instant::now() < last {
                    return (Bytes::from_static(KEEP_ALIVE), true);
                }
                return self.failed(&engine_hangs());
            };
            let mut next = Some(event);
            let mut taken = 0;
            while let Some(event) = next.take() {
                if let Err(error) = self.take(event).await {
                    return self.failed(&error);
                }
                if self.group.is_done() {
                    match self.group.totals() {
                        Ok(totals) => self.frames.done(&totals),
                        Err(error) => self.frames.failed(&error),
                    }
                    return (self.written(), false);
                }
                taken += 1;
                if taken < EVENTS_PER_CHUNK && self.frames.buffer().len() < CHUNK_BYTES {
                    next = self.group.try_next();
                }
            }
            if !self.frames.buffer().is_empty() {
                return (self.written(), true);
            }
        }
    }

    /// Writes the frames of an event.
    ///
    /// # Errors
    /// The choice has failed.
    async fn take(&mut self, event: (usize, Step)) -> Result<(), ApiError> {
        let (choice, step) = &event;
        if let Some(error) = failure(step) {
            return Err(error);
        }
        if matches!(step, Step::Token(_) | Step::End(_))
            && let Some(preface) = self.frames.preface(*choice)
        {
            let written = self.app.served()?.with_tokenizer(preface.spelled_bytes, preface.write).await?;
            self.frames.buffer().extend(written);
        }
        take(&mut self.group, &mut *self.frames, event);
        Ok(())
    }

    /// The last chunk of a stream that fails.
    fn failed(&mut self, error: &ApiError) -> (Bytes, bool) {
        self.group.fail(error);
        self.frames.failed(error);
        (self.written(), false)
    }

    fn written(&mut self) -> Bytes {
        std::mem::take(self.frames.buffer()).into()
    }
}

/// Whether `Accept` lists `application/json`; `*/*` doesn't count.
pub fn accepts_json(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(',')).any(|part| {
        part.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    })
}
