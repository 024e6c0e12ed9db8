//! One template: compiled once, rendered with a context at a time.
//!
//! Instructions and the size of the prompt are bounded here, with errors that leave the renderer as it was. What a
//! single instruction may cost (a filter over a large value, an operator that doubles one, a deep recursion) is not
//! bounded here: that is what the sandbox's memory, fuel and stack are for. `strftime_now` is deliberately
//! undefined for templates that have a fallback: a prompt that names the day shares its prefix only with that day's.
//! The other variables that Hugging Face's renderer always sets are there, and what is none in Python is so here.

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};

use crate::date::strftime;
use crate::generation::as_jinja;
use crate::json::to_json;

/// Longer prompts are refused; no context is as long.
const LARGEST_PROMPT_BYTES: usize = 16 << 20;
/// Instructions of one rendering, besides those for each message, tool and document.
const FUEL: u64 = 200_000;
/// Instructions for each of them: some templates write a schema out as types of a language, by macros.
const FUEL_PER_PART: u64 = 20_000;
/// The lists of these parts.
const PARTS: [&str; 3] = ["messages", "tools", "documents"];
/// minijinja counts what is left in a word of the machine it runs on.
const LARGEST_FUEL: u64 = i32::MAX as u64;

const NAME: &str = "chat_template";
/// What Hugging Face's renderer calls the function that tells the date.
const STRFTIME_NOW: &str = "strftime_now";
/// What Hugging Face's renderer sets to none where a request has no such thing, and never leaves undefined.
const NONE_BY_DEFAULT: [&str; 2] = ["tools", "documents"];

/// Variables by their names.
pub type Context = BTreeMap<String, Value>;

/// A compiled chat template.
pub struct Renderer {
    environment: Environment<'static>,
    /// `bos_token` and its like, as the template may write them, and what is none by default.
    defaults: Context,
    /// Whether it can't do without the date.
    dated: bool,
}

impl Renderer {
    /// Compiles a template, which may name the special tokens in `special`.
    ///
    /// # Errors
    /// What is wrong with its syntax.
    pub fn new(template: String, special: Context) -> Result<Self, String> {
        let mut environment = Environment::new();
        // Errors name what is undefined.
        environment.set_debug(true);
        // As Hugging Face renders: blocks leave no blank lines behind.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| with_causes(&error))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", to_json);
        environment.add_test("iterable", is_iterable);
        let template = as_jinja(template);
        let dated = needs_date(&template);
        environment.add_template_owned(NAME, template).map_err(|error| with_causes(&error))?;
        let mut defaults = Context::from(NONE_BY_DEFAULT.map(|name| (name.to_owned(), Value::from(()))));
        defaults.extend(special);
        Ok(Self { environment, defaults, dated })
    }

    /// The prompt for `context`, which holds `messages` and whatever else the template may ask for. Its
    /// `strftime_now` is the day, counted from 1 January 1970: templates see a function or nothing. Room is made
    /// for `expected_bytes` of the prompt at once.
    ///
    /// # Errors
    /// The template refuses the messages, or takes too long over them.
    pub fn render(&self, context: Context, expected_bytes: usize) -> Result<String, String> {
        let parts: usize = PARTS.iter().filter_map(|name| context.get(*name)?.len()).sum();
        let mut environment = self.environment.clone();
        environment.set_fuel(Some((FUEL + FUEL_PER_PART * parts as u64).min(LARGEST_FUEL)));
        let mut variables = self.defaults.clone();
        variables.extend(context);
        let day = variables.remove(STRFTIME_NOW).and_then(|day| u32::try_from(day).ok());
        if let Some(day) = day.filter(|_| self.dated) {
            let now = Value::from_function(move |format: &str| strftime(day, format));
            variables.insert(STRFTIME_NOW.to_owned(), now);
        }
        let template = environment.get_template(NAME).map_err(|error| with_causes(&error))?;
        let mut prompt = Bounded(Vec::with_capacity(expected_bytes.min(LARGEST_PROMPT_BYTES)));
        template.render_captured_to(Value::from(variables), &mut prompt).map_err(|error| {
            match error.kind() {
                ErrorKind::OutOfFuel => "it needs too many steps".to_owned(),
                ErrorKind::WriteFailure => {
                    format!("the prompt would have more than {LARGEST_PROMPT_BYTES} bytes")
                }
                _ => with_causes(&error),
            }
        })?;
        String::from_utf8(prompt.0).map_err(|error| format!("the prompt is no UTF-8: {error}"))
    }
}

/// Whether a template calls `strftime_now` without asking whether it is there, as most do: `strftime_now is defined`,
/// or its truth. Any mention outside comments that is no call counts as a question.
fn needs_date(template: &str) -> bool {
    let mut parts = template.split("{#");
    let before = parts.next();
    let code = before.into_iter().chain(parts.filter_map(|part| Some(part.split_once("#}")?.1)));
    let mentions = code.flat_map(|code| code.split(STRFTIME_NOW).skip(1));
    let mut calls = mentions.map(|after| after.trim_start().starts_with('(')).peekable();
    calls.peek().is_some() && calls.all(|call| call)
}

/// As in Python: to minijinja, none is an empty list.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

fn raise_exception(message: &str) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.to_owned()))
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
