//! Anthropic's messages as those of a chat.
//!
//! One of Anthropic's messages may become several: results of tools are messages of their own in chats. Neighbours of
//! the same author become one, as Anthropic has it and as templates expect it. Members of blocks that templates don't
//! know (`cache_control`, `signature` and the like) are dropped.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::data::fields::list;
use crate::data::json::Fields;
use crate::http::ApiError;

const MESSAGES: &str = "messages";
const SYSTEM: &str = "system";
/// Begins a line that Claude Code puts before its instructions. It differs in each request, so no cached prefix would
/// ever match, and it means nothing to a model.
const BILLING: &str = "x-anthropic-billing-header:";
/// The member of an input that is not a JSON object, which Anthropic's documentation proposes for it.
pub const INVALID: &str = "INVALID_JSON";

/// Who says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    User,
    Assistant,
    System,
}

/// A conversation in a chat's form.
#[derive(Debug, PartialEq)]
pub struct Conversation {
    /// The messages.
    pub messages: Vec<Value>,
    /// Whether the assistant's is the last.
    pub ends_with_reply: bool,
}

/// Takes `system` and `messages` out of a body.
pub fn take(fields: &mut Fields) -> Result<Conversation, ApiError> {
    let mut chat = Chat::default();
    if let Some(system) = fields.take(SYSTEM) {
        for block in blocks(system).map_err(|error| error.within(SYSTEM, SYSTEM))? {
            let text = text_of(block).map_err(|error| error.within(SYSTEM, SYSTEM))?;
            chat.system.extend(without_billing(text));
        }
    }
    let Some(messages) = list(fields, MESSAGES, "messages")? else {
        let message = "messages: missing; give a list of messages";
        return Err(ApiError::bad_request("missing_field", message).param(MESSAGES));
    };
    if messages.is_empty() {
        let message = "messages: must not be empty";
        return Err(ApiError::bad_request("empty_prompt", message).param(MESSAGES));
    }
    let mut last = Role::User;
    for (at, message) in messages.into_iter().enumerate() {
        let place = format!("{MESSAGES}[{at}]");
        last = chat.say(message).map_err(|error| error.within(&place, MESSAGES))?;
    }
    Ok(Conversation { messages: chat.finish(), ends_with_reply: last == Role::Assistant })
}

/// The chat so far.
#[derive(Default)]
struct Chat {
    system: Vec<String>,
    messages: Vec<Value>,
    /// The tools by the ids of their uses.
    tools: BTreeMap<String, String>,
}

impl Chat {
    fn say(&mut self, message: Value) -> Result<Role, ApiError> {
        let Value::Object(mut message) = message else { return Err(wrong("expected an object")) };
        let role = role(message.remove("role"))?;
        let content = message.remove("content").unwrap_or_default();
        for (at, block) in blocks(content)?.into_iter().enumerate() {
            let place = format!("content[{at}]");
            self.add(role, block).map_err(|error| error.within(&place, MESSAGES))?;
        }
        if role == Role::Assistant {
            // A reply may be empty, and is one nevertheless.
            self.turn("assistant");
        }
        Ok(role)
    }

    /// Adds a block. Texts of a user's message follow the results in it, wherever they are.
    fn add(&mut self, role: Role, mut block: Map<String, Value>) -> Result<(), ApiError> {
        let kind = kind_of(&block)?;
        match (kind.as_str(), role) {
            ("text", Role::System) if self.messages.is_empty() => self.system.push(text_of(block)?),
            ("text", Role::Assistant) => self.text("assistant", text_of(block)?),
            // Many templates refuse instructions that come later.
            ("text", Role::User | Role::System) => self.text("user", text_of(block)?),
            ("tool_result", Role::User) => self.result(block)?,
            ("thinking", Role::Assistant) => {
                let thought = string(&mut block, "thinking")?;
                if !thought.is_empty() {
                    let turn = self.turn("assistant");
                    let before = turn.entry("reasoning_content").or_insert_with(|| Value::from(""));
                    if let Value::String(before) = before {
                        before.push_str(&thought);
                    }
                }
            }
            // Only whoever wrote it can read it.
            ("redacted_thinking", Role::Assistant) => {}
            ("tool_use", Role::Assistant) => self.call(block)?,
            ("tool_result" | "thinking" | "redacted_thinking" | "tool_use", _) => {
                let message = format!("a block of type `{kind}` can't be in a message of this role");
                return Err(ApiError::invalid("type", message));
            }
            _ => return Err(unknown_block(&kind)),
        }
        Ok(())
    }

