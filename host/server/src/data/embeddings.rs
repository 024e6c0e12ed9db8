//! `POST /v1/embeddings`, in OpenAI's format: each input is a sequence whose prompt is computed and which ends with its
//! last token's hidden state.
//!
//! Deliberately absent: the mean of all hidden states. A cached prefix keeps keys and values, not hidden states, so a mean
//! would either compute whole inputs always or depend on what was cached.

use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use hyper::StatusCode;
use infer_api::embeddings::{Embedding, EmbeddingList, EmbeddingUsage, EmbeddingVector, EncodingFormat};
use infer_core::{FinishReason, TokenLogprobs};
use infer_model::{Pooling, Tokenizer, vector};

use super::completions::{PromptInput, Reading, prompts, texts};
use super::request::common::{self, Common};
use super::request::fields::{self, boolean, check_model, check_word, integer, refuse_rest, string};
use super::request::model_names::Models;
use super::response::{Go, Sink, collect};
use super::sequence::job::{Asked, Job, Longest, MAX_SEQUENCES, maximum_context};
use super::sequence::outcome::Outcome;
use super::sequence::run::Piece;
use super::structured::Prelude;
use crate::app::Served;
use crate::config::PoolingChoice;
use crate::http::{Answer, ApiError, ReadBody, Room, json_bytes};
use crate::texts::tokenizer_error;

const INPUT: &str = "input";
/// Numbers that are written on the spot: handing them to another thread would take longer.
const INLINE_NUMBERS: usize = 2_048;

/// Fields besides the shared ones.
const OWN_FIELDS: &[&str] = &["model", INPUT, "encoding_format", "dimensions", "add_special_tokens"];

/// All fields of a body.
pub fn known_fields() -> Vec<&'static str> {
    [OWN_FIELDS, common::UNSAMPLED_FIELDS].concat()
}

/// How the served model makes vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embeds {
    /// Numbers of a vector.
    pub dimensions: u32,
    /// Whether they are scaled to a length of 1.
    pub normalized: bool,
}

impl Embeds {
    /// What `--pooling` and the checkpoint say; an error that says why there are no vectors.
    pub fn of(choice: PoolingChoice, pooling: Option<&Pooling>, hidden: usize) -> Result<Self, String> {
        let normalized = match (choice, pooling) {
            (_, Some(Pooling::Last { normalized })) => *normalized,
            (PoolingChoice::Last, _) => true,
            (PoolingChoice::Auto, Some(Pooling::Unsupported(why))) => {
                return Err(format!(
                    "{why}, and this host only takes the last token's hidden state, as --pooling last tells it to"
                ));
            }
            (PoolingChoice::Auto, None) => {
                return Err("neither modules.json nor a GGUF file's pooling_type says how its vectors are made; if it \
                            is by the last token's hidden state, start the host with --pooling last"
                    .to_owned());
            }
        };
        Ok(Self { dimensions: u32::try_from(hidden).unwrap_or(u32::MAX), normalized })
    }
}

/// A request whose fields have been checked, but not yet against the model and the host.
#[derive(Clone, Debug, PartialEq)]
struct Parsed {
    inputs: Vec<PromptInput>,
    format: EncodingFormat,
    dimensions: Option<u32>,
    /// Whether to add the tokenizer's special tokens to texts.
    special: bool,
    common: Common,
}

/// Handles a request.
pub async fn embed(asked: Asked<'_>, body: ReadBody) -> Result<Answer, ApiError> {
    let app = asked.app;
    let served = app.served()?;
    let most = asked.most_sequences();
    let Parsed { inputs, format, dimensions, special, common } =
        parse(&body, served.models(asked.tenant, &served.adapters.current()), most)?;
    let room = body.into_room();
    let model = served.shown_name(asked.tenant, common.adapter.as_deref()).to_owned();
    let embeds = served.embeds.as_ref().map_err(|why| {
        let message = format!("`{model}` makes no embeddings: {why}");
        ApiError::bad_request("no_embeddings", message).param("model")
    })?;
    let dimensions = checked(dimensions, embeds)?;
    if inputs.len() > most {
        let message = format!("{} inputs; a request may have at most {most}", inputs.len());
        return Err(ApiError::invalid(INPUT, message));
    }
    let prompts = tokens(served, inputs, special, room).await?;
    let job = Job {
        source: INPUT,
        prompts,
        goes_on: true,
        tags: Vec::new(),
        place: None,
        longest: Longest::Asked(0),
        embed: true,
        logprobs: None,
        prompt_logprobs: None,
        shape: None,
        prelude: Prelude::None,
        common,
    };
    let group = job.start(asked).await?;
    let mut vectors = Vectors { all: vec![Vec::new(); group.choices()] };
    let totals = collect(group, &mut vectors).await?;
    if totals.reasons.contains(&FinishReason::Cancelled) {
        return Err(ApiError::unavailable("cancelled", "an operator cancelled the request").for_good());
    }
    let tokens = totals.usage.prompt_tokens;
    let usage = EmbeddingUsage { prompt_tokens: tokens, total_tokens: tokens };
    let normalized = embeds.normalized;
    let numbers = vectors.all.len() * dimensions;
    let write = move || {
        let all = vectors.all.into_iter().map(|all| vector::finish(all, dimensions, normalized));
        let data = (0..).zip(all).map(|(index, vector)| written(index, vector, format)).collect();
        let list = EmbeddingList { object: "list".to_owned(), data, model, usage };
        serde_json::to_vec(&list).expect("numbers and texts can be written as JSON")
    };
    let bytes = match numbers > INLINE_NUMBERS {
        true => served.off_thread("writing the vectors", write).await?,
        false => write(),
    };
    Ok(json_bytes(StatusCode::OK, bytes))
}

