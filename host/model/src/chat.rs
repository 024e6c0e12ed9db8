//! A checkpoint's chat template: messages to one prompt.
//!
//! Templates are Jinja programs that come with a model, so they are data of a stranger: they run
//! with a bounded number of instructions, bounded size and nothing to call but what Hugging Face's
//! renderer offers. `strftime_now` is deliberately undefined: a prompt that depends on the day
//! neither repeats nor shares its prefix, and templates that ask for it have a fallback.

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, ErrorKind};
use serde_json::Value as Json;

use crate::error::ModelError;
use crate::source::Source;

/// Larger templates are refused.
const LARGEST_TEMPLATE_BYTES: usize = 1 << 20;
/// Longer prompts are refused; no context is as long.
const LARGEST_PROMPT_BYTES: usize = 16 << 20;
/// Instructions of one rendering, besides those for each message.
const FUEL: u64 = 200_000;
/// Instructions for each message.
const FUEL_PER_MESSAGE: u64 = 20_000;

const NAME: &str = "chat_template";

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token` and its like, as the template may write them.
    special: BTreeMap<String, Value>,
    /// What the template does with tools.
    tools: Tools,
    /// Whether it writes `developer` messages itself.
    knows_developer: bool,
}

/// What a template does with tools, and so how the model writes calls. Told from the template's text:
/// nothing else in a checkpoint says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tools {
    /// It doesn't mention them.
    None,
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`: Hermes, Qwen.
    Hermes,
    /// `{"name": .., "parameters": {..}}` and nothing else: Llama 3.
    Llama3,
    /// It mentions them, and its calls have a form that isn't known here.
    Other,
}

impl Tools {
    fn of(template: &str) -> Self {
        let has = |part: &str| template.contains(part);
        if !has("tools") {
            Self::None
        } else if has("<tool_call>") && !has("<function=") {
            Self::Hermes
        } else if has("\"parameters\"") && (has("ipython") || has("python_tag")) {
            Self::Llama3
        } else {
            Self::Other
        }
    }
}

impl ChatTemplate {
    /// Reads `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`; `None` where a
    /// checkpoint has neither.
    ///
    /// # Errors
    /// A file that can't be read or isn't what it should be; a template with a syntax error.
    pub fn load(source: &Source) -> Result<Option<Self>, ModelError> {
        let config = match source.read("tokenizer_config.json")? {
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                ModelError::template(format!("tokenizer_config.json is no JSON: {error}"))
            })?,
            None => Json::Null,
        };
        let template = match source.read("chat_template.jinja")? {
            Some(bytes) => Some(String::from_utf8(bytes.into_owned()).map_err(|error| {
                ModelError::template(format!("chat_template.jinja is no UTF-8: {error}"))
            })?),
            None => template_of(&config)?,
        };
        template.map(|template| Self::new(template, &config)).transpose()
    }

    fn new(template: String, config: &Json) -> Result<Self, ModelError> {
        if template.len() > LARGEST_TEMPLATE_BYTES {
            return Err(ModelError::template(format!(
                "the chat template has {} bytes; at most {LARGEST_TEMPLATE_BYTES} are allowed",
                template.len()
            )));
        }
        let mut environment = Environment::new();
        // As Hugging Face renders: blocks leave no blank lines behind.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| ModelError::template(with_causes(&error)))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", to_json);
        let (tools, knows_developer) = (Tools::of(&template), template.contains("developer"));
        environment.add_template_owned(NAME, template).map_err(|error| {
            ModelError::template(format!("the chat template has an error: {}", with_causes(&error)))
        })?;
        Ok(Self { environment, special: special_tokens(config), tools, knows_developer })
    }

    /// What it does with tools.
    pub fn tools(&self) -> Tools {
        self.tools
    }

    /// Whether it writes `developer` messages itself.
    pub fn knows_developer(&self) -> bool {
        self.knows_developer
    }

    /// The prompt for a list of messages (`[{"role", "content"}, ..]`), special tokens included;
    /// with `add_generation_prompt` it ends where the answer begins.
    ///
    /// # Errors
    /// The template refuses the messages, or takes too long over them.
    pub fn render(&self, messages_json: &Json, add_generation_prompt: bool) -> Result<String, ModelError> {
        self.render_with(messages_json, add_generation_prompt, &serde_json::Map::new())
    }

    /// Like [`Self::render`], with further variables (`enable_thinking`, `tools`, ..).
    ///
    /// # Errors
    /// The template refuses the messages, or takes too long over them.
    pub fn render_with(
        &self,
        messages_json: &Json,
        add_generation_prompt: bool,
        variables: &serde_json::Map<String, Json>,
    ) -> Result<String, ModelError> {
        let Json::Array(messages) = messages_json else {
            return Err(ModelError::template("messages must be a list"));
        };
        let mut context = self.special.clone();
        context.extend(variables.iter().map(|(name, value)| (name.clone(), value_of(value))));
        context.insert("messages".to_owned(), value_of(messages_json));
        context.insert("add_generation_prompt".to_owned(), Value::from(add_generation_prompt));
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(FUEL + FUEL_PER_MESSAGE * messages.len() as u64));
        let template =
            environment.get_template(NAME).map_err(|error| ModelError::template(with_causes(&error)))?;
        let mut prompt = Bounded(Vec::new());
        template.render_captured_to(Value::from(context), &mut prompt).map_err(|error| {
            let why = match error.kind() {
                ErrorKind::OutOfFuel => "it needs too many steps".to_owned(),
                ErrorKind::WriteFailure => {
                    format!("the prompt would have more than {LARGEST_PROMPT_BYTES} bytes")
                }
                _ => with_causes(&error),
            };
            ModelError::template(format!("the chat template can't render these messages: {why}"))
        })?;
        String::from_utf8(prompt.0)
            .map_err(|error| ModelError::template(format!("the prompt is no UTF-8: {error}")))
    }
}