    /// The last message if it is of this role, or else a new one.
    fn turn(&mut self, role: &str) -> &mut Map<String, Value> {
        if self.messages.last().is_none_or(|last| last["role"] != role) {
            self.messages.push(json!({"role": role, "content": []}));
        }
        self.messages.last_mut().and_then(Value::as_object_mut).expect("one was added")
    }

    fn text(&mut self, role: &str, text: String) {
        if let Some(Value::Array(parts)) = self.turn(role).get_mut("content") {
            parts.push(json!({"type": "text", "text": text}));
        }
    }

    fn call(&mut self, mut block: Map<String, Value>) -> Result<(), ApiError> {
        let (id, name) = (string(&mut block, "id")?, string(&mut block, "name")?);
        let input = match block.remove("input") {
            Some(Value::Object(input)) => input,
            _ => return Err(wrong("input: expected an object")),
        };
        let arguments = match input.get(INVALID) {
            Some(Value::String(text)) if input.len() == 1 => Value::String(text.clone()),
            _ => Value::Object(input),
        };
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        self.tools.insert(id, name);
        let calls = self.turn("assistant").entry("tool_calls").or_insert_with(|| json!([]));
        calls.as_array_mut().expect("a list").push(call);
        Ok(())
    }

    fn result(&mut self, mut block: Map<String, Value>) -> Result<(), ApiError> {
        let id = string(&mut block, "tool_use_id")?;
        let failed = match block.remove("is_error") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(failed)) => failed,
            Some(_) => return Err(wrong("is_error: expected true or false")),
        };
        let content = block.remove("content").filter(|content| !content.is_null());
        let mut parts = Vec::new();
        for (at, block) in blocks(content.unwrap_or_else(|| json!([])))?.into_iter().enumerate() {
            let text =
                result_text(block).map_err(|error| error.within(&format!("content[{at}]"), MESSAGES))?;
            parts.push(json!({"type": "text", "text": text}));
        }
        if failed {
            // Templates have no other way to say it.
            let said = parts.first().and_then(|part| part["text"].as_str()).unwrap_or_default();
            let said = format!("Error: {said}");
            parts.splice(..parts.len().min(1), [json!({"type": "text", "text": said.trim_end()})]);
        }
        let mut message = json!({"role": "tool", "tool_call_id": id, "content": simple(parts)});
        if let Some(name) = self.tools.get(&id) {
            message["name"] = Value::from(name.as_str());
        }
        // Before the texts of the same message, which may have come first.
        let at = self.messages.len() - usize::from(self.speaks_after_call());
        self.messages.insert(at, message);
        Ok(())
    }

    /// Whether the last message is the user's, and directly follows a use of tools or its results.
    fn speaks_after_call(&self) -> bool {
        let mut last = self.messages.iter().rev();
        last.next().is_some_and(|last| last["role"] == "user")
            && last.next().is_some_and(|before| before["role"] == "tool" || !before["tool_calls"].is_null())
    }

    fn finish(self) -> Vec<Value> {
        let mut messages = self.messages;
        for message in &mut messages {
            if let Value::Array(parts) = &mut message["content"] {
                message["content"] = simple(std::mem::take(parts));
            }
        }
        if !self.system.is_empty() {
            let parts = self.system.into_iter().map(|text| json!({"type": "text", "text": text})).collect();
            messages.insert(0, json!({"role": "system", "content": simple(parts)}));
        }
        messages
    }
}

/// Parts as a message's content: one part is its text.
fn simple(mut parts: Vec<Value>) -> Value {
    match parts.len() {
        0 => Value::from(""),
        1 => parts[0]["text"].take(),
        _ => Value::Array(parts),
    }
}

fn role(role: Option<Value>) -> Result<Role, ApiError> {
    match role {
        Some(Value::String(role)) => match role.as_str() {
            "user" => Ok(Role::User),
            "assistant" => Ok(Role::Assistant),
            "system" => Ok(Role::System),
            _ => {
                let shown: String = role.chars().take(32).collect();
                let message = format!("`{shown}` is not one of user, assistant and system");
                Err(ApiError::invalid("role", message))
            }
        },
        None | Some(Value::Null) => Err(ApiError::bad_request("missing_field", "role is missing")),
        Some(_) => Err(wrong("role: expected text")),
    }
}

/// Text or a list of blocks, as blocks.
fn blocks(content: Value) -> Result<Vec<Map<String, Value>>, ApiError> {
    match content {
        Value::String(text) => {
            let members = [("type", Value::from("text")), ("text", Value::String(text))];
            Ok(vec![members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()])
        }
        Value::Array(blocks) => blocks
            .into_iter()
            .map(|block| match block {
                Value::Object(block) => Ok(block),
                _ => Err(wrong("expected text or a list of blocks, which are objects")),
            })
            .collect(),
        Value::Null => Err(ApiError::bad_request("missing_field", "content is missing")),
        _ => Err(wrong("expected text or a list of blocks")),
    }
}

