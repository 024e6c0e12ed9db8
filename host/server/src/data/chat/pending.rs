//! The checkpoint's chat template, or the operator's, which is prepared in the background at startup.
//!
//! Compiling the renderer takes about a second if the code cache lacks it. Only chats need it, so only chats
//! wait. An operator's template is compiled before the model is loaded, because a fault in it ends the start.

use std::fmt::Display;
use std::sync::Arc;

use infer_chat::{ChatTemplate, Sandbox};
use infer_model::{ModelError, Source};
use serde_json::json;
use tokio::sync::watch;

use crate::config::{Config, ConfigError};
use crate::policies;

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
    /// The file can't be read, or is not a template.
    pub fn open(config: &Config) -> Result<Option<Self>, ConfigError> {
        let Some(path) = &config.chat_template else { return Ok(None) };
        let wrong = |why: &dyn Display| ConfigError(format!("--chat-template: {}: {why}", path.display()));
        let text = std::fs::read(path).map_err(|error| wrong(&error))?;
        let sandbox = sandbox().map_err(|error| wrong(&error.message))?;
        ChatTemplate::load(&sandbox, &Source::Embedded(&[(TEMPLATE_FILE, text.as_slice())]))
            .map_err(|error| wrong(&error.message))?;
        Ok(Some(Self { text, sandbox }))
    }
}

/// A template that is ready or being prepared.
pub struct PendingTemplate(watch::Receiver<Found>);

/// `None` until it is known whether there is a template; then the template, if there is one, or what is wrong with it.
type Found = Option<Result<Option<Arc<ChatTemplate>>, Arc<str>>>;

impl PendingTemplate {
    /// Starts to prepare a template on a thread of its own: the given one, with the checkpoint's special
    /// tokens, or the checkpoint's own. The checkpoint's files are read before this returns, because a
    /// running host reads none of them.
    ///
    /// # Errors
    /// The thread can't be spawned.
    pub fn begin(source: &Source<'_>, given: Option<GivenTemplate>) -> std::io::Result<Self> {
        let files = files(source);
        let (found, pending) = watch::channel(None);
        std::thread::Builder::new().name("chat-template".into()).spawn(move || {
            let template = files.and_then(|files| match given {
                Some(given) => replaced(files, given),
                None => load(&sandbox()?, &files),
            });
            // Everything else works without it. Sending fails if the host has ended.
            let _ = found.send(Some(template.map_err(|error| {
                tracing::warn!("chat completions are not available: {error}");
                Arc::from(error.message)
            })));
        })?;
        Ok(Self(pending))
    }

    /// Waits until it is known whether there is a template, and returns it.
    ///
    /// # Errors
    /// What is wrong with the template.
    pub async fn ready(&self) -> Result<Option<Arc<ChatTemplate>>, Arc<str>> {
        let mut pending = self.0.clone();
        // Fails if the thread has ended without a result.
        let found = pending.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
        found.unwrap_or_else(|| Err(Arc::from("the thread that prepares the chat template has ended")))
    }
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

fn load(sandbox: &Sandbox, files: &Files) -> Result<Option<Arc<ChatTemplate>>, ModelError> {
    let files: Vec<_> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    Ok(ChatTemplate::load(sandbox, &Source::Embedded(&files))?.map(Arc::new))
}

/// The given template in place of the checkpoint's, with tools and without.
fn replaced(mut files: Files, given: GivenTemplate) -> Result<Option<Arc<ChatTemplate>>, ModelError> {
    files.retain(|(name, _)| ![TEMPLATE_FILE, TOOLS_FILE].contains(name));
    files.push((TEMPLATE_FILE, given.text));
    let template = load(&given.sandbox, &files)?;
    // Unknown filters and the like show only now. A template may also reject these messages for good reason.
    let messages = json!([{"role": "user", "content": "Hello"}]);
    if let Some(Err(error)) = template.as_ref().map(|template| template.render(&messages, true)) {
        tracing::warn!("--chat-template: a conversation of one user message fails: {error}");
    }
    Ok(template)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_template_replaces_the_one_for_tools_too() {
        let sandbox = Sandbox::new(None).unwrap();
        let own: Files = vec![(TEMPLATE_FILE, b"own".to_vec()), (TOOLS_FILE, b"own for tools".to_vec())];
        let template = replaced(own, GivenTemplate { text: b"given".to_vec(), sandbox }).unwrap().unwrap();
        let tools = json!({"tools": ["a"]}).as_object().unwrap().clone();
        assert_eq!(template.render_with(&json!([]), true, &tools).unwrap(), "given");
    }
}
