//! From a request body to a request: every field's type, range and default, and what is refused.
//!
//! A wrong type is a 400, a value that can't be used or a field that nobody knows a 422. What needs
//! the tokenizer or the engine is checked later, in `completions`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::json::{Fields, PromptField};
use crate::http::ApiError;
use hyper::StatusCode;

/// `max_tokens` where the request gives none.
pub const DEFAULT_MAX_TOKENS: u32 = 128;
/// Below this a temperature is 0: dividing logits by it would overflow.
const GREEDY_BELOW: f32 = 1e-4;
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1_024;
const MAX_TEXT_BYTES: usize = 512;
const MAX_METADATA: usize = 16;

/// A request whose fields are right by themselves.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// What to continue.
    pub prompt: PromptInput,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// Before this many no end token is drawn.
    pub min_tokens: u32,
    /// 0 is greedy.
    pub temperature: f32,
    /// Nucleus.
    pub top_p: f32,
    /// 0 is no limit.
    pub top_k: u32,
    /// 1 is off.
    pub repetition_penalty: f32,
    /// The client's seed.
    pub seed: Option<u64>,
    /// Whether to stream, where the request says so.
    pub stream: Option<bool>,
    /// `include_usage`, where the request has `stream_options`.
    pub stream_options: Option<bool>,
    /// Texts that end it.
    pub stop: Vec<String>,
    /// Tokens that end it besides the model's own.
    pub stop_token_ids: Vec<u32>,
    /// The model's end tokens don't end it.
    pub ignore_eos: bool,
    /// Conversation.
    pub session_id: Option<String>,
    /// Separates prefix caches.
    pub cache_salt: Option<String>,
    /// Larger is more urgent.
    pub priority: i32,
    /// When the first token is due.
    pub ttft_deadline: Option<Duration>,
    /// For operators.
    pub user: Option<String>,
    /// For operators.
    pub metadata: BTreeMap<String, String>,
}

/// A prompt that is not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptInput {
    /// To be tokenized.
    Text(String),
    /// Used as given.
    Tokens(Vec<u32>),
}

/// Reads and checks a body. `models` are the names under which the model is served, the first of
/// which is shown.
pub fn parse(body: &[u8], models: &[String]) -> Result<Parsed, ApiError> {
    let mut fields = Fields::parse(body).map_err(|e| {
        ApiError::bad_request("invalid_json", format!("the body is not a valid request: {e}"))
    })?;
    let prompt = prompt(fields.prompt.take())?;
    let model = string(&mut fields, "model")?.ok_or_else(|| {
        ApiError::bad_request("missing_field", "model: missing; give the model's name").param("model")
    })?;
    let max_tokens = integer(&mut fields, "max_tokens", 1, u32::MAX)?.unwrap_or(DEFAULT_MAX_TOKENS);
    let min_tokens = integer(&mut fields, "min_tokens", 0, u32::MAX)?.unwrap_or(0);
    let temperature =
        float(&mut fields, "temperature", "0 or more, at most 100", |x| (0.0..=100.0).contains(&x))?;
    let top_p = float(&mut fields, "top_p", "above 0 and at most 1", |x| x > 0.0 && x <= 1.0)?;
    let penalty =
        float(&mut fields, "repetition_penalty", "from 0.01 to 100", |x| (0.01..=100.0).contains(&x))?;
    let parsed = Parsed {
        prompt,
        max_tokens,
        min_tokens,
        temperature: temperature.map_or(1.0, |t| if t < GREEDY_BELOW { 0.0 } else { t }),
        top_p: top_p.unwrap_or(1.0),
        top_k: top_k(&mut fields)?,
        repetition_penalty: penalty.unwrap_or(1.0),
        seed: seed(&mut fields)?,
        stream: boolean(&mut fields, "stream")?,
        stream_options: stream_options(&mut fields)?,
        stop: stop(&mut fields)?,
        stop_token_ids: stop_token_ids(&mut fields)?,
        ignore_eos: boolean(&mut fields, "ignore_eos")?.unwrap_or(false),
        session_id: label(&mut fields, "session_id")?,
        cache_salt: label(&mut fields, "cache_salt")?,
        priority: priority(&mut fields)?,
        ttft_deadline: integer(&mut fields, "ttft_deadline_ms", 1, u32::MAX)?
            .map(|ms| Duration::from_millis(ms.into())),
        user: label(&mut fields, "user")?,
        metadata: metadata(&mut fields)?,
    };
    unsupported(&mut fields)?;
    if let Some((name, _)) = fields.rest.first() {
        let shown: String = name.chars().take(64).collect();
        let message = format!("unknown field `{shown}`");
        return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown_field", message).param(&shown));
    }
    if !models.contains(&model) {
        let shown: String = model.chars().take(128).collect();
        let message = format!("this host serves `{}`, not `{shown}`", models[0]);
        return Err(ApiError::invalid("model", message).code("model_not_found"));
    }
    if parsed.min_tokens > parsed.max_tokens {
        let message = format!("{} is more than max_tokens = {}", parsed.min_tokens, parsed.max_tokens);
        return Err(ApiError::invalid("min_tokens", message));
    }
    if parsed.stream == Some(false) && parsed.stream_options.is_some() {
        return Err(ApiError::invalid("stream_options", "only allowed where `stream` is true"));
    }
    Ok(parsed)
}

