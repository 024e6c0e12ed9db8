//! The functions that a chat offers, and the grammar of calls where they are forced, or compete with a required form.

use std::fmt::Write as _;

use infer_chat::Tools;
use serde_json::{Value, json};

use crate::data::request::fields::list;
use crate::data::request::json::Fields;
use crate::data::structured::{Blanks, NOT_STRICT, Shape, check_schemas, is_strict, ready, with_options};
use crate::http::ApiError;

const TOOLS: &str = "tools";
const CHOICE: &str = "tool_choice";
const OUTPUTS: &str = "structured_outputs";
/// Most functions of a request. Agents with several sets of tools have hundreds.
pub const MAX_TOOLS: usize = 512;
/// Longest name. OpenAI allows 64, Anthropic 128.
const MAX_NAME: usize = 128;
/// Most characters of a client's word in a message.
const MAX_SHOWN: usize = 64;

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
    /// It must call at least one of these.
    OneOf(Vec<String>),
    /// It must call this one.
    Named(String),
}

impl Offer {
    /// Takes `tools`, `tool_choice` and `parallel_tool_calls` out of a body.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let tools = take_tools(fields)?.unwrap_or_default();
        let parallel = crate::data::request::fields::boolean(fields, "parallel_tool_calls")?.unwrap_or(true);
        let Asked { choice, only } = asked(fields.take(CHOICE))?;
        let mut offer = Self { tools, choice, parallel };
        if (offer.is_forced() || only.is_some()) && offer.tools.is_empty() {
            return Err(ApiError::invalid(CHOICE, "the request has no tools to choose from"));
        }
        let chosen = match &offer.choice {
            Choice::OneOf(names) => names.as_slice(),
            Choice::Named(name) => std::slice::from_ref(name),
            _ => &[],
        };
        if let Some(name) = chosen.iter().chain(only.iter().flatten()).find(|name| !offer.has(name)) {
            let known: Vec<&str> = offer.names().collect();
            let message = format!("`{}` is not one of the tools: {}", cut(name), known.join(", "));
            return Err(ApiError::invalid(CHOICE, message));
        }
        if let Some(only) = only {
            offer.tools.retain(|tool| only.iter().any(|name| tool["function"]["name"] == name.as_str()));
        }
        Ok(offer)
    }

    fn has(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// Whether the prompt mentions any functions.
    pub fn is_shown(&self) -> bool {
        !self.tools.is_empty() && self.choice != Choice::None
    }

    /// Whether the output must be a call.
    pub fn is_forced(&self) -> bool {
        matches!(self.choice, Choice::Required | Choice::OneOf(_) | Choice::Named(_))
    }

    /// The names of all functions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().filter_map(|tool| tool["function"]["name"].as_str())
    }

    /// What the output must be, given the form that the request's other fields require: a call if that is forced, or
    /// else either of the two, or the form alone where messages have channels and it is that of one: calls are in another.
    /// OpenAI's `response_format` describes a reply, which a forced call leaves no room for. `special` says whether the
    /// tags of calls are special tokens.
    ///
    /// # Errors
    /// A schema exceeds the limits on length or depth, or `structured_outputs` is given beside a forced call.
    pub fn shape(
        &self,
        style: Tools,
        special: bool,
        required: Option<Shape>,
    ) -> Result<Option<Shape>, ApiError> {
        match required {
            Some(required) if self.is_forced() && required.field == OUTPUTS => {
                let message = "can't be used together with a `tool_choice` that forces a call; leave one out";
                Err(ApiError::invalid(OUTPUTS, message))
            }
            _ if self.is_forced() => self.calls(style, special).map(Some),
            Some(required) if self.is_shown() && !required.covers_calls() && style != Tools::Harmony => {
                Ok(Some(required.or(self.calls(style, special)?)))
            }
            required => Ok(required),
        }
    }

    /// The grammar of calls: in the model's syntax, with arguments that match their schemas.
    fn calls(&self, style: Tools, special: bool) -> Result<Shape, ApiError> {
        let arguments = if style == Tools::Llama3 { "parameters" } else { "arguments" };
        let may_be_called = |function: &Value| match &self.choice {
            Choice::OneOf(names) => names.iter().any(|name| function["name"] == name.as_str()),
            Choice::Named(only) => function["name"] == only.as_str(),
            Choice::None | Choice::Auto | Choice::Required => true,
        };
        let tools: Vec<&Value> = self.tools.iter().filter(|tool| may_be_called(&tool["function"])).collect();
        let within = |name: &str, error: ApiError| error.at(&format!("{TOOLS}: function `{name}`"), TOOLS);
        for tool in tools.iter().copied() {
            let name = tool["function"]["name"].as_str().unwrap_or_default();
            check_schemas(TOOLS, schemas([tool])).map_err(|error| within(name, error))?;
        }
        check_schemas(TOOLS, schemas(tools.iter().copied()))?;
        // The schemas come first, so that the compiler's line numbers tell the functions.
        let (mut grammar, mut calls) = (String::new(), String::new());
        let mut names = Vec::new();
        for function in tools.into_iter().map(|tool| &tool["function"]) {
            let at = names.len();
            let name = function["name"].as_str().unwrap_or_default();
            let schema = schema(function).map_err(|error| within(name, error))?;
            let _ = writeln!(grammar, "arguments_{at}: %json {schema}");
            let _ = match style {
                Tools::Harmony => {
                    let head =
                        format!("\"commentary to=functions.{name} \" <|constrain|> \"json\" <|message|>");
                    writeln!(calls, "call_{at}: {head} arguments_{at}")
                }
                _ => {
                    let head = json!(format!("{{\"name\": \"{name}\", \"{arguments}\": "));
                    writeln!(calls, "call_{at}: {head} arguments_{at} \"}}\"")
                }
            };
            names.push(name.to_owned());
        }
        let rules: Vec<String> = (0..names.len()).map(|at| format!("call_{at}")).collect();
        let _ = writeln!(calls, "object: {}", rules.join(" | "));
        grammar.push_str(&calls);
        let several = self.parallel && !matches!(self.choice, Choice::Named(_));
        grammar.push_str(match (style, several) {
            (Tools::Llama3, false) => "start: object\n",
            (Tools::Llama3, true) => "start: object (\"; \" object)*\n",
            // Its end is that of the output. The message begins with its channel where the prompt has begun it.
            (Tools::Harmony, _) => "start: (<|start|> \"assistant\")? <|channel|> object\n",
            (_, false) => "start: tagged\n",
            (_, true) => "start: tagged (\"\\n\" tagged)*\n",
        });
        grammar.push_str(match (style, special) {
            (Tools::Llama3 | Tools::Harmony, _) => "",
            (_, false) => "tagged: \"<tool_call>\\n\" object \"\\n</tool_call>\"\n",
            (_, true) => "tagged: <tool_call> \"\\n\" object \"\\n\" </tool_call>\n",
        });
        Ok(Shape::calls(TOOLS, grammar, names))
    }
}

