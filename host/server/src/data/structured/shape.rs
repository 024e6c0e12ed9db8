//! What an output must be, as requests say it: OpenAI's `response_format`, vLLM's `structured_outputs`.

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use crate::data::fields::{not_supported, object, unknown_field};
use crate::data::json::Fields;
use crate::http::ApiError;

const FORMAT: &str = "response_format";
const OUTPUTS: &str = "structured_outputs";
/// Ways of `structured_outputs`, of which a request has one.
const WAYS: &[&str] = &["json", "json_object", "regex", "choice", "grammar"];
/// What vLLM has besides, and the one value that is taken.
const OFF: &[(&str, Value)] = &[
    ("disable_any_whitespace", Value::Bool(false)),
    ("disable_additional_properties", Value::Bool(false)),
    ("disable_fallback", Value::Bool(false)),
    ("whitespace_pattern", Value::Null),
];
const MAX_SCHEMA_BYTES: usize = 256 << 10;
/// All schemas of a request together.
const MAX_SCHEMAS_BYTES: usize = 1 << 20;
const MAX_GRAMMAR_BYTES: usize = 64 << 10;
const MAX_REGEX_BYTES: usize = 8 << 10;
const MAX_CHOICES: usize = 1_024;
/// Brackets within brackets; compilers recurse over them.
const MAX_DEPTH: usize = 48;
/// White space between two parts of JSON: a blank, or a new line and its indent. Unbounded, a model that likes
/// blanks writes nothing else.
const WHITE_SPACE: &str = r"( |\r?\n[ \t]{0,40})";

/// What an output must be, checked as far as that goes without compiling it.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// The field that asked for it.
    pub field: &'static str,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    /// JSON of a schema.
    Schema(Value),
    /// All of it matches a regular expression.
    Regex(String),
    /// A grammar in Lark's notation.
    Lark(String),
}

impl Shape {
    /// Takes both fields out of a body; at most one of them may say something.
    pub fn take(fields: &mut Fields) -> Result<Option<Self>, ApiError> {
        let format = object(fields, FORMAT)?.map(response_format).transpose()?.flatten();
        let outputs = object(fields, OUTPUTS)?.map(Self::of_outputs).transpose()?;
        if format.is_some() && outputs.is_some() {
            let message = "can't be used together with response_format";
            return Err(ApiError::invalid(OUTPUTS, message));
        }
        Ok(format.or(outputs))
    }

    /// What `structured_outputs` says: one of its ways.
    pub fn of_outputs(object: Map<String, Value>) -> Result<Self, ApiError> {
        structured_outputs(object)
    }

    /// A grammar made here.
    pub fn lark(field: &'static str, grammar: String) -> Self {
        Self { field, kind: Kind::Lark(grammar) }
    }

    /// Tells equal shapes, whoever asked.
    pub fn key(&self) -> String {
        match &self.kind {
            Kind::Schema(schema) => format!("s{schema}"),
            Kind::Regex(regex) => format!("r{regex}"),
            Kind::Lark(grammar) => format!("l{grammar}"),
        }
    }

    /// As the compiler takes it.
    pub fn grammar(&self) -> TopLevelGrammar {
        match &self.kind {
            Kind::Schema(schema) => TopLevelGrammar::from_json_schema(with_options(schema.clone())),
            Kind::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Kind::Lark(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
        }
    }
}

/// A schema with this host's rules for white space; a client's own would be an instruction to the compiler. Of
/// alternatives that overlap an output may fulfil several: no automaton of this kind counts them.
pub fn with_options(mut schema: Value) -> Value {
    if let Value::Object(schema) = &mut schema {
        let options = json!({"whitespace_pattern": WHITE_SPACE, "coerce_one_of": true});
        schema.insert("x-guidance".to_owned(), options);
    }
    schema
}

/// Refuses schemas that are no objects, and those of unreasonable length or depth.
pub fn check_schemas<'a>(
    field: &'static str,
    schemas: impl IntoIterator<Item = &'a Value>,
) -> Result<(), ApiError> {
    let mut bytes = 0;
    for schema in schemas {
        bytes += check_schema(field, schema)?;
    }
    if bytes > MAX_SCHEMAS_BYTES {
        let message = format!("the schemas together are longer than {MAX_SCHEMAS_BYTES} bytes");
        return Err(ApiError::invalid(field, message));
    }
    Ok(())
}

fn response_format(mut object: Map<String, Value>) -> Result<Option<Shape>, ApiError> {
    let kind = match object.remove("type") {
        Some(Value::String(kind)) => kind,
        _ => return Err(ApiError::wrong_type(FORMAT, "an object with a `type`")),
    };
    match kind.as_str() {
        "text" => Ok(None),
        "json_object" => Ok(Some(Shape { field: FORMAT, kind: any_object() })),
        "json_schema" => {
            let Some(Value::Object(mut inner)) = object.remove("json_schema") else {
                return Err(ApiError::wrong_type(FORMAT, "`json_schema`, an object, beside its type"));
            };
            let schema = inner.remove("schema").unwrap_or(Value::Null);
            Ok(Some(Shape { field: FORMAT, kind: checked_schema(FORMAT, schema)? }))
        }
        other => {
            let shown: String = other.chars().take(64).collect();
            let message =
                format!("type `{shown}` is not supported; there are text, json_object and json_schema");
            Err(ApiError::invalid(FORMAT, message).code("not_supported"))
        }
    }
}

