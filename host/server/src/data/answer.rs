//! From a group of runs to an HTTP answer: a stream of frames, or one body.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Response};
use tokio::time::{Instant, timeout_at};

use super::group::{Group, Totals};
use super::outcome::Outcome;
use super::run::{Piece, Step};
use crate::app::App;
use crate::http::{Answer, ApiError};
use infer_core::TokenLogprobs;

/// Most events that one chunk of a stream carries.
const EVENTS_PER_CHUNK: usize = 64;
/// For the engine to end a request whose time is over, before it is given up.
const ENGINE_PATIENCE: Duration = Duration::from_secs(10);
/// A comment that keeps proxies from closing a silent stream.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// What a choice is to do after its token was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    /// Go on.
    On,
    /// End: it has said all that was asked for.
    Stop,
}

/// Takes what happens to the choices of one request, in order.
pub trait Sink: Send {
    /// How likely a prompt's next tokens were, from its second on.
    fn prompt(&mut self, choice: usize, logprobs: Vec<TokenLogprobs>);
    /// A token.
    fn token(&mut self, choice: usize, piece: Piece) -> Go;
    /// A choice's end.
    fn end(&mut self, choice: usize, outcome: &Outcome);
}

/// A sink that writes frames as it goes.
pub trait Frames: Sink {
    /// Where frames were written since the last call; given back empty.
    fn buffer(&mut self) -> &mut Vec<u8>;
    /// The end of all choices.
    fn done(&mut self, totals: &Totals);
    /// What went wrong, once the stream has begun.
    fn failed(&mut self, error: &ApiError);
}

fn take(group: &mut Group, sink: &mut (impl Sink + ?Sized), (choice, step): (usize, Step)) {
    match step {
        Step::Nothing => {}
        Step::Prompt(logprobs) => sink.prompt(choice, logprobs),
        Step::Token(piece) => {
            if sink.token(choice, piece) == Go::Stop {
                group.stop(choice);
            }
        }
        Step::End(outcome) if outcome.error.is_none() => sink.end(choice, &outcome),
        Step::End(_) => {}
    }
}

/// Reads a group to its end.
pub async fn collect(app: &App, mut group: Group, sink: &mut impl Sink) -> Result<Totals, ApiError> {
    let last = last_moment(app);
    while !group.is_done() {
        let Ok(next) = timeout_at(last, group.next()).await else {
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

/// When a request is given up that the engine has neither completed nor ended in time.
fn last_moment(app: &App) -> Instant {
    within(app.config.bounds.request_timeout.saturating_add(ENGINE_PATIENCE))
}

/// So long from now, or a year where that is beyond what clocks count.
fn within(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now + Duration::from_secs(365 * 86_400))
}

fn engine_hangs() -> ApiError {
    ApiError::too_late(
        "the request took longer than this host allows (--request-timeout), and the engine doesn't answer",
    )
}

fn failure(step: &Step) -> Option<ApiError> {
    if let Step::End(outcome) = step { outcome.error.clone() } else { None }
}

/// Answers with a stream of what `frames` writes.
pub fn stream_answer(app: &Arc<App>, group: Group, frames: Box<dyn Frames>) -> Answer {
    let (keep_alive, last) = (app.config.bounds.keep_alive, last_moment(app));
    let chunks = stream::unfold(Some((group, frames)), move |state| async move {
        let (mut group, mut frames) = state?;
        // From the last byte: tokens may come for long without making text.
        let quiet = within(keep_alive);
        loop {
            let Ok(event) = timeout_at(quiet.min(last), group.next()).await else {
                if Instant::now() >= last {
                    let error = engine_hangs();
                    group.fail(&error);
                    frames.failed(&error);
                    return Some((Ok(chunk(&mut *frames)), None));
                }
                return Some((Ok(Frame::data(Bytes::from_static(KEEP_ALIVE))), Some((group, frames))));
            };
            let mut next = Some(event);
            let mut taken = 0;
            while let Some(event) = next.take() {
                let failed = failure(&event.1);
                take(&mut group, &mut *frames, event);
                if let Some(error) = failed {
                    frames.failed(&error);
                    return Some((Ok(chunk(&mut *frames)), None));
                }
                if group.is_done() {
                    match group.totals() {
                        Ok(totals) => frames.done(&totals),
                        Err(error) => frames.failed(&error),
                    }
                    return Some((Ok(chunk(&mut *frames)), None));
                }
                taken += 1;
                if taken < EVENTS_PER_CHUNK {
                    next = group.try_next();
                }
            }
            if !frames.buffer().is_empty() {
                return Some((Ok(chunk(&mut *frames)), Some((group, frames))));
            }
        }
    });
    let mut answer = Response::new(StreamBody::new(chunks).boxed_unsync());
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    answer
}

fn chunk(frames: &mut dyn Frames) -> Frame<Bytes> {
    Frame::data(std::mem::take(frames.buffer()).into())
}

/// Whether `Accept` names `application/json`; `*/*` doesn't count.
pub fn accepts_json(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(',')).any(|part| {
        part.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    })
}
