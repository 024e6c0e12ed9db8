//! Submits a checked request to the engine: checks tokens and lengths, compiles the output's constraint, and
//! submits all choices at once. The choices of a prompt share its blocks: the first computes them, the others
//! hit the prefix cache and copy the last, partial block when they write to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use infer_core::{AdapterId, Constraint, Micros, Request, SamplingExtras, SamplingParams, SessionId};
use infer_model::Detokenizer;
use tokio::time::timeout_at;

use super::account::{Account, Entering, publish_refusal};
use super::group::{Group, Totals};
use super::marks;
use super::patience::{engine_hangs, last_moment};
use super::place::Place;
use super::run::{Beginning, Run};
use super::text::{Ending, Text};
use crate::app::{App, Served};
use crate::data::request::common::Common;
use crate::data::structured::{Mask, Prelude, Shape};
use crate::engine::RequestMeta;
use crate::http::{ApiError, Pace, RequestId};
use crate::tenants::Tenant;

/// Most sequences of one request, prompts times `n`, to any host.
pub const MAX_SEQUENCES: usize = 1_024;
/// Most log-probabilities of one response at its longest possible length. The generated token's own counts
/// twice, because it has entries in several lists. Each takes up to some 200 bytes at the peak, when numbers,
/// names and JSON are in memory together.
const MAX_LOGPROBS: u64 = 1 << 20;

/// Rejects a request of more than `most` sequences.
pub fn check_sequences(sequences: usize, most: usize) -> Result<(), ApiError> {
    if sequences > most {
        let message = format!("{sequences} choices over all prompts; a request may have at most {most}");
        return Err(ApiError::invalid("n", message));
    }
    Ok(())
}

/// What handlers need to know of a request besides its body.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub app: &'a Arc<App>,
    pub request_id: &'a RequestId,
    /// The other end of its connection: the client, or a proxy.
    pub peer: SocketAddr,
    /// How that reads.
    pub pace: &'a Pace,
    /// The path, as the route table writes it.
    pub path: &'static str,
    pub tenant: &'a Arc<Tenant>,
}

impl Asked<'_> {
    /// The most sequences that a request to this host may have.
    pub fn most_sequences(&self) -> usize {
        MAX_SEQUENCES.min(self.app.config.max_waiting_requests as usize)
    }

    /// Refuses the request while the host is draining, and counts it.
    pub fn refuse_if_draining(&self) -> Result<(), ApiError> {
        self.app.refuse_if_draining().inspect_err(|_| {
            self.app.count_turned_away();
            self.tenant.usage.refused();
        })
    }

    /// Refuses the request if its tenant has sent as many as it may, and counts it either way.
    pub fn refuse_beyond_rate(&self) -> Result<(), ApiError> {
        // While the model loads nothing is served, and whoever asks whether it does pays nothing for that.
        let Ok(served) = self.app.served() else { return Ok(()) };
        self.tenant.requests.take(self.app.clock.now()).map_err(|refusal| {
            let error = ApiError::refused(&refusal);
            publish_refusal(served, self.request_id, &error);
            self.app.count_beyond_rate();
            self.tenant.usage.refused();
            error
        })
    }
}

/// A request whose fields have been checked, but not yet against the model and the host.
#[derive(Clone, Debug)]
pub struct Job {
    /// The field that the prompts came from, for errors.
    pub source: &'static str,
    /// At least one prompt.
    pub prompts: Vec<Arc<[u32]>>,
    /// Whether the output continues the prompt's text (a completion) or begins a text of its own (a reply).
    pub goes_on: bool,
    /// What the output's text shows even where these are special tokens.
    pub tags: Vec<&'static str>,
    /// Where among messages with heads the output begins, if it consists of such.
    pub place: Option<Place>,
    /// Token limit of each choice.
    pub longest: Longest,
    /// Nothing is sampled: what is wanted of each prompt is its vector.
    pub embed: bool,
    /// Alternatives to report for each generated token.
    pub logprobs: Option<u32>,
    /// Alternatives to report for each prompt token.
    pub prompt_logprobs: Option<u32>,
    /// The required form of the output.
    pub shape: Option<Shape>,
    /// What comes before the shape.
    pub prelude: Prelude,
    /// The fields that completions and chats share.
    pub common: Common,
}

