//! `POST /v1/completions`: its fields, and the choice between its three forms of response.

use std::sync::Arc;

use hyper::{HeaderMap, StatusCode};
use infer_model::{ModelError, Tokenizer};
use serde_json::Value;

use super::request::common::{self, Common, MAX_LOGPROBS};
use super::request::fields::{self, boolean, check_model, integer, not_supported, refuse_rest, string};
use super::request::json::{NOT_A_PROMPT, PromptField};
use super::request::model_names::Models;
use super::response::echo::{self, Echoes, Prompted, Told};
use super::response::frames::Head;
use super::response::named::NamedFrames;
use super::response::openai::{CompletionBody, CompletionFrames};
use super::response::{accepts_json, collect, stream_answer};
use super::sequence::job::{self, Asked, Job, Longest, MAX_SEQUENCES};
use super::structured::{Prelude, Shape};
use crate::app::Served;
use crate::config::DialectChoice;
use crate::http::{Answer, ApiError, ReadBody, Room, json_bytes};
use crate::texts::tokenizer_error;

/// `max_tokens` of requests that set none, if the context has room for it.
pub const DEFAULT_MAX_TOKENS: u32 = 128;
/// Most token ids of prompts in one response: some 30 MB of JSON.
const MAX_PROMPT_IDS: usize = 1 << 22;

/// Fields that chats lack or define differently.
const OWN_FIELDS: &[&str] =
    &["prompt", "max_tokens", "logprobs", "echo", "add_special_tokens", "best_of", "suffix"];

/// All fields of a body.
pub fn known_fields() -> Vec<&'static str> {
    [OWN_FIELDS, common::FIELDS].concat()
}

/// A request whose fields have been checked, but not yet against the model and the host.
#[derive(Clone, Debug, PartialEq)]
struct Parsed {
    prompts: Vec<PromptInput>,
    max_tokens: Option<u32>,
    logprobs: Option<u32>,
    echo: bool,
    /// Whether to add the tokenizer's special tokens to texts.
    special: bool,
    common: Common,
}

/// A non-empty prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptInput {
    /// To be tokenized.
    Text(String),
    /// Used as given.
    Tokens(Vec<u32>),
}

/// Handles a request.
pub async fn complete(asked: Asked<'_>, headers: &HeaderMap, body: ReadBody) -> Result<Answer, ApiError> {
    let app = asked.app;
    let served = app.served()?;
    let most = asked.most_sequences();
    let parsed = parse(&body, served.models(asked.tenant, &served.adapters.current()), most)?;
    let room = body.into_room();
    let wants_json = accepts_json(headers);
    let options = parsed.common.stream_options;
    // With the OpenAI dialect the host also streams only on request, as OpenAI does.
    let (speaks_openai, default) = match app.config.sse_dialect {
        DialectChoice::Named => (false, !wants_json),
        DialectChoice::OpenAi => (true, false),
        DialectChoice::Auto => (wants_json || options.is_some(), !wants_json),
    };
    let streams = parsed.common.stream.unwrap_or(default);
    parsed.common.check_options(streams)?;
    let (job, prompted) = job(served, parsed, room, most).await?;
    let n = job.common.n as usize;
    let prompt_tokens = job.prompts.iter().map(|prompt| prompt.len() as u32).sum();
    let asks_logprobs = job.logprobs.is_some();
    let told = Told { logprobs: asks_logprobs, token_ids: job.common.return_token_ids };
    let of_prompt = Told { logprobs: job.prompt_logprobs.is_some(), ..told };
    let model = served.shown_name(asked.tenant, job.common.adapter.as_deref()).to_owned();
    let group = job.start(asked).await?;
    let echoes = Echoes::new(prompted, n, of_prompt);
    let head = Head::new("cmpl", "text_completion", asked.request_id, &model, app.clock.unix_s());
    if !streams {
        let mut body = CompletionBody::new(group.choices(), told, echoes);
        let totals = collect(group, &mut body).await?;
        let spelled = body.spelled_bytes();
        let write = move |tokenizer: &Tokenizer| body.written(&head, &totals, tokenizer);
        let written = served.with_tokenizer(spelled, write).await?;
        return Ok(json_bytes(StatusCode::OK, written));
    }
    Ok(if speaks_openai {
        let logprobs = asks_logprobs.then(|| served.tokenizer.clone());
        let frames = CompletionFrames::new(head, group.choices(), echoes, options, prompt_tokens);
        let frames = frames.with_logprobs(logprobs).with_token_ids(told.token_ids);
        stream_answer(app, group, Box::new(frames))
    } else {
        let frames = NamedFrames::new(group.choices(), echoes, &served.tokenizer);
        stream_answer(app, group, Box::new(frames))
    })
}