fn structured_outputs(mut object: Map<String, Value>) -> Result<Shape, ApiError> {
    for (name, only) in OFF {
        let given = object.remove(*name).unwrap_or_default();
        if !given.is_null() && given != *only {
            return Err(not_supported(&format!("{OUTPUTS}.{name}"), &given, &only.to_string()));
        }
    }
    let mut given = object.into_iter().filter(|(_, value)| !value.is_null());
    let (Some((way, value)), None) = (given.next(), given.next()) else {
        let message = format!("give exactly one of {}", WAYS.join(", "));
        return Err(ApiError::invalid(OUTPUTS, message));
    };
    let wrong = |expected: &str| ApiError::wrong_type(&format!("{OUTPUTS}.{way}"), expected);
    let kind = match (way.as_str(), value) {
        ("json", Value::String(text)) => {
            let schema = serde_json::from_str(&text)
                .map_err(|e| ApiError::invalid(OUTPUTS, format!("json is no JSON schema: {e}")))?;
            checked_schema(OUTPUTS, schema)?
        }
        ("json", schema) => checked_schema(OUTPUTS, schema)?,
        ("json_object", Value::Bool(true)) => any_object(),
        ("json_object", _) => return Err(wrong("true")),
        ("regex", Value::String(regex)) => {
            check_text(&way, &regex, MAX_REGEX_BYTES)?;
            Kind::Regex(regex)
        }
        ("grammar", Value::String(grammar)) => {
            check_text(&way, &grammar, MAX_GRAMMAR_BYTES)?;
            Kind::Lark(grammar)
        }
        ("regex" | "grammar", _) => return Err(wrong("text")),
        ("choice", Value::Array(list)) => choice(list)?,
        ("choice", _) => return Err(wrong("a list of texts")),
        (other, _) => {
            let error = unknown_field(other, WAYS);
            return Err(ApiError::invalid(OUTPUTS, error.message()).code("unknown_field"));
        }
    };
    Ok(Shape { field: OUTPUTS, kind })
}

fn any_object() -> Kind {
    Kind::Schema(json!({"type": "object"}))
}

fn checked_schema(field: &'static str, schema: Value) -> Result<Kind, ApiError> {
    check_schema(field, &schema)?;
    Ok(Kind::Schema(schema))
}

/// The length of a schema that is worth compiling.
fn check_schema(field: &'static str, schema: &Value) -> Result<usize, ApiError> {
    if !schema.is_object() {
        return Err(ApiError::wrong_type(field, "a JSON schema, which is an object"));
    }
    let bytes = schema.to_string().len();
    if bytes > MAX_SCHEMA_BYTES {
        return Err(ApiError::invalid(field, format!("the schema is longer than {MAX_SCHEMA_BYTES} bytes")));
    }
    if depth(schema) > MAX_DEPTH {
        return Err(ApiError::invalid(field, format!("the schema is nested deeper than {MAX_DEPTH} levels")));
    }
    if let Some(pattern) = too_deep_pattern(schema) {
        let shown: String = pattern.chars().take(40).collect();
        return Err(ApiError::invalid(
            field,
            format!("the pattern `{shown}..` is too long or too deeply nested"),
        ));
    }
    Ok(bytes)
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Any text of a schema that would be too much as a regular expression.
fn too_deep_pattern(value: &Value) -> Option<&str> {
    match value {
        Value::Array(list) => list.iter().find_map(too_deep_pattern),
        Value::Object(map) => map.iter().find_map(|(key, value)| match value {
            Value::String(text) if key == "pattern" && !is_bounded(text, MAX_REGEX_BYTES) => {
                Some(text.as_str())
            }
            _ if key == "patternProperties" => {
                let keys = value.as_object().into_iter().flat_map(Map::keys);
                keys.map(String::as_str)
                    .find(|key| !is_bounded(key, MAX_REGEX_BYTES))
                    .or_else(|| too_deep_pattern(value))
            }
            _ => too_deep_pattern(value),
        }),
        _ => None,
    }
}

fn check_text(way: &str, text: &str, max_bytes: usize) -> Result<(), ApiError> {
    if text.is_empty() {
        return Err(ApiError::invalid(OUTPUTS, format!("{way} is empty")));
    }
    if !is_bounded(text, max_bytes) {
        let message =
            format!("{way} is longer than {max_bytes} bytes or nested deeper than {MAX_DEPTH} brackets");
        return Err(ApiError::invalid(OUTPUTS, message));
    }
    Ok(())
}

/// Counts opening brackets against closing ones, in strings and classes too: never too few.
fn is_bounded(text: &str, max_bytes: usize) -> bool {
    let (mut open, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(open);
    }
    text.len() <= max_bytes && deepest <= MAX_DEPTH
}

fn choice(list: Vec<Value>) -> Result<Kind, ApiError> {
    if list.is_empty() || list.len() > MAX_CHOICES {
        let message = format!("choice needs 1 to {MAX_CHOICES} texts, got {}", list.len());
        return Err(ApiError::invalid(OUTPUTS, message));
    }
    let mut texts = Vec::new();
    for value in list {
        match value {
            Value::String(text) if text.is_empty() => {
                return Err(ApiError::invalid(OUTPUTS, "a choice must not be empty"));
            }
            // A string of Lark is written as JSON writes it.
            Value::String(text) => texts.push(Value::String(text).to_string()),
            _ => return Err(ApiError::wrong_type("structured_outputs.choice", "a list of texts")),
        }
    }
    let grammar = format!("start: {}", texts.join(" | "));
    if grammar.len() > MAX_GRAMMAR_BYTES {
        return Err(ApiError::invalid(OUTPUTS, format!("choice is longer than {MAX_GRAMMAR_BYTES} bytes")));
    }
    Ok(Kind::Lark(grammar))
}
