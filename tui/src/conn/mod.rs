//! Client of the admin plane: one method per endpoint, and errors that say what to do. Nothing here knows
//! about screens. Responses are bounded in size and time. Proxy settings are ignored: an admin plane is
//! reached directly or through a tunnel.

pub mod feed;
pub mod sse;
pub mod token;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use infer_api::admin::{
    AdminEvent, BlockInfo, BlockMap, CacheReport, ErrorBody, HistoryEntry, MAX_STATE_BYTES, Policies,
    RequestDetail, State, SwapAnswer, SwapRequest,
};
use reqwest::{Method, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::files;
use crate::order::{Order, Source};
use crate::text::is_invisible;
use token::{Token, TokenSource};

/// Longest wait for a response.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// Longest wait for a swap's response: the host compiles the component first, which is slow on a busy
/// machine.
const SWAP_DEADLINE: Duration = Duration::from_secs(120);
/// Longest wait for a connection.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// Largest response: the largest state.
const MAX_ANSWER_BYTES: usize = MAX_STATE_BYTES;
/// Largest component to send; the host accepts no larger ones.
const MAX_COMPONENT_BYTES: u64 = 8 << 20;

/// What can go wrong between the console and a host.
#[derive(Debug, thiserror::Error)]
pub enum ConnError {
    /// The address is not usable.
    #[error("--admin {address}: {message}")]
    Address {
        /// The address as given.
        address: String,
        /// What is wrong with it.
        message: String,
    },
    /// Nothing listens at the address.
    #[error(
        "no host answers at {url} ({message}); start one with `infer serve --admin {authority}`, \
         or give another address with --admin URL"
    )]
    Unreachable {
        /// The address.
        url: String,
        /// Its host and port.
        authority: String,
        /// The system's error.
        message: String,
    },
    /// Something else than an admin plane listens there.
    #[error(
        "{url} is not an admin plane; use the address that the host prints as `(admin URL)` when it starts"
    )]
    NotAdmin {
        /// The address.
        url: String,
    },
    /// The token is missing or wrong.
    #[error("{url} refuses access: {advice}; set {var} or use --token-file FILE", var = token::TOKEN_VARIABLE)]
    Unauthorized {
        /// The address.
        url: String,
        /// Where the token was looked for.
        advice: String,
    },
    /// The token file can't be read.
    #[error("cannot read the admin token from {}: {message}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// The system's error.
        message: String,
    },
    /// A component can't be read.
    #[error("{path}: {message}")]
    Component {
        /// The file.
        path: String,
        /// What is wrong with it.
        message: String,
    },
    /// The host refused the request.
    #[error("{message} (HTTP {status})")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The host's message.
        message: String,
    },
    /// The response is not what the admin plane sends.
    #[error("{0}; is this the admin plane of a host of the same version?")]
    Protocol(String),
    /// The connection broke.
    #[error("connection lost: {0}")]
    Lost(String),
    /// The connection broke after a request that changes the host.
    #[error("no response; it may still take effect: {0}")]
    Unanswered(String),
}

impl ConnError {
    /// Whether the command line is wrong, so that trying again can't help.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Address { .. })
    }
}

/// Client of one host's admin plane. Clones share connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Arc<Token>,
}

impl Client {
    /// Creates a client for `http://HOST:PORT` or `HOST:PORT`, with the token from the usual places.
    ///
    /// # Errors
    /// [`ConnError::Address`] if the address isn't plain HTTP.
    pub fn new(address: &str, token_file: Option<PathBuf>) -> Result<Self, ConnError> {
        let base = parse_address(address)?;
        let source = TokenSource::from_environment(token_file, &base);
        Ok(Self::with_token(base, source))
    }