fn prompt(field: Option<PromptField>) -> Result<PromptInput, ApiError> {
    let empty = || ApiError::bad_request("empty_prompt", "prompt: must not be empty").param("prompt");
    match field {
        None | Some(PromptField::Null) => {
            let message = "prompt: missing; give text or a list of token ids";
            Err(ApiError::bad_request("missing_field", message).param("prompt"))
        }
        Some(PromptField::Text(text)) if text.is_empty() => Err(empty()),
        Some(PromptField::Tokens(tokens)) if tokens.is_empty() => Err(empty()),
        Some(PromptField::Text(text)) => Ok(PromptInput::Text(text)),
        Some(PromptField::Tokens(tokens)) => Ok(PromptInput::Tokens(tokens)),
        Some(PromptField::Wrong(expected)) => Err(ApiError::wrong_type("prompt", expected)),
    }
}

fn string(fields: &mut Fields, name: &str) -> Result<Option<String>, ApiError> {
    match fields.take(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(ApiError::wrong_type(name, "a string")),
    }
}

/// A short string that goes to logs and consoles.
fn label(fields: &mut Fields, name: &str) -> Result<Option<String>, ApiError> {
    let text = string(fields, name)?;
    match &text {
        Some(text) if text.len() > MAX_TEXT_BYTES => {
            Err(ApiError::invalid(name, format!("longer than {MAX_TEXT_BYTES} bytes")))
        }
        _ => Ok(text.filter(|t| !t.is_empty())),
    }
}

fn boolean(fields: &mut Fields, name: &str) -> Result<Option<bool>, ApiError> {
    match fields.take(name) {
        None => Ok(None),
        Some(Value::Bool(b)) => Ok(Some(b)),
        Some(_) => Err(ApiError::wrong_type(name, "true or false")),
    }
}

/// A whole number, `8.0` too.
fn whole(name: &str, value: &Value) -> Result<i128, ApiError> {
    let wrong = || ApiError::wrong_type(name, "a whole number");
    let Value::Number(number) = value else { return Err(wrong()) };
    if let Some(n) = number.as_i64() {
        return Ok(n.into());
    }
    if let Some(n) = number.as_u64() {
        return Ok(n.into());
    }
    let x = number.as_f64().ok_or_else(wrong)?;
    // Saturates, which is out of every range below.
    if x.fract() == 0.0 { Ok(x as i128) } else { Err(wrong()) }
}

fn integer(fields: &mut Fields, name: &str, min: u32, max: u32) -> Result<Option<u32>, ApiError> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    let n = whole(name, &value)?;
    match u32::try_from(n) {
        Ok(n) if (min..=max).contains(&n) => Ok(Some(n)),
        _ if n < i128::from(min) => {
            Err(ApiError::invalid(name, format!("must be at least {min}, got {value}")))
        }
        _ => Err(ApiError::invalid(name, format!("must be at most {max}, got {value}"))),
    }
}

fn float(
    fields: &mut Fields,
    name: &str,
    range: &str,
    within: impl Fn(f32) -> bool,
) -> Result<Option<f32>, ApiError> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    let Some(x) = value.as_f64() else { return Err(ApiError::wrong_type(name, "a number")) };
    let x = x as f32;
    if x.is_finite() && within(x) {
        Ok(Some(x))
    } else {
        Err(ApiError::invalid(name, format!("must be {range}, got {value}")))
    }
}

