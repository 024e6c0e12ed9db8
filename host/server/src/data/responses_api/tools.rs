//! Functions in the flat form of a response's request, in the form of chats and back.
//!
//! Tools that OpenAI's servers run, or that its clients run by other rules than functions, are refused by their type:
//! a model that isn't shown them would go about its work in another way than the client expects. Functions of a
//! namespace are functions like others, but the model has to tell those of equal names apart: it is shown both names as
//! one, which calls have as two.

use std::collections::BTreeMap;

use infer_api::responses::FunctionTool;
use serde_json::{Map, Value, json};

use crate::data::chat::{MAX_TOOLS, check_name, check_new, check_tool, cut, place};
use crate::data::request::fields::list;
use crate::data::request::json::Fields;
use crate::http::ApiError;

const TOOLS: &str = "tools";
const CHOICE: &str = "tool_choice";

/// Functions of namespaces: by the name that the model is shown, the namespace and the name within it.
pub type Spaces = BTreeMap<String, (String, String)>;

/// Takes `tools` as a chat has them.
pub fn tools(fields: &mut Fields) -> Result<(Option<Value>, Spaces), ApiError> {
    let mut spaces = Spaces::new();
    let Some(tools) = list(fields, TOOLS, "functions")? else { return Ok((None, spaces)) };
    let mut all = Vec::new();
    for (at, tool) in tools.into_iter().enumerate() {
        let place = place(at, &tool);
        add(tool, &mut all, &mut spaces)
            .and_then(|()| check_number(&all))
            .map_err(|error| error.at(&place, TOOLS))?;
    }
    Ok((Some(all.into()), spaces))
}

fn add(tool: Value, all: &mut Vec<Value>, spaces: &mut Spaces) -> Result<(), ApiError> {
    if tool["type"] != "namespace" {
        // Here, because a chat's tools have other indexes than the request's.
        let tool = nested(tool)?;
        check_tool(&tool)?;
        check_new(&tool, all)?;
        all.push(tool);
        return Ok(());
    }
    let (Some(space), Some(tools)) = (tool["name"].as_str(), tool["tools"].as_array()) else {
        return Err(ApiError::bad_request("wrong_type", "a namespace needs a name and a list of tools"));
    };
    for (at, tool) in tools.iter().enumerate() {
        let place = place(at, tool);
        let within = |error: ApiError| error.at(&place, TOOLS);
        let mut tool = nested(tool.clone()).map_err(within)?;
        check_tool(&tool).map_err(within)?;
        let name = tool["function"]["name"].as_str().unwrap_or_default().to_owned();
        let shown = shown(Some(space), &name);
        check_name(&shown).map_err(within)?;
        tool["function"]["name"] = Value::from(shown.as_str());
        check_new(&tool, all).map_err(|error| within(error.at(&format!("`{shown}`"), TOOLS)))?;
        spaces.insert(shown, (space.to_owned(), name));
        all.push(tool);
        check_number(all)?;
    }
    Ok(())
}

fn check_number(all: &[Value]) -> Result<(), ApiError> {
    if all.len() > MAX_TOOLS {
        return Err(ApiError::invalid(TOOLS, format!("at most {MAX_TOOLS}, with those of namespaces")));
    }
    Ok(())
}

/// The name that the model is shown of a function.
pub fn shown(space: Option<&str>, name: &str) -> String {
    match space {
        None => name.to_owned(),
        Some(space) if space.ends_with('_') => format!("{space}{name}"),
        Some(space) => format!("{space}__{name}"),
    }
}

fn nested(tool: Value) -> Result<Value, ApiError> {
    let Value::Object(mut tool) = tool else {
        return Err(ApiError::bad_request("wrong_type", "a tool must be an object"));
    };
    match tool.remove("type") {
        Some(Value::String(kind)) if kind == "function" => {}
        Some(Value::String(kind)) => {
            let message = format!(
                "a tool of type `{}` is not supported; this host runs no tools, and its models call functions only",
                cut(&kind)
            );
            return Err(ApiError::invalid("type", message).code("not_supported"));
        }
        Some(Value::Null) | None => return Err(ApiError::bad_request("missing_field", "type is missing")),
        Some(_) => return Err(ApiError::bad_request("wrong_type", "type must be a string")),
    }
    if !tool.contains_key("name") && tool.contains_key("function") {
        let message = "name is missing; it is beside the type here, not within `function`";
        return Err(ApiError::bad_request("missing_field", message));
    }
    if tool.get("description").is_some_and(|text| !text.is_null() && !text.is_string()) {
        return Err(ApiError::bad_request("wrong_type", "description must be a string"));
    }
    let mut function = Map::new();
    for name in ["name", "description", "parameters", "strict"] {
        if let Some(value) = tool.remove(name).filter(|value| !value.is_null()) {
            function.insert(name.to_owned(), value);
        }
    }
    Ok(json!({"type": "function", "function": function}))
}

