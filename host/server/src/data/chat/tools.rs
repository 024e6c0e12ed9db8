//! The functions that a chat offers, and the grammar of a forced call.

use std::fmt::Write as _;

use infer_chat::Tools;
use serde_json::{Map, Value, json};

use crate::data::request::fields::list;
use crate::data::request::json::Fields;
use crate::data::structured::{Shape, check_schemas, with_options};
use crate::http::ApiError;

const TOOLS: &str = "tools";
const MAX_TOOLS: usize = 128;

/// The functions of a request and how the model may use them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Offer {
    /// The functions as the client sent them, which is what templates expect.
    pub tools: Vec<Value>,
    /// The request's `tool_choice`.
    pub choice: Choice,
    /// Whether the model may call several.
    pub parallel: bool,
}

/// What the model does with the functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The prompt doesn't mention them.
    None,
    /// The model decides.
    #[default]
    Auto,
    /// It must call at least one.
    Required,
    /// It must call this one.
    Named(String),
}

impl Offer {
    /// Takes `tools`, `tool_choice` and `parallel_tool_calls` out of a body.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let tools = list(fields, TOOLS, "functions")?.unwrap_or_default();
        if tools.len() > MAX_TOOLS {
            return Err(ApiError::invalid(TOOLS, format!("at most {MAX_TOOLS}, got {}", tools.len())));
        }
        tools.iter().try_for_each(check)?;
        let parallel = crate::data::request::fields::boolean(fields, "parallel_tool_calls")?.unwrap_or(true);
        let choice = choice(fields.take("tool_choice"))?;
        let offer = Self { tools, choice, parallel };
        match &offer.choice {
            Choice::Required | Choice::Named(_) if offer.tools.is_empty() => {
                Err(ApiError::invalid("tool_choice", "the request has no tools to choose from"))
            }
            Choice::Named(name) if !offer.names().any(|n| n == name) => {
                let known: Vec<&str> = offer.names().collect();
                let message = format!("`{name}` is not one of the tools: {}", known.join(", "));
                Err(ApiError::invalid("tool_choice", message))
            }
            _ => Ok(offer),
        }
    }

    /// Whether the prompt mentions any functions.
    pub fn is_shown(&self) -> bool {
        !self.tools.is_empty() && self.choice != Choice::None
    }

    /// Whether the output must be a call.
    pub fn is_forced(&self) -> bool {
        matches!(self.choice, Choice::Required | Choice::Named(_))
    }

    /// The names of all functions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().filter_map(|tool| tool["function"]["name"].as_str())
    }

    /// The grammar of a forced call: calls in the model's syntax, with arguments that match their schemas.
    ///
    /// # Errors
    /// A schema exceeds the limits on length or depth.
    pub fn shape(&self, style: Tools) -> Result<Option<Shape>, ApiError> {
        if !self.is_forced() {
            return Ok(None);
        }
        let arguments = if style == Tools::Llama3 { "parameters" } else { "arguments" };
        let may_be_called = |function: &&Value| match &self.choice {
            Choice::Named(only) => function["name"] == only.as_str(),
            _ => true,
        };
        let functions: Vec<&Value> =
            self.tools.iter().map(|tool| &tool["function"]).filter(may_be_called).collect();
        check_schemas(
            TOOLS,
            functions.iter().map(|function| &function["parameters"]).filter(|p| !p.is_null()),
        )?;
        let mut grammar = String::new();
        let mut calls = Vec::new();
        for function in functions {
            let name = function["name"].as_str().unwrap_or_default();
            let schema = match &function["parameters"] {
                Value::Object(schema) => Value::Object(schema.clone()),
                _ => json!({"type": "object"}),
            };
            let schema = with_options(schema);
            let head = json!(format!("{{\"name\": \"{name}\", \"{arguments}\": "));
            let rule = format!("call_{}", calls.len());
            let _ = writeln!(grammar, "{rule}: {head} arguments_{} \"}}\"", calls.len());
            let _ = writeln!(grammar, "arguments_{}: %json {schema}", calls.len());
            calls.push(rule);
        }
        let _ = writeln!(grammar, "object: {}", calls.join(" | "));
        let several = self.parallel && self.choice == Choice::Required;
        let start = match (style, several) {
            (Tools::Llama3, false) => "start: object",
            (Tools::Llama3, true) => "start: object (\"; \" object)*",
            (_, false) => "start: tagged",
            (_, true) => "start: tagged (\"\\n\" tagged)*",
        };
        if style != Tools::Llama3 {
            grammar.push_str("tagged: \"<tool_call>\\n\" object \"\\n</tool_call>\"\n");
        }
        Ok(Some(Shape::lark(TOOLS, format!("{start}\n{grammar}"))))
    }
}

fn check(tool: &Value) -> Result<(), ApiError> {
    let wrong = |what: &str| ApiError::wrong_type(TOOLS, what);
    let Value::Object(tool) = tool else { return Err(wrong("a list of objects")) };
    if tool.get("type").and_then(Value::as_str) != Some("function") {
        return Err(ApiError::invalid(TOOLS, "the type of a tool must be `function`").code("not_supported"));
    }
    let Some(Value::Object(function)) = tool.get("function") else {
        return Err(wrong("`function`, an object, in each tool"));
    };
    let Some(Value::String(name)) = function.get("name") else {
        return Err(wrong("a `name` in each function"));
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) {
        let shown: String = name.chars().take(64).collect();
        let message =
            format!("`{shown}` is not a valid function name: use 1 to 64 letters, digits, `_` and `-`");
        return Err(ApiError::invalid(TOOLS, message));
    }
    match function.get("parameters") {
        None | Some(Value::Null | Value::Object(_)) => Ok(()),
        Some(_) => Err(wrong("`parameters`, a JSON schema, in each function")),
    }
}

fn choice(value: Option<Value>) -> Result<Choice, ApiError> {
    const NAME: &str = "tool_choice";
    let expected = "none, auto, required, or {\"type\": \"function\", \"function\": {\"name\": ..}}";
    match value {
        None => Ok(Choice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "none" => Ok(Choice::None),
            "auto" => Ok(Choice::Auto),
            "required" => Ok(Choice::Required),
            _ => Err(ApiError::invalid(NAME, format!("must be {expected}"))),
        },
        Some(Value::Object(object)) => named(&object)
            .map(Choice::Named)
            .ok_or_else(|| ApiError::invalid(NAME, format!("must be {expected}"))),
        Some(_) => Err(ApiError::wrong_type(NAME, expected)),
    }
}

fn named(object: &Map<String, Value>) -> Option<String> {
    let kind = object.get("type")?.as_str()?;
    let name = object.get("function")?.get("name")?.as_str()?;
    (kind == "function").then(|| name.to_owned())
}
