//! The checkpoint's chat template, which is prepared in the background at startup.
//!
//! Compiling the renderer takes about a second if the code cache lacks it. Only chats need it, so only chats
//! wait.

use std::sync::Arc;

use infer_chat::{ChatTemplate, Sandbox};
use infer_model::{ModelError, Source};
use tokio::sync::watch;

use crate::policies;

/// A template that is ready or being prepared.
pub struct PendingTemplate(watch::Receiver<Found>);

/// `None` until it is known whether there is a template.
type Found = Option<Option<Arc<ChatTemplate>>>;

impl PendingTemplate {
    /// Starts to prepare a checkpoint's template on a thread of its own. The checkpoint's files are read
    /// before this returns, because a running host reads none of them.
    ///
    /// # Errors
    /// The thread can't be spawned.
    pub fn begin(source: &Source<'_>) -> std::io::Result<Self> {
        let files = files(source);
        let (found, pending) = watch::channel(None);
        std::thread::Builder::new().name("chat-template".into()).spawn(move || {
            // Everything else works without it. Sending fails if the host has ended.
            let _ = found.send(Some(files.and_then(|files| template(&files)).unwrap_or_else(|error| {
                tracing::warn!("chat completions are not available: {error}");
                None
            })));
        })?;
        Ok(Self(pending))
    }

    /// Waits until it is known whether there is a template, and returns it.
    pub async fn ready(&self) -> Option<Arc<ChatTemplate>> {
        let mut pending = self.0.clone();
        // Fails if the thread has ended without a result.
        pending.wait_for(Option::is_some).await.ok().and_then(|found| found.clone().flatten())
    }
}

/// The files that contain or configure the template.
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
