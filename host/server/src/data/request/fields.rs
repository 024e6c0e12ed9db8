//! Typed readers of a request's fields. A wrong type is a 400, an unacceptable value or an unknown field a
//! 422; each error names its field.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde_json::{Map, Value};

use super::advice;
use super::json::{BodyError, Fields};
use super::model_names::{Chosen, Models};
use crate::http::ApiError;

/// Longest label, in characters, as OpenAI's limits and the interface's document count them.
const MAX_LABEL: usize = 512;
const MAX_METADATA: usize = 16;
/// Most served names that an error lists.
const MAX_NAMED: usize = 8;
/// Transformers' name of `max_tokens`.
pub const FOREIGN_LIMIT: &str = "max_new_tokens";

/// Parses a body into fields. A malformed one is a 400, one with too many values a 422.
pub fn read(body: &[u8]) -> Result<Fields, ApiError> {
    read_with(body, "prompt")
}

/// Parses a body whose prompt has this name, as [`read`] does.
pub fn read_with(body: &[u8], prompt: &'static str) -> Result<Fields, ApiError> {
    Fields::parse_with(body, prompt).map_err(|error| match error {
        BodyError::Invalid(what) => {
            ApiError::bad_request("invalid_json", format!("the body is not a valid request: {what}"))
        }
        BodyError::TooMany(what) => {
            let message = format!("the body has too many values: {what}");
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "too_many_values", message)
        }
    })
}

pub fn string(fields: &mut Fields, name: &str) -> Result<Option<String>, ApiError> {
    match fields.take(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(ApiError::wrong_type(name, "a string")),
    }
}

/// Checks that a word in a field is a known one. `what` goes before it in the error.
pub fn check_word(field: &str, what: &str, word: &str, known: &[&str]) -> Result<(), ApiError> {
    if known.contains(&word) {
        return Ok(());
    }
    let shown: String = word.chars().take(64).collect();
    let message = format!("{what}`{shown}` is not supported; must be one of {}", known.join(", "));
    Err(ApiError::invalid(field, message).code("not_supported"))
}

/// Takes a short string that logs and consoles show. An empty one counts as absent.
pub fn label(fields: &mut Fields, name: &str) -> Result<Option<String>, ApiError> {
    let text = string(fields, name)?;
    match &text {
        Some(text) if is_longer(text, MAX_LABEL) => {
            Err(ApiError::invalid(name, format!("longer than {MAX_LABEL} characters")))
        }
        _ => Ok(text.filter(|t| !t.is_empty())),
    }
}

/// Whether a text has more than `most` characters.
pub fn is_longer(text: &str, most: usize) -> bool {
    text.chars().nth(most).is_some()
}

pub fn boolean(fields: &mut Fields, name: &str) -> Result<Option<bool>, ApiError> {
    match fields.take(name) {
        None => Ok(None),
        Some(Value::Bool(b)) => Ok(Some(b)),
        Some(_) => Err(ApiError::wrong_type(name, "true or false")),
    }
}

pub fn object(fields: &mut Fields, name: &str) -> Result<Option<Map<String, Value>>, ApiError> {
    match fields.take(name) {
        None => Ok(None),
        Some(Value::Object(object)) => Ok(Some(object)),
        Some(_) => Err(ApiError::wrong_type(name, "an object")),
    }
}

pub fn list(fields: &mut Fields, name: &str, of: &str) -> Result<Option<Vec<Value>>, ApiError> {
    match fields.take(name) {
        None => Ok(None),
        Some(Value::Array(list)) => Ok(Some(list)),
        Some(_) => Err(ApiError::wrong_type(name, &format!("a list of {of}"))),
    }
}

/// Reads a whole number. `8.0` is one, too.
pub fn whole(name: &str, value: &Value) -> Result<i128, ApiError> {
    let wrong = || ApiError::wrong_type(name, "a whole number");
    let Value::Number(number) = value else { return Err(wrong()) };
    if let Some(n) = number.as_i64() {
        return Ok(n.into());
    }
    if let Some(n) = number.as_u64() {
        return Ok(n.into());
    }
    let x = number.as_f64().ok_or_else(wrong)?;
    // Saturates to a value outside the range of every field.
    if x.fract() == 0.0 { Ok(x as i128) } else { Err(wrong()) }
}