/// A chat's function, as a response shows it.
pub fn flat(tool: &Value) -> FunctionTool {
    let function = &tool["function"];
    let text = |name: &str| function[name].as_str().map(str::to_owned);
    FunctionTool {
        kind: "function".to_owned(),
        name: text("name").unwrap_or_default(),
        description: text("description"),
        parameters: function.get("parameters").cloned(),
        strict: Some(function["strict"].as_bool().unwrap_or(false)),
    }
}

/// What `tool_choice` says, as a chat has it.
pub fn choice(value: &Value) -> Result<Value, ApiError> {
    let expected = "none, auto, required, {\"type\": \"function\", \"name\": ..}, or {\"type\": \"allowed_tools\", \
        \"mode\": \"auto\" or \"required\", \"tools\": [..]}";
    let wrong = || ApiError::invalid(CHOICE, format!("must be {expected}"));
    match value {
        Value::String(word) if ["none", "auto", "required"].contains(&word.as_str()) => Ok(value.clone()),
        Value::String(_) => Err(wrong()),
        Value::Object(choice) => match choice.get("type").and_then(Value::as_str) {
            Some("function") => named(value).ok_or_else(wrong),
            Some("allowed_tools") => {
                let tools = value["tools"].as_array().ok_or_else(wrong)?;
                let tools: Vec<Value> = tools.iter().map(named).collect::<Option<_>>().ok_or_else(wrong)?;
                let mode = value["mode"].as_str().filter(|mode| ["auto", "required"].contains(mode));
                let mode = mode.filter(|_| !tools.is_empty()).ok_or_else(wrong)?;
                Ok(json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}))
            }
            Some(other) => {
                let message = format!("type `{}` is not supported; must be {expected}", cut(other));
                Err(ApiError::invalid(CHOICE, message).code("not_supported"))
            }
            None => Err(wrong()),
        },
        _ => Err(ApiError::wrong_type(CHOICE, expected)),
    }
}

