//! The server of a chat: which model it has, whether it is a host of ours, and its streams.

use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode};
use infer_api::sse::Events;
use serde_json::Value;

use super::answer::{Answer, Chunk, message};
use crate::cli::Failure;
use crate::tenants;
use crate::web::{Reply, Trust, Web};

/// Longest gap in a response before it counts as failed; a request may wait in a queue.
const SILENCE: Duration = Duration::from_secs(300);
/// Longest wait for the list of models, which waits in no queue.
const LIST_SILENCE: Duration = Duration::from_secs(15);
/// What is shown of a response that isn't understood.
const SHOWN_CHARS: usize = 300;

/// A server, and the model to talk with.
pub struct Server {
    web: Web,
    /// URL of its chat completions.
    url: String,
    authorization: Option<HeaderValue>,
    model: String,
    is_infer: bool,
}

impl Server {
    /// Asks a server at a base URL, or at the full one of its chat completions, for its models. Without a name, the
    /// first one is taken.
    pub async fn connect(
        base: &str,
        trust: &Trust,
        key: Option<&str>,
        model: Option<&str>,
    ) -> Result<Self, Failure> {
        let url = match base.ends_with("/chat/completions") {
            true => base.to_owned(),
            false => format!("{}/v1/chat/completions", base.trim_end_matches("/v1")),
        };
        let web = Web::new(&url, trust, SILENCE).map_err(Failure::Usage)?;
        let authorization = key.map(bearer).transpose()?;
        let mut server = Self { web, url, authorization, model: String::new(), is_infer: false };
        let list = server.url.trim_end_matches("/chat/completions").to_owned() + "/models";
        let listed = server.models(&list).await;
        (server.model, server.is_infer) = listed
            .and_then(|models| choose(models.as_ref().map_err(|status| *status), model))
            .map_err(|why| Failure::Failed(format!("{list}: {why}")))?;
        Ok(server)
    }

    /// Name of the model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Whether it is a host of ours, which knows further fields.
    pub fn is_infer(&self) -> bool {
        self.is_infer
    }

    /// URL of its chat completions.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends a request and adds its stream to `answer`, which keeps what has come if this fails or is dropped. Each
    /// chunk is shown when it comes.
    pub async fn answer(
        &self,
        request: &Value,
        answer: &mut Answer,
        show: impl FnMut(&Chunk),
    ) -> Result<(), String> {
        let outcome = self.stream(request, answer, show).await;
        let is_begun = !answer.is_empty();
        outcome.map_err(|error| if is_begun { format!("the answer broke off: {error}") } else { error })
    }

    async fn stream(
        &self,
        request: &Value,
        answer: &mut Answer,
        mut show: impl FnMut(&Chunk),
    ) -> Result<(), String> {
        let request = self
            .request(Method::POST, &self.url)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream")
            .body(Full::new(Bytes::from(request.to_string())))
            .map_err(|error| error.to_string())?;
        let sent = Instant::now();
        let unreachable = |error: String| format!("{}: {error}", self.url);
        let mut reply = self.web.send(request).await.map_err(unreachable)?;
        if !reply.status().is_success() {
            return Err(self.refusal(reply).await);
        }
        let mut events = Events::default();
        while let Some(bytes) = reply.chunk().await? {
            events.push(&bytes)?;
            while let Some((_, data)) = events.next() {
                match data.trim() {
                    "" => {}
                    "[DONE]" => {
                        reply.end().await;
                        return Ok(());
                    }
                    data => {
                        let chunk = Chunk::read(data)?;
                        answer.add(&chunk, sent.elapsed());
                        show(&chunk);
                    }
                }
            }
        }
        match answer.is_finished() {
            true => Ok(()),
            false => Err("the stream ended before the answer did".to_owned()),
        }
    }

    /// The list of models, or the status by which the server says that it has none.
    async fn models(&self, url: &str) -> Result<Result<Value, StatusCode>, String> {
        let request =
            self.request(Method::GET, url).body(Full::default()).map_err(|error| error.to_string())?;
        let reply = self.web.with_silence(LIST_SILENCE).send(request).await?;
        match reply.status() {
            status @ (StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_IMPLEMENTED) => Ok(Err(status)),
            status if status.is_success() => {
                Ok(Ok(serde_json::from_str(&reply.text().await?).unwrap_or_default()))
            }
            _ => Err(self.refusal(reply).await),
        }
    }