/// Token limit of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Longest {
    /// The request's limit. An error if the context has no room for it. 0 asks about the prompt alone.
    Asked(u32),
    /// The request sets none: this default, or less if the context has no room for it.
    Room(u32),
}

impl Job {
    /// Submits all sequences to the engine, or none.
    pub async fn start(self, asked: Asked<'_>) -> Result<Group, ApiError> {
        let Asked { app, request_id, peer, pace, path, tenant } = asked;
        let served = app.served()?;
        asked.refuse_if_draining()?;
        let (n, sequences) = (self.common.n as usize, self.common.n as usize * self.prompts.len());
        check_sequences(sequences, asked.most_sequences())?;
        self.check_tokens(served)?;
        let lengths = self.lengths(served)?;
        let masks = match &self.shape {
            Some(shape) => {
                let masks =
                    served.compiler.masks(tenant.holder(), shape, sequences, self.prelude.clone()).await?;
                masks.into_iter().map(Some).collect()
            }
            None => vec![None; sequences],
        };
        let ends = self.ends(served);
        let seeds = self.seeds(served);
        let requests: Vec<Request> = (0..sequences)
            .map(|at| {
                let seed = sampling_seed(seeds[at / n], (at % n) as u64);
                let sampling = self.sampling(served, seed, masks[at].clone());
                self.request(asked, served, &self.prompts[at / n], lengths[at / n], &ends, sampling)
            })
            .collect();
        let meta = Arc::new(self.meta(request_id, tenant));
        let account = Account {
            app: Arc::clone(app),
            request_id: request_id.clone(),
            peer,
            pace: pace.clone(),
            path,
            tenant: Arc::clone(tenant),
            meta: Arc::clone(&meta),
            submitted: app.clock.now(),
            id: None,
            shape: masks[0].clone(),
        };
        let entering = Entering::new(account, sequences);
        let last_moment = last_moment(app);
        let live = timeout_at(last_moment, served.engine.submit_all(requests, meta)).await;
        let account = entering.done();
        let Ok(live) = live else {
            // A step hangs: the engine would take the request after it.
            let error = engine_hangs();
            account.fail(&error, &Totals::before(sequences, 0));
            return Err(error);
        };
        let live = live.map_err(|error| {
            let error = ApiError::from(error);
            publish_refusal(served, request_id, &error);
            tenant.usage.refused();
            error
        })?;
        if let Some(adapter) = &self.common.adapter {
            adapter.requests.fetch_add(1, Ordering::Relaxed);
        }
        let account = Account { submitted: live[0].submitted(), id: Some(live[0].id()), ..account };
        let runs = live.into_iter().zip(masks).enumerate().map(|(at, (live, shape))| {
            let ending = Ending {
                stops: self.common.stop.clone(),
                tokens: Arc::clone(&ends),
                min_tokens: self.common.min_tokens,
                max_tokens: lengths[at / n].max(1),
            };
            let text = Text::new(self.detokenizer(served, &self.prompts[at / n]), ending);
            let text = text.beginning_in(self.place.clone());
            Run::new(Beginning {
                app: Arc::clone(app),
                tenant: Arc::clone(tenant),
                live,
                text,
                prompt_tokens: self.prompts[at / n].len() as u32,
                mute: self.longest == Longest::Asked(0) && !self.embed,
                shape,
            })
        });
        Ok(Group::new(runs.collect(), n, account, last_moment))
    }

    /// A constrained output keeps every blank, a completion continues its prompt's text, and a reply starts a
    /// new text.
    fn detokenizer(&self, served: &Served, prompt: &[u32]) -> Detokenizer {
        let detokenizer = match (&self.shape, self.goes_on) {
            (Some(_), _) => served.tokenizer.detokenizer_within(),
            (None, true) => served.tokenizer.detokenizer_after(prompt),
            (None, false) => served.tokenizer.detokenizer(),
        };
        match self.place {
            Some(_) => detokenizer.marking(&marks::NAMES),
            None => detokenizer.spelling(&self.tags),
        }
    }