/// Tokenizes the prompts of at most so many sequences. Also returns them if outputs are to begin with them.
async fn job(
    served: &Served,
    parsed: Parsed,
    room: Room,
    most: usize,
) -> Result<(Job, Vec<Prompted>), ApiError> {
    let Parsed { prompts: inputs, max_tokens, logprobs, echo, special, mut common } = parsed;
    // Before any work is spent on them.
    job::check_sequences(common.n as usize * inputs.len(), most)?;
    let (inputs, room) = served.fitting("prompt", (inputs, room), |(inputs, _)| texts(inputs)).await?;
    let (longest, bytes) = (served.max_seq_len as usize, inputs.iter().map(|input| input.work(echo)).sum());
    let reading = Reading { special, echo, offsets: echo && logprobs.is_some(), longest };
    let read = move |tokenizer: &Tokenizer| {
        let _room = room;
        let prompts = inputs.into_iter().map(|input| input.read(tokenizer, reading));
        prompts.collect::<Result<Vec<Prompted>, _>>()
    };
    let prompted = served.encoding(bytes, read).await?.map_err(|e| tokenizer_error("prompt", e))?;
    let prompts: Vec<Arc<[u32]>> = prompted.iter().map(|prompt| Arc::clone(&prompt.tokens)).collect();
    if common.return_token_ids {
        check_prompt_ids(prompts.iter().map(|prompt| prompt.len()).sum(), common.n as usize)?;
    }
    let begins = echo || common.return_token_ids;
    let shape = common.shape.take();
    let prompt_logprobs = if echo { logprobs } else { None };
    let job = Job {
        source: "prompt",
        prompts,
        goes_on: true,
        tags: Vec::new(),
        place: None,
        longest: max_tokens.map_or(Longest::Room(DEFAULT_MAX_TOKENS), Longest::Asked),
        embed: false,
        logprobs,
        prompt_logprobs,
        shape,
        prelude: Prelude::None,
        common,
    };
    Ok((job, if begins { prompted } else { Vec::new() }))
}

/// Each choice repeats the ids of its prompt.
fn check_prompt_ids(tokens: usize, n: usize) -> Result<(), ApiError> {
    let all = tokens.saturating_mul(n);
    if all > MAX_PROMPT_IDS {
        let message = format!(
            "the ids of the prompts would be {all} over all choices, above the limit of {MAX_PROMPT_IDS}; lower n"
        );
        return Err(ApiError::invalid("return_token_ids", message));
    }
    Ok(())
}

/// Those of the prompts that are texts.
pub fn texts<'a>(inputs: &'a [PromptInput]) -> Vec<&'a str> {
    let text = |input: &'a PromptInput| match input {
        PromptInput::Text(text) => Some(text.as_str()),
        PromptInput::Tokens(_) => None,
    };
    inputs.iter().filter_map(text).collect()
}

impl PromptInput {
    /// Estimated bytes of text that `read` processes.
    pub fn work(&self, echo: bool) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Tokens(tokens) if echo => 4 * tokens.len(),
            Self::Tokens(_) => 0,
        }
    }

    /// Tokenizes the prompt; its text is returned if it is to be echoed.
    pub fn read(self, tokenizer: &Tokenizer, how: Reading) -> Result<Prompted, ModelError> {
        let (text, tokens): (_, Arc<[u32]>) = match self {
            Self::Text(text) => {
                let tokens = tokenizer.encode(&text, how.special)?;
                (if how.echo { text } else { String::new() }, tokens.into())
            }
            Self::Tokens(tokens) => {
                let shown = if how.echo && tokens.len() <= how.longest { &tokens[..] } else { &[] };
                (tokenizer.decode(shown, true)?, tokens.into())
            }
        };
        let told = if how.offsets && tokens.len() <= how.longest { &tokens[..] } else { &[] };
        let offsets = echo::offsets(tokenizer, &text, told);
        Ok(Prompted { text, tokens, offsets })
    }
}

/// How to tokenize prompts.
#[derive(Clone, Copy)]
pub struct Reading {
    /// Whether to add the tokenizer's special tokens to texts.
    pub special: bool,
    /// Whether to return their texts.
    pub echo: bool,
    /// Whether to return where each token begins in the text.
    pub offsets: bool,
    /// Longer prompts get no text or offsets, because they are rejected later.
    pub longest: usize,
}

