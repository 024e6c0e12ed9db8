//! Client of the admin plane: one method per endpoint, and errors that say what to do. Nothing here knows
//! about screens.
//!
//! The endpoints of the policy slots are in `policies`, the event stream is in `events`, and `feed` keeps it
//! open. `http` sends every request, with the token that `token` finds, and bounds the response in size and
//! time. Proxy settings are ignored: an admin plane is reached directly or through a tunnel.

mod address;
mod error;
mod events;
pub mod feed;
mod http;
mod policies;
pub mod sse;
pub mod token;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use infer_api::admin::{BlockInfo, BlockMap, CacheReport, RequestDetail, State};
use reqwest::{Method, Url};

use crate::text::escaped_json;
use address::parse_address;
pub use error::ConnError;
pub use events::Events;
use token::{Token, TokenSource};

/// Longest wait for a connection.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

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
        Ok(escaped_json(&text))
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

    /// `DELETE /admin/queue`.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn clear_queue(&self) -> Result<(), ConnError> {
        self.answer(Method::DELETE, "admin/queue", None).await.map(drop)
    }

    /// `DELETE /admin/cache`.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn empty_cache(&self) -> Result<(), ConnError> {
        self.answer(Method::DELETE, "admin/cache", None).await.map(drop)
    }

    /// `POST /admin/drain`.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn drain(&self) -> Result<(), ConnError> {
        self.answer(Method::POST, "admin/drain", None).await.map(drop)
    }

    /// `DELETE /admin/drain`.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn undrain(&self) -> Result<(), ConnError> {
        self.answer(Method::DELETE, "admin/drain", None).await.map(drop)
    }

    /// `DELETE /admin/requests/{id}`.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn cancel(&self, id: u64) -> Result<(), ConnError> {
        self.answer(Method::DELETE, &format!("admin/requests/{id}"), None).await.map(drop)
    }

    /// `DELETE /admin/requests/{id}?by=first_id`: cancels all sequences of the request whose first one has this id.
    ///
    /// # Errors
    /// Any [`ConnError`].
    pub async fn cancel_all(&self, first_id: u64) -> Result<(), ConnError> {
        let path = format!("admin/requests/{first_id}?by=first_id");
        self.answer(Method::DELETE, &path, None).await.map(drop)
    }
}
