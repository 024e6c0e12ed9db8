//! A checkpoint's template and the instances that render it.
//!
//! An instance has taken the template once and renders one conversation after another; several render at once.
//! Nothing of a conversation is left in it that a template could name.

use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use infer_model::{ModelError, ModelErrorKind, Source};
use infer_sandbox::Failure;
use serde_json::{Map, Value as Json, json};

use crate::sandbox::{Renderer, Sandbox};
use crate::wire::{Request, Unsendable};

/// Larger templates are refused.
const LARGEST_TEMPLATE_BYTES: usize = 1 << 20;
/// Memory that idle instances may hold together. One has some 1.5 MiB, or what its largest conversation took: it
/// never shrinks.
const IDLE_BYTES: usize = 64 << 20;

/// A compiled chat template.
pub struct ChatTemplate {
    sandbox: Sandbox,
    /// What an instance is given first.
    request: Request,
    idle: Mutex<Vec<Renderer>>,
    tools: Tools,
    reads: Reads,
    reasons: bool,
    /// The day that templates are told, if not the clock's.
    day: Option<u32>,
    /// What renders conversations with tools, where that is another one.
    tool_use: Option<Box<ChatTemplate>>,
}

/// What a template makes of messages beyond roles and texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// It writes `developer` messages itself.
    pub developer: bool,
    /// It goes through the parts of a content, and takes each as it thinks right.
    pub parts: bool,
    /// It writes messages with channels, and reads them in its own way ([`Tools::Harmony`]).
    pub harmony: bool,
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
    /// `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{..}<|call|>`: gpt-oss.
    Harmony,
    /// It mentions them, and its calls have a form that isn't known here.
    Other,
}

impl Tools {
    fn of(template: &str) -> Self {
        let has = |part: &str| template.contains(part);
        if !has("tools") {
            Self::None
        } else if is_harmony(template) {
            Self::Harmony
        } else if has("<tool_call>") && !has("<function=") {
            Self::Hermes
        } else if has("\"parameters\"") && (has("ipython") || has("python_tag")) {
            Self::Llama3
        } else {
            Self::Other
        }
    }
}

/// Whether a template writes messages with channels, in the format that OpenAI calls Harmony.
fn is_harmony(template: &str) -> bool {
    ["<|start|>", "<|channel|>", "<|message|>"].iter().all(|mark| template.contains(mark))
}

impl ChatTemplate {
    /// The files of a checkpoint that it is read from: the configuration, a template, and one for tools.
    pub const FILES: [&str; 3] =
        ["tokenizer_config.json", "chat_template.jinja", "additional_chat_templates/tool_use.jinja"];

