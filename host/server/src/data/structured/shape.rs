//! What an output must be, as requests say it: OpenAI's `response_format`, vLLM's `structured_outputs`.

use infer_api::unique::{self, Limit};
use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use super::keywords;
use crate::data::fields::{not_supported, object, unknown_field};
use crate::data::json::{Fields, MAX_VALUES};
use crate::http::ApiError;

const FORMAT: &str = "response_format";
const OUTPUTS: &str = "structured_outputs";
/// Ways of `structured_outputs`, of which a request has one.
const WAYS: &[&str] = &["json", "json_object", "regex", "choice", "grammar"];
/// vLLM's name for JSON without white space.
const COMPACT: &str = "disable_any_whitespace";
/// What vLLM has besides, and the one value that is taken.
const OFF: &[(&str, Value)] = &[
    ("disable_additional_properties", Value::Bool(false)),
    ("disable_fallback", Value::Bool(false)),
    ("whitespace_pattern", Value::Null),
];
/// What to do about a keyword that can't be enforced where a request says whether it has to be.
pub const NOT_STRICT: &str = "; leave it out, or don't ask for `strict`";
const MAX_SCHEMA_BYTES: usize = 256 << 10;
/// All schemas of a request together.
const MAX_SCHEMAS_BYTES: usize = 1 << 20;
const MAX_GRAMMAR_BYTES: usize = 64 << 10;
const MAX_REGEX_BYTES: usize = 8 << 10;
const MAX_CHOICES: usize = 1_024;
/// Brackets within brackets; compilers recurse over them.
const MAX_DEPTH: usize = 48;

/// What an output must be, checked as far as that goes without compiling it.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// The field that asked for it.
    pub field: &'static str,
    kind: Kind,
    /// What the output may be instead.
    instead: Option<Box<Shape>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    /// JSON of a schema.
    Schema {
        schema: Value,
        /// Whether a schema with keywords that can't be enforced is refused.
        strict: bool,
        blanks: Blanks,
    },
    /// All of it matches a regular expression.
    Regex(String),
    /// One of some texts, as a grammar in Lark's notation.
    Choice(String),
    /// A client's grammar in Lark's notation.
    Lark(String),
    /// Calls of functions, as a grammar in Lark's notation.
    Calls {
        grammar: String,
        /// The functions. Their schemas are the grammar's first lines.
        functions: Vec<String>,
    },
}

/// White space between two parts of JSON.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Blanks {
    /// A blank, or a new line and its indent. Unbounded, a model that likes blanks writes nothing else.
    Few,
    /// None at all.
    Never,
}

impl Blanks {
    /// As a regular expression, which the compiler lets match once between two parts.
    fn pattern(self) -> Option<&'static str> {
        match self {
            Self::Few => Some(r"( |\r?\n[ \t]{0,40})"),
            Self::Never => None,
        }
    }
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

    /// JSON of a schema, all of which has to be enforced.
    pub fn json(field: &'static str, schema: Value) -> Result<Self, ApiError> {
        Ok(Self::new(field, checked_schema(field, schema, true, "; leave it out")?))
    }

    /// Calls of functions whose schemas are the first lines of a grammar made here, in this order.
    pub fn calls(field: &'static str, grammar: String, functions: Vec<String>) -> Self {
        Self::new(field, Kind::Calls { grammar, functions })
    }

    fn new(field: &'static str, kind: Kind) -> Self {
        Self { field, kind, instead: None }
    }

    /// This, or what it may be instead, or else `other`.
    pub fn or(mut self, other: Self) -> Self {
        let instead = match self.instead.take() {
            Some(instead) => instead.or(other),
            None => other,
        };
        Self { instead: Some(Box::new(instead)), ..self }
    }

    /// All that the output may be.
    pub fn alternatives(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |shape| shape.instead.as_deref())
    }

    /// Whether it describes the whole output, calls included: a grammar can.
    pub fn covers_calls(&self) -> bool {
        matches!(self.kind, Kind::Lark(_))
    }

    /// Tells equal shapes, whoever asked, without what they may be instead.
    pub fn key(&self) -> String {
        match &self.kind {
            Kind::Schema { schema, strict, blanks } => {
                let strict = if *strict { 's' } else { 'p' };
                let blanks = if *blanks == Blanks::Never { 'n' } else { 'f' };
                format!("{strict}{blanks}{schema}")
            }
            Kind::Regex(regex) => format!("r{regex}"),
            Kind::Choice(grammar) | Kind::Lark(grammar) | Kind::Calls { grammar, .. } => {
                format!("l{grammar}")
            }
        }
    }

    /// As the compiler takes it, without what it may be instead.
    pub fn grammar(&self) -> TopLevelGrammar {
        match &self.kind {
            Kind::Schema { schema, strict, blanks } => {
                TopLevelGrammar::from_json_schema(with_options(schema.clone(), *strict, *blanks))
            }
            Kind::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Kind::Choice(grammar) | Kind::Lark(grammar) | Kind::Calls { grammar, .. } => {
                TopLevelGrammar::from_lark(grammar.clone())
            }
        }
    }

    /// A compiler's message about this in terms of the request, which knows functions but no grammar of their calls.
    pub fn explained(&self, why: &str) -> String {
        let Kind::Calls { functions, .. } = &self.kind else { return why.to_owned() };
        // A place in the grammar precedes the message, and an extract follows it.
        let placed = why.strip_prefix("at ").and_then(|why| why.split_once("): "));
        let (place, said) = placed.unwrap_or(("", why));
        let line = place.split('(').next().and_then(|line| line.parse::<usize>().ok());
        let lines: Vec<&str> = said.lines().take_while(|line| !is_extract(line)).map(str::trim).collect();
        let said = lines.join(" ");
        let said = said.strip_prefix("failed to compile JSON schema: ").unwrap_or(&said);
        let function = match (line, functions.as_slice()) {
            (_, [only]) => Some(only),
            (Some(line), _) => line.checked_sub(1).and_then(|at| functions.get(at)),
            (None, _) => None,
        };
        function.map_or_else(|| said.to_owned(), |name| format!("function `{name}`: {said}"))
    }
}