/// A list of named templates is what some tool-using models have; `default` is meant then.
fn template_of(config: &Json) -> Result<Option<String>, ModelError> {
    match config.get("chat_template") {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(template)) => Ok(Some(template.clone())),
        Some(Json::Array(named)) => {
            let default = named.iter().find(|entry| entry.get("name").is_some_and(|name| name == "default"));
            let template = default.and_then(|entry| entry.get("template")).and_then(Json::as_str);
            template.map(|template| Some(template.to_owned())).ok_or_else(|| {
                ModelError::template("the list chat_template in tokenizer_config.json has no default")
            })
        }
        Some(_) => Err(ModelError::template("chat_template in tokenizer_config.json must be a string")),
    }
}

/// Every `.._token` of the configuration, written as a string or as an object with its content.
fn special_tokens(config: &Json) -> BTreeMap<String, Value> {
    let entries = config.as_object().into_iter().flatten();
    let named = entries.filter(|(name, _)| name.ends_with("_token"));
    named
        .filter_map(|(name, token)| {
            let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
            Some((name.clone(), Value::from(text)))
        })
        .collect()
}

fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (None, Some(value)) => Value::from(value),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(value_of).collect(),
        Json::Object(entries) => {
            let entries = entries.iter().map(|(name, value)| (name.clone(), value_of(value)));
            Value::from(entries.collect::<BTreeMap<_, _>>())
        }
    }
}

fn raise_exception(message: &str) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.to_owned()))
}

/// JSON as Python writes it. minijinja's own filter also escapes what HTML minds, which models
/// have never seen; in JSON these escapes can stand nowhere but in strings.
fn to_json(value: &Value, indent: Option<Value>, options: Kwargs) -> Result<Value, minijinja::Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<Value>>("indent")?,
    };
    // Python options without meaning here: text is never ASCII-escaped, keys keep their order.
    let _: (Option<Value>, Option<Value>, Option<Value>) =
        (options.get("ensure_ascii")?, options.get("separators")?, options.get("sort_keys")?);
    options.assert_all_used()?;
    if value.kind() == ValueKind::Undefined {
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "an undefined value has no JSON"));
    }
    let escaped = minijinja::filters::tojson(value, indent, Kwargs::from_iter(Vec::<(&str, Value)>::new()))?;
    Ok(Value::from_safe_string(unescape_html(&escaped.to_string())))
}

fn unescape_html(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let escape = &rest[at..];
        let (text, length) = match escape.get(..6) {
            Some("\\u003c") => ("<", 6),
            Some("\\u003e") => (">", 6),
            Some("\\u0026") => ("&", 6),
            Some("\\u0027") => ("'", 6),
            // Two characters at once, so that an escaped backslash can't start another escape.
            _ => (&escape[..2.min(escape.len())], 2.min(escape.len())),
        };
        plain.push_str(text);
        rest = &escape[length..];
    }
    plain + rest
}

fn with_causes(error: &minijinja::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// A buffer that refuses to grow beyond the longest prompt.
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > LARGEST_PROMPT_BYTES {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
