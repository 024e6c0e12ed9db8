//! The checkpoint's chat template, which may be there a moment after the host is.
//!
//! Compiling the renderer takes about a second where no cache of compiled code has it. Nothing but chats needs
//! it, so only chats wait.

use std::sync::Arc;

use infer_chat::{ChatTemplate, Sandbox};
use infer_model::{ModelError, Source};
use tokio::sync::watch;

use crate::policies;

/// A template that is being made ready, or is.
pub struct PendingTemplate(watch::Receiver<Found>);

/// `None` while it isn't known whether there is a template.
type Found = Option<Option<Arc<ChatTemplate>>>;

impl PendingTemplate {
    /// Begins to make the template of a checkpoint ready, on a thread of its own. The checkpoint is read before this
    /// returns: a running host reads none of its files.
    ///
    /// # Errors
    /// The machine has no thread left.
    pub fn begin(source: &Source<'_>) -> std::io::Result<Self> {
        let files = files(source);
        let (found, pending) = watch::channel(None);
        std::thread::Builder::new().name("chat-template".into()).spawn(move || {
            // Everything else works without it. Nobody listens any more where the host has ended.
            let _ = found.send(Some(files.and_then(|files| template(&files)).unwrap_or_else(|error| {
                tracing::warn!("no chat completions: {error}");
                None
            })));
        })?;
        Ok(Self(pending))
    }

    /// The template, once it is known whether there is one.
    pub async fn ready(&self) -> Option<Arc<ChatTemplate>> {
        let mut pending = self.0.clone();
        // An error says that the thread has ended without an answer.
        pending.wait_for(Option::is_some).await.ok().and_then(|found| found.clone().flatten())
    }
}

/// The files that say what the template is.
type Files = Vec<(&'static str, Vec<u8>)>;

fn files(source: &Source<'_>) -> Result<Files, ModelError> {
    let read = |name| Ok(source.read(name)?.map(|bytes| (name, bytes.into_owned())));
    ChatTemplate::FILES.into_iter().filter_map(|name| read(name).transpose()).collect()
}

fn template(files: &Files) -> Result<Option<Arc<ChatTemplate>>, ModelError> {
    let sandbox = Sandbox::new(policies::compiled_dir().as_deref())?;
    let files: Vec<_> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    Ok(ChatTemplate::load(&sandbox, &Source::Embedded(&files))?.map(Arc::new))
}