/// Takes `tools` in the form of chats out of a body.
///
/// # Errors
/// There are too many, one is malformed, or two have one name.
pub fn take_tools(fields: &mut Fields) -> Result<Option<Vec<Value>>, ApiError> {
    let Some(tools) = list(fields, TOOLS, "functions")? else { return Ok(None) };
    if tools.len() > MAX_TOOLS {
        return Err(ApiError::invalid(TOOLS, format!("at most {MAX_TOOLS}, got {}", tools.len())));
    }
    for (at, tool) in tools.iter().enumerate() {
        check_tool(tool)
            .and_then(|()| check_new(tool, &tools[..at]))
            .map_err(|error| error.at(&place(at, tool), TOOLS))?;
    }
    check_schemas(TOOLS, schemas(tools.iter().filter(|tool| tool["function"]["strict"] == true)))?;
    Ok(Some(tools))
}

/// How errors name a tool of a request, in the form of chats or flat: by its index, and by its name if it has one.
pub fn place(at: usize, tool: &Value) -> String {
    let name = tool["function"]["name"].as_str().or_else(|| tool["name"].as_str());
    name.map_or_else(|| format!("{TOOLS}[{at}]"), |name| format!("{TOOLS}[{at}] (`{}`)", cut(name)))
}

/// A client's word for a message: its first 64 characters, with a mark if there are more.
pub fn cut(word: &str) -> String {
    match word.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &word[..end]),
        None => word.to_owned(),
    }
}

