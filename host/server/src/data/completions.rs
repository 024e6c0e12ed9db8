//! `POST /v1/completions`: checks what needs the model, submits, answers as a stream or as one body.

use std::sync::Arc;

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};
use infer_api::admin::AdminEvent;
use infer_api::completions::{Choice, Completion};
use infer_core::{Request, SamplingParams, SessionId};

use super::outcome::{Known, Outcome, openai_reason, reason_name};
use super::sse::{Dialect, KEEP_ALIVE};
use super::text::Text;
use super::validate::{self, Parsed, PromptInput};
use crate::app::{App, Served};
use crate::config::DialectChoice;
use crate::engine::{End, LiveRequest, NewRequest, RequestMeta, StreamEvent};
use crate::http::{Answer, ApiError, RequestId, json};
use crate::tenants::Tenant;

/// Most events that one chunk of a stream carries.
const EVENTS_PER_CHUNK: usize = 64;
/// Tokens between two reports of a stream's gaps to the metrics.
const GAPS_PER_REPORT: usize = 32;

/// Answers a request whose body has been read.
pub async fn complete(
    app: &Arc<App>,
    request_id: &RequestId,
    tenant: &Arc<Tenant>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Answer, ApiError> {
    let served = app.served()?;
    let parsed = validate::parse(body, &served.model_names)?;
    app.refuse_if_draining().inspect_err(|_| {
        app.count_turned_away();
        tenant.usage.refused();
    })?;
    let wants_json = accepts_json(headers);
    let streams = parsed.stream.unwrap_or(!wants_json);
    let dialect =
        dialect(app.config.sse_dialect, served, request_id, &parsed, wants_json, app.clock.unix_s());
    let stops = parsed.stop.clone();
    let (new, ends) = admit(app, served, request_id, tenant, parsed).await?;
    let (prompt_tokens, max_tokens) = (new.request.prompt.len() as u32, new.request.max_new_tokens);
    let live = served.engine.submit(new).await.map_err(|error| {
        let error = ApiError::from(error);
        tell_of_refusal(served, request_id, &error);
        tenant.usage.refused();
        error
    })?;
    let text = Text::new(served.tokenizer.detokenizer(), stops, ends, max_tokens);
    let run = Run {
        app: Arc::clone(app),
        live,
        text,
        request_id: request_id.clone(),
        tenant: Arc::clone(tenant),
        prompt_tokens,
        stopped: false,
        last_at: None,
        gaps_us: Vec::new(),
    };
    if streams { Ok(stream_answer(run, dialect)) } else { whole_answer(run).await }
}

fn tell_of_refusal(served: &Served, request_id: &RequestId, error: &ApiError) {
    served.engine.observer().publish(AdminEvent::Refusal {
        request_id: request_id.as_str().to_owned(),
        reason: error.reason().to_owned(),
        message: error.message().to_owned(),
    });
}

/// Turns what the client said into what the engine takes.
async fn admit(
    app: &App,
    served: &Served,
    request_id: &RequestId,
    tenant: &Tenant,
    parsed: Parsed,
) -> Result<(NewRequest, Arc<[u32]>), ApiError> {
    let prompt: Arc<[u32]> = match parsed.prompt {
        PromptInput::Text(text) => served.encode(text, true).await?.into(),
        PromptInput::Tokens(tokens) => tokens.into(),
    };
    if prompt.is_empty() {
        return Err(ApiError::bad_request("empty_prompt", "prompt: has no tokens").param("prompt"));
    }
    let rows = served.vocab_size;
    if let Some(at) = prompt.iter().position(|&t| t >= rows) {
        let (token, last) = (prompt[at], rows - 1);
        let message = format!("{token} at index {at} is no token of this model; ids go from 0 to {last}");
        return Err(ApiError::invalid("prompt", message));
    }
    if let Some(&token) = parsed.stop_token_ids.iter().find(|&&t| t >= rows) {
        let message = format!("{token} is no token of this model; ids go from 0 to {}", rows - 1);
        return Err(ApiError::invalid("stop_token_ids", message));
    }
    let total = prompt.len() as u64 + u64::from(parsed.max_tokens);
    if total > u64::from(served.max_seq_len) {
        let message = format!(
            "{} prompt tokens and max_tokens = {} make {total}; this host takes {} in all",
            prompt.len(),
            parsed.max_tokens,
            served.max_seq_len
        );
        return Err(ApiError::invalid("max_tokens", message).code("context_length_exceeded"));
    }
    let mut ends: Vec<u32> = if parsed.ignore_eos { Vec::new() } else { served.stop_tokens.to_vec() };
    ends.extend(&parsed.stop_token_ids);
    let ends: Arc<[u32]> = ends.into();
    let now = app.clock.now();
    let request = Request {
        tenant: tenant.id,
        session: SessionId(parsed.session_id.as_deref().map_or(0, |s| served.key_of("session", s))),
        cache_salt: parsed.cache_salt.as_deref().map_or(0, |s| served.key_of("salt", s)),
        priority: parsed.priority.min(tenant.max_priority),
        deadline: parsed.ttft_deadline.map_or(infer_core::Micros::NEVER, |after| {
            now.plus(infer_core::Micros(after.as_micros() as u64))
        }),
        prompt,
        max_new_tokens: parsed.max_tokens,
        min_new_tokens: parsed.min_tokens,
        stop_tokens: Arc::clone(&ends),
        sampling: SamplingParams {
            temperature: parsed.temperature,
            top_p: parsed.top_p,
            top_k: parsed.top_k,
            repetition_penalty: parsed.repetition_penalty,
            seed: parsed.seed.unwrap_or_else(|| served.seeds.next()),
            ..SamplingParams::default()
        },
    };
    let meta = RequestMeta {
        request_id: request_id.as_str().to_owned(),
        tenant: tenant.name.clone(),
        session: parsed.session_id.unwrap_or_default(),
        user: parsed.user.unwrap_or_default(),
        metadata: parsed.metadata,
    };
    Ok((NewRequest { request, meta }, ends))
}

/// Whether `Accept` names `application/json`; `*/*` doesn't count.
fn accepts_json(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(',')).any(|part| {
        part.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    })
}

