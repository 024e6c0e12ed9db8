//! Requests and responses, in the same way for every endpoint: the token, the deadlines, the largest
//! response, and what a failure means. The endpoints themselves are not here.

use std::error::Error;
use std::io;
use std::time::Duration;

use infer_api::admin::{ErrorBody, MAX_STATE_BYTES};
use reqwest::{Method, Response, StatusCode};
use serde::de::DeserializeOwned;

use super::{Client, ConnError};

/// Longest wait for a response.
pub(super) const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// Longest wait for a swap's response: the host compiles the component first, which is slow on a busy
/// machine.
const SWAP_DEADLINE: Duration = Duration::from_secs(120);
/// Largest response: the largest state.
const MAX_ANSWER_BYTES: usize = MAX_STATE_BYTES;

/// A request's body.
pub(super) enum Body {
    Json(Vec<u8>),
    Component(Vec<u8>),
}

impl Client {
    /// Sends a request and reads the response as JSON.
    pub(super) async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Body>,
    ) -> Result<T, ConnError> {
        let bytes = self.answer(method, path, body).await?;
        serde_json::from_slice(&bytes).map_err(|error| {
            ConnError::Protocol(format!("unexpected response from /{}: {error}", plain(path)))
        })
    }

    /// Sends a request and returns the response's bytes.
    pub(super) async fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<Body>,
    ) -> Result<Vec<u8>, ConnError> {
        let deadline = if method == Method::PUT { SWAP_DEADLINE } else { ANSWER_DEADLINE };
        let changes = method != Method::GET;
        let answer = async {
            let response = self.send(method, path, body).await?;
            read_bounded(response).await
        };
        let answer = tokio::time::timeout(deadline, answer).await;
        answer.unwrap_or_else(|_| Err(self.too_slow(deadline))).map_err(|error| match error {
            ConnError::Lost(why) if changes => ConnError::Unanswered(why),
            error => error,
        })
    }

    /// Sends a request; a response that isn't a success becomes an error with the host's message.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Body>,
    ) -> Result<Response, ConnError> {
        let url = self.base.join(path).expect("paths are made of names and numbers");
        let mut request = self.http.request(method, url);
        if let Some(token) = self.token.get().await? {
            request = request.bearer_auth(token);
        }
        request = match body {
            None => request,
            Some(Body::Json(body)) => request.header("content-type", "application/json").body(body),
            Some(Body::Component(body)) => request.header("content-type", "application/wasm").body(body),
        };
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        match response.status() {
            status if status.is_success() => Ok(response),
            StatusCode::UNAUTHORIZED => {
                self.token.look_again().await;
                Err(ConnError::Unauthorized { url: self.address(), advice: self.token.advice() })
            }
            StatusCode::NOT_FOUND if matches!(plain(path), "admin/state" | "admin/events") => {
                Err(ConnError::NotAdmin { url: self.address() })
            }
            status => {
                let bytes = read_bounded(response).await.unwrap_or_default();
                let message = match serde_json::from_slice::<ErrorBody>(&bytes) {
                    Ok(body) => body.error.message,
                    Err(_) => format!("/{}: {}", plain(path), status.canonical_reason().unwrap_or("refused")),
                };
                Err(ConnError::Refused { status: status.as_u16(), message })
            }
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> ConnError {
        if !error.is_connect() {
            return ConnError::Lost(root_cause(error));
        }
        let host = self.base.host_str().unwrap_or_default();
        let port = self.base.port_or_known_default().unwrap_or_default();
        ConnError::Unreachable {
            url: self.address(),
            authority: format!("{host}:{port}"),
            message: root_cause(error),
        }
    }

    pub(super) fn too_slow(&self, deadline: Duration) -> ConnError {
        ConnError::Lost(format!("no response from {} within {} s", self.address(), deadline.as_secs()))
    }
}

/// Returns a path without its query, for messages.
fn plain(path: &str) -> &str {
    path.split('?').next().unwrap_or(path)
}

async fn read_bounded(mut response: Response) -> Result<Vec<u8>, ConnError> {
    let mut bytes = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if bytes.len() + chunk.len() <= MAX_ANSWER_BYTES => {
                bytes.extend_from_slice(&chunk);
            }
            Ok(Some(_)) => {
                return Err(ConnError::Protocol(format!(
                    "a response is larger than {MAX_ANSWER_BYTES} bytes"
                )));
            }
            Ok(None) => return Ok(bytes),
            Err(error) => return Err(ConnError::Lost(root_cause(&error))),
        }
    }
}

/// Returns the innermost error; the outer ones only repeat that a request failed.
pub(super) fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match cause.downcast_ref::<io::Error>() {
        // The library's words are about the encoding that was cut.
        Some(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it ended in the middle of a response; the host may have been killed".to_owned()
        }
        _ => cause.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("error decoding response body")]
    struct Outer(#[source] io::Error);

    #[test]
    fn end_in_the_middle_of_a_response_is_told_in_words() {
        let lost = |kind, what: &str| root_cause(&Outer(io::Error::new(kind, what.to_owned())));
        let cut = lost(io::ErrorKind::UnexpectedEof, "unexpected EOF during chunk size line");
        assert_eq!(cut, "it ended in the middle of a response; the host may have been killed");
        assert_eq!(lost(io::ErrorKind::ConnectionReset, "reset by peer"), "reset by peer");
    }
}