fn top_k(fields: &mut Fields) -> Result<u32, ApiError> {
    let Some(value) = fields.take("top_k") else { return Ok(0) };
    match whole("top_k", &value)? {
        -1 => Ok(0),
        n => u32::try_from(n).map_err(|_| {
            ApiError::invalid("top_k", format!("must be at least 1, or -1 or 0 for no limit, got {value}"))
        }),
    }
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

fn stream_options(fields: &mut Fields) -> Result<Option<bool>, ApiError> {
    let options = match fields.take("stream_options") {
        None => return Ok(None),
        Some(Value::Object(options)) => options,
        Some(_) => return Err(ApiError::wrong_type("stream_options", "an object")),
    };
    let mut include_usage = false;
    for (key, value) in options {
        let param = format!("stream_options.{}", key.chars().take(64).collect::<String>());
        match (key.as_str(), value) {
            (_, Value::Null) | ("continuous_usage_stats" | "include_obfuscation", Value::Bool(false)) => {}
            ("include_usage", Value::Bool(b)) => include_usage = b,
            ("continuous_usage_stats" | "include_obfuscation", Value::Bool(true)) => {
                return Err(ApiError::invalid(&param, "not supported"));
            }
            ("include_usage" | "continuous_usage_stats" | "include_obfuscation", _) => {
                return Err(ApiError::wrong_type(&param, "true or false"));
            }
            _ => return Err(ApiError::invalid(&param, "unknown field").code("unknown_field")),
        }
    }
    Ok(Some(include_usage))
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let wrong = || ApiError::wrong_type("stop", "a string or a list of strings");
    let stops: Vec<String> = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(list)) => list
            .into_iter()
            .map(|v| if let Value::String(s) = v { Ok(s) } else { Err(wrong()) })
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(wrong()),
    };
    if stops.len() > MAX_STOPS {
        return Err(ApiError::invalid("stop", format!("at most {MAX_STOPS} strings, got {}", stops.len())));
    }
    if stops.iter().any(String::is_empty) {
        return Err(ApiError::invalid("stop", "an empty string would stop at once; leave it out"));
    }
    if stops.iter().any(|s| s.len() > MAX_STOP_BYTES) {
        return Err(ApiError::invalid("stop", format!("a string is longer than {MAX_STOP_BYTES} bytes")));
    }
    Ok(stops)
}

fn stop_token_ids(fields: &mut Fields) -> Result<Vec<u32>, ApiError> {
    const NAME: &str = "stop_token_ids";
    let list = match fields.take(NAME) {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(ApiError::wrong_type(NAME, "a list of token ids")),
    };
    if list.len() > 64 {
        return Err(ApiError::invalid(NAME, format!("at most 64 tokens, got {}", list.len())));
    }
    list.iter()
        .map(|v| {
            u32::try_from(whole(NAME, v)?).map_err(|_| ApiError::invalid(NAME, format!("{v} is no token id")))
        })
        .collect()
}

fn metadata(fields: &mut Fields) -> Result<BTreeMap<String, String>, ApiError> {
    const NAME: &str = "metadata";
    let wrong = || ApiError::wrong_type(NAME, "an object whose values are strings");
    let object = match fields.take(NAME) {
        None => return Ok(BTreeMap::new()),
        Some(Value::Object(object)) => object,
        Some(_) => return Err(wrong()),
    };
    if object.len() > MAX_METADATA {
        return Err(ApiError::invalid(NAME, format!("at most {MAX_METADATA} entries, got {}", object.len())));
    }
    let mut map = BTreeMap::new();
    for (key, value) in object {
        let Value::String(value) = value else { return Err(wrong()) };
        if key.len() > MAX_TEXT_BYTES || value.len() > MAX_TEXT_BYTES {
            let message = format!("keys and values may have {MAX_TEXT_BYTES} bytes");
            return Err(ApiError::invalid(NAME, message));
        }
        map.insert(key, value);
    }
    Ok(map)
}

/// Fields that other hosts know: their defaults are accepted, anything else is said not to be.
fn unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    for name in ["n", "best_of"] {
        let value = fields.take(name);
        if let Some(value) = value.filter(|v| v.as_f64() != Some(1.0)) {
            whole(name, &value)?;
            return Err(not_supported(name, &value, "1"));
        }
    }
    for name in ["presence_penalty", "frequency_penalty", "min_p"] {
        let value = fields.take(name);
        if let Some(value) = value.filter(|v| v.as_f64() != Some(0.0)) {
            if !value.is_number() {
                return Err(ApiError::wrong_type(name, "a number"));
            }
            return Err(not_supported(name, &value, "0"));
        }
    }
    if let Some(value) = fields.take("logprobs") {
        whole("logprobs", &value)?;
        return Err(not_supported("logprobs", &value, "null"));
    }
    match fields.take("echo") {
        None | Some(Value::Bool(false)) => {}
        Some(Value::Bool(true)) => return Err(not_supported("echo", &Value::Bool(true), "false")),
        Some(_) => return Err(ApiError::wrong_type("echo", "true or false")),
    }
    match fields.take("logit_bias") {
        None => {}
        Some(Value::Object(bias)) if bias.is_empty() => {}
        Some(value @ Value::Object(_)) => return Err(not_supported("logit_bias", &value, "null")),
        Some(_) => return Err(ApiError::wrong_type("logit_bias", "an object")),
    }
    match string(fields, "suffix")? {
        Some(suffix) if !suffix.is_empty() => Err(not_supported("suffix", &Value::String(suffix), "null")),
        _ => Ok(()),
    }
}

