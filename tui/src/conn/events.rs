//! The event stream, until it breaks. What its events mean is not known here (`sse`), and nothing here opens
//! it again (`feed`).

use infer_api::admin::{AdminEvent, MAX_STATE_BYTES};
use reqwest::{Method, Response};

use super::http::{ANSWER_DEADLINE, root_cause};
use super::{Client, ConnError, sse};

impl Client {
    /// `GET /admin/events`: a snapshot, then changes at `hz` and events as they happen.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn events(&self, hz: u32) -> Result<Events, ConnError> {
        // A restarted host has a new one.
        self.token.look_again().await;
        let path = format!("admin/events?hz={hz}&changes=true");
        let response = tokio::time::timeout(ANSWER_DEADLINE, self.send(Method::GET, &path, None))
            .await
            .map_err(|_| self.too_slow(ANSWER_DEADLINE))??;
        Ok(Events { response, read: infer_api::sse::Events::up_to(MAX_STATE_BYTES) })
    }
}

/// An open event stream.
#[derive(Debug)]
pub struct Events {
    response: Response,
    /// What has been read of it.
    read: infer_api::sse::Events,
}

impl Events {
    /// Waits for the next event of a known kind.
    ///
    /// # Errors
    /// [`ConnError::Lost`] when the stream ends, [`ConnError::Protocol`] for malformed data.
    pub async fn next(&mut self) -> Result<AdminEvent, ConnError> {
        loop {
            while let Some((name, data)) = self.read.next() {
                if let Some(event) = sse::decode(&name, &data)? {
                    return Ok(event);
                }
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) => self.read.push(&chunk).map_err(ConnError::Protocol)?,
                Ok(None) => return Err(ConnError::Lost("the host closed the event stream".to_owned())),
                Err(error) => return Err(ConnError::Lost(root_cause(&error))),
            }
        }
    }
}