    fn check_tokens(&self, served: &Served) -> Result<(), ApiError> {
        let rows = served.vocab_size;
        for prompt in &self.prompts {
            if prompt.is_empty() {
                let message = format!("{}: must have at least one token", self.source);
                return Err(ApiError::bad_request("empty_prompt", message).param(self.source));
            }
            if let Some(at) = prompt.iter().position(|&t| t >= rows) {
                let (token, last) = (prompt[at], rows - 1);
                let message =
                    format!("{token} at index {at} is not a token of this model; ids range from 0 to {last}");
                return Err(ApiError::invalid(self.source, message));
            }
        }
        let biased = self.common.logit_bias.iter().map(|(token, _)| ("logit_bias", *token));
        let stops = self.common.stop_token_ids.iter().map(|token| ("stop_token_ids", *token));
        if let Some((name, token)) = biased.chain(stops).find(|&(_, token)| token >= rows) {
            let message = format!("{token} is not a token of this model; ids range from 0 to {}", rows - 1);
            return Err(ApiError::invalid(name, message));
        }
        Ok(())
    }

    /// Token limits of each prompt's choices.
    fn lengths(&self, served: &Served) -> Result<Vec<u32>, ApiError> {
        let mut lengths =
            self.prompts.iter().map(|p| self.length(served, p)).collect::<Result<Vec<_>, _>>()?;
        let n = u64::from(self.common.n);
        let each = |alternatives: Option<u32>| alternatives.map_or(0, |beside| u64::from(beside) + 2);
        let (of_prompt, of_output) = (each(self.prompt_logprobs), each(self.logprobs));
        let prompts = n * of_prompt * self.prompts.iter().map(|p| p.len() as u64).sum::<u64>();
        if matches!(self.longest, Longest::Room(_)) && of_output > 0 {
            let room = MAX_LOGPROBS.saturating_sub(prompts) / (n * of_output * lengths.len() as u64);
            let room = u32::try_from(room).unwrap_or(u32::MAX).max(self.common.min_tokens).max(1);
            lengths.iter_mut().for_each(|length| *length = room.min(*length));
        }
        let all = prompts + n * of_output * lengths.iter().map(|&length| u64::from(length)).sum::<u64>();
        if all > MAX_LOGPROBS {
            let message = format!(
                "tokens times (logprobs + 2) may reach {all}, above the limit of {MAX_LOGPROBS}; lower n or max_tokens"
            );
            return Err(ApiError::invalid("logprobs", message));
        }
        Ok(lengths)
    }

    /// Token limit of a prompt's choices.
    fn length(&self, served: &Served, prompt: &[u32]) -> Result<u32, ApiError> {
        if self.embed {
            // No output needs room behind it, and the endpoint has compared the prompt with the context.
            return Ok(0);
        }
        let (limit, prompt) = (u64::from(served.max_seq_len), prompt.len() as u64);
        let least = self.common.min_tokens;
        if prompt >= limit {
            return Err(beyond_context(self.source, limit, format_args!("{prompt}")));
        }
        let room = (limit - prompt) as u32;
        let (longest, name) = match self.longest {
            Longest::Asked(wanted) if wanted > room => {
                let total = prompt + u64::from(wanted);
                let message = format!(
                    "{}; {prompt} prompt tokens and max_tokens = {wanted} make {total}, which exceeds the context \
                     window; shorten the prompt or ask for at most {room}",
                    maximum_context(limit)
                );
                return Err(ApiError::invalid("max_tokens", message).code("context_length_exceeded"));
            }
            Longest::Asked(wanted) => (wanted, "max_tokens"),
            Longest::Room(most) => (most.max(least).min(room), "the room after the prompt"),
        };
        if least > longest {
            let message = format!("{least} is more than {name} = {longest}");
            return Err(ApiError::invalid("min_tokens", message));
        }
        Ok(longest)
    }