/// Checks a tool. If it is `strict`, all keywords of its schema must be enforceable, whether it may be called or not.
pub fn check_tool(tool: &Value) -> Result<(), ApiError> {
    let wrong = |what: &str| Err(ApiError::wrong_type(TOOLS, what));
    let Value::Object(fields) = tool else { return wrong("an object") };
    let kind = fields.get("type").and_then(Value::as_str);
    if kind != Some("function") {
        let found = kind.map_or_else(String::new, |kind| format!(", not `{}`", cut(kind)));
        let message = format!("the type of a tool must be `function`{found}");
        return Err(ApiError::invalid(TOOLS, message).code("not_supported"));
    }
    let Some(Value::Object(function)) = fields.get("function") else {
        return wrong("`function`, an object, beside its type");
    };
    let Some(Value::String(name)) = function.get("name") else { return wrong("a function with a `name`") };
    check_name(name)?;
    match function.get("parameters") {
        None | Some(Value::Null | Value::Object(_)) => {}
        Some(_) => return wrong("`parameters`, a JSON schema, in its function"),
    }
    if is_strict(TOOLS, function)? {
        check_schemas(TOOLS, schemas([tool]))?;
        schema(&tool["function"])?;
    }
    Ok(())
}

/// Refuses a tool whose name an earlier one has: a call would not tell which of the two it is for.
pub fn check_new(tool: &Value, earlier: &[Value]) -> Result<(), ApiError> {
    let name = &tool["function"]["name"];
    if earlier.iter().any(|other| other["function"]["name"] == *name) {
        return Err(ApiError::invalid(TOOLS, "there is another function of this name"));
    }
    Ok(())
}

/// Checks the name that the model is shown of a function.
pub fn check_name(name: &str) -> Result<(), ApiError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(());
    }
    let (shown, length) = (cut(name), name.chars().count());
    let message = match length > MAX_NAME {
        true => format!("`{shown}` has {length} characters, at most {MAX_NAME}"),
        false => format!(
            "`{shown}` is not a valid function name: use 1 to {MAX_NAME} letters, digits, `_` and `-`"
        ),
    };
    Err(ApiError::invalid(TOOLS, message))
}

/// The schemas of tools that have any.
fn schemas<'a>(tools: impl IntoIterator<Item = &'a Value>) -> impl Iterator<Item = &'a Value> {
    tools.into_iter().map(|tool| &tool["function"]["parameters"]).filter(|schema| !schema.is_null())
}

/// A function's schema as the compiler takes it.
fn schema(function: &Value) -> Result<Value, ApiError> {
    let strict = function.as_object().map_or(Ok(false), |function| is_strict(TOOLS, function))?;
    let mut schema = match &function["parameters"] {
        Value::Object(schema) => Value::Object(schema.clone()),
        _ => json!({"type": "object"}),
    };
    ready(&mut schema, strict).map_err(|why| ApiError::invalid(TOOLS, format!("{why}{NOT_STRICT}")))?;
    Ok(with_options(schema, strict, Blanks::Few))
}

/// What `tool_choice` says.
#[derive(Default)]
struct Asked {
    choice: Choice,
    /// Functions that the prompt mentions, if not all.
    only: Option<Vec<String>>,
}

impl From<Choice> for Asked {
    fn from(choice: Choice) -> Self {
        Self { choice, only: None }
    }
}

fn asked(value: Option<Value>) -> Result<Asked, ApiError> {
    let expected = "none, auto, required, {\"type\": \"function\", \"function\": {\"name\": ..}}, or \
        {\"type\": \"allowed_tools\", \"allowed_tools\": {\"mode\": \"auto\" or \"required\", \"tools\": [..]}}";
    let wrong = || ApiError::invalid(CHOICE, format!("must be {expected}"));
    match value {
        None => Ok(Asked::default()),
        Some(Value::String(word)) => match word.as_str() {
            "none" => Ok(Choice::None.into()),
            "auto" => Ok(Choice::Auto.into()),
            "required" => Ok(Choice::Required.into()),
            _ => Err(wrong()),
        },
        Some(choice @ Value::Object(_)) => match choice["type"].as_str() {
            Some("function") => named(&choice).map(|name| Choice::Named(name).into()).ok_or_else(wrong),
            Some("allowed_tools") => allowed(&choice["allowed_tools"]).ok_or_else(wrong),
            _ => Err(wrong()),
        },
        Some(_) => Err(ApiError::wrong_type(CHOICE, expected)),
    }
}

fn named(function: &Value) -> Option<String> {
    (function["type"] == "function").then(|| function["function"]["name"].as_str().map(str::to_owned))?
}