    /// What a response says that is no success.
    async fn refusal(&self, reply: Reply) -> String {
        let status = reply.status();
        let text = reply.text().await.unwrap_or_default();
        let value = serde_json::from_str::<Value>(&text).unwrap_or_default();
        let said: String = message(&value).unwrap_or(text.trim()).chars().take(SHOWN_CHARS).collect();
        let key = match (status, &self.authorization) {
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, None) => {
                format!(
                    "; this command sends the key in the variable {}, which is not set",
                    tenants::VARIABLE
                )
            }
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, Some(_)) => {
                format!("; the key is the one in the variable {}", tenants::VARIABLE)
            }
            _ => String::new(),
        };
        let colon = if said.is_empty() { "" } else { ": " };
        format!("{status}{colon}{said}{key}")
    }

    fn request(&self, method: Method, url: &str) -> hyper::http::request::Builder {
        let request = Request::builder().method(method).uri(url);
        match &self.authorization {
            Some(key) => request.header(AUTHORIZATION, key),
            None => request,
        }
    }
}

fn bearer(key: &str) -> Result<HeaderValue, Failure> {
    let value = HeaderValue::from_str(&format!("Bearer {key}"));
    value.map_err(|_| Failure::Usage(format!("{}: no header can have this key", tenants::VARIABLE)))
}

/// The model's name, and whether the server is a host of ours. Instead of models there may be a status that says that
/// the server lists none.
fn choose(models: Result<&Value, StatusCode>, wanted: Option<&str>) -> Result<(String, bool), String> {
    let cards = models.ok().and_then(|models| models["data"].as_array());
    let cards = cards.map(Vec::as_slice).unwrap_or_default();
    let is_infer = cards.first().is_some_and(|card| card["owned_by"] == "infer");
    let mut names = cards.iter().filter_map(|card| card["id"].as_str());
    match wanted {
        // Others may serve models that they don't list.
        Some(wanted) if is_infer && !names.clone().any(|name| name == wanted) => {
            let names: Vec<&str> = names.collect();
            Err(format!("--model: this host serves {}, not {wanted}", names.join(", ")))
        }
        Some(wanted) => Ok((wanted.to_owned(), is_infer)),
        None => match names.next() {
            Some(first) => Ok((first.to_owned(), is_infer)),
            None => Err(match models {
                Ok(_) => "lists no model: either this key may use none, or the server doesn't list what it serves; \
                          then name one with --model"
                    .to_owned(),
                Err(status) => format!(
                    "{status}; the URL may be wrong, or the server lists no models: then name one with --model"
                ),
            }),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn first_model_is_taken_unless_one_is_named() {
        let ours = json!({"data": [{"id": "a", "owned_by": "infer"}, {"id": "b", "owned_by": "infer"}]});
        let other = json!({"data": [{"id": "c", "owned_by": "vllm"}]});
        let empty = json!({"object": "list", "data": []});
        for (models, wanted, expected) in [
            (Ok(&ours), None, Ok(("a", true))),
            (Ok(&ours), Some("b"), Ok(("b", true))),
            (Ok(&ours), Some("c"), Err("--model: this host serves a, b, not c")),
            (Ok(&other), None, Ok(("c", false))),
            (Ok(&other), Some("unlisted"), Ok(("unlisted", false))),
            (Ok(&empty), Some("x"), Ok(("x", false))),
            (
                Ok(&empty),
                None,
                Err(
                    "lists no model: either this key may use none, or the server doesn't list what it serves; \
                     then name one with --model",
                ),
            ),
            (Err(StatusCode::NOT_FOUND), Some("x"), Ok(("x", false))),
            (
                Err(StatusCode::NOT_FOUND),
                None,
                Err(
                    "404 Not Found; the URL may be wrong, or the server lists no models: then name one with --model",
                ),
            ),
        ] {
            let expected = expected.map(|(name, ours)| (name.to_owned(), ours)).map_err(str::to_owned);
            assert_eq!(choose(models, wanted), expected, "{models:?} {wanted:?}");
        }
    }
}
