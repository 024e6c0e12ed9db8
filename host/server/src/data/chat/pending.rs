//! The checkpoint's chat template, or the operator's, which is prepared in the background at startup.
//!
//! Compiling the renderer takes about a second if the code cache lacks it. Only chats need it, so only chats
//! wait. An operator's template is compiled before the model is loaded, because a fault in it ends the start. What the
//! machine refuses, mostly memory, is no fault of a template: the next chat tries again.

use std::fmt::Display;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use infer_chat::{ChatTemplate, Sandbox};
use infer_model::{ModelError, ModelErrorKind, Source};
use serde_json::json;
use tokio::sync::watch;

use crate::config::{Config, ConfigError};
use crate::http::ApiError;
use crate::policies;
use crate::serve::StartError;

/// The checkpoint's file that contains nothing but its template, and wins over its configuration.
const TEMPLATE_FILE: &str = ChatTemplate::FILES[1];
/// The same for conversations with tools.
const TOOLS_FILE: &str = ChatTemplate::FILES[2];

/// The template of `--chat-template`. It has no syntax errors.
pub struct GivenTemplate {
    text: Vec<u8>,
    sandbox: Sandbox,
}

impl GivenTemplate {
    /// Reads and compiles the template, if the configuration names one.
    ///
    /// # Errors
    /// The file can't be read, or is not a template; or the machine has no memory to try it.
    pub fn open(config: &Config) -> Result<Option<Self>, StartError> {
        let Some(path) = &config.chat_template else { return Ok(None) };
        let named = |why: &dyn Display| format!("--chat-template: {}: {why}", path.display());
        let wrong = |error: ModelError| match error.kind {
            ModelErrorKind::Machine => StartError::Machine(named(&error.message)),
            _ => ConfigError(named(&error.message)).into(),
        };
        let text = std::fs::read(path).map_err(|error| ConfigError(named(&error)))?;
        let sandbox = sandbox().map_err(wrong)?;
        ChatTemplate::load(&sandbox, &Source::Embedded(&[(TEMPLATE_FILE, text.as_slice())]))
            .map_err(wrong)?;
        Ok(Some(Self { text, sandbox }))
    }
}

/// A template that is ready or being prepared.
pub struct PendingTemplate {
    parts: Arc<Parts>,
    /// The latest attempt to prepare it.
    attempt: Mutex<watch::Receiver<Option<Found>>>,
}

/// The template, if there is one.
type Found = Result<Option<Arc<ChatTemplate>>, Unready>;

/// Why no chat can be rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unready {
    /// What is wrong with the template, for good.
    Wrong(Arc<str>),
    /// What the machine refused at the latest attempt.
    Machine(Arc<str>),
}

/// What a template is made of.
struct Parts {
    files: Result<Files, ModelError>,
    /// The files have the operator's template.
    is_given: bool,
    sandbox: OnceLock<Sandbox>,
    make_sandbox: fn() -> Result<Sandbox, ModelError>,
}

impl PendingTemplate {
    /// Starts to prepare a template on a thread of its own: the given one, with the checkpoint's special
    /// tokens, or the checkpoint's own. The checkpoint's files are read before this returns, because a
    /// running host reads none of them.
    ///
    /// # Errors
    /// The thread can't be spawned.
    pub fn begin(source: &Source<'_>, given: Option<GivenTemplate>) -> io::Result<Self> {
        Self::of(Parts::new(files(source), given))
    }

    fn of(parts: Parts) -> io::Result<Self> {
        let parts = Arc::new(parts);
        let attempt = Mutex::new(Parts::prepare(&parts, true)?);
        Ok(Self { parts, attempt })
    }

    /// Waits until it is known whether there is a template, and returns it. Tries again if the machine refused something
    /// at the last attempt; all who come meanwhile wait for the same one.
    ///
    /// # Errors
    /// Why there is none to be had.
    pub async fn ready(&self) -> Result<Option<Arc<ChatTemplate>>, Unready> {
        let mut attempt = self.attempt().map_err(|error| {
            Unready::Machine(format!("can't start a thread for the chat template: {error}").into())
        })?;
        // Fails if the thread has ended without a result.
        let found = attempt.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
        found.unwrap_or_else(|| {
            Err(Unready::Wrong("the thread that prepares the chat template has ended".into()))
        })
    }

    /// The latest attempt, or a new one.
    fn attempt(&self) -> io::Result<watch::Receiver<Option<Found>>> {
        let mut attempt = self.attempt.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = matches!(*attempt.borrow(), Some(Err(Unready::Machine(_))));
        if is_over {
            *attempt = Parts::prepare(&self.parts, false)?;
        }
        Ok(attempt.clone())
    }
}

impl Parts {
    /// The checkpoint's files, with a given template in place of theirs, with tools and without.
    fn new(mut files: Result<Files, ModelError>, given: Option<GivenTemplate>) -> Self {
        let (text, made) = given.map(|GivenTemplate { text, sandbox }| (text, sandbox)).unzip();
        let is_given = text.is_some();
        if let (Ok(files), Some(text)) = (&mut files, text) {
            files.retain(|(name, _)| ![TEMPLATE_FILE, TOOLS_FILE].contains(name));
            files.push((TEMPLATE_FILE, text));
        }
        Self {
            files,
            is_given,
            sandbox: made.map_or_else(OnceLock::new, OnceLock::from),
            make_sandbox: sandbox,
        }
    }