/// Parses and checks a body as far as that needs no model. Returns the required form of the output, if any.
pub fn check(body: &[u8], models: &[String]) -> Result<Option<Shape>, ApiError> {
    Ok(parse(body, Models::all(models), MAX_SEQUENCES)?.common.shape)
}

/// Parses and checks a body. `models` are the names that it may give; errors mention them, and that a request may have at
/// most so many prompts.
fn parse(body: &[u8], models: Models<'_>, most: usize) -> Result<Parsed, ApiError> {
    let mut fields = fields::read(body)?;
    let prompts = prompts("prompt", fields.prompt.take(), most)?;
    let echo = boolean(&mut fields, "echo")?.unwrap_or(false);
    let special = boolean(&mut fields, "add_special_tokens")?.unwrap_or(true);
    let max_tokens = fields::token_limit(&mut fields, &["max_tokens"], u32::from(!echo))?;
    let logprobs = integer(&mut fields, "logprobs", 0, MAX_LOGPROBS)?;
    let model = check_model(&mut fields, models);
    let mut common = Common::take(&mut fields)?;
    if let Some(best) = integer(&mut fields, "best_of", 1, common::MAX_N)?.filter(|&best| best != common.n) {
        return Err(not_supported("best_of", &Value::from(best), "the value of n"));
    }
    if let Some(suffix) = string(&mut fields, "suffix")?.filter(|suffix| !suffix.is_empty()) {
        return Err(not_supported("suffix", &Value::String(suffix), "null"));
    }
    refuse_rest(&fields, &known_fields())?;
    common.adapter = model?;
    if let Some(most) = max_tokens.filter(|&most| common.min_tokens > most) {
        let message = format!("{} is more than max_tokens = {most}", common.min_tokens);
        return Err(ApiError::invalid("min_tokens", message));
    }
    Ok(Parsed { prompts, max_tokens, logprobs, echo, special, common })
}

