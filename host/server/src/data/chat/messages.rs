//! Normalizes a client's messages to the form that chat templates expect.
//!
//! Fields unknown to templates are dropped, not rejected: clients send a response's message back with
//! whatever fields their library keeps in it.

use hyper::StatusCode;
use infer_api::unique::{self, Limit, MORE_THAN};
use infer_chat::Reads;
use serde_json::{Map, Value, json};

use super::harmony;
use crate::data::request::json::MAX_VALUES;
use crate::http::ApiError;

const NAME: &str = "messages";
const MAX_MESSAGES: usize = 4_096;
const ROLES: &[&str] = &["system", "developer", "user", "assistant", "tool"];

/// Checks and normalizes messages for a template. If it doesn't know `developer`, that becomes `system`; if
/// it doesn't know parts, they are joined to one text. One of messages with channels gets those that it reads.
pub fn normalize(messages: Option<Vec<Value>>, reads: Reads) -> Result<Value, ApiError> {
    let Some(messages) = messages else {
        let error = ApiError::bad_request("missing_field", "messages: missing; give a list of messages");
        return Err(error.param(NAME));
    };
    if messages.is_empty() {
        return Err(ApiError::bad_request("empty_prompt", "messages: must not be empty").param(NAME));
    }
    if messages.len() > MAX_MESSAGES {
        let message = format!("at most {MAX_MESSAGES}, got {}", messages.len());
        return Err(ApiError::invalid(NAME, message));
    }
    let limit = Limit::new(MAX_VALUES);
    let one = |(at, message): (usize, Value)| {
        let Value::Object(message) = message else {
            return Err(ApiError::wrong_type(NAME, "a list of objects"));
        };
        normal(message, reads, &limit).map_err(|error| error.within(&format!("{NAME}[{at}]"), NAME))
    };
    let normal = messages.into_iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
    Ok(Value::Array(if reads.harmony { harmony::as_read(normal) } else { normal }))
}

/// `limit` is that of the values in all arguments of calls.
fn normal(mut message: Map<String, Value>, reads: Reads, limit: &Limit) -> Result<Value, ApiError> {
    let role = match message.remove("role") {
        Some(Value::String(role)) => role,
        None | Some(Value::Null) => {
            return Err(ApiError::bad_request("missing_field", "role is missing"));
        }
        Some(_) => return Err(ApiError::bad_request("wrong_type", "role must be a string")),
    };
    if !ROLES.contains(&role.as_str()) {
        let shown: String = role.chars().take(32).collect();
        let message = format!("role `{shown}` is not one of {}", ROLES.join(", "));
        return Err(ApiError::invalid("role", message));
    }
    let role = if role == "developer" && !reads.developer { "system".to_owned() } else { role };
    let calls = match message.remove("tool_calls") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(calls)) => calls,
        Some(_) => return Err(ApiError::bad_request("wrong_type", "tool_calls must be a list")),
    };
    // Templates that read a user's parts may take only the first of other messages, as Gemma's does of instructions.
    let as_parts = reads.parts && matches!(role.as_str(), "user" | "assistant");
    let content = content(message.remove("content"), as_parts)?;
    if content.is_none() && calls.is_empty() && role != "assistant" {
        return Err(ApiError::bad_request("missing_field", "content is missing"));
    }
    let mut normal = Map::new();
    normal.insert("role".to_owned(), Value::String(role));
    normal.insert("content".to_owned(), content.unwrap_or_else(|| Value::from("")));
    if !calls.is_empty() {
        let calls = calls.into_iter().map(|one| call(one, limit)).collect::<Result<Vec<_>, _>>()?;
        normal.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    let thinking = reads.harmony.then_some("thinking");
    for name in ["name", "tool_call_id", "reasoning_content"].into_iter().chain(thinking) {
        match message.remove(name) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => {
                normal.insert(name.to_owned(), Value::String(text));
            }
            Some(_) => return Err(ApiError::bad_request("wrong_type", format!("{name} must be a string"))),
        }
    }
    Ok(Value::Object(normal))
}

/// Normalizes content, which is text or a list of text parts. Parts stay parts if the template reads them,
/// and are joined with line breaks otherwise.
fn content(value: Option<Value>, as_parts: bool) -> Result<Option<Value>, ApiError> {
    let parts = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(text @ Value::String(_)) => return Ok(Some(text)),
        Some(Value::Array(parts)) => parts,
        Some(_) => {
            let message = "content must be text or a list of parts";
            return Err(ApiError::bad_request("wrong_type", message));
        }
    };
    let text = |part: Value| match (part["type"].as_str(), part["text"].as_str(), part["refusal"].as_str()) {
        (Some("text"), Some(text), _) | (Some("refusal"), _, Some(text)) => Ok(text.to_owned()),
        (Some(kind), _, _) if kind != "text" => {
            let shown: String = kind.chars().take(32).collect();
            let message = format!("a part of type `{shown}` is not supported; this model reads text only");
            Err(ApiError::invalid("content", message).code("not_supported"))
        }
        _ => Err(ApiError::bad_request("wrong_type", "each part of content needs a type and a text")),
    };
    let texts = parts.into_iter().map(text).collect::<Result<Vec<_>, _>>()?;
    if as_parts {
        return Ok(Some(texts.into_iter().map(|text| json!({"type": "text", "text": text})).collect()));
    }
    Ok(Some(Value::String(texts.join("\n"))))
}

