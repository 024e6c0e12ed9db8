//! The fields that completions and chats share: sampling, stopping, structured output, priority and
//! identification.

use std::collections::BTreeMap;
use std::time::Duration;

use infer_core::SamplingParams;
use infer_model::SamplingDefaults;
use serde_json::Value;

use super::fields::{boolean, float, integer, is_longer, label, list, metadata, token_id, whole};
use super::json::Fields;
use super::model_names::Chosen;
use super::router_fields;
use crate::data::structured::Shape;
use crate::http::ApiError;

/// Temperatures below this count as 0: dividing logits by them would overflow.
const GREEDY_BELOW: f32 = 1e-4;
const MAX_STOPS: usize = 16;
/// Longest stop string, in characters.
const MAX_STOP_CHARS: usize = 1_024;
const MAX_STOP_TOKENS: usize = 64;
const MAX_BIASES: usize = 1_024;
/// Most choices of one prompt.
pub const MAX_N: u32 = 128;
/// Most alternatives reported per token.
pub const MAX_LOGPROBS: u32 = 20;

/// Names of the shared fields: `model`, and those that `Common::take` reads.
pub const FIELDS: &[&str] = &[
    "model",
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "min_tokens",
    "ignore_eos",
    "stop",
    "stop_token_ids",
    "return_token_ids",
    "stream",
    "stream_options",
    "response_format",
    "structured_outputs",
    "session_id",
    "cache_salt",
    "priority",
    "ttft_deadline_ms",
    "expected_output_tokens",
    "user",
    "metadata",
];

/// Names of those that a request has which samples nothing: what `Common::take_unsampled` reads.
pub const UNSAMPLED_FIELDS: &[&str] = &["cache_salt", "priority", "ttft_deadline_ms", "user", "metadata"];

/// The fields that completions and chats share, checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Common {
    /// Choices for each prompt.
    pub n: u32,
    pub sampling: Sampling,
    /// Added to the logits, by token id.
    pub logit_bias: Vec<(u32, f32)>,
    /// Absent: a random one.
    pub seed: Option<u64>,
    /// No end token is sampled before this many tokens.
    pub min_tokens: u32,
    /// Whether to generate past the model's end tokens.
    pub ignore_eos: bool,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Tokens that end the output, besides the model's end tokens.
    pub stop_token_ids: Vec<u32>,
    /// Whether to return the token ids of prompt and output.
    pub return_token_ids: bool,
    /// Whether to stream, if the request says.
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    /// The required form of the output.
    pub shape: Option<Shape>,
    /// The conversation that the request belongs to.
    pub session_id: Option<String>,
    /// Only requests with equal salts share cached prefixes.
    pub cache_salt: Option<String>,
    /// Larger is more urgent.
    pub priority: i32,
    /// Time until the first token is due.
    pub ttft_deadline: Option<Duration>,
    /// How many tokens each output will probably have.
    pub expected_output: Option<u32>,
    /// Shown to operators.
    pub user: Option<String>,
    /// Shown to operators.
    pub metadata: BTreeMap<String, String>,
    /// What the model's name means. Set by who reads that field.
    pub adapter: Chosen,
}

/// Sampling parameters that the request sets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
}

/// Additions to a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// A final chunk with the usage.
    pub include_usage: bool,
    /// The usage so far in every chunk.
    pub continuous_usage: bool,
}

impl Common {
    /// Takes the shared fields out of a body.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        router_fields::take(&mut fields.rest)?;
        let common = Self {
            n: integer(fields, "n", 1, MAX_N)?.unwrap_or(1),
            sampling: Sampling::take(fields)?,
            logit_bias: logit_bias(fields)?,
            seed: seed(fields)?,
            min_tokens: integer(fields, "min_tokens", 0, u32::MAX)?.unwrap_or(0),
            ignore_eos: boolean(fields, "ignore_eos")?.unwrap_or(false),
            stop: stops(fields, "stop")?,
            stop_token_ids: stop_token_ids(fields)?,
            return_token_ids: boolean(fields, "return_token_ids")?.unwrap_or(false),
            stream: boolean(fields, "stream")?,
            stream_options: stream_options(fields)?,
            shape: Shape::take(fields)?,
            session_id: label(fields, "session_id")?,
            cache_salt: label(fields, "cache_salt")?,
            priority: priority(fields)?,
            ttft_deadline: ttft_deadline(fields)?,
            expected_output: integer(fields, "expected_output_tokens", 1, u32::MAX)?,
            user: label(fields, "user")?,
            metadata: metadata(fields)?,
            adapter: Chosen::default(),
        };
        if common.shape.is_some() && common.ignore_eos {
            let message = "structured output needs the model's end token, so it can't be ignored";
            return Err(ApiError::invalid("ignore_eos", message));
        }
        Ok(common)
    }

    /// Takes those out of a body that samples nothing. It has a seed, so as not to draw one from the host's sequence.
    pub fn take_unsampled(fields: &mut Fields) -> Result<Self, ApiError> {
        router_fields::take(&mut fields.rest)?;
        Ok(Self {
            n: 1,
            seed: Some(0),
            cache_salt: label(fields, "cache_salt")?,
            priority: priority(fields)?,
            ttft_deadline: ttft_deadline(fields)?,
            user: label(fields, "user")?,
            metadata: metadata(fields)?,
            ..Self::default()
        })
    }
}