/// Checks a request's dimensions, which are the model's if it names none.
fn checked(wanted: Option<u32>, embeds: &Embeds) -> Result<usize, ApiError> {
    match wanted {
        Some(wanted) if wanted > embeds.dimensions => {
            let message = format!("must be at most {}, got {wanted}", embeds.dimensions);
            Err(ApiError::invalid("dimensions", message))
        }
        wanted => Ok(wanted.unwrap_or(embeds.dimensions) as usize),
    }
}

/// Tokenizes the inputs, and checks their lengths and tokens.
async fn tokens(
    served: &Served,
    inputs: Vec<PromptInput>,
    special: bool,
    room: Room,
) -> Result<Vec<Arc<[u32]>>, ApiError> {
    let (limit, count) = (served.max_seq_len as usize, inputs.len());
    let which = move |at: usize| match count {
        1 => "the input".to_owned(),
        _ => format!("the input at index {at}"),
    };
    let too_long = |at: usize, tokens: &str| {
        let message = format!(
            "{}; {} of {tokens} tokens exceeds the context window; shorten it",
            maximum_context(limit as u64),
            which(at)
        );
        ApiError::invalid(INPUT, message).code("context_length_exceeded")
    };
    let (inputs, room) = served
        .unless_far_too_long((inputs, room), |(inputs, _)| texts(inputs))
        .await?
        .map_err(|at| too_long(at, &format!("more than {limit}")))?;
    let bytes = inputs.iter().map(|input| input.work(false)).sum();
    let reading = Reading { special, echo: false, offsets: false, longest: limit };
    let read = move |tokenizer: &Tokenizer| {
        let _room = room;
        let read = inputs.into_iter().map(|input| input.read(tokenizer, reading).map(|read| read.tokens));
        read.collect::<Result<Vec<_>, _>>()
    };
    let all = served.encoding(bytes, read).await?.map_err(|error| tokenizer_error(INPUT, error))?;
    for (at, tokens) in all.iter().enumerate() {
        if tokens.is_empty() {
            let message = format!("{INPUT}: {} has no token", which(at));
            return Err(ApiError::bad_request("empty_prompt", message).param(INPUT));
        }
        if tokens.len() > limit {
            return Err(too_long(at, &tokens.len().to_string()));
        }
        if let Some(place) = tokens.iter().position(|&token| token >= served.vocab_size) {
            let message = format!(
                "{} at index {place} of {} is not a token of this model; ids range from 0 to {}",
                tokens[place],
                which(at),
                served.vocab_size - 1
            );
            return Err(ApiError::invalid(INPUT, message));
        }
    }
    Ok(all)
}

/// Parses and checks a body as far as that needs no model.
pub fn check(body: &[u8], models: &[String]) -> Result<(), ApiError> {
    parse(body, Models::all(models), MAX_SEQUENCES).map(drop)
}

/// Parses and checks a body. `models` are the names that it may give; errors mention them, and that a request may have at
/// most so many inputs.
fn parse(body: &[u8], models: Models<'_>, most: usize) -> Result<Parsed, ApiError> {
    let mut fields = fields::read_with(body, INPUT)?;
    let inputs = prompts(INPUT, fields.prompt.take(), most)?;
    let format = match string(&mut fields, "encoding_format")? {
        None => EncodingFormat::Float,
        Some(word) => {
            check_word("encoding_format", "", &word, &["float", "base64"])?;
            if word == "base64" { EncodingFormat::Base64 } else { EncodingFormat::Float }
        }
    };
    let dimensions = integer(&mut fields, "dimensions", 1, u32::MAX)?;
    let special = boolean(&mut fields, "add_special_tokens")?.unwrap_or(true);
    let model = check_model(&mut fields, models);
    let mut common = Common::take_unsampled(&mut fields)?;
    refuse_rest(&fields, &known_fields())?;
    common.adapter = model?;
    Ok(Parsed { inputs, format, dimensions, special, common })
}