pub fn integer(fields: &mut Fields, name: &str, min: u32, max: u32) -> Result<Option<u32>, ApiError> {
    fields.take(name).map(|value| bounded(name, &value, min, max)).transpose()
}

/// Reads a whole number from `min` to `max`.
fn bounded(name: &str, value: &Value, min: u32, max: u32) -> Result<u32, ApiError> {
    let n = whole(name, value)?;
    match u32::try_from(n) {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ if n < i128::from(min) => {
            Err(ApiError::invalid(name, format!("must be at least {min}, got {value}")))
        }
        _ => Err(ApiError::invalid(name, format!("must be at most {max}, got {value}"))),
    }
}

/// Takes the most tokens to generate, by the first of `names` that the request has, or else by transformers' name. The
/// others are ignored: lm-eval passes `max_new_tokens` on and adds a `max_tokens` of its own.
pub fn token_limit(fields: &mut Fields, names: &[&str], least: u32) -> Result<Option<u32>, ApiError> {
    // Not with `take`: it is no documented field.
    let foreign = fields.rest.iter().position(|(name, _)| name == FOREIGN_LIMIT);
    let foreign = foreign.map(|at| (FOREIGN_LIMIT, fields.rest.swap_remove(at).1));
    let own: Vec<_> = names.iter().filter_map(|&name| Some((name, fields.take(name)?))).collect();
    let given = own.into_iter().chain(foreign).find(|(_, value)| !value.is_null());
    given.map(|(name, value)| bounded(name, &value, least, u32::MAX)).transpose()
}

pub fn float(
    fields: &mut Fields,
    name: &str,
    range: &str,
    within: impl Fn(f32) -> bool,
) -> Result<Option<f32>, ApiError> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    let Some(x) = value.as_f64() else { return Err(ApiError::wrong_type(name, "a number")) };
    // A number too small for 32 bits must not become 0.
    let x = if x > 0.0 { (x as f32).max(f32::MIN_POSITIVE) } else { x as f32 };
    if x.is_finite() && within(x) {
        Ok(Some(x))
    } else {
        Err(ApiError::invalid(name, format!("must be {range}, got {value}")))
    }
}

/// Reads a token id. Whether the model has this token is checked later.
pub fn token_id(name: &str, value: &Value) -> Result<u32, ApiError> {
    u32::try_from(whole(name, value)?)
        .map_err(|_| ApiError::invalid(name, format!("{value} is not a token id")))
}

pub fn metadata(fields: &mut Fields) -> Result<BTreeMap<String, String>, ApiError> {
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
        if is_longer(&key, MAX_LABEL) || is_longer(&value, MAX_LABEL) {
            let message = format!("a key or value is longer than {MAX_LABEL} characters");
            return Err(ApiError::invalid(NAME, message));
        }
        map.insert(key, value);
    }
    Ok(map)
}

/// Takes the model that the body names, and chooses it.
pub fn check_model(fields: &mut Fields, models: Models<'_>) -> Result<Chosen, ApiError> {
    let model = string(fields, "model")?.ok_or_else(|| {
        ApiError::bad_request("missing_field", "model: missing; give the model's name").param("model")
    })?;
    models.choose(&model).ok_or_else(|| wrong_model(&model, models))
}

/// The error for a model that isn't served.
pub fn wrong_model(model: &str, models: Models<'_>) -> ApiError {
    ApiError::invalid("model", not_served(model, models)).code("model_not_found")
}

