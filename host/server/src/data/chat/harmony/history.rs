//! A conversation as templates of messages with channels read it. They expect at most one call in a message and its result
//! right behind it, reasoning or text beside a call but not both, and instructions in the first message alone; what is
//! elsewhere they leave out or refuse.

use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};

const INSTRUCTIONS: [&str; 2] = ["system", "developer"];

/// Normalized messages in the form that these templates read.
pub fn as_read(messages: Vec<Value>) -> Vec<Value> {
    let mut read: Vec<Value> = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter().peekable();
    while let Some(mut message) = messages.next() {
        if is_instruction(&message) && !read.is_empty() {
            if let [first] = read.as_mut_slice()
                && is_instruction(first)
            {
                first["content"] = Value::from(format!("{}\n\n{}", text(first), text(&message)));
                continue;
            }
            // As in conversations in Anthropic's form, whose instructions may come late.
            message["role"] = Value::from("user");
        }
        think(&mut message);
        let Some(Value::Array(calls)) = message.get_mut("tool_calls").map(Value::take) else {
            read.push(message);
            continue;
        };
        let is_result = |next: &Value| next["role"] == "tool";
        let results = std::iter::from_fn(|| messages.next_if(is_result)).collect();
        called(message, calls, results, &mut read);
    }
    read
}

/// Gives each function a description: these templates write it without asking whether it is there.
pub fn describe(tools: &mut [Value]) {
    for function in tools.iter_mut().filter_map(|tool| tool.get_mut("function")?.as_object_mut()) {
        let description = function.entry("description").or_insert(Value::Null);
        if description.is_null() {
            *description = Value::from("");
        }
    }
}

fn is_instruction(message: &Value) -> bool {
    message["role"].as_str().is_some_and(|role| INSTRUCTIONS.contains(&role))
}

fn text(message: &Value) -> &str {
    message["content"].as_str().unwrap_or_default()
}

/// Names a message's reasoning as these templates do. Beside a call it takes in the text, which they take for reasoning, too.
fn think(message: &mut Value) {
    let said = |name: &str| message[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let Some(mut thinking) = said("reasoning_content").or_else(|| said("thinking")) else { return };
    if let (true, Some(content)) = (message["tool_calls"].is_array(), said("content")) {
        thinking = format!("{thinking}\n\n{content}");
        message["content"] = Value::from("");
    }
    message["thinking"] = Value::from(thinking);
}

/// Makes a message of each call, with its results behind it. The first has what was said before.
fn called(message: Value, calls: Vec<Value>, results: Vec<Value>, read: &mut Vec<Value>) {
    let mut places: HashMap<Option<String>, VecDeque<usize>> = HashMap::new();
    for (at, result) in results.iter().enumerate() {
        places.entry(id(&result["tool_call_id"])).or_default().push_back(at);
    }
    let mut results: Vec<Option<Value>> = results.into_iter().map(Some).collect();
    let mut message = Some(message);
    for call in calls {
        let mut calling = message.take().unwrap_or_else(|| json!({"role": "assistant", "content": ""}));
        let id = id(&call["id"]);
        let named = if id.is_some() { places.remove(&id) } else { None };
        // Those without ids come in the order of the calls.
        let own = named.unwrap_or_else(|| {
            places.get_mut(&None::<String>).and_then(VecDeque::pop_front).into_iter().collect()
        });
        calling["tool_calls"] = json!([call]);
        read.push(calling);
        read.extend(own.into_iter().filter_map(|at| results[at].take()));
    }
    read.extend(results.into_iter().flatten());
}

fn id(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(role: &str, content: &str) -> Value {
        json!({"role": role, "content": content})
    }

    fn call(id: Value, name: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": {}}})
    }

    fn read(messages: Value) -> Value {
        let Value::Array(messages) = messages else { panic!("a list") };
        as_read(messages).into()
    }

    #[test]
    fn instructions_are_the_first_message() {
        let messages =
            json!([said("system", "a"), said("developer", "b"), said("user", "c"), said("system", "d")]);
        let expected = json!([said("system", "a\n\nb"), said("user", "c"), said("user", "d")]);
        assert_eq!(read(messages), expected);
        let only = json!([said("user", "a"), said("assistant", "b")]);
        assert_eq!(read(only.clone()), only);
    }

    #[test]
    fn each_call_is_a_message_before_its_results() {
        let result =
            |id: &str, content: &str| json!({"role": "tool", "tool_call_id": id, "content": content});
        let messages = json!([
            said("user", "a"),
            {"role": "assistant", "content": "I look.", "reasoning_content": "Two.", "tool_calls":
                [call(json!("1"), "f"), call(json!("2"), "g"), call(json!("3"), "h")]},
            result("2", "two"), result("1", "one"), result("9", "nine"), result("2", "more"),
            said("user", "b"),
        ]);
        let calling = |id: &str, name: &str| json!({"role": "assistant", "content": "", "tool_calls": [call(json!(id), name)]});
        let mut first = calling("1", "f");
        first["reasoning_content"] = json!("Two.");
        first["thinking"] = json!("Two.\n\nI look.");
        let expected = json!([
            said("user", "a"),
            first,
            result("1", "one"),
            calling("2", "g"),
            result("2", "two"),
            result("2", "more"),
            calling("3", "h"),
            result("9", "nine"),
            said("user", "b"),
        ]);
        assert_eq!(read(messages), expected);
        // Calls whose results have no ids.
        let messages = json!([
            {"role": "assistant", "content": "", "tool_calls":
                [call(json!("1"), "f"), call(json!("2"), "g"), call(json!("3"), "h")]},
            said("tool", "one"), result("2", "two"), said("tool", "three"), said("tool", "more"),
        ]);
        let expected = json!([
            calling("1", "f"),
            said("tool", "one"),
            calling("2", "g"),
            result("2", "two"),
            calling("3", "h"),
            said("tool", "three"),
            said("tool", "more"),
        ]);
        assert_eq!(read(messages), expected);
        let unnamed = json!([
            {"role": "assistant", "content": "", "tool_calls": [call(json!(null), "f"), call(json!(null), "g")]},
            said("tool", "one"), said("tool", "two"),
        ]);
        let calling =
            |name: &str| json!({"role": "assistant", "content": "", "tool_calls": [call(json!(null), name)]});
        let expected = json!([calling("f"), said("tool", "one"), calling("g"), said("tool", "two")]);
        assert_eq!(read(unnamed), expected);
    }

    #[test]
    fn reasoning_has_the_name_that_templates_know() {
        let replied = |name: &str| json!([{"role": "assistant", "content": "b", name: "a"}]);
        let found = read(replied("reasoning_content"));
        assert_eq!((&found[0]["thinking"], &found[0]["content"]), (&json!("a"), &json!("b")));
        assert_eq!(read(replied("thinking")), replied("thinking"));
        let none = json!([{"role": "assistant", "content": "b", "reasoning_content": ""}]);
        assert_eq!(read(none.clone()), none);
    }

    #[test]
    fn every_function_has_a_description() {
        let mut tools = [
            json!({"type": "function", "function": {"name": "f"}}),
            json!({"type": "function", "function": {"name": "g", "description": "Tells."}}),
            json!("h"),
        ];
        describe(&mut tools);
        assert_eq!(tools[0]["function"]["description"], "");
        assert_eq!(tools[1]["function"]["description"], "Tells.");
    }
}