fn dialect(
    choice: DialectChoice,
    served: &Served,
    request_id: &RequestId,
    parsed: &Parsed,
    wants_json: bool,
    created: u64,
) -> Dialect {
    let openai = match choice {
        DialectChoice::Named => false,
        DialectChoice::OpenAi => true,
        DialectChoice::Auto => wants_json || parsed.stream_options.is_some(),
    };
    if openai {
        let include_usage = parsed.stream_options == Some(true);
        Dialect::OpenAi { head: Box::new(completion_head(served, request_id, created)), include_usage }
    } else {
        Dialect::Named
    }
}

fn completion_head(served: &Served, request_id: &RequestId, created: u64) -> Completion {
    Completion {
        id: format!("cmpl-{}", request_id.as_str()),
        object: "text_completion".to_owned(),
        created,
        model: served.model_names[0].clone(),
        ..Completion::default()
    }
}

/// A taken request and its text so far.
struct Run {
    app: Arc<App>,
    live: LiveRequest,
    text: Text,
    request_id: RequestId,
    tenant: Arc<Tenant>,
    prompt_tokens: u32,
    /// A stop string was seen; what the engine still sends is not for the client.
    stopped: bool,
    last_at: Option<infer_core::Micros>,
    gaps_us: Vec<u32>,
}

/// What an engine event is to the client.
enum Step {
    Nothing,
    Token { text: String, token: u32 },
    End(Box<Outcome>),
}

impl Run {
    fn take(&mut self, event: Option<StreamEvent>) -> Step {
        match event {
            Some(StreamEvent::Token { .. }) if self.stopped => Step::Nothing,
            Some(StreamEvent::Prompt(_)) => Step::Nothing,
            Some(StreamEvent::Token { token, at, .. }) => {
                self.note_gap(at);
                let piece = self.text.push(token);
                if piece.stopped {
                    self.stopped = true;
                    self.live.stop();
                }
                Step::Token { text: piece.text, token }
            }
            Some(StreamEvent::End(end)) => Step::End(Box::new(self.finish(Some(&end)))),
            None => Step::End(Box::new(self.finish(None))),
        }
    }

    fn note_gap(&mut self, at: infer_core::Micros) {
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
        let outcome = Outcome::new(
            end,
            Known {
                submitted: self.live.submitted(),
                now: self.app.clock.now(),
                prompt_tokens: self.prompt_tokens,
                sent_tokens: self.text.tokens(),
                block_bytes,
                stopped: self.stopped,
                model_end,
                engine_alive: self.live.engine_is_alive(),
            },
        );
        self.app.note_end(&self.request_id, &self.tenant, &outcome, matches!(end, Some(End::Refused(_))));
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
            "request ended"
        );
        outcome
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

fn stream_answer(run: Run, dialect: Dialect) -> Answer {
    let keep_alive = run.app.config.bounds.keep_alive;
    let frames = stream::unfold(Some((run, dialect)), move |state| async move {
        let (mut run, dialect) = state?;
        let mut out = Vec::with_capacity(256);
        loop {
            let Ok(event) = tokio::time::timeout(keep_alive, run.live.next()).await else {
                return Some((Ok(Frame::data(Bytes::from_static(KEEP_ALIVE))), Some((run, dialect))));
            };
            let mut next = Some(event);
            let mut taken = 0;
            while let Some(event) = next.take() {
                match run.take(event) {
                    Step::Nothing => {}
                    Step::Token { text, token } => dialect.token(&mut out, text, token),
                    Step::End(outcome) => {
                        dialect.end(&mut out, &outcome);
                        return Some((Ok(Frame::data(out.into())), None));
                    }
                }
                taken += 1;
                if taken < EVENTS_PER_CHUNK {
                    next = run.live.try_next().map(Some);
                }
            }
            if !out.is_empty() {
                return Some((Ok(Frame::data(out.into())), Some((run, dialect))));
            }
        }
    });
    let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    answer
}

async fn whole_answer(mut run: Run) -> Result<Answer, ApiError> {
    let mut text = String::new();
    let outcome = loop {
        let event = run.live.next().await;
        match run.take(event) {
            Step::Nothing => {}
            Step::Token { text: more, .. } => text.push_str(&more),
            Step::End(outcome) => break outcome,
        }
    };
    if let Some(error) = outcome.error {
        return Err(error);
    }
    let served = run.app.served()?;
    let finish_reason = outcome.reason.map(|r| openai_reason(r).to_owned());
    let body = Completion {
        choices: vec![Choice { index: 0, text, logprobs: None, finish_reason }],
        usage: Some(outcome.usage),
        timings: Some(outcome.timings),
        ..completion_head(served, &run.request_id, run.app.clock.unix_s())
    };
    Ok(json(StatusCode::OK, &body))
}