/// Says that a model isn't served, and which names are: adapters have theirs, and one may be what was meant.
pub fn not_served(model: &str, models: Models<'_>) -> String {
    let shown: String = model.chars().take(128).collect();
    let names = models.named().map(|named| format!("`{}`", named.name()));
    let named: Vec<String> = names.take(MAX_NAMED).collect();
    if named.is_empty() {
        return format!(
            "this host serves no model that the tenant of this key may use, so not `{shown}`; ask its operators"
        );
    }
    let named = named.join(", ");
    match models.named().count().saturating_sub(MAX_NAMED) {
        0 => format!("this host serves {named}, not `{shown}`"),
        more => format!("this host serves {named} and {more} more, not `{shown}`; see /v1/models"),
    }
}

/// The error for a known field whose value this host doesn't support.
pub fn not_supported(name: &str, value: &Value, only: &str) -> ApiError {
    let shown: String = value.to_string().chars().take(64).collect();
    let advice = advice::of(name).map_or_else(String::new, |advice| format!("; {advice}"));
    let message = format!("{shown} is not supported; only {only} is{advice}");
    ApiError::invalid(name, message).code("not_supported")
}

/// Rejects fields that were not taken. `known` lists all documented fields.
pub fn refuse_rest(fields: &Fields, known: &[&str]) -> Result<(), ApiError> {
    debug_assert!(
        fields.asked().iter().all(|name| known.contains(&name.as_str())),
        "a field was read that is not listed: {:?}",
        fields.asked()
    );
    let Some((name, _)) = fields.rest.first() else { return Ok(()) };
    Err(unknown_field(name, known))
}