    /// Prepares the template on a thread of its own.
    fn prepare(this: &Arc<Self>, is_first: bool) -> io::Result<watch::Receiver<Option<Found>>> {
        let (found, pending) = watch::channel(None);
        let this = Arc::clone(this);
        std::thread::Builder::new().name("chat-template".into()).spawn(move || {
            let template = this.template();
            match &template {
                // Everything else works without it. A field, so that line breaks from a template are escaped.
                Err(error) if is_first => {
                    tracing::warn!(error = error.to_string(), "chat completions are not available");
                }
                Err(error) => {
                    tracing::debug!(error = error.to_string(), "chat completions are still not available");
                }
                Ok(_) if is_first => {}
                Ok(_) => tracing::info!("chat completions are available now"),
            }
            // Sending fails if the host has ended.
            let _ = found.send(Some(template.map_err(Unready::from)));
        })?;
        Ok(pending)
    }

    fn template(&self) -> Result<Option<Arc<ChatTemplate>>, ModelError> {
        let files = self.files.as_ref().map_err(ModelError::clone)?;
        let files: Vec<_> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
        let template = ChatTemplate::load(self.sandbox()?, &Source::Embedded(&files))?;
        if self.is_given {
            // Unknown filters and the like show only now. A template may also reject these messages for good reason.
            let messages = json!([{"role": "user", "content": "Hello"}]);
            if let Some(Err(error)) = template.as_ref().map(|template| template.render(&messages, true)) {
                let error = error.to_string();
                tracing::warn!(error, "--chat-template: a conversation of one user message fails");
            }
        }
        Ok(template.map(Arc::new))
    }

    /// The sandbox. It stays when an attempt fails, because compiling its code takes a while.
    fn sandbox(&self) -> Result<&Sandbox, ModelError> {
        if let Some(sandbox) = self.sandbox.get() {
            return Ok(sandbox);
        }
        let made = (self.make_sandbox)()?;
        Ok(self.sandbox.get_or_init(|| made))
    }
}

impl From<ModelError> for Unready {
    fn from(error: ModelError) -> Self {
        match error.kind {
            ModelErrorKind::Machine => Self::Machine(error.message.into()),
            _ => Self::Wrong(error.message.into()),
        }
    }
}

impl From<Unready> for ApiError {
    fn from(unready: Unready) -> Self {
        match unready {
            Unready::Wrong(why) => no_template(&format!("this model's chat template can't be used: {why}")),
            Unready::Machine(why) => Self::unavailable("memory", &*why),
        }
    }
}

/// The 422 of a chat with a model that has no template, or none that can be used.
pub fn no_template(why: &str) -> ApiError {
    let message = format!("{why}; use /v1/completions, or start the host with --chat-template");
    ApiError::invalid("messages", message).code("no_chat_template")
}

/// The files that contain or configure the template.
type Files = Vec<(&'static str, Vec<u8>)>;

fn files(source: &Source<'_>) -> Result<Files, ModelError> {
    let read = |name| Ok(source.read(name)?.map(|bytes| (name, bytes.into_owned())));
    ChatTemplate::FILES.into_iter().filter_map(|name| read(name).transpose()).collect()
}

fn sandbox() -> Result<Sandbox, ModelError> {
    Sandbox::new(policies::compiled_dir().as_deref())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn given_template_replaces_the_one_for_tools_too() {
        let sandbox = Sandbox::new(None).unwrap();
        let own: Files = vec![(TEMPLATE_FILE, b"own".to_vec()), (TOOLS_FILE, b"own for tools".to_vec())];
        let parts = Parts::new(Ok(own), Some(GivenTemplate { text: b"given".to_vec(), sandbox }));
        let template = parts.template().unwrap().unwrap();
        let tools = json!({"tools": ["a"]}).as_object().unwrap().clone();
        assert_eq!(template.render_with(&json!([]), true, &tools).unwrap(), "given");
    }

    #[tokio::test]
    async fn what_the_machine_refused_is_tried_again_by_the_next_chat() {
        static ATTEMPTS: AtomicUsize = AtomicUsize::new(0);
        let make_sandbox = || match ATTEMPTS.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Err(ModelError::machine("no memory")),
            _ => Sandbox::new(None),
        };
        let files: Files = vec![(TEMPLATE_FILE, b"Hello".to_vec())];
        let pending = PendingTemplate::of(Parts { make_sandbox, ..Parts::new(Ok(files), None) }).unwrap();
        // The first may come while the host's own attempt goes on, and then shares it.
        let mut refusals = 0;
        let template = loop {
            match pending.ready().await {
                Ok(template) => break template.expect("there is one"),
                Err(unready) => {
                    assert_eq!(unready, Unready::Machine("no memory".into()));
                    let error = ApiError::from(unready);
                    assert_eq!((error.status().as_u16(), error.reason()), (503, "memory"));
                    refusals += 1;
                }
            }
        };
        assert_eq!(template.render(&json!([]), true).unwrap(), "Hello");
        assert!((1..=2).contains(&refusals), "{refusals}");
        pending.ready().await.unwrap();
        assert_eq!(ATTEMPTS.load(Ordering::Relaxed), 3, "a success is kept");
    }

    #[tokio::test]
    async fn fault_of_a_template_stays() {
        static ATTEMPTS: AtomicUsize = AtomicUsize::new(0);
        let make_sandbox = || {
            ATTEMPTS.fetch_add(1, Ordering::Relaxed);
            Sandbox::new(None)
        };
        let files: Files = vec![(TEMPLATE_FILE, b"{% if %}".to_vec())];
        let pending = PendingTemplate::of(Parts { make_sandbox, ..Parts::new(Ok(files), None) }).unwrap();
        for _ in 0..2 {
            let error = ApiError::from(pending.ready().await.map(drop).unwrap_err());
            assert_eq!((error.status().as_u16(), error.reason()), (422, "no_chat_template"));
        }
        assert_eq!(ATTEMPTS.load(Ordering::Relaxed), 1);
    }
}