/// Normalizes a tool call: templates expect the arguments as an object, clients send it as JSON text. Text that is no
/// JSON object, or one with a key twice, stays text: a model may have written it, and what was said once can be said again.
fn call(mut call: Value, limit: &Limit) -> Result<Value, ApiError> {
    let wrong =
        || ApiError::bad_request("wrong_type", "a tool call needs a `function` with a name and arguments");
    let function = call.get_mut("function").and_then(Value::as_object_mut).ok_or_else(wrong)?;
    let name = function.get("name").and_then(Value::as_str).ok_or_else(wrong)?.to_owned();
    let arguments = match function.remove("arguments") {
        None | Some(Value::Null) => json!({}),
        Some(Value::String(text)) if text.trim().is_empty() => json!({}),
        Some(Value::String(text)) => {
            match unique::parse_within(text.as_bytes(), limit).map_err(|e| e.to_string()) {
                Ok(object @ Value::Object(_)) => object,
                Err(error) if error.starts_with(MORE_THAN) => {
                    let message = format!("the arguments of calls have too many values: {error}");
                    return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "too_many_values", message));
                }
                Ok(_) | Err(_) => Value::String(text),
            }
        }
        Some(object @ Value::Object(_)) => object,
        Some(_) => return Err(wrong()),
    };
    let mut normal = Map::new();
    if let Some(id) = call.get("id").and_then(Value::as_str) {
        normal.insert("id".to_owned(), Value::from(id));
    }
    normal.insert("type".to_owned(), Value::from("function"));
    normal.insert("function".to_owned(), json!({"name": name, "arguments": arguments}));
    Ok(Value::Object(normal))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalized(messages: Value) -> Result<Value, ApiError> {
        let Value::Array(messages) = messages else { panic!("a list") };
        normalize(Some(messages), Reads::default())
    }

    #[test]
    fn messages_are_normalized_for_templates() {
        let messages = json!([
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "c", "annotations": [], "refusal": null, "name": "me"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": ""}},
                {"id": "3", "type": "function", "function": {"name": "h", "arguments": "{\"x\": "}},
                {"id": "4", "type": "function", "function": {"name": "i", "arguments": "[1]"}},
                {"id": "5", "type": "function", "function": {"name": "j", "arguments": "{\"x\": 1, \"x\": 2}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "d"},
        ]);
        let normal = json!([
            {"role": "system", "content": "a\nb"},
            {"role": "user", "content": "c", "name": "me"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": {}}},
                {"id": "3", "type": "function", "function": {"name": "h", "arguments": "{\"x\": "}},
                {"id": "4", "type": "function", "function": {"name": "i", "arguments": "[1]"}},
                {"id": "5", "type": "function", "function": {"name": "j", "arguments": "{\"x\": 1, \"x\": 2}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "d"},
        ]);
        assert_eq!(normalized(messages).unwrap(), normal);
    }

    /// A value of two bytes takes a hundred in memory, and texts of a body are not counted with its values.
    #[test]
    fn arguments_of_all_calls_have_as_many_values_as_a_body_may() {
        let conversation = |values: usize| {
            let arguments = format!("{{\"a\": [{}]}}", vec!["0"; values - 2].join(","));
            let calls = json!([{"function": {"name": "f", "arguments": arguments}}]);
            let turn = json!({"role": "assistant", "tool_calls": calls});
            json!([turn.clone(), turn])
        };
        assert!(normalized(conversation(MAX_VALUES / 2)).is_ok());
        let error = normalized(conversation(MAX_VALUES / 2 + 1)).unwrap_err();
        assert_eq!((error.status().as_u16(), error.reason()), (422, "too_many_values"));
        assert!(error.message().starts_with("messages[1]: the arguments of calls"), "{}", error.message());
    }

    #[test]
    fn parts_stay_parts_if_the_template_reads_them() {
        let parts =
            json!([{"type": "text", "text": "a", "cache_control": {}}, {"type": "refusal", "refusal": "b"}]);
        let messages = vec![
            json!({"role": "user", "content": parts}),
            json!({"role": "user", "content": "c"}),
            json!({"role": "system", "content": parts}),
        ];
        let reads = Reads { parts: true, ..Reads::default() };
        let normal = json!([
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "c"},
            {"role": "system", "content": "a\nb"},
        ]);
        assert_eq!(normalize(Some(messages), reads).unwrap(), normal);
    }

    #[test]
    fn invalid_messages_are_located() {
        let cases = [
            (json!([{"role": "user", "content": "x"}, 5]), 400, "objects"),
            (json!([{"content": "x"}]), 400, "messages[0]: role is missing"),
            (json!([{"role": "robot", "content": "x"}]), 422, "messages[0]: role: role `robot`"),
            (json!([{"role": "user"}]), 400, "content is missing"),
            (json!([{"role": "user", "content": 5}]), 400, "content must be"),
            (
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
                422,
                "image_url",
            ),
            (json!([{"role": "user", "content": [{"type": "text"}]}]), 400, "each part"),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}]),
                400,
                "a name and arguments",
            ),
            (json!([]), 400, "must not be empty"),
        ];
        for (messages, status, part) in cases {
            let error = normalized(messages.clone()).unwrap_err();
            assert_eq!(error.status().as_u16(), status, "{messages}: {}", error.message());
            assert!(error.message().contains(part), "{messages}: {}", error.message());
        }
    }
}