/// Keeps the vectors of all inputs.
struct Vectors {
    all: Vec<Vec<f32>>,
}

impl Sink for Vectors {
    fn prompt(&mut self, _: usize, _: Vec<TokenLogprobs>) {}

    fn token(&mut self, _: usize, _: Piece) -> Go {
        Go::On
    }

    fn vector(&mut self, choice: usize, vector: Vec<f32>) {
        self.all[choice] = vector;
    }

    fn end(&mut self, _: usize, _: &Outcome) {}
}

fn written(index: u32, vector: Vec<f32>, format: EncodingFormat) -> Embedding {
    let embedding = match format {
        EncodingFormat::Float => EmbeddingVector::Numbers(vector),
        EncodingFormat::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            EmbeddingVector::Base64(BASE64_STANDARD.encode(bytes))
        }
    };
    Embedding { object: "embedding".to_owned(), index, embedding }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn with(extra: Value) -> Result<Parsed, ApiError> {
        let mut body = json!({"model": "demo", "input": "x"});
        for (key, value) in extra.as_object().unwrap() {
            body[key] = value.clone();
        }
        parse(body.to_string().as_bytes(), Models::all(&["demo".to_owned()]), MAX_SEQUENCES)
    }

    #[test]
    fn inputs_have_four_forms() {
        let text = |text: &str| PromptInput::Text(text.to_owned());
        for (input, expected) in [
            (json!("a"), vec![text("a")]),
            (json!(["a", "b"]), vec![text("a"), text("b")]),
            (json!([1, 2]), vec![PromptInput::Tokens(vec![1, 2])]),
            (json!([[1], [2, 3]]), vec![PromptInput::Tokens(vec![1]), PromptInput::Tokens(vec![2, 3])]),
        ] {
            assert_eq!(with(json!({"input": input})).unwrap().inputs, expected);
        }
    }

    #[test]
    fn null_and_default_values_of_every_optional_field_are_accepted() {
        for name in known_fields().into_iter().filter(|name| !["model", "input"].contains(name)) {
            with(json!({name: null})).unwrap_or_else(|e| panic!("{name}: {}", e.message()));
        }
        let parsed = with(json!({"encoding_format": "float", "add_special_tokens": true, "user": "",
            "truncate_prompt_tokens": null, "metadata": {}, "priority": 0}))
        .unwrap();
        assert_eq!((parsed.format, parsed.dimensions, parsed.special), (EncodingFormat::Float, None, true));
        let parsed = with(json!({"encoding_format": "base64", "dimensions": 7, "add_special_tokens": false,
            "cache_salt": "s", "priority": 3, "ttft_deadline_ms": 9, "user": "u", "metadata": {"a": "b"}}))
        .unwrap();
        assert_eq!(
            (parsed.format, parsed.dimensions, parsed.special),
            (EncodingFormat::Base64, Some(7), false)
        );
        let Common { cache_salt, priority, user, n, .. } = parsed.common;
        assert_eq!((cache_salt.as_deref(), priority, user.as_deref(), n), (Some("s"), 3, Some("u"), 1));
    }

    #[test]
    fn many_tokens_are_no_too_many_values() {
        let input: Vec<Vec<u32>> = vec![vec![1; 1_000]; 200];
        assert_eq!(with(json!({"input": input})).unwrap().inputs.len(), 200);
    }

    #[test]
    fn model_embeds_as_its_checkpoint_or_the_setting_says() {
        use PoolingChoice::{Auto, Last};
        let last = |normalized| Some(Pooling::Last { normalized });
        let mean = || Some(Pooling::Unsupported("it is the mean".to_owned()));
        for (choice, pooling, expected) in [
            (Auto, last(true), Some(true)),
            (Auto, last(false), Some(false)),
            (Auto, mean(), None),
            (Auto, None, None),
            (Last, last(false), Some(false)),
            (Last, mean(), Some(true)),
            (Last, None, Some(true)),
        ] {
            let embeds = Embeds::of(choice, pooling.as_ref(), 8);
            assert_eq!(embeds.clone().ok().map(|embeds| embeds.normalized), expected, "{pooling:?}");
            match embeds {
                Ok(embeds) => assert_eq!(embeds.dimensions, 8),
                Err(why) => assert!(why.contains("--pooling last"), "{why}"),
            }
        }
        assert!(Embeds::of(Auto, mean().as_ref(), 8).unwrap_err().starts_with("it is the mean"));
    }
}