impl Common {
    /// Refuses options of a stream in a request that gets none.
    pub fn check_options(&self, streams: bool) -> Result<(), ApiError> {
        match self.stream_options {
            Some(_) if !streams => {
                Err(ApiError::invalid("stream_options", "only allowed with `stream: true`"))
            }
            _ => Ok(()),
        }
    }
}

impl Sampling {
    fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let mut number = |name, expected, fits: fn(f32) -> bool| float(fields, name, expected, fits);
        let penalty: fn(f32) -> bool = |x| (-2.0..=2.0).contains(&x);
        Ok(Self {
            temperature: number("temperature", "0 or more, at most 100", |x| (0.0..=100.0).contains(&x))?,
            top_p: number("top_p", "above 0 and at most 1", |x| x > 0.0 && x <= 1.0)?,
            min_p: number("min_p", "from 0 to 1", |x| (0.0..=1.0).contains(&x))?,
            repetition_penalty: number("repetition_penalty", "from 0.01 to 100", |x| {
                (0.01..=100.0).contains(&x)
            })?,
            presence_penalty: number("presence_penalty", "from -2 to 2", penalty)?,
            frequency_penalty: number("frequency_penalty", "from -2 to 2", penalty)?,
            top_k: top_k(fields)?,
        })
    }

    /// Completes the parameters with the model's defaults. The caller sets seed and extras.
    pub fn params(&self, model: &SamplingDefaults) -> SamplingParams {
        let temperature = self.temperature.or(model.temperature).unwrap_or(1.0);
        SamplingParams {
            temperature: if temperature < GREEDY_BELOW { 0.0 } else { temperature },
            top_p: self.top_p.or(model.top_p).unwrap_or(1.0),
            top_k: self.top_k.or(model.top_k).unwrap_or(0),
            min_p: self.min_p.or(model.min_p).unwrap_or(0.0),
            repetition_penalty: self.repetition_penalty.or(model.repetition_penalty).unwrap_or(1.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            ..SamplingParams::default()
        }
    }
}

fn top_k(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let Some(value) = fields.take("top_k") else { return Ok(None) };
    match whole("top_k", &value)? {
        -1 => Ok(Some(0)),
        n => u32::try_from(n).map(Some).map_err(|_| {
            ApiError::invalid("top_k", format!("must be at least 1, or 0 or -1 for no limit, got {value}"))
        }),
    }
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    const NAME: &str = "logit_bias";
    let object = match fields.take(NAME) {
        None => return Ok(Vec::new()),
        Some(Value::Object(object)) => object,
        Some(_) => return Err(ApiError::wrong_type(NAME, "an object of token ids and numbers")),
    };
    if object.len() > MAX_BIASES {
        return Err(ApiError::invalid(NAME, format!("at most {MAX_BIASES} tokens, got {}", object.len())));
    }
    let bias = |(key, value): (String, Value)| {
        let shown: String = key.chars().take(32).collect();
        let token = key.parse::<u32>().map_err(|_| {
            ApiError::invalid(NAME, format!("`{shown}` is not a token id; keys must be token ids"))
        })?;
        let bias = value.as_f64().ok_or_else(|| ApiError::wrong_type(NAME, "numbers as values"))? as f32;
        if (-100.0..=100.0).contains(&bias) {
            Ok((token, bias))
        } else {
            Err(ApiError::invalid(
                NAME,
                format!("a bias must be from -100 to 100, got {value} for token {token}"),
            ))
        }
    };
    object.into_iter().map(bias).collect()
}

fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    let Some(value) = fields.take("seed") else { return Ok(None) };
    let n = whole("seed", &value)?;
    let signed = i64::try_from(n).map(i64::cast_unsigned);
    signed
        .or_else(|_| u64::try_from(n))
        .map(Some)
        .map_err(|_| ApiError::invalid("seed", format!("must fit in 64 bits, got {value}")))
}

