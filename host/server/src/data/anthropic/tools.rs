//! The tools of a request as the functions of a chat.

use serde_json::{Map, Value, json};

use crate::data::chat::{Offer, cut, place};
use crate::data::fields::list;
use crate::data::json::Fields;
use crate::http::ApiError;

const TOOLS: &str = "tools";
const CHOICE: &str = "tool_choice";

/// Takes `tools` and `tool_choice` out of a body.
pub fn take(fields: &mut Fields) -> Result<Offer, ApiError> {
    let tools = list(fields, TOOLS, "tools")?.unwrap_or_default();
    let functions = tools.into_iter().enumerate().map(|(at, tool)| {
        let place = place(at, &tool);
        function(tool).map_err(|error| error.at(&place, TOOLS))
    });
    let functions = functions.collect::<Result<_, _>>()?;
    let mut chat = Fields::default();
    chat.rest.push((TOOLS.to_owned(), Value::Array(functions)));
    if let Some(choice) = fields.take(CHOICE) {
        let Value::Object(choice) = choice else { return Err(ApiError::wrong_type(CHOICE, "an object")) };
        chat.rest.push((CHOICE.to_owned(), chosen(&choice)?));
        let alone = match choice.get("disable_parallel_tool_use") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(alone)) => *alone,
            Some(_) => {
                let expected = "a `disable_parallel_tool_use` of true or false";
                return Err(ApiError::wrong_type(CHOICE, expected));
            }
        };
        chat.rest.push(("parallel_tool_calls".to_owned(), Value::Bool(!alone)));
    }
    Offer::take(&mut chat)
}

/// A tool as a chat's function. `cache_control` and the like are dropped.
fn function(tool: Value) -> Result<Value, ApiError> {
    let Value::Object(mut tool) = tool else {
        return Err(ApiError::bad_request("wrong_type", "expected an object"));
    };
    match tool.remove("type") {
        None | Some(Value::Null) => {}
        Some(Value::String(kind)) if kind == "custom" => {}
        Some(kind) => {
            let shown: String = kind.as_str().map_or_else(|| kind.to_string(), str::to_owned);
            let message = format!(
                "a tool of type `{}` is not supported: this host knows none of Anthropic's tools; describe one of \
                 your own, with a name and an `input_schema`",
                cut(&shown)
            );
            return Err(ApiError::invalid("type", message).code("not_supported"));
        }
    }
    let mut function = Map::new();
    function.insert("name".to_owned(), needed(&mut tool, "name", Value::is_string, "text")?);
    match tool.remove("description") {
        None | Some(Value::Null) => {}
        Some(text @ Value::String(_)) => {
            function.insert("description".to_owned(), text);
        }
        Some(_) => return Err(ApiError::bad_request("wrong_type", "description: expected text")),
    }
    let schema = needed(&mut tool, "input_schema", Value::is_object, "a JSON schema, which is an object")?;
    function.insert("parameters".to_owned(), schema);
    if let Some(strict) = tool.remove("strict") {
        function.insert("strict".to_owned(), strict);
    }
    Ok(json!({"type": "function", "function": function}))
}

fn needed(
    tool: &mut Map<String, Value>,
    name: &str,
    fits: fn(&Value) -> bool,
    expected: &str,
) -> Result<Value, ApiError> {
    match tool.remove(name) {
        None | Some(Value::Null) => {
            Err(ApiError::bad_request("missing_field", format!("{name} is missing; give {expected}")))
        }
        Some(value) if fits(&value) => Ok(value),
        Some(_) => Err(ApiError::bad_request("wrong_type", format!("{name}: expected {expected}"))),
    }
}

/// The choice in a chat's words.
fn chosen(choice: &Map<String, Value>) -> Result<Value, ApiError> {
    let wrong = || {
        let message = "its type must be auto, any, none, or tool with the tool's `name`";
        ApiError::invalid(CHOICE, message)
    };
    match choice.get("type").and_then(Value::as_str).ok_or_else(wrong)? {
        "auto" => Ok(json!("auto")),
        "any" => Ok(json!("required")),
        "none" => Ok(json!("none")),
        "tool" => {
            let name = choice.get("name").and_then(Value::as_str).ok_or_else(wrong)?;
            Ok(json!({"type": "function", "function": {"name": name}}))
        }
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(body: Value) -> Result<Offer, ApiError> {
        take(&mut Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn tools_become_functions() {
        let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        let tools = json!([
            {"name": "weather", "description": "Now", "input_schema": schema, "cache_control": {"type": "ephemeral"}},
            {"type": "custom", "name": "time", "input_schema": {}, "strict": true, "defer_loading": true},
        ]);
        let functions = json!([
            {"type": "function",
             "function": {"name": "weather", "description": "Now", "parameters": schema}},
            {"type": "function", "function": {"name": "time", "parameters": {}, "strict": true}},
        ]);
        for (choice, shown, forced, parallel) in [
            (json!(null), true, false, true),
            (json!({"type": "auto"}), true, false, true),
            (json!({"type": "auto", "disable_parallel_tool_use": true}), true, false, false),
            (json!({"type": "any"}), true, true, true),
            (json!({"type": "tool", "name": "time"}), true, true, true),
            (json!({"type": "none"}), false, false, true),
        ] {
            let offer = offer(json!({"tools": tools, "tool_choice": choice}))
                .unwrap_or_else(|error| panic!("{choice}: {}", error.message()));
            assert_eq!(json!(offer.tools), functions, "{choice}");
            let found = (offer.is_shown(), offer.is_forced(), offer.parallel);
            assert_eq!(found, (shown, forced, parallel), "{choice}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_tool_is_located() {
        let tool = json!({"name": "a", "input_schema": {}});
        for (tools, choice, status, part) in [
            (json!({}), json!(null), 400, "tools: expected a list"),
            (json!([tool, 1]), json!(null), 400, "tools[1]: expected an object"),
            (json!([{"input_schema": {}}]), json!(null), 400, "tools[0]: name is missing"),
            (json!([{"name": "a"}]), json!(null), 400, "tools[0] (`a`): input_schema is missing"),
            (
                json!([{"name": "a", "input_schema": 1}]),
                json!(null),
                400,
                "input_schema: expected a JSON schema",
            ),
            (
                json!([{"name": "a b", "input_schema": {}}]),
                json!(null),
                422,
                "tools[0] (`a b`): `a b` is not a valid function name",
            ),
            (json!([tool, tool]), json!(null), 422, "tools[1] (`a`): there is another function of this name"),
            (
                json!([{"type": "web_search_20250305", "name": "web_search"}]),
                json!(null),
                422,
                "tools[0] (`web_search`): type: a tool of type `web_search_20250305` is not supported",
            ),
            (json!([tool]), json!("auto"), 400, "tool_choice: expected an object"),
            (json!([tool]), json!({"type": "some"}), 422, "its type must be auto"),
            (json!([tool]), json!({"type": "tool"}), 422, "with the tool's `name`"),
            (json!([tool]), json!({"type": "tool", "name": "b"}), 422, "`b` is not one of the tools: a"),
            (
                json!([tool]),
                json!({"type": "auto", "disable_parallel_tool_use": 1}),
                400,
                "`disable_parallel_tool_use` of true or false",
            ),
            (json!([]), json!({"type": "any"}), 422, "no tools to choose from"),
        ] {
            let error = offer(json!({"tools": tools, "tool_choice": choice})).unwrap_err();
            assert_eq!(error.status(), status, "{tools}, {choice}: {}", error.message());
            assert!(error.message().contains(part), "{tools}, {choice}: {}", error.message());
        }
    }
}