/// Whether a line of a compiler's message shows a line of the grammar: its number, a bar, and what it says.
fn is_extract(line: &str) -> bool {
    line.split_once(" | ").is_some_and(|(number, _)| number.trim().parse::<usize>().is_ok())
}

/// A schema with this host's rules for white space; a client's own would be an instruction to the compiler. Of
/// alternatives that overlap an output may fulfil several: no automaton of this kind counts them. Unless it is
/// `strict`, keywords that can't be enforced are ignored.
pub fn with_options(mut schema: Value, strict: bool, blanks: Blanks) -> Value {
    if let Value::Object(schema) = &mut schema {
        let options = json!({"whitespace_pattern": blanks.pattern(), "whitespace_flexible": false,
            "coerce_one_of": true, "lenient": !strict});
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
        "json_object" => Ok(Some(Shape::new(FORMAT, any_object()))),
        "json_schema" => {
            let Some(Value::Object(mut inner)) = object.remove("json_schema") else {
                return Err(ApiError::wrong_type(FORMAT, "`json_schema`, an object, beside its type"));
            };
            let strict = is_strict(FORMAT, &inner)?;
            let schema = inner.remove("schema").unwrap_or(Value::Null);
            Ok(Some(Shape::new(FORMAT, checked_schema(FORMAT, schema, strict, NOT_STRICT)?)))
        }
        other => {
            let shown: String = other.chars().take(64).collect();
            let message =
                format!("type `{shown}` is not supported; there are text, json_object and json_schema");
            Err(ApiError::invalid(FORMAT, message).code("not_supported"))
        }
    }
}

/// Whether a description of a schema asks that all of it be enforced.
pub fn is_strict(field: &str, described: &Map<String, Value>) -> Result<bool, ApiError> {
    match described.get("strict") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(strict)) => Ok(*strict),
        Some(_) => Err(ApiError::wrong_type(field, "a `strict` of true or false")),
    }
}

fn structured_outputs(mut object: Map<String, Value>) -> Result<Shape, ApiError> {
    for (name, only) in OFF {
        let given = object.remove(*name).unwrap_or_default();
        if !given.is_null() && given != *only {
            return Err(not_supported(&format!("{OUTPUTS}.{name}"), &given, &only.to_string()));
        }
    }
    let is_compact = match object.remove(COMPACT) {
        None | Some(Value::Null) => false,
        Some(Value::Bool(is_compact)) => is_compact,
        Some(_) => return Err(ApiError::wrong_type(&format!("{OUTPUTS}.{COMPACT}"), "true or false")),
    };
    let mut given = object.into_iter().filter(|(_, value)| !value.is_null()).collect::<Vec<_>>().into_iter();
    if let Some((other, _)) = given.as_slice().iter().find(|(way, _)| !WAYS.contains(&way.as_str())) {
        let error = unknown_field(other, WAYS);
        return Err(ApiError::invalid(OUTPUTS, error.message()).code("unknown_field"));
    }
    let (Some((way, value)), None) = (given.next(), given.next()) else {
        let message = format!("give exactly one of {}", WAYS.join(", "));
        return Err(ApiError::invalid(OUTPUTS, message));
    };
    let wrong = |expected: &str| ApiError::wrong_type(&format!("{OUTPUTS}.{way}"), expected);
    let kind = match (way.as_str(), value) {
        ("json", Value::String(text)) => {
            let schema = unique::parse_within(text.as_bytes(), &Limit::new(MAX_VALUES))
                .map_err(|e| ApiError::invalid(OUTPUTS, format!("json is no JSON schema: {e}")))?;
            checked_schema(OUTPUTS, schema, true, "; leave it out")?
        }
        ("json", schema) => checked_schema(OUTPUTS, schema, true, "; leave it out")?,
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
        (other, _) => unreachable!("`{other}` is none of the ways"),
    };
    Ok(Shape::new(OUTPUTS, if is_compact { compact(kind)? } else { kind }))
}