fn priority(fields: &mut Fields) -> Result<i32, ApiError> {
    let Some(value) = fields.take("priority") else { return Ok(0) };
    i32::try_from(whole("priority", &value)?)
        .map_err(|_| ApiError::invalid("priority", format!("must fit in 32 bits, got {value}")))
}

fn ttft_deadline(fields: &mut Fields) -> Result<Option<Duration>, ApiError> {
    let ms = integer(fields, "ttft_deadline_ms", 1, u32::MAX)?;
    Ok(ms.map(|ms| Duration::from_millis(ms.into())))
}

fn stream_options(fields: &mut Fields) -> Result<Option<StreamOptions>, ApiError> {
    const NAME: &str = "stream_options";
    let object = match fields.take(NAME) {
        None => return Ok(None),
        Some(Value::Object(object)) => object,
        Some(_) => return Err(ApiError::wrong_type(NAME, "an object")),
    };
    let mut options = StreamOptions::default();
    // OpenAI's padding of chunks, which hides their lengths. This host adds none.
    let mut obfuscation = false;
    for (key, value) in object {
        let option = match key.as_str() {
            "include_usage" => &mut options.include_usage,
            "continuous_usage_stats" => &mut options.continuous_usage,
            "include_obfuscation" => &mut obfuscation,
            _ => {
                let shown: String = key.chars().take(64).collect();
                let message =
                    format!("unknown option `{shown}`; known: include_usage and continuous_usage_stats");
                return Err(ApiError::invalid(NAME, message));
            }
        };
        *option = match value {
            Value::Null => false,
            Value::Bool(on) => on,
            _ => return Err(ApiError::wrong_type(&format!("{NAME}.{key}"), "true or false")),
        };
    }
    Ok(Some(options))
}

/// Takes stop strings out of a body.
pub fn stops(fields: &mut Fields, name: &str) -> Result<Vec<String>, ApiError> {
    let wrong = || ApiError::wrong_type(name, "text or a list of texts");
    let stops = match fields.take(name) {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) => list
            .into_iter()
            .map(|v| if let Value::String(text) = v { Ok(text) } else { Err(wrong()) })
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(wrong()),
    };
    if stops.len() > MAX_STOPS {
        return Err(ApiError::invalid(name, format!("at most {MAX_STOPS} strings, got {}", stops.len())));
    }
    if stops.iter().any(String::is_empty) {
        return Err(ApiError::invalid(name, "must not be an empty string"));
    }
    if stops.iter().any(|text| is_longer(text, MAX_STOP_CHARS)) {
        let message = format!("a stop string is longer than {MAX_STOP_CHARS} characters");
        return Err(ApiError::invalid(name, message));
    }
    Ok(stops)
}

fn stop_token_ids(fields: &mut Fields) -> Result<Vec<u32>, ApiError> {
    const NAME: &str = "stop_token_ids";
    let list = list(fields, NAME, "token ids")?.unwrap_or_default();
    if list.len() > MAX_STOP_TOKENS {
        return Err(ApiError::invalid(NAME, format!("at most {MAX_STOP_TOKENS} tokens, got {}", list.len())));
    }
    list.iter().map(|value| token_id(NAME, value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_strings_are_measured_in_characters() {
        let read = |text: String| {
            let body = serde_json::json!({"stop": [text]}).to_string();
            stops(&mut Fields::parse(body.as_bytes()).unwrap(), "stop")
        };
        assert_eq!(read("\u{e9}".repeat(MAX_STOP_CHARS)).unwrap().len(), 1);
        let error = read("\u{e9}".repeat(MAX_STOP_CHARS + 1)).unwrap_err();
        assert_eq!(error.message(), "stop: a stop string is longer than 1024 characters");
    }

    #[test]
    fn stream_options_are_read_and_obfuscation_is_ignored() {
        let read = |options: &str| {
            let body = format!("{{\"stream_options\": {options}}}");
            stream_options(&mut Fields::parse(body.as_bytes()).unwrap())
        };
        let usage = StreamOptions { include_usage: true, continuous_usage: false };
        for (options, expected) in [
            ("null", None),
            ("{}", Some(StreamOptions::default())),
            (r#"{"include_obfuscation": true}"#, Some(StreamOptions::default())),
            (r#"{"include_obfuscation": false, "include_usage": true}"#, Some(usage)),
        ] {
            assert_eq!(read(options).unwrap(), expected, "{options}");
        }
        for (options, status) in [
            (r#"{"include_obfuscation": 1}"#, 400),
            (r#"{"obfuscation": true}"#, 422),
            (r#"{"obfuscation": 1}"#, 422),
        ] {
            assert_eq!(read(options).unwrap_err().status(), status, "{options}");
        }
    }
}