    /// Creates a client for an address and a token source.
    ///
    /// # Panics
    /// If the HTTP client can't be built, which without TLS doesn't happen.
    #[must_use]
    pub fn with_token(base: Url, token: TokenSource) -> Self {
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_DEADLINE)
            .tcp_nodelay(true)
            .build()
            .expect("an HTTP client without TLS can be built");
        Self { http, base, token: Arc::new(Token::new(token)) }
    }

    /// Returns the address, for titles and messages.
    #[must_use]
    pub fn address(&self) -> String {
        self.base.as_str().trim_end_matches('/').to_owned()
    }

    /// Returns the snapshot as the host sent it, with characters that control terminals escaped.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn state_json(&self) -> Result<String, ConnError> {
        let bytes = self.answer(Method::GET, "admin/state", None).await?;
        let text = String::from_utf8(bytes)
            .map_err(|_| ConnError::Protocol("/admin/state is not UTF-8".to_owned()))?;
        Ok(escaped(&text))
    }

    /// `GET /admin/state`.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn state(&self) -> Result<State, ConnError> {
        self.json(Method::GET, "admin/state", None).await
    }

    /// `GET /admin/blocks/map`; `part` is the first block and the number of blocks, `None` for all.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn map(&self, by: &str, cells: usize, part: Option<(u32, u32)>) -> Result<BlockMap, ConnError> {
        let part = part.map_or_else(String::new, |(from, count)| format!("&from={from}&count={count}"));
        self.json(Method::GET, &format!("admin/blocks/map?by={by}&cells={cells}{part}"), None).await
    }

    /// `GET /admin/blocks/{id}`.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn block(&self, id: u32) -> Result<BlockInfo, ConnError> {
        self.json(Method::GET, &format!("admin/blocks/{id}"), None).await
    }

    /// `GET /admin/cache`.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn cache(&self) -> Result<CacheReport, ConnError> {
        self.json(Method::GET, "admin/cache?top=50", None).await
    }

    /// `GET /admin/requests/{id}`.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn request(&self, id: u64) -> Result<RequestDetail, ConnError> {
        self.json(Method::GET, &format!("admin/requests/{id}"), None).await
    }

    /// `GET /admin/policies`.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn policies(&self) -> Result<Policies, ConnError> {
        self.json(Method::GET, "admin/policies", None).await
    }

    /// `GET /admin/policies/{kind}/history`.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn history(&self, kind: &str) -> Result<Vec<HistoryEntry>, ConnError> {
        self.json(Method::GET, &format!("admin/policies/{kind}/history"), None).await
    }

    /// `PUT /admin/policies/{kind}`; returns once the swap has taken effect.
    ///
    /// # Errors
    /// Any [`ConnError`]; [`ConnError::Refused`] says which check the component failed.
    pub async fn swap(&self, order: &Order) -> Result<SwapAnswer, ConnError> {
        let force = order.force.to_string();
        let mut query = vec![("mode", order.mode.name()), ("force", &force)];
        query.extend(order.of.as_deref().map(|of| ("of", of)));
        let config = order.config.as_ref().map(Value::to_string);
        let body = match &order.source {
            Source::Name(_) if order.config.as_ref().is_some_and(Value::is_array) => {
                // A list of policies, each with its own configuration.
                Body::Json(serde_json::to_vec(&order.config).expect("a configuration is JSON"))
            }
            Source::Name(name) => {
                let body = SwapRequest { name: name.clone(), config: order.config.clone() };
                Body::Json(serde_json::to_vec(&body).expect("a swap request is JSON"))
            }
            Source::File(file) => {
                query.extend(config.as_deref().map(|config| ("config", config)));
                Body::Component(read_component(file).await?)
            }
        };
        let path = with_query(&format!("admin/policies/{}", order.kind), &query);
        self.json(Method::PUT, &path, Some(body)).await
    }

    /// `POST /admin/policies/{kind}/rollback`; fails unless `of` is still live.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn rollback(&self, kind: &str, of: &str) -> Result<SwapAnswer, ConnError> {
        let path = with_query(&format!("admin/policies/{kind}/rollback"), &[("of", of)]);
        self.json(Method::POST, &path, None).await
    }

    /// `POST /admin/policies/{kind}/promote`; fails unless `of` is still the shadow or canary.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn promote(&self, kind: &str, of: &str) -> Result<SwapAnswer, ConnError> {
        let path = with_query(&format!("admin/policies/{kind}/promote"), &[("of", of)]);
        self.json(Method::POST, &path, None).await
    }

    /// `DELETE /admin/policies/{kind}/shadow`.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn stop_shadow(&self, kind: &str) -> Result<(), ConnError> {
        self.answer(Method::DELETE, &format!("admin/policies/{kind}/shadow"), None).await.map(drop)
    }

    /// `DELETE /admin/queue`.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn clear_queue(&self) -> Result<(), ConnError> {
        self.answer(Method::DELETE, "admin/queue", None).await.map(drop)
    }

    /// `POST /admin/drain`.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn drain(&self) -> Result<(), ConnError> {
        self.answer(Method::POST, "admin/drain", None).await.map(drop)
    }

    /// `DELETE /admin/requests/{id}`.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn cancel(&self, id: u64) -> Result<(), ConnError> {
        self.answer(Method::DELETE, &format!("admin/requests/{id}"), None).await.map(drop)
    }

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

    async fn json<T: DeserializeOwned>(
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

    async fn answer(&self, method: Method, path: &str, body: Option<Body>) -> Result<Vec<u8>, ConnError> {
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
    async fn send(&self, method: Method, path: &str, body: Option<Body>) -> Result<Response, ConnError> {
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
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
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

    fn too_slow(&self, deadline: Duration) -> ConnError {
        ConnError::Lost(format!("no response from {} within {} s", self.address(), deadline.as_secs()))
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

/// A request's body.
enum Body {
    Json(Vec<u8>),
    Component(Vec<u8>),
}

/// Escapes characters that control a terminal or change the writing direction. In JSON they occur only within
/// strings, so the value stays the same.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if matches!(c, '\u{7f}'..='\u{9f}') || (is_invisible(c) && c <= '\u{ffff}') {
            text.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            text.push(c);
        }
    }
    text
}

/// Returns a path without its query, for messages.
fn plain(path: &str) -> &str {
    path.split('?').next().unwrap_or(path)
}

/// Reads a component from this machine.
async fn read_component(path: &str) -> Result<Vec<u8>, ConnError> {
    let wrong = |message: String| ConnError::Component { path: path.to_owned(), message };
    let file = files::expanded(path);
    let length = tokio::fs::metadata(&file).await.map_err(|error| wrong(error.to_string()))?.len();
    if length > MAX_COMPONENT_BYTES {
        return Err(wrong(format!(
            "{length} bytes are too large for a component; the limit is {MAX_COMPONENT_BYTES}"
        )));
    }
    tokio::fs::read(&file).await.map_err(|error| wrong(error.to_string()))
}

/// Appends a query to `path`, percent-encoding its values.
fn with_query(path: &str, query: &[(&str, &str)]) -> String {
    let mut url = Url::parse("http://query").expect("a URL");
    url.query_pairs_mut().extend_pairs(query);
    format!("{path}?{}", url.query().unwrap_or_default())
}

fn parse_address(address: &str) -> Result<Url, ConnError> {
    let wrong =
        |message: &str| ConnError::Address { address: address.to_owned(), message: message.to_owned() };
    let trimmed = address.trim();
    let full = if trimmed.contains("://") { trimmed.to_owned() } else { format!("http://{trimmed}") };
    let mut url = Url::parse(&full).map_err(|error| wrong(&format!("{error}; expected http://HOST:PORT")))?;
    if url.scheme() != "http" {
        return Err(wrong("only http:// is supported; use a tunnel for encryption, for example `ssh -L`"));
    }
    if !url.has_host() {
        return Err(wrong("expected http://HOST:PORT"));
    }
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    url.set_query(None);
    Ok(url)
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
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_for_a_terminal_keeps_its_value_and_has_no_control_characters() {
        let value = serde_json::json!({"user": "a\u{9b}31m\u{7f}\u{202e}é会\u{1b}"});
        let text = escaped(&value.to_string());
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        assert!(!text.chars().any(|c| c.is_control() || is_invisible(c)), "{text}");
        assert!(text.contains("é会") && text.contains("\\u009b31m"), "{text}");
    }

    #[test]
    fn addresses_may_omit_the_scheme_and_must_be_plain_http() {
        let parse = |address| parse_address(address).map(|url| url.to_string());
        assert_eq!(parse("127.0.0.1:8001").unwrap(), "http://127.0.0.1:8001/");
        assert_eq!(parse("http://host:1/").unwrap(), "http://host:1/");
        assert_eq!(parse("http://host:1/prefix").unwrap(), "http://host:1/prefix/");
        for wrong in ["https://host:1", "", "http://", "http://host:99999"] {
            let error = parse(wrong).unwrap_err();
            assert!(error.is_usage(), "{wrong}: {error}");
            assert!(error.to_string().contains("--admin"), "{error}");
        }
    }
}