/// The error for an unknown field, with advice if another server has it, or a suggestion if a known name is similar.
pub fn unknown_field(name: &str, known: &[&str]) -> ApiError {
    let shown: String = name.chars().take(64).collect();
    let likeliest = known.iter().map(|known| (strsim::levenshtein(&shown, known), known)).min();
    let message = match (advice::of(name), likeliest) {
        (Some(advice), _) => format!("unknown field `{shown}`; {advice}"),
        (None, Some((distance, meant))) if distance <= 2 && distance < meant.len() / 2 => {
            format!("unknown field `{shown}`; did you mean `{meant}`?")
        }
        _ => format!("unknown field `{shown}`"),
    };
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown_field", message).param(&shown)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tenants::ModelList;

    #[test]
    fn mistyped_field_name_gets_a_suggestion() {
        let known = ["max_tokens", "n", "stop"];
        for (name, meant) in [("max_token", "max_tokens"), ("max_tokns", "max_tokens"), ("stops", "stop")] {
            assert!(unknown_field(name, &known).message().contains(&format!("`{meant}`?")), "{name}");
        }
        for name in ["m", "foo", "maximum", &"x".repeat(1 << 20)] {
            assert!(!unknown_field(name, &known).message().contains("mean"), "{name:.20}");
        }
    }

    #[test]
    fn a_wrong_model_is_told_the_served_names_up_to_a_bound() {
        let names: Vec<String> = (0..11).map(|nth| format!("m{nth}")).collect();
        for (served, said) in [
            (1, "this host serves `m0`, not `x`"),
            (2, "this host serves `m0`, `m1`, not `x`"),
            (8, "this host serves `m0`, `m1`, `m2`, `m3`, `m4`, `m5`, `m6`, `m7`, not `x`"),
            (
                11,
                "this host serves `m0`, `m1`, `m2`, `m3`, `m4`, `m5`, `m6`, `m7` and 3 more, not `x`; see /v1/models",
            ),
        ] {
            assert_eq!(not_served("x", Models::all(&names[..served])), said);
        }
        let long = "x".repeat(1 << 20);
        assert!(not_served(&long, Models::all(&names)).len() < 1_024);
        assert!(not_served(&long, Models::all(&[])).len() < 1_024);
    }

    #[test]
    fn a_name_that_the_tenant_may_not_use_gets_the_error_of_one_that_nobody_may() {
        let names = ["m0", "m1", "m2"].map(str::to_owned);
        for (listed, said) in [
            ("m1", "this host serves `m1`, not `"),
            ("gone", "this host serves no model that the tenant of this key may use, so not `"),
        ] {
            let list = ModelList::of(vec![listed.to_owned()]).unwrap();
            let error = |asked: &str| {
                let mut fields = Fields::parse(json!({"model": asked}).to_string().as_bytes()).unwrap();
                let error = check_model(&mut fields, Models::of(&names, &[], &list)).unwrap_err();
                format!("{error:?}").replace(asked, "ASKED")
            };
            assert_eq!(error("m2"), error("no-such-model"));
            assert!(error("m2").contains(said), "{}", error("m2"));
        }
    }

    #[test]
    fn labels_are_measured_in_characters() {
        let read = |letter: &str, length: usize| {
            let text = letter.repeat(length);
            let body = serde_json::json!({"user": text, "metadata": {"name": text}}).to_string();
            let mut fields = Fields::parse(body.as_bytes()).unwrap();
            (label(&mut fields, "user"), metadata(&mut fields))
        };
        for letter in ["a", "\u{e9}", "\u{1f600}"] {
            let (user, metadata) = read(letter, MAX_LABEL);
            assert!(user.is_ok_and(|user| user.is_some()) && metadata.is_ok(), "{letter}");
            let (user, metadata) = read(letter, MAX_LABEL + 1);
            assert_eq!(user.unwrap_err().message(), "user: longer than 512 characters", "{letter}");
            let error = metadata.unwrap_err();
            assert_eq!(error.message(), "metadata: a key or value is longer than 512 characters", "{letter}");
        }
    }

    #[test]
    fn fields_of_other_servers_get_advice() {
        // It would also be similar to a known name.
        let error = unknown_field("repeat_penalty", &["repeat_penalties"]);
        assert_eq!(error.message(), "unknown field `repeat_penalty`; use `repetition_penalty`");
        assert_eq!((error.status().as_u16(), error.reason()), (422, "unknown_field"));
        let error = not_supported("num_beams", &Value::from(4), "1");
        assert_eq!(error.message(), "num_beams: 4 is not supported; only 1 is; this host has no beam search");
        let error = not_supported("suffix", &Value::from("x"), "null");
        assert_eq!(error.message(), "suffix: \"x\" is not supported; only null is");
    }

    #[test]
    fn token_limit_is_the_first_of_its_names() {
        let limit = |body: &str| {
            let mut fields = Fields::parse(body.as_bytes()).unwrap();
            let limit = token_limit(&mut fields, &["max_completion_tokens", "max_tokens"], 1);
            let left: Vec<String> = fields.rest.into_iter().map(|(name, _)| name).collect();
            limit.inspect(|_| assert_eq!(left, ["n"], "{body}"))
        };
        for (body, expected) in [
            (r#"{"n": 1}"#, None),
            (r#"{"n": 1, "max_tokens": 5}"#, Some(5)),
            (r#"{"max_tokens": 5, "n": 1, "max_completion_tokens": 6}"#, Some(6)),
            (r#"{"max_new_tokens": 7, "n": 1}"#, Some(7)),
            (r#"{"max_new_tokens": 7, "n": 1, "max_tokens": null}"#, Some(7)),
            (r#"{"max_new_tokens": null, "n": 1}"#, None),
            (r#"{"max_new_tokens": 7, "n": 1, "max_tokens": 5}"#, Some(5)),
            (r#"{"max_new_tokens": "x", "max_tokens": 5, "n": 1, "max_completion_tokens": 6}"#, Some(6)),
        ] {
            assert_eq!(limit(body).unwrap(), expected, "{body}");
        }
        for (body, status) in [
            (r#"{"max_new_tokens": 0, "n": 1}"#, 422),
            (r#"{"max_new_tokens": -1, "max_tokens": null, "n": 1}"#, 422),
            (r#"{"max_new_tokens": "7", "n": 1}"#, 400),
        ] {
            let error = limit(body).unwrap_err();
            assert_eq!(error.status().as_u16(), status, "{body}");
            assert!(error.message().starts_with("max_new_tokens: "), "{}", error.message());
        }
    }
}