/// Some of the functions. A grammar holds a forced call to them; a model that decides by itself isn't shown the others.
fn allowed(allowed: &Value) -> Option<Asked> {
    let names: Vec<String> = allowed["tools"].as_array()?.iter().map(named).collect::<Option<_>>()?;
    match allowed["mode"].as_str()? {
        _ if names.is_empty() => None,
        "auto" => Some(Asked { choice: Choice::Auto, only: Some(names) }),
        "required" => Some(Choice::OneOf(names).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(body: Value) -> Result<Offer, ApiError> {
        let mut body = body;
        let function = |name: &str| json!({"type": "function", "function": {"name": name}});
        body["tools"] = json!([function("a"), function("b"), function("c")]);
        Offer::take(&mut Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    fn allowed(mode: &str, names: &[&str]) -> Value {
        let function = |name: &&str| json!({"type": "function", "function": {"name": name}});
        let tools: Vec<Value> = names.iter().map(function).collect();
        json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}})
    }

    #[test]
    fn choice_may_be_among_some_of_the_tools() {
        let auto = offer(allowed("auto", &["c", "a"])).unwrap_or_else(|e| panic!("{}", e.message()));
        assert_eq!((auto.names().collect::<Vec<_>>(), &auto.choice), (vec!["a", "c"], &Choice::Auto));
        let forced = offer(allowed("required", &["b"])).unwrap_or_else(|e| panic!("{}", e.message()));
        assert_eq!(forced.names().collect::<Vec<_>>(), ["a", "b", "c"], "all are shown");
        let shape = forced.shape(Tools::Hermes, false, None).unwrap_or_else(|e| panic!("{}", e.message()));
        let grammar = shape.expect("it is forced").key();
        assert!(grammar.contains("\\\"b\\\"") && !grammar.contains("\\\"a\\\""), "{grammar}");
        for (wrong, part) in [
            (allowed("auto", &["a", "d"]), "`d` is not one of the tools: a, b, c"),
            (allowed("required", &["d"]), "`d` is not one of the tools: a, b, c"),
            (allowed("none", &["a"]), "must be none"),
            (allowed("auto", &[]), "must be none"),
            (json!({"tool_choice": {"type": "function", "function": {}}}), "must be none"),
            (json!({"tool_choice": {"type": "function", "function": {"name": "d"}}}), "`d` is not"),
        ] {
            let error = offer(wrong.clone()).unwrap_err();
            assert_eq!(error.status().as_u16(), 422, "{wrong}");
            let message = error.message();
            assert!(message.starts_with("tool_choice: ") && message.contains(part), "{wrong}: {message}");
        }
        let mut none = allowed("auto", &["a"]);
        none["tools"] = json!([]);
        let error = Offer::take(&mut Fields::parse(none.to_string().as_bytes()).unwrap()).unwrap_err();
        assert_eq!(error.message(), "tool_choice: the request has no tools to choose from");
    }

    #[test]
    fn forced_call_of_messages_with_channels_is_one_message_and_a_form_is_the_replys_alone() {
        let forced = offer(allowed("required", &["b", "c"])).unwrap_or_else(|e| panic!("{}", e.message()));
        let shape = forced.shape(Tools::Harmony, true, None).unwrap_or_else(|e| panic!("{}", e.message()));
        let grammar = shape.expect("it is forced").key();
        for part in [
            "call_0: \"commentary to=functions.b \" <|constrain|> \"json\" <|message|> arguments_0\n",
            "object: call_0 | call_1\n",
            "start: (<|start|> \"assistant\")? <|channel|> object\n",
        ] {
            assert!(grammar.contains(part), "{grammar}");
        }
        let auto = offer(json!({})).unwrap_or_else(|e| panic!("{}", e.message()));
        let digits = || Shape::of_outputs(json!({"regex": "[0-9]"}).as_object().unwrap().clone());
        let shape =
            |style| auto.shape(style, true, Some(digits().unwrap_or_else(|e| panic!("{}", e.message()))));
        for (style, alternatives) in [(Tools::Harmony, 1), (Tools::Hermes, 2)] {
            let shape = shape(style).unwrap_or_else(|e| panic!("{}", e.message())).expect("it is required");
            assert_eq!(shape.alternatives().count(), alternatives, "{style:?}");
        }
    }

    #[test]
    fn strict_functions_are_checked_however_they_are_offered() {
        let offer = |strict: Value, schema: &Value, choice: &str| {
            let function = json!({"name": "a", "parameters": schema, "strict": strict});
            let body = json!({"tools": [{"type": "function", "function": function}], "tool_choice": choice});
            Offer::take(&mut Fields::parse(body.to_string().as_bytes()).unwrap()).map(drop)
        };
        let loose = json!({"type": "object", "properties": {"b": {"pattern": "(?=x)"}}});
        let deep = (0..60).fold(json!({}), |inner, _| json!({"items": inner}));
        for choice in ["auto", "none", "required"] {
            for (schema, why) in [
                (&loose, "`pattern` at #/properties/b can't be enforced; leave it out, or"),
                (&deep, "the schema is nested deeper than"),
            ] {
                let error = offer(json!(true), schema, choice).expect_err(choice);
                assert_eq!(error.status().as_u16(), 422, "{choice}");
                let start = format!("tools[0] (`a`): {why}");
                assert!(error.message().starts_with(&start), "{}", error.message());
                offer(json!(false), schema, choice).unwrap_or_else(|error| panic!("{}", error.message()));
            }
            assert!(offer(json!("yes"), &loose, choice).unwrap_err().message().contains("true or false"));
        }
    }

    #[test]
    fn error_about_a_tool_says_which() {
        let good = json!({"type": "function", "function": {"name": "good"}});
        let function = |function: Value| json!({"type": "function", "function": function});
        for (bad, status, message) in [
            (json!(1), 400, "tools[1]: expected an object"),
            (json!({"type": "mcp"}), 422, "tools[1]: the type of a tool must be `function`, not `mcp`"),
            (json!({"name": "f"}), 422, "tools[1] (`f`): the type of a tool must be `function`"),
            (json!({"type": "function"}), 400, "tools[1]: expected `function`, an object, beside its type"),
            (function(json!({})), 400, "tools[1]: expected a function with a `name`"),
            (function(json!({"name": "a b"})), 422, "tools[1] (`a b`): `a b` is not a valid function name"),
            (
                function(json!({"name": "f", "parameters": []})),
                400,
                "tools[1] (`f`): expected `parameters`, a JSON schema, in its function",
            ),
            (
                function(json!({"name": "f", "strict": 1})),
                400,
                "tools[1] (`f`): expected a `strict` of true or false",
            ),
            (good.clone(), 422, "tools[1] (`good`): there is another function of this name"),
        ] {
            let body = json!({"tools": [good, bad]}).to_string();
            let error = Offer::take(&mut Fields::parse(body.as_bytes()).unwrap()).unwrap_err();
            assert_eq!(error.status().as_u16(), status, "{bad}: {}", error.message());
            assert!(error.message().starts_with(message), "{bad}: {}", error.message());
        }
    }

    #[test]
    fn long_name_is_cut_with_a_mark() {
        let said = |name: &str| {
            let body = json!({"tools": [{"type": "function", "function": {"name": name, "strict": 1}}]});
            Offer::take(&mut Fields::parse(body.to_string().as_bytes()).unwrap()).unwrap_err()
        };
        let (most, cut) = ("x".repeat(128), format!("`{}…`", "x".repeat(64)));
        let error = said(&format!("{most}x"));
        let expected = format!("tools[0] ({cut}): {cut} has 129 characters, at most 128");
        assert_eq!((error.status().as_u16(), error.message()), (422, expected.as_str()));
        assert!(said(&most).message().starts_with(&format!("tools[0] ({cut}): expected a `strict`")));
        let whole = "é".repeat(64);
        let expected = format!("tools[0] (`{whole}`): `{whole}` is not a valid function name: ");
        assert!(said(&whole).message().starts_with(&expected));
        assert!(said("").message().starts_with("tools[0] (``): `` is not a valid function name: "));
    }

    #[test]
    fn schema_that_only_a_forced_call_needs_is_named_by_its_function() {
        let deep = (0..60).fold(json!({}), |inner, _| json!({"items": inner}));
        let function = |name: &str, schema: &Value| {
            let function = json!({"name": name, "parameters": schema});
            json!({"type": "function", "function": function})
        };
        let tools = json!([function("good", &json!({})), function("deep", &deep)]);
        let body = json!({"tools": tools, "tool_choice": "required"}).to_string();
        let offer = Offer::take(&mut Fields::parse(body.as_bytes()).unwrap()).unwrap();
        let error = offer.shape(Tools::Hermes, false, None).unwrap_err();
        let start = "tools: function `deep`: the schema is nested deeper than";
        assert!(error.message().starts_with(start), "{}", error.message());
    }
}
