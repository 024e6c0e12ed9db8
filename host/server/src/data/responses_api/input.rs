//! The input of a response as messages of a chat.
//!
//! A chat's template expects one message for each turn of the assistant. Here its reasoning, its text and each of
//! its calls are items of their own, so those that belong together are put together again. What a client says to
//! the model before anything else, in `instructions` and system messages, becomes one system message: templates
//! may have room for one only.
//!
//! Unknown fields of items are dropped, not rejected: clients send the items of a response back as they came.

use infer_chat::Reads;
use serde_json::{Map, Value, json};

use super::tools::shown;
use crate::http::ApiError;

const NAME: &str = "input";
const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];

/// The messages of `input`, after a system message of the instructions, if there are any.
pub fn messages(
    input: Option<Value>,
    instructions: Option<&str>,
    reads: Reads,
) -> Result<Vec<Value>, ApiError> {
    let mut conversation = Conversation { reads, messages: Vec::new(), turn: None };
    if let Some(text) = instructions {
        conversation.instruct("system", Value::from(text));
    }
    match input {
        None => {
            let message = "input: missing; give a text or a list of items";
            return Err(ApiError::bad_request("missing_field", message).param(NAME));
        }
        Some(text @ Value::String(_)) => conversation.say("user", text),
        Some(Value::Array(items)) if items.is_empty() => {
            return Err(ApiError::bad_request("empty_prompt", "input: must not be empty").param(NAME));
        }
        Some(Value::Array(items)) => {
            for (at, item) in items.into_iter().enumerate() {
                conversation.add(item).map_err(|error| error.within(&format!("{NAME}[{at}]"), NAME))?;
            }
        }
        Some(_) => return Err(ApiError::wrong_type(NAME, "a text or a list of items")),
    }
    conversation.end_turn();
    Ok(conversation.messages)
}

struct Conversation {
    reads: Reads,
    messages: Vec<Value>,
    /// The assistant's turn, to which more items may belong.
    turn: Option<Turn>,
}

#[derive(Default)]
struct Turn {
    reasoning: String,
    content: Option<Value>,
    calls: Vec<Value>,
}

impl Turn {
    /// Whether it has got beyond its reasoning.
    fn has_spoken(&self) -> bool {
        self.content.is_some() || !self.calls.is_empty()
    }
}

impl Conversation {
    fn add(&mut self, item: Value) -> Result<(), ApiError> {
        let Value::Object(mut item) = item else {
            return Err(ApiError::bad_request("wrong_type", "an item must be an object"));
        };
        let kind = match item.remove("type") {
            Some(Value::String(kind)) => kind,
            None | Some(Value::Null) if item.contains_key("role") => "message".to_owned(),
            None | Some(Value::Null) if item.contains_key("id") => "item_reference".to_owned(),
            None | Some(Value::Null) => return Err(missing("type")),
            Some(_) => return Err(ApiError::bad_request("wrong_type", "type must be a string")),
        };
        match kind.as_str() {
            "message" => self.message(&mut item),
            "function_call" => self.call(&mut item),
            "function_call_output" => self.output(&mut item),
            "reasoning" => self.reasoning(&mut item),
            "item_reference" => {
                let message = "an item_reference is not supported: nothing is stored here; send the item itself (clients that \
                     can, do with `store: false`)";
                Err(ApiError::invalid("type", message).code("not_supported"))
            }
            other => {
                let message = format!(
                    "an item of type `{other:.32}` is not supported; there are message, function_call, \
                     function_call_output and reasoning"
                );
                Err(ApiError::invalid("type", message).code("not_supported"))
            }
        }
    }

    fn message(&mut self, item: &mut Map<String, Value>) -> Result<(), ApiError> {
        let role = text(item, "role")?;
        if !ROLES.contains(&role.as_str()) {
            let message = format!("role `{role:.32}` is not one of {}", ROLES.join(", "));
            return Err(ApiError::invalid("role", message));
        }
        let content = content("content", item.remove("content"))?;
        match role.as_str() {
            "assistant" => {
                self.turn(Turn::has_spoken).content = Some(content);
            }
            "developer" if !self.reads.developer => self.instruct("system", content),
            "system" | "developer" => self.instruct(&role, content),
            _ => self.say(&role, content),
        }
        Ok(())
    }

    fn call(&mut self, item: &mut Map<String, Value>) -> Result<(), ApiError> {
        let (name, arguments) = (text(item, "name")?, text(item, "arguments")?);
        let space = item.get("namespace").and_then(Value::as_str);
        let function = json!({"name": shown(space, &name), "arguments": arguments});
        let call = json!({"id": text(item, "call_id")?, "type": "function", "function": function});
        self.turn(|_| false).calls.push(call);
        Ok(())
    }

    fn output(&mut self, item: &mut Map<String, Value>) -> Result<(), ApiError> {
        let (call, output) = (text(item, "call_id")?, content("output", item.remove("output"))?);
        self.end_turn();
        self.messages.push(json!({"role": "tool", "tool_call_id": call, "content": output}));
        Ok(())
    }