/// The prompts of a field of this name. An error about too many tells that a request may have at most so many; fewer are
/// counted elsewhere.
pub fn prompts(name: &str, field: Option<PromptField>, most: usize) -> Result<Vec<PromptInput>, ApiError> {
    let prompts = match field {
        None | Some(PromptField::Null) => {
            let message = format!("{name}: missing; give text or a list of token ids");
            return Err(ApiError::bad_request("missing_field", message).param(name));
        }
        Some(PromptField::Text(text)) => vec![PromptInput::Text(text)],
        Some(PromptField::Tokens(tokens)) => vec![PromptInput::Tokens(tokens)],
        Some(PromptField::Texts(texts)) => texts.into_iter().map(PromptInput::Text).collect(),
        Some(PromptField::TokenLists(lists)) => lists.into_iter().map(PromptInput::Tokens).collect(),
        Some(PromptField::TooMany) => {
            let message = format!("more than {MAX_SEQUENCES} {name}s; a request may have at most {most}");
            return Err(ApiError::invalid(name, message));
        }
        Some(PromptField::NoToken(number, at)) => {
            let message = format!("{number} at index {at} is not a token of any model");
            return Err(ApiError::invalid(name, message));
        }
        Some(PromptField::Wrong) => return Err(ApiError::wrong_type(name, NOT_A_PROMPT)),
    };
    let empty = |prompt: &PromptInput| match prompt {
        PromptInput::Text(text) => text.is_empty(),
        PromptInput::Tokens(tokens) => tokens.is_empty(),
    };
    match prompts.iter().position(empty) {
        None => Ok(prompts),
        Some(at) if prompts.len() > 1 => {
            let message = format!("{name}: the {name} at index {at} is empty");
            Err(ApiError::bad_request("empty_prompt", message).param(name))
        }
        Some(_) => {
            let message = format!("{name}: must not be empty");
            Err(ApiError::bad_request("empty_prompt", message).param(name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use infer_model::SamplingDefaults;
    use serde_json::json;

    fn with(extra: Value) -> Result<Parsed, ApiError> {
        let mut body = json!({"model": "demo", "prompt": "x"});
        for (key, value) in extra.as_object().unwrap() {
            body[key] = value.clone();
        }
        parse(body.to_string().as_bytes(), Models::all(&["demo".to_owned()]), MAX_SEQUENCES)
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let p = with(json!({})).unwrap();
        let s = p.common.sampling.params(&SamplingDefaults::default());
        assert_eq!((p.max_tokens, s.temperature, s.top_p, s.top_k, s.min_p), (None, 1.0, 1.0, 0, 0.0));
        assert_eq!((s.repetition_penalty, s.presence_penalty, s.frequency_penalty), (1.0, 0.0, 0.0));
        assert_eq!(
            (p.common.seed, p.common.stream, p.common.n, p.logprobs, p.echo),
            (None, None, 1, None, false)
        );
    }

    #[test]
    fn each_field_sets_its_parameter() {
        let p = with(json!({
            "max_tokens": 7, "temperature": 0.25, "top_p": 0.5, "top_k": 11, "min_p": 0.125, "repetition_penalty": 1.5,
            "presence_penalty": -0.5, "frequency_penalty": 0.75, "ttft_deadline_ms": 1_234, "priority": 9, "n": 3,
            "expected_output_tokens": 55,
        }))
        .unwrap();
        let s = p.common.sampling.params(&SamplingDefaults::default());
        assert_eq!((p.max_tokens, s.temperature, s.top_p, s.top_k, s.min_p), (Some(7), 0.25, 0.5, 11, 0.125));
        assert_eq!((s.repetition_penalty, s.presence_penalty, s.frequency_penalty), (1.5, -0.5, 0.75));
        assert_eq!((p.common.priority, p.common.n, p.common.expected_output), (9, 3, Some(55)));
        assert_eq!(p.common.ttft_deadline, Some(std::time::Duration::from_millis(1_234)));
    }

    #[test]
    fn missing_parameters_are_the_checkpoints_defaults() {
        let wished = SamplingDefaults {
            temperature: Some(0.5),
            top_p: Some(0.75),
            top_k: Some(20),
            min_p: Some(0.25),
            repetition_penalty: Some(1.5),
        };
        let said = json!({"temperature": 2, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1});
        for (fields, expected) in
            [(json!({"top_p": null}), (0.5, 0.75, 20, 0.25, 1.5)), (said, (2.0, 1.0, 0, 0.0, 1.0))]
        {
            let s = with(fields).unwrap().common.sampling.params(&wished);
            assert_eq!((s.temperature, s.top_p, s.top_k, s.min_p, s.repetition_penalty), expected);
        }
        // The checkpoint's temperature has the same lower bound as a request's.
        let cold = SamplingDefaults { temperature: Some(1e-9), ..wished };
        assert_eq!(with(json!({})).unwrap().common.sampling.params(&cold).temperature, 0.0);
    }

    #[test]
    fn null_and_default_values_of_every_optional_field_are_accepted() {
        for name in known_fields().into_iter().filter(|name| !["model", "prompt"].contains(name)) {
            with(json!({name: null})).unwrap_or_else(|e| panic!("{name}: {}", e.message()));
        }
        with(json!({"n": 1, "echo": false, "add_special_tokens": true, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {},
            "min_p": 0.0, "min_tokens": 0, "ignore_eos": false, "stop": [], "stop_token_ids": [], "metadata": {},
            "best_of": 1, "suffix": "", "top_k": -1, "priority": 0, "user": "", "response_format": {"type": "text"},
            "stream_options": {"include_usage": true, "continuous_usage_stats": true, "include_obfuscation": false}}))
        .unwrap();
        with(json!({"top_p": 5e-324, "temperature": 1e-300})).unwrap();
        // Those of vLLM's fields that clients of several servers send.
        with(json!({"include_stop_str_in_output": false, "spaces_between_special_tokens": true, "length_penalty": 1.0,
            "prompt_logprobs": null, "truncate_prompt_tokens": null, "bad_words": [], "return_token_ids": false,
            "use_beam_search": false, "early_stopping": false, "skip_special_tokens": true, "guided_json": null,
            "guided_regex": null, "guided_choice": null, "guided_grammar": null}))
        .unwrap();
    }

    #[test]
    fn wrong_types_are_400_and_wrong_values_422_and_both_name_the_field() {
        let wrong_types = json!({
            "max_tokens": "5", "temperature": true, "top_p": "x", "top_k": 1.5, "repetition_penalty": [],
            "stream": 1, "stop": [1], "seed": "a", "n": "x", "logprobs": "x", "echo": 3, "presence_penalty": "x",
            "logit_bias": [], "min_p": {}, "min_tokens": 0.5, "ignore_eos": "no", "stop_token_ids": "5",
            "return_token_ids": "yes",
            "stream_options": true, "user": 5, "priority": "high", "cache_salt": 1, "session_id": {},
            "ttft_deadline_ms": "soon", "metadata": {"a": 1}, "response_format": "json", "structured_outputs": 1,
            "suffix": 1, "best_of": "x", "add_special_tokens": "no", "use_beam_search": 1, "bad_words": "x",
            "expected_output_tokens": 2.5,
        });
        let wrong_values = json!({
            "max_tokens": 0, "temperature": -1, "top_p": 0, "top_k": -2, "repetition_penalty": 0,
            "stop": "", "seed": 1e30, "n": 0, "logprobs": 21, "presence_penalty": 2.5,
            "frequency_penalty": -2.5, "logit_bias": {"5": 101}, "min_p": 1.1, "min_tokens": -1,
            "stop_token_ids": [-1], "stream_options": {"foo": true}, "priority": 1e12, "ttft_deadline_ms": 0,
            "user": "x".repeat(513), "metadata": {"a": "x".repeat(513)}, "foo": null, "best_of": 2,
            "suffix": "x", "model": "other", "cache_salt": "x".repeat(513), "response_format": {"type": "xml"},
            "structured_outputs": {"regex": "a", "choice": ["b"]}, "use_beam_search": true, "bad_words": ["x"],
            "length_penalty": 2, "guided_json": {}, "expected_output_tokens": 0,
        });
        for (cases, status) in [(wrong_types, 400), (wrong_values, 422)] {
            for (name, value) in cases.as_object().unwrap() {
                let error = with(json!({name: value})).expect_err(name);
                assert_eq!(error.status().as_u16(), status, "{name}: {}", error.message());
                let answer = format!("{error:?}");
                assert!(answer.contains(name), "{name}: {answer}");
            }
        }
        let negative = with(json!({"expected_output_tokens": -1})).unwrap_err();
        assert_eq!(negative.message(), "expected_output_tokens: must be at least 1, got -1");
    }

    #[test]
    fn min_tokens_must_not_exceed_max_tokens() {
        assert_eq!(with(json!({"min_tokens": 9, "max_tokens": 8})).unwrap_err().status().as_u16(), 422);
        with(json!({"min_tokens": 8, "max_tokens": 8})).unwrap();
        with(json!({"min_tokens": 1_000})).unwrap();
    }

    #[test]
    fn missing_and_empty_prompts_are_rejected() {
        let wrong = [
            json!(null),
            json!(""),
            json!([]),
            json!(5),
            json!(["a", ""]),
            json!([[1], []]),
            json!(["a", 1]),
        ];
        for prompt in wrong {
            assert_eq!(with(json!({"prompt": prompt})).unwrap_err().status().as_u16(), 400, "{prompt}");
        }
        let missing = parse(b"{\"model\": \"demo\"}", Models::all(&["demo".to_owned()]), MAX_SEQUENCES);
        assert_eq!(missing.unwrap_err().status().as_u16(), 400);
        assert_eq!(with(json!({"prompt": ["a", "b"]})).unwrap().prompts.len(), 2);
        for (prompt, number) in
            [(json!([-1]), "-1 at index 0"), (json!([[1], [2, 4_294_967_301_u64]]), "4294967301 at index 1")]
        {
            let error = with(json!({"prompt": prompt})).unwrap_err();
            assert_eq!(error.status().as_u16(), 422, "{prompt}");
            assert!(
                error.message().starts_with(&format!("prompt: {number} is not a token of any model")),
                "{}",
                error.message()
            );
        }
    }

    #[test]
    fn ids_of_prompts_are_bounded_over_all_choices() {
        check_prompt_ids(MAX_PROMPT_IDS / 128, 128).unwrap();
        let error = check_prompt_ids(MAX_PROMPT_IDS / 128 + 1, 128).unwrap_err();
        assert!(error.message().contains("4194432 over all choices"), "{}", error.message());
        check_prompt_ids(usize::MAX, 2).unwrap_err();
    }

    #[test]
    fn whole_numbers_may_have_a_decimal_point() {
        assert_eq!(with(json!({"max_tokens": 8.0})).unwrap().max_tokens, Some(8));
        assert_eq!(with(json!({"seed": -1})).unwrap().common.seed, Some(u64::MAX));
        assert_eq!(with(json!({"max_tokens": 0, "echo": true})).unwrap().max_tokens, Some(0));
    }
}
