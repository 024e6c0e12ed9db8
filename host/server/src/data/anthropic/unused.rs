//! Fields of Anthropic's API that have no effect on this host: what they ask for concerns Anthropic's caches, billing and
//! services. Those that would change the response are accepted only with the value that changes nothing.

use serde_json::{Value, json};

use crate::data::fields::not_supported;
use crate::data::json::Fields;
use crate::http::ApiError;

/// What a field may be. Null is another value for each.
#[derive(Clone, Copy)]
enum May {
    /// Ignored.
    Anything,
    /// Ignored, because prefixes are cached and contexts are kept whole without being asked for.
    Object,
    /// Ignored.
    Word(&'static [&'static str]),
    /// Refused.
    Nothing,
    EmptyList,
}

/// Fields of both endpoints.
const OF_BOTH: &[(&str, May)] = &[
    ("cache_control", May::Object),
    ("context_management", May::Object),
    ("mcp_servers", May::EmptyList),
    ("speed", May::Word(&["standard"])),
];

/// Fields of messages alone.
const OF_MESSAGES: &[(&str, May)] = &[
    ("billing_policy", May::Object),
    ("compaction", May::Nothing),
    ("container", May::Nothing),
    ("diagnostics", May::Object),
    ("fallback_credit_token", May::Anything),
    ("fallbacks", May::Anything),
    ("inference_geo", May::Nothing),
    ("service_tier", May::Word(&["auto", "standard_only"])),
    ("thread", May::Nothing),
];

/// Names of the fields that both endpoints have.
pub fn of_both() -> impl Iterator<Item = &'static str> {
    OF_BOTH.iter().map(|&(name, _)| name)
}

/// Whether a field is one of those that both endpoints have.
pub fn both_ignore(name: &str) -> bool {
    OF_BOTH.iter().any(|(known, _)| *known == name)
}

/// JSON schemas of all of them.
pub fn schemas() -> impl Iterator<Item = (&'static str, Value)> {
    OF_BOTH.iter().chain(OF_MESSAGES).map(|&(name, may)| (name, schema(may)))
}

fn schema(may: May) -> Value {
    let mut schema = match may {
        May::Anything => json!({}),
        May::Object => json!({"type": ["object", "null"]}),
        May::Word(words) => {
            let words: Vec<Value> = words.iter().map(|&word| json!(word)).chain([Value::Null]).collect();
            json!({"enum": words})
        }
        May::Nothing => json!({"type": "null"}),
        May::EmptyList => json!({"type": ["array", "null"], "maxItems": 0}),
    };
    schema["description"] = json!(match may {
        May::Nothing | May::EmptyList => "A field of Anthropic's API that this host doesn't support.",
        _ => "A field of Anthropic's API that is accepted and ignored.",
    });
    schema
}

/// Takes those that both endpoints have out of a body.
pub fn take_of_both(fields: &mut Fields) -> Result<(), ApiError> {
    take(fields, OF_BOTH)
}

/// Takes those of messages alone.
pub fn take_of_messages(fields: &mut Fields) -> Result<(), ApiError> {
    take(fields, OF_MESSAGES)
}

fn take(fields: &mut Fields, of: &[(&str, May)]) -> Result<(), ApiError> {
    for &(name, may) in of {
        let Some(value) = fields.take(name) else { continue };
        match (may, &value) {
            (May::Anything, _) | (May::Object, Value::Object(_)) => {}
            (May::Object, _) => return Err(ApiError::wrong_type(name, "an object")),
            (May::Word(words), Value::String(word)) if words.contains(&word.as_str()) => {}
            (May::Word(words), Value::String(_)) => {
                return Err(not_supported(name, &value, &words.join(" or ")));
            }
            (May::Word(_), _) => return Err(ApiError::wrong_type(name, "a word")),
            (May::Nothing, _) => return Err(not_supported(name, &value, "null")),
            (May::EmptyList, Value::Array(list)) if list.is_empty() => {}
            (May::EmptyList, Value::Array(_)) => return Err(not_supported(name, &value, "[]")),
            (May::EmptyList, _) => return Err(ApiError::wrong_type(name, "a list")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, value: Value) -> Result<(), ApiError> {
        let mut fields = Fields::default();
        fields.rest.push((name.to_owned(), value));
        take_of_both(&mut fields)?;
        take_of_messages(&mut fields)?;
        assert!(fields.rest.is_empty(), "{name}");
        Ok(())
    }

    #[test]
    fn what_changes_nothing_is_accepted_and_the_rest_is_refused() {
        for (name, _) in schemas() {
            one(name, Value::Null).unwrap_or_else(|error| panic!("{name}: {}", error.message()));
        }
        for (name, value) in [
            ("cache_control", json!({"type": "ephemeral", "ttl": "1h"})),
            ("context_management", json!({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})),
            ("diagnostics", json!({"previous_message_id": null})),
            ("fallbacks", json!("default")),
            ("mcp_servers", json!([])),
            ("service_tier", json!("auto")),
            ("speed", json!("standard")),
        ] {
            one(name, value).unwrap_or_else(|error| panic!("{name}: {}", error.message()));
        }
        for (name, value, status) in [
            ("cache_control", json!("ephemeral"), 400),
            ("container", json!("c"), 422),
            ("inference_geo", json!("us"), 422),
            ("mcp_servers", json!([{"url": "http://x"}]), 422),
            ("mcp_servers", json!({}), 400),
            ("service_tier", json!("priority"), 422),
            ("service_tier", json!(1), 400),
            ("speed", json!("fast"), 422),
            ("thread", json!({"type": "create"}), 422),
        ] {
            let error = one(name, value).unwrap_err();
            assert_eq!(error.status(), status, "{name}: {}", error.message());
            assert!(error.message().starts_with(name), "{}", error.message());
        }
    }
}