    /// Reasoning that another server encrypted, or only summarized, is not what a model has to read again.
    fn reasoning(&mut self, item: &mut Map<String, Value>) -> Result<(), ApiError> {
        let parts = match item.remove("content") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(parts)) => parts,
            Some(_) => return Err(ApiError::bad_request("wrong_type", "content must be a list of parts")),
        };
        for part in parts {
            let (Some("reasoning_text"), Some(text)) = (part["type"].as_str(), part["text"].as_str()) else {
                let message = "a part of reasoning must be a `reasoning_text` with a text";
                return Err(ApiError::bad_request("wrong_type", message));
            };
            if !text.is_empty() {
                self.turn(Turn::has_spoken).reasoning.push_str(text);
            }
        }
        Ok(())
    }

    /// The assistant's turn, or a new one if that of before has to end.
    fn turn(&mut self, ends: impl FnOnce(&Turn) -> bool) -> &mut Turn {
        if self.turn.as_ref().is_some_and(ends) {
            self.end_turn();
        }
        self.turn.get_or_insert_default()
    }

    fn end_turn(&mut self) {
        let Some(Turn { reasoning, content, calls }) = self.turn.take() else { return };
        let mut message = json!({"role": "assistant", "content": content});
        if !reasoning.is_empty() {
            message["reasoning_content"] = Value::from(reasoning);
        }
        if !calls.is_empty() {
            message["tool_calls"] = Value::from(calls);
        }
        self.messages.push(message);
    }

    /// Adds to the conversation's first message, if that is nothing but instructions, too.
    fn instruct(&mut self, role: &str, content: Value) {
        self.end_turn();
        match self.messages.as_mut_slice() {
            [first] if first["role"] == role => {
                let before = &mut first["content"];
                if !before.is_string() {
                    *before = Value::from(joined(before));
                }
                if let Value::String(before) = before {
                    before.push_str("\n\n");
                    before.push_str(&joined(&content));
                }
            }
            _ => self.say(role, content),
        }
    }

    fn say(&mut self, role: &str, content: Value) {
        self.end_turn();
        self.messages.push(json!({"role": role, "content": content}));
    }
}

/// Text, or a list of a chat's text parts.
fn content(name: &str, value: Option<Value>) -> Result<Value, ApiError> {
    let parts = match value {
        None | Some(Value::Null) => return Err(missing(name)),
        Some(text @ Value::String(_)) => return Ok(text),
        Some(Value::Array(parts)) => parts,
        Some(_) => {
            let message = format!("{name} must be text or a list of parts");
            return Err(ApiError::bad_request("wrong_type", message));
        }
    };
    let part = |part: Value| {
        let text = match part["type"].as_str() {
            Some("input_text" | "output_text" | "text") => part["text"].as_str(),
            Some("refusal") => part["refusal"].as_str(),
            Some(other) => {
                let message =
                    format!("a part of type `{other:.32}` is not supported; this model reads text only");
                return Err(ApiError::invalid(name, message).code("not_supported"));
            }
            None => None,
        };
        let wrong = || {
            let message = format!("each part of {name} needs a type and a text");
            ApiError::bad_request("wrong_type", message)
        };
        Ok(json!({"type": "text", "text": text.ok_or_else(wrong)?}))
    };
    parts.into_iter().map(part).collect()
}

fn joined(content: &Value) -> String {
    match content {
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        text => text.as_str().unwrap_or_default().to_owned(),
    }
}

fn text(item: &mut Map<String, Value>, name: &str) -> Result<String, ApiError> {
    match item.remove(name) {
        Some(Value::String(text)) => Ok(text),
        None | Some(Value::Null) => Err(missing(name)),
        Some(_) => Err(ApiError::bad_request("wrong_type", format!("{name} must be a string"))),
    }
}