fn kind_of(block: &Map<String, Value>) -> Result<String, ApiError> {
    match block.get("type") {
        Some(Value::String(kind)) => Ok(kind.clone()),
        _ => Err(wrong("each block needs a `type`")),
    }
}

/// The text of a block that must be one of text.
fn text_of(mut block: Map<String, Value>) -> Result<String, ApiError> {
    match kind_of(&block)?.as_str() {
        "text" => string(&mut block, "text"),
        kind => Err(unknown_block(kind)),
    }
}

/// The text of a block in a result.
fn result_text(mut block: Map<String, Value>) -> Result<String, ApiError> {
    match kind_of(&block)?.as_str() {
        // The model was shown the tool that it found from the beginning.
        "tool_reference" => string(&mut block, "tool_name"),
        // A tool's, not the user's: refused, it would end an agent's conversation, which sends it again each time.
        kind @ ("image" | "document") => Ok(format!("[{kind} left out: this model reads text only]")),
        _ => text_of(block),
    }
}

fn unknown_block(kind: &str) -> ApiError {
    let shown: String = kind.chars().take(48).collect();
    let message = format!("a block of type `{shown}` is not supported here; this model reads text only");
    ApiError::invalid("type", message).code("not_supported")
}

fn string(block: &mut Map<String, Value>, name: &str) -> Result<String, ApiError> {
    match block.remove(name) {
        Some(Value::String(text)) => Ok(text),
        None | Some(Value::Null) => Err(ApiError::bad_request("missing_field", format!("{name} is missing"))),
        Some(_) => Err(wrong(&format!("{name}: expected text"))),
    }
}

fn wrong(message: &str) -> ApiError {
    ApiError::bad_request("wrong_type", message)
}