fn named(tool: &Value) -> Option<Value> {
    let name = tool["name"].as_str().filter(|_| tool["type"] == "function")?;
    Some(json!({"type": "function", "function": {"name": name}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tools: Value) -> Result<Value, ApiError> {
        let body = json!({"tools": tools}).to_string();
        super::tools(&mut Fields::parse(body.as_bytes()).unwrap()).map(|(tools, _)| tools.unwrap_or_default())
    }

    #[test]
    fn functions_become_those_of_chats_and_flat_again() {
        let tool = json!({"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"},
            "strict": true, "defer_loading": false});
        let bare = json!({"type": "function", "name": "g", "parameters": null});
        let function =
            json!({"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": true});
        let tools = read(json!([tool, bare])).unwrap();
        let expected = json!([{"type": "function", "function": function},
            {"type": "function", "function": {"name": "g"}}]);
        assert_eq!(tools, expected);
        let shown = serde_json::to_value([flat(&tools[0]), flat(&tools[1])]).unwrap();
        let (mut first, mut second) = (tool, bare);
        first.as_object_mut().unwrap().remove("defer_loading");
        second["description"] = Value::Null;
        second["strict"] = json!(false);
        assert_eq!(shown, json!([first, second]));
    }

    #[test]
    fn tools_of_other_types_are_refused_by_name() {
        for (tool, status, part) in [
            (
                json!({"type": "web_search"}),
                422,
                "tools[0]: type: a tool of type `web_search` is not supported",
            ),
            (json!({"type": "mcp", "server_label": "x"}), 422, "type `mcp` is not supported"),
            (json!({"type": "custom", "name": "x"}), 422, "type `custom` is not supported"),
            (
                json!({"type": "namespace", "name": "x"}),
                400,
                "tools[0] (`x`): a namespace needs a name and a list",
            ),
            (
                json!({"type": "namespace", "name": "x", "tools": [{"type": "custom"}]}),
                422,
                "tools[0] (`x`): tools[0]: type: a tool of type `custom` is not supported",
            ),
            (json!({"name": "x"}), 400, "tools[0] (`x`): type is missing"),
            (json!("x"), 400, "tools[0]: a tool must be an object"),
            (json!({"type": "function", "function": {"name": "f"}}), 400, "not within `function`"),
            (json!({"type": "function", "name": "f", "description": 1}), 400, "description must be a string"),
            (
                json!({"type": "function", "name": "f", "strict": 1}),
                400,
                "tools[0] (`f`): expected a `strict`",
            ),
            (
                json!({"type": "namespace", "name": "x", "tools": [{"type": "function"}]}),
                400,
                "tools[0] (`x`): tools[0]: expected a function with a `name`",
            ),
            (
                json!({"type": "namespace", "name": "x y", "tools": [{"type": "function", "name": "f"}]}),
                422,
                "tools[0] (`x y`): tools[0] (`f`): `x y__f` is not a valid function name",
            ),
        ] {
            let error = read(json!([tool])).unwrap_err();
            assert_eq!(error.status().as_u16(), status, "{tool}: {}", error.message());
            assert!(error.message().contains(part), "{tool}: {}", error.message());
        }
    }

    #[test]
    fn functions_of_a_namespace_are_shown_with_both_names() {
        let function = |name: &str| json!({"type": "function", "name": name});
        let space = |name: &str, tools: Value| json!({"type": "namespace", "name": name, "tools": tools});
        let body = json!({"tools": [function("open"), space("files", json!([function("open"), function("a")])),
            space("mcp__x__", json!([function("open")]))]});
        let (tools, spaces) = super::tools(&mut Fields::parse(body.to_string().as_bytes()).unwrap()).unwrap();
        let tools = tools.unwrap();
        let names: Vec<&str> =
            tools.as_array().unwrap().iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["open", "files__open", "files__a", "mcp__x__open"]);
        assert_eq!(spaces.get("files__open"), Some(&("files".to_owned(), "open".to_owned())));
        assert_eq!((spaces.len(), spaces.get("open")), (3, None));
        for (again, place) in [
            (json!([function("a"), function("a")]), "tools[1] (`a`)"),
            (
                json!([function("files__a"), space("files", json!([function("a")]))]),
                "tools[1] (`files`): tools[0] (`a`): `files__a`",
            ),
            (
                json!([space("files", json!([function("a"), function("a")]))]),
                "tools[0] (`files`): tools[1] (`a`): `files__a`",
            ),
            (json!([space("files", json!([function("a")])), function("files__a")]), "tools[1] (`files__a`)"),
        ] {
            let error = read(again).unwrap_err();
            assert_eq!(error.message(), format!("{place}: there is another function of this name"));
            assert_eq!(error.status().as_u16(), 422);
        }
    }

    #[test]
    fn choice_is_read_flat() {
        let (flat, nested) = (
            json!({"type": "function", "name": "f"}),
            json!({"type": "function", "function": {"name": "f"}}),
        );
        let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": [flat]});
        let inner = json!({"mode": "required", "tools": [nested]});
        for (value, expected) in [
            (json!("required"), json!("required")),
            (flat, nested.clone()),
            (allowed.clone(), json!({"type": "allowed_tools", "allowed_tools": inner})),
        ] {
            assert_eq!(choice(&value).unwrap(), expected);
        }
        let with = |name: &str, value: Value| {
            let mut allowed = allowed.clone();
            allowed[name] = value;
            allowed
        };
        for (value, status, part) in [
            (json!("any"), 422, "must be none, auto, required, {\"type\": \"function\", \"name\": ..}"),
            (nested, 422, "must be none"),
            (with("mode", json!("none")), 422, "must be none"),
            (with("tools", json!([])), 422, "must be none"),
            (with("tools", json!([{"type": "mcp"}])), 422, "must be none"),
            (json!({"type": "web_search"}), 422, "type `web_search` is not supported"),
            (json!(5), 400, "expected none"),
        ] {
            let error = choice(&value).unwrap_err();
            assert_eq!(error.status().as_u16(), status, "{value}: {}", error.message());
            assert!(error.message().starts_with("tool_choice: "), "{value}: {}", error.message());
            assert!(error.message().contains(part), "{value}: {}", error.message());
        }
    }
}