fn missing(name: &str) -> ApiError {
    ApiError::bad_request("missing_field", format!("{name} is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: Value, instructions: Option<&str>) -> Value {
        let read = messages(Some(input.clone()), instructions, Reads::default());
        read.unwrap_or_else(|error| panic!("{input}: {}", error.message())).into()
    }

    fn said(role: &str, content: &str) -> Value {
        json!({"role": role, "content": content})
    }

    #[test]
    fn text_is_a_users_and_instructions_come_first_in_one_message() {
        assert_eq!(read(json!("a"), None), json!([said("user", "a")]));
        assert_eq!(read(json!("a"), Some("b")), json!([said("system", "b"), said("user", "a")]));
        let parts = json!([{"type": "input_text", "text": "c"}, {"type": "input_text", "text": "d"}]);
        let items = json!([
            {"role": "developer", "content": parts},
            {"type": "message", "role": "system", "content": "e"},
            {"role": "user", "content": "a"},
            {"role": "system", "content": "f"},
        ]);
        let late = [said("user", "a"), said("system", "f")];
        let expected = json!([said("system", "b\n\nc\nd\n\ne"), late[0], late[1]]);
        assert_eq!(read(items.clone(), Some("b")), expected);
        let reads = Reads { developer: true, parts: true, ..Reads::default() };
        let parts = json!([{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]);
        let developer = json!({"role": "developer", "content": parts});
        let all = messages(Some(items), Some("b"), reads).unwrap();
        assert_eq!(all[..2], [said("system", "b"), developer]);
    }

    #[test]
    fn items_of_one_turn_are_one_message() {
        let reasoning = |text: &str| {
            json!({"type": "reasoning", "id": "rs_1", "summary": [],
            "content": [{"type": "reasoning_text", "text": text}], "encrypted_content": null})
        };
        let message = |text: &str| {
            json!({"type": "message", "id": "msg_1", "role": "assistant",
            "status": "completed", "content": [{"type": "output_text", "text": text, "annotations": []}]})
        };
        let call = |id: &str| {
            json!({"type": "function_call", "id": "fc_1", "call_id": id, "name": "f",
            "arguments": "{}", "status": "completed"})
        };
        let output = json!([{"type": "input_text", "text": "9"}]);
        let items = json!([
            {"role": "user", "content": "a"},
            reasoning("b"), message("c"), call("1"), call("2"),
            {"type": "function_call_output", "call_id": "1", "output": "8"},
            {"type": "function_call_output", "call_id": "2", "output": output},
            reasoning("d"), {"type": "function_call", "namespace": "g", "call_id": "3", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "3", "output": "7"},
            message("e"), message("f"),
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}], "encrypted_content": "y"},
        ]);
        let part = |text: &str| json!([{"type": "text", "text": text}]);
        let called = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
        let expected = json!([
            said("user", "a"),
            {"role": "assistant", "content": part("c"), "reasoning_content": "b",
                "tool_calls": [called("1", "f"), called("2", "f")]},
            {"role": "tool", "tool_call_id": "1", "content": "8"},
            {"role": "tool", "tool_call_id": "2", "content": part("9")},
            {"role": "assistant", "content": null, "reasoning_content": "d", "tool_calls": [called("3", "g__f")]},
            {"role": "tool", "tool_call_id": "3", "content": "7"},
            {"role": "assistant", "content": part("e")},
            {"role": "assistant", "content": part("f")},
        ]);
        assert_eq!(read(items, None), expected);
    }

    #[test]
    fn invalid_items_are_located() {
        let user = |content: Value| json!({"role": "user", "content": content});
        for (item, status, part) in [
            (json!("a"), 400, "input[0]: an item must be an object"),
            (json!({}), 400, "input[0]: type is missing"),
            (json!({"type": 1}), 400, "input[0]: type must be a string"),
            (
                json!({"id": "msg_1"}),
                422,
                "input[0]: type: an item_reference is not supported: nothing is stored",
            ),
            (
                json!({"type": "web_search_call"}),
                422,
                "type `web_search_call` is not supported; there are message",
            ),
            (json!({"type": "message"}), 400, "input[0]: role is missing"),
            (
                json!({"role": "tool", "content": "a"}),
                422,
                "input[0]: role: role `tool` is not one of system",
            ),
            (json!({"role": "user"}), 400, "input[0]: content is missing"),
            (user(json!(1)), 400, "content must be text or a list of parts"),
            (
                user(json!([{"type": "input_image"}])),
                422,
                "content: a part of type `input_image` is not supported",
            ),
            (
                user(json!([{"type": "input_file"}])),
                422,
                "content: a part of type `input_file` is not supported",
            ),
            (user(json!([{"type": "input_text"}])), 400, "each part of content needs a type and a text"),
            (user(json!(["a"])), 400, "each part of content needs a type and a text"),
            (json!({"type": "function_call", "name": "f", "arguments": "{}"}), 400, "call_id is missing"),
            (
                json!({"type": "function_call", "name": "f", "arguments": {}}),
                400,
                "arguments must be a string",
            ),
            (json!({"type": "function_call_output", "call_id": "1"}), 400, "output is missing"),
            (json!({"type": "reasoning", "content": "a"}), 400, "content must be a list of parts"),
            (json!({"type": "reasoning", "content": [{"text": "a"}]}), 400, "must be a `reasoning_text`"),
        ] {
            let error = messages(Some(json!([item])), None, Reads::default()).unwrap_err();
            assert_eq!(error.status().as_u16(), status, "{item}: {}", error.message());
            assert!(error.message().starts_with("input[0]: "), "{item}: {}", error.message());
            assert!(error.message().contains(part), "{item}: {}", error.message());
        }
        for (input, message) in [
            (None, "input: missing; give a text or a list of items"),
            (Some(json!([])), "input: must not be empty"),
            (Some(json!(5)), "input: expected a text or a list of items"),
        ] {
            let error = messages(input, Some("a"), Reads::default()).unwrap_err();
            assert_eq!((error.status().as_u16(), error.message()), (400, message));
        }
    }
}