fn not_supported(name: &str, value: &Value, only: &str) -> ApiError {
    let shown: String = value.to_string().chars().take(64).collect();
    ApiError::invalid(name, format!("{shown} is not supported; only {only} is")).code("not_supported")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(extra: Value) -> Result<Parsed, ApiError> {
        let mut body = json!({"model": "demo", "prompt": "x"});
        for (key, value) in extra.as_object().unwrap() {
            body[key] = value.clone();
        }
        parse(body.to_string().as_bytes(), &["demo".to_owned()])
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let p = with(json!({})).unwrap();
        assert_eq!((p.max_tokens, p.temperature, p.top_p, p.top_k), (128, 1.0, 1.0, 0));
        assert_eq!((p.repetition_penalty, p.seed, p.stream), (1.0, None, None));
    }

    #[test]
    fn null_and_default_values_of_every_optional_field_are_accepted() {
        let names = [
            "max_tokens",
            "temperature",
            "top_p",
            "top_k",
            "repetition_penalty",
            "stream",
            "stop",
            "seed",
            "n",
            "logprobs",
            "echo",
            "presence_penalty",
            "frequency_penalty",
            "logit_bias",
            "min_p",
            "min_tokens",
            "ignore_eos",
            "stop_token_ids",
            "stream_options",
            "user",
            "priority",
            "cache_salt",
            "session_id",
            "ttft_deadline_ms",
            "metadata",
            "best_of",
            "suffix",
        ];
        for name in names {
            with(json!({name: null})).unwrap_or_else(|e| panic!("{name}: {}", e.message()));
        }
        with(json!({"n": 1, "echo": false, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {},
            "min_p": 0.0, "min_tokens": 0, "ignore_eos": false, "stop": [], "stop_token_ids": [], "metadata": {},
            "best_of": 1, "suffix": "", "top_k": -1, "priority": 0, "user": ""}))
        .unwrap();
    }

    #[test]
    fn wrong_types_are_400_and_wrong_values_422_and_both_name_the_field() {
        let wrong_types = json!({
            "max_tokens": "5", "temperature": true, "top_p": "x", "top_k": 1.5, "repetition_penalty": [],
            "stream": 1, "stop": [1], "seed": "a", "n": "x", "logprobs": "x", "echo": 3, "presence_penalty": "x",
            "logit_bias": [], "min_p": {}, "min_tokens": 0.5, "ignore_eos": "no", "stop_token_ids": "5",
            "stream_options": true, "user": 5, "priority": "high", "cache_salt": 1, "session_id": {},
            "ttft_deadline_ms": "soon", "metadata": {"a": 1},
        });
        let wrong_values = json!({
            "max_tokens": 0, "temperature": -1, "top_p": 0, "top_k": -2, "repetition_penalty": 0,
            "stop": "", "seed": 1e30, "n": 2, "logprobs": 1, "echo": true, "presence_penalty": 0.5,
            "frequency_penalty": -0.5, "logit_bias": {"5": 1}, "min_p": 0.1, "min_tokens": 129,
            "stop_token_ids": [-1], "stream_options": {"foo": 1}, "priority": 1e12, "ttft_deadline_ms": 0,
            "user": "x".repeat(513), "metadata": {"a": "x".repeat(513)}, "foo": null, "best_of": 2,
            "suffix": "x", "model": "other", "cache_salt": "x".repeat(513),
        });
        for (cases, status) in [(wrong_types, 400), (wrong_values, 422)] {
            for (name, value) in cases.as_object().unwrap() {
                let error = with(json!({name: value})).expect_err(name);
                assert_eq!(error.status().as_u16(), status, "{name}: {}", error.message());
                let answer = format!("{error:?}");
                assert!(answer.contains(name), "{name}: {answer}");
            }
        }
    }

    #[test]
    fn prompts_must_be_there() {
        for prompt in [json!(null), json!(""), json!([]), json!(5), json!(["a"])] {
            assert_eq!(with(json!({"prompt": prompt})).unwrap_err().status().as_u16(), 400, "{prompt}");
        }
        assert_eq!(parse(b"{\"model\": \"demo\"}", &["demo".to_owned()]).unwrap_err().status().as_u16(), 400);
    }

    #[test]
    fn whole_numbers_may_be_written_with_a_point() {
        assert_eq!(with(json!({"max_tokens": 8.0})).unwrap().max_tokens, 8);
        assert_eq!(with(json!({"seed": -1})).unwrap().seed, Some(u64::MAX));
    }
}