    fn ends(&self, served: &Served) -> Arc<[u32]> {
        let own: &[u32] = if self.common.ignore_eos { &[] } else { &served.stop_tokens };
        own.iter().chain(&self.common.stop_token_ids).copied().collect()
    }

    /// The seed of each prompt's first choice. A request without one draws one for each prompt, as if they had come
    /// alone: a prompt that is listed several times is meant to have several samples.
    fn seeds(&self, served: &Served) -> Vec<u64> {
        self.prompts.iter().map(|_| self.common.seed.unwrap_or_else(|| served.seeds.next())).collect()
    }

    fn sampling(&self, served: &Served, seed: u64, mask: Option<Arc<Mask>>) -> SamplingParams {
        if self.embed {
            let extras = SamplingExtras { embed: true, ..SamplingExtras::default() };
            return SamplingParams {
                temperature: 0.0,
                extras: Some(Arc::new(extras)),
                ..SamplingParams::default()
            };
        }
        let extras = SamplingExtras {
            logit_bias: self.common.logit_bias.clone(),
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
            constraint: mask.map(|mask| mask as Arc<dyn Constraint>),
            embed: false,
        };
        let asked = extras != SamplingExtras::default();
        SamplingParams {
            seed,
            extras: asked.then(|| Arc::new(extras)),
            ..self.common.sampling.params(&served.sampling)
        }
    }

    fn request(
        &self,
        asked: Asked<'_>,
        served: &Served,
        prompt: &Arc<[u32]>,
        length: u32,
        ends: &Arc<[u32]>,
        sampling: SamplingParams,
    ) -> Request {
        let common = &self.common;
        let now = asked.app.clock.now();
        Request {
            tenant: asked.tenant.id,
            session: SessionId(common.session_id.as_deref().map_or(0, |s| served.key_of("session", s))),
            cache_salt: common.cache_salt.as_deref().map_or(0, |s| served.key_of("salt", s)),
            adapter: common.adapter.as_ref().map_or(AdapterId::NONE, |adapter| adapter.id),
            priority: common.priority.min(asked.tenant.max_priority),
            deadline: common
                .ttft_deadline
                .map_or(Micros::NEVER, |after| now.plus(Micros(after.as_micros() as u64))),
            prompt: Arc::clone(prompt),
            max_new_tokens: length.max(1),
            expected_output: common.expected_output.filter(|_| asked.tenant.output_hints),
            min_new_tokens: common.min_tokens,
            stop_tokens: Arc::clone(ends),
            sampling,
        }
    }

    fn meta(&self, request_id: &RequestId, tenant: &Tenant) -> RequestMeta {
        RequestMeta {
            request_id: request_id.as_str().to_owned(),
            first: Default::default(),
            tenant: tenant.name.clone(),
            session: self.common.session_id.clone().unwrap_or_default(),
            user: self.common.user.clone().unwrap_or_default(),
            metadata: self.common.metadata.clone(),
            adapter: self.common.adapter.clone(),
        }
    }
}

/// The error of a prompt that leaves no room for output; `tokens` is its length.
pub fn beyond_context(field: &str, limit: u64, tokens: std::fmt::Arguments<'_>) -> ApiError {
    let message = format!(
        "{}; the prompt of {tokens} tokens with at least one of output exceeds the context window; shorten it",
        maximum_context(limit)
    );
    ApiError::invalid(field, message).code("context_length_exceeded")
}

/// OpenAI's words, which clients look for in an error to tell that they must shorten a conversation; LangChain's are
/// `exceeds the context window`. Some search Python's spelling of the body, where a double quote in the message would
/// put a backslash before the apostrophe.
pub fn maximum_context(limit: u64) -> String {
    format!("this model's maximum context length is {limit} tokens")
}

/// The first choice uses its prompt's own seed, so it is the same for any `n`.
fn sampling_seed(seed: u64, choice: u64) -> u64 {
    seed.wrapping_add(choice.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