/// JSON of the same schema without white space.
fn compact(kind: Kind) -> Result<Kind, ApiError> {
    match kind {
        Kind::Schema { schema, strict, .. } => Ok(Kind::Schema { schema, strict, blanks: Blanks::Never }),
        _ => Err(ApiError::invalid(OUTPUTS, format!("{COMPACT} is for json and json_object; leave it out"))),
    }
}

fn any_object() -> Kind {
    Kind::Schema { schema: json!({"type": "object"}), strict: true, blanks: Blanks::Few }
}

/// `hint` says what to do about a keyword that can't be enforced.
fn checked_schema(
    field: &'static str,
    mut schema: Value,
    strict: bool,
    hint: &str,
) -> Result<Kind, ApiError> {
    check_schema(field, &schema)?;
    keywords::ready(&mut schema, strict).map_err(|why| ApiError::invalid(field, why + hint))?;
    Ok(Kind::Schema { schema, strict, blanks: Blanks::Few })
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
    Ok(Kind::Choice(grammar))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_are_kept_in_their_order() {
        let shape = |field| Shape::calls(field, String::new(), Vec::new());
        for all in [shape("a").or(shape("b")).or(shape("c")), shape("a").or(shape("b").or(shape("c")))] {
            let fields: Vec<&str> = all.alternatives().map(|shape| shape.field).collect();
            assert_eq!(fields, ["a", "b", "c"]);
        }
    }

    #[test]
    fn unknown_way_is_named_beside_a_known_one() {
        for (outputs, part) in [
            (json!({"regex": "a", "bogus": 1}), "unknown field `bogus`"),
            (json!({"regx": "a"}), "did you mean `regex`?"),
            (json!({"regex": "a", "choice": ["b"]}), "give exactly one of json, "),
            (json!({"bogus": null}), "give exactly one of json, "),
            (json!({"disable_any_whitespace": true}), "give exactly one of json, "),
            (json!({"regex": "a", "disable_any_whitespace": true}), "is for json and json_object"),
            (json!({"json_object": true, "disable_any_whitespace": 1}), "expected true or false"),
        ] {
            let error = Shape::of_outputs(outputs.as_object().unwrap().clone()).unwrap_err();
            assert!(error.message().contains(part), "{outputs}: {}", error.message());
        }
    }

    #[test]
    fn schema_that_is_a_text_is_read_as_one_that_is_none() {
        let of = |text: &str| Shape::of_outputs(json!({"json": text}).as_object().unwrap().clone());
        assert!(of("{\"type\": \"integer\"}").is_ok());
        let many = format!("{{\"enum\": [{}]}}", vec!["0"; MAX_VALUES].join(","));
        for (text, part) in [
            (many.as_str(), "json is no JSON schema: more than 100000 values"),
            ("{\"type\": \"object\", \"type\": \"string\"}", "the key `type` occurs twice"),
            ("{", "json is no JSON schema: EOF"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.message().contains(part), "{}", error.message());
        }
    }

    #[test]
    fn messages_about_calls_name_the_function_and_show_no_grammar() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let two = Shape::calls("tools", String::new(), names(&["first", "second"]));
        let one = Shape::calls("tools", String::new(), names(&["only"]));
        let placed = "at 2(14): failed to compile JSON schema: Unsatisfiable schema: none\n  \
            while processing #/$defs/a\n   1 | arguments_0: %json {}\n   2 | arguments_1: %json {}\n         ^\n";
        let said = "Unsatisfiable schema: none while processing #/$defs/a";
        for (shape, why, explained) in [
            (&two, placed, format!("function `second`: {said}")),
            (&one, placed, format!("function `only`: {said}")),
            (&two, "at 9(1): x | y\n", "x | y".to_owned()),
            (&two, "it needs too much", "it needs too much".to_owned()),
            (&one, "it needs too much", "function `only`: it needs too much".to_owned()),
        ] {
            assert_eq!(shape.explained(why), explained);
        }
    }
}