/// A text without the line that is for Anthropic's accounting; `None` if nothing is left.
fn without_billing(text: String) -> Option<String> {
    if !text.starts_with(BILLING) {
        return Some(text);
    }
    let (_, rest) = text.split_once('\n')?;
    let rest = rest.trim_start_matches('\n');
    (!rest.is_empty()).then(|| rest.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(body: &Value) -> Result<Conversation, ApiError> {
        take(&mut Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn conversation_of_an_agent_becomes_a_chat() {
        let text = |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
        let body = json!({
            "system": [text("x-anthropic-billing-header: cc_version=1; cch=0a1b2;"), text("Be brief."), text("Use tools.")],
            "messages": [
                {"role": "user", "content": [text("<context>"), text("Weather in Ulm and Bonn?")]},
                {"role": "system", "content": "Agents: none."},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "Two calls.", "signature": "s"},
                    {"type": "redacted_thinking", "data": "x"},
                    text("I look."),
                    {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Ulm"}},
                    {"type": "tool_use", "id": "2", "name": "weather", "input": {"INVALID_JSON": "{\"city"}}]},
                {"role": "user", "content": [
                    text("So?"),
                    {"type": "tool_result", "tool_use_id": "1", "content": [text("rain"), text("cold")]},
                    {"type": "tool_result", "tool_use_id": "2", "content": "no JSON", "is_error": true},
                    {"type": "tool_result", "tool_use_id": "3", "is_error": true},
                    {"type": "tool_result", "tool_use_id": "5", "content": [{"type": "image", "source": {}}]},
                    {"type": "tool_result", "tool_use_id": "4",
                     "content": [{"type": "tool_reference", "tool_name": "time"}]},
                    text("Go on.")]},
                {"role": "assistant", "content": []},
                {"role": "user", "content": "Hello?"},
            ],
        });
        let part = |text: &str| json!({"type": "text", "text": text});
        let expected = json!([
            {"role": "system", "content": [part("Be brief."), part("Use tools.")]},
            {"role": "user",
             "content": [part("<context>"), part("Weather in Ulm and Bonn?"), part("Agents: none.")]},
            {"role": "assistant", "content": "I look.", "reasoning_content": "Two calls.", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Ulm"}}},
                {"id": "2", "type": "function", "function": {"name": "weather", "arguments": "{\"city"}}]},
            {"role": "tool", "tool_call_id": "1", "content": [part("rain"), part("cold")], "name": "weather"},
            {"role": "tool", "tool_call_id": "2", "content": "Error: no JSON", "name": "weather"},
            {"role": "tool", "tool_call_id": "3", "content": "Error:"},
            {"role": "tool", "tool_call_id": "5", "content": "[image left out: this model reads text only]"},
            {"role": "tool", "tool_call_id": "4", "content": "time"},
            {"role": "user", "content": [part("So?"), part("Go on.")]},
            {"role": "assistant", "content": ""},
            {"role": "user", "content": "Hello?"},
        ]);
        let found = taken(&body).unwrap_or_else(|error| panic!("{}", error.message()));
        assert_eq!(Value::Array(found.messages), expected);
        assert!(!found.ends_with_reply);
    }

    #[test]
    fn instructions_are_text_or_blocks_without_the_line_for_accounting() {
        let line = "x-anthropic-billing-header: a=b;";
        for (system, expected) in [
            (json!(null), None),
            (json!([]), None),
            (json!(line), None),
            (json!("Be brief."), Some("Be brief.")),
            (json!(format!("{line}\n\nBe brief.")), Some("Be brief.")),
            (json!(format!("No {line}")), Some("No x-anthropic-billing-header: a=b;")),
        ] {
            let body = json!({"system": system, "messages": [{"role": "user", "content": "x"}]});
            let messages = taken(&body).unwrap_or_else(|error| panic!("{}", error.message())).messages;
            let first = messages.first().filter(|message| message["role"] == "system");
            assert_eq!(first.and_then(|message| message["content"].as_str()), expected, "{system}");
        }
        // Those before the conversation are instructions, too.
        let body = json!({"system": "a", "messages": [
            {"role": "system", "content": "b"}, {"role": "user", "content": "c"}]});
        let messages = taken(&body).unwrap_or_else(|error| panic!("{}", error.message())).messages;
        assert_eq!(
            messages[0]["content"],
            json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
        );
    }

    #[test]
    fn neighbours_become_one_message_and_the_last_reply_is_told() {
        let body = json!({"messages": [
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "c"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": ""}, {"type": "text", "text": "d"}]},
        ]});
        let found = taken(&body).unwrap_or_else(|error| panic!("{}", error.message()));
        let part = |text: &str| json!({"type": "text", "text": text});
        let expected = json!([
            {"role": "user", "content": [part("a"), part("b")]},
            {"role": "assistant", "content": [part("c"), part("d")]},
        ]);
        assert_eq!(Value::Array(found.messages), expected);
        assert!(found.ends_with_reply);
    }

    #[test]
    fn what_is_wrong_is_located() {
        let said = |content: Value| json!([{"role": "user", "content": content}]);
        let replied = |content: Value| json!([{"role": "assistant", "content": content}]);
        for (messages, status, part) in [
            (json!(null), 400, "messages: missing"),
            (json!([]), 400, "messages: must not be empty"),
            (json!("x"), 400, "messages: expected a list"),
            (json!([1]), 400, "messages[0]: expected an object"),
            (json!([{"content": "x"}]), 400, "messages[0]: role is missing"),
            (json!([{"role": "tool", "content": "x"}]), 422, "messages[0]: role: `tool` is not one of"),
            (json!([{"role": "user"}]), 400, "messages[0]: content is missing"),
            (said(json!(5)), 400, "messages[0]: expected text or a list"),
            (said(json!(["x"])), 400, "which are objects"),
            (said(json!([{"text": "x"}])), 400, "messages[0]: content[0]: each block needs a `type`"),
            (said(json!([{"type": "text"}])), 400, "content[0]: text is missing"),
            (
                said(json!([{"type": "image", "source": {}}])),
                422,
                "content[0]: type: a block of type `image`",
            ),
            (said(json!([{"type": "document", "source": {}}])), 422, "`document` is not supported"),
            (said(json!([{"type": "tool_use", "id": "1", "name": "a", "input": {}}])), 422, "of this role"),
            (said(json!([{"type": "tool_result", "content": "x"}])), 400, "tool_use_id is missing"),
            (
                said(json!([{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "video"}]}])),
                422,
                "messages[0]: content[0]: content[0]: type: a block of type `video`",
            ),
            (
                said(json!([{"type": "tool_result", "tool_use_id": "1", "is_error": 1}])),
                400,
                "is_error: expected true or false",
            ),
            (
                replied(json!([{"type": "tool_use", "id": "1", "name": "a", "input": []}])),
                400,
                "input: expected an",
            ),
            (
                replied(json!([{"type": "server_tool_use", "id": "1"}])),
                422,
                "`server_tool_use` is not supported",
            ),
        ] {
            let error = taken(&json!({"messages": messages})).unwrap_err();
            assert_eq!(error.status(), status, "{messages}: {}", error.message());
            assert!(error.message().contains(part), "{messages}: {}", error.message());
        }
        let body = json!({"system": [{"type": "image"}], "messages": said(json!("x"))});
        let error = taken(&body).unwrap_err();
        assert!(error.message().starts_with("system: type: a block of type `image`"), "{}", error.message());
    }
}