    /// Reads `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`, which may be a list with one
    /// that is for tools; `None` where a checkpoint has neither. A file of its own for tools wins over the list's.
    ///
    /// # Errors
    /// A file that can't be read or isn't what it should be; a template with a syntax error; a machine without memory for
    /// an instance ([`ModelErrorKind::Machine`]), where another try may succeed.
    pub fn load(sandbox: &Sandbox, source: &Source<'_>) -> Result<Option<Self>, ModelError> {
        let [config, template, tool_use] = Self::FILES;
        let config = match source.read(config)? {
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                ModelError::template(format!("tokenizer_config.json is no JSON: {error}"))
            })?,
            None => Json::Null,
        };
        let (template, listed) = match text_of(source, template)? {
            Some(text) => (Some(text), None),
            None => templates_of(&config)?,
        };
        let tool_use = text_of(source, tool_use)?.or(listed);
        let Some(template) = template else { return Ok(None) };
        let mut this = Self::new(sandbox, &template, &config)?;
        if let Some(tool_use) = tool_use {
            // Conversations without tools don't need it.
            match Self::new(sandbox, &tool_use, &config) {
                Ok(tool_use) => this.tool_use = Some(Box::new(tool_use)),
                Err(error) if error.kind == ModelErrorKind::Machine => return Err(error),
                Err(error) => tracing::warn!("the template for tools is passed over: {error}"),
            }
        }
        Ok(Some(this))
    }

    fn new(sandbox: &Sandbox, template: &str, config: &Json) -> Result<Self, ModelError> {
        if template.len() > LARGEST_TEMPLATE_BYTES {
            return Err(ModelError::template(format!(
                "the chat template has {} bytes; at most {LARGEST_TEMPLATE_BYTES} are allowed",
                template.len()
            )));
        }
        let what = "the chat template has an error";
        let request = introduction(template, config).map_err(|why| wrong(what, Failure::Refused(why)))?;
        let first = Renderer::new(sandbox, request.bytes()).map_err(|failure| wrong(what, failure))?;
        let mut this = Self {
            sandbox: sandbox.clone(),
            request,
            idle: Mutex::new(vec![first]),
            tools: Tools::of(template),
            reads: Reads {
                developer: template.contains("developer"),
                parts: false,
                harmony: is_harmony(template),
            },
            reasons: template.contains("</think>"),
            day: None,
            tool_use: None,
        };
        this.reads.parts = this.goes_through_parts()?;
        Ok(this)
    }

    /// Tries it: a template that takes contents for texts fails, leaves parts out or writes them as they are.
    fn goes_through_parts(&self) -> Result<bool, ModelError> {
        const TEXTS: [&str; 2] = ["q7wv", "k3zx"];
        let parts = TEXTS.map(|text| json!({"type": "text", "text": text}));
        let messages = json!([{"role": "user", "content": parts}]);
        match self.render(&messages, false) {
            Ok(prompt) => Ok(TEXTS.iter().all(|text| prompt.contains(text))
                && !["'text'", "\"text\""].iter().any(|raw| prompt.contains(raw))),
            Err(error) if error.kind == ModelErrorKind::Machine => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// The same template, to which it is always this day (counted from 1 January 1970) and not the clock's, so that
    /// its prompts repeat.
    #[must_use]
    pub fn on_day(mut self, day: u32) -> Self {
        self.tool_use = self.tool_use.map(|other| Box::new(other.on_day(day)));
        self.day = Some(day);
        self
    }

    /// What it does with tools.
    pub fn tools(&self) -> Tools {
        let tools = self.tool_use.as_ref().map_or(self.tools, |other| other.tools);
        // Replies are read as messages with channels only if both templates write such.
        if tools == Tools::Harmony && !self.reads().harmony { Tools::Other } else { tools }
    }

    /// Whether its model may reason before it replies, in `<think>..</think>`. Told from the template's text, which
    /// leaves the reasoning of earlier replies out. That of messages with channels is in one of these.
    pub fn reasons(&self) -> bool {
        self.reasons || self.tool_use.as_ref().is_some_and(|other| other.reasons)
    }

    /// What it makes of messages, with tools and without.
    pub fn reads(&self) -> Reads {
        let Reads { developer, parts, harmony } = self.reads;
        let other = self.tool_use.as_ref().map_or(self.reads, |other| other.reads);
        Reads {
            developer: developer && other.developer,
            parts: parts && other.parts,
            harmony: harmony && other.harmony,
        }
    }

    /// The prompt for a list of messages (`[{"role", "content"}, ..]`), special tokens included;
    /// with `add_generation_prompt` it ends where the answer begins.
    ///
    /// # Errors
    /// The template refuses the messages, or takes more than it may; or the machine has no memory for an instance.
    pub fn render(&self, messages_json: &Json, add_generation_prompt: bool) -> Result<String, ModelError> {
        self.render_with(messages_json, add_generation_prompt, &Map::new())
    }

    /// Like [`Self::render`], with further variables (`enable_thinking`, `tools`, ..).
    ///
    /// # Errors
    /// The template refuses the messages, or takes more than it may; or the machine has no memory for an instance.
    pub fn render_with(
        &self,
        messages_json: &Json,
        add_generation_prompt: bool,
        variables: &Map<String, Json>,
    ) -> Result<String, ModelError> {
        if !messages_json.is_array() {
            return Err(ModelError::template("messages must be a list"));
        }
        if let Some(other) = &self.tool_use
            && variables.get("tools").is_some_and(|tools| !tools.is_null())
        {
            return other.render_with(messages_json, add_generation_prompt, variables);
        }
        let day = self.day.unwrap_or_else(today);
        let rendered = match context(messages_json, add_generation_prompt, variables, day) {
            Ok(request) => self.render_request(request.bytes()),
            Err(unsendable) => Err(Failure::Refused(unsendable)),
        };
        rendered.map_err(|failure| wrong("the chat template can't render these messages", failure))
    }

    fn render_request(&self, request: &[u8]) -> Result<String, Failure> {
        let idle = self.idle().pop();
        let mut renderer = match idle {
            Some(renderer) => renderer,
            None => Renderer::new(&self.sandbox, self.request.bytes())?,
        };
        let rendered = renderer.render(request);
        if matches!(rendered, Ok(_) | Err(Failure::Refused(_))) {
            self.keep(renderer);
        }
        rendered
    }

    fn keep(&self, renderer: Renderer) {
        let mut idle = self.idle();
        let held: usize = idle.iter().map(Renderer::memory_bytes).sum();
        if held + renderer.memory_bytes() <= IDLE_BYTES {
            idle.push(renderer);
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Renderer>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A failure that is the template's or the messages', and so stays, or the machine's.
fn wrong(what: &str, failure: Failure) -> ModelError {
    match failure {
        Failure::Machine(why) => ModelError::machine(why),
        failure => ModelError::template(format!("{what}: {}", failure.why())),
    }
}

/// What an instance is given first: the template and the special tokens that it may name.
fn introduction(template: &str, config: &Json) -> Result<Request, Unsendable> {
    let special: Vec<_> = special_tokens(config).collect();
    let mut request = Request::default();
    request.text(template)?;
    request.pairs(special.len())?;
    for (name, token) in special {
        request.text(name)?;
        request.text_value(token)?;
    }
    Ok(request)
}

/// Days since 1 January 1970, in UTC.
fn today() -> u32 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since_1970.as_secs() / 86_400) as u32
}

/// All variables of a render. Those that the host sets come last, so no other can stand for them.
fn context(
    messages: &Json,
    add_generation_prompt: bool,
    variables: &Map<String, Json>,
    day: u32,
) -> Result<Request, Unsendable> {
    let mut request = Request::default();
    request.pairs(variables.len() + 3)?;
    for (name, value) in variables {
        request.text(name)?;
        request.value(value)?;
    }
    request.text("messages")?;
    request.value(messages)?;
    request.text("add_generation_prompt")?;
    request.value(&Json::Bool(add_generation_prompt))?;
    // The renderer makes a function of it, for templates that can't do without.
    request.text("strftime_now")?;
    request.value(&Json::from(day))?;
    Ok(request)
}

/// The template in a file, if there is one.
fn text_of(source: &Source<'_>, file: &str) -> Result<Option<String>, ModelError> {
    let Some(bytes) = source.read(file)? else { return Ok(None) };
    let text = String::from_utf8(bytes.into_owned());
    text.map(Some).map_err(|error| ModelError::template(format!("{file} is no UTF-8: {error}")))
}

/// The template, and the one for conversations with tools: of a list of named ones, `default` and `tool_use`.
fn templates_of(config: &Json) -> Result<(Option<String>, Option<String>), ModelError> {
    match config.get("chat_template") {
        None | Some(Json::Null) => Ok((None, None)),
        Some(Json::String(template)) => Ok((Some(template.clone()), None)),
        Some(Json::Array(named)) => {
            let template = |name: &str| {
                let entry =
                    named.iter().find(|entry| entry.get("name").is_some_and(|found| found == name))?;
                entry.get("template").and_then(Json::as_str).map(str::to_owned)
            };
            let default = template("default").ok_or_else(|| {
                ModelError::template("the list chat_template in tokenizer_config.json has no default")
            })?;
            Ok((Some(default), template("tool_use")))
        }
        Some(_) => Err(ModelError::template("chat_template in tokenizer_config.json must be a string")),
    }
}

/// Every `.._token` of the configuration, written as a string or as an object with its content.
fn special_tokens(config: &Json) -> impl Iterator<Item = (&str, &str)> {
    let entries = config.as_object().into_iter().flatten();
    let named = entries.filter(|(name, _)| name.ends_with("_token"));
    named.filter_map(|(name, token)| {
        let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
        Some((name.as_str(), text))
    })
}
