//! The endpoints of the policy slots: their policies, their history, and every change of a slot. Whether a
//! change still fits is not checked here: a swap, a rollback and a promotion name the policy that they are
//! about (`of`), by its tag, and the host compares.

use infer_api::admin::{HistoryEntry, Policies, SwapAnswer, SwapRequest};
use reqwest::{Method, Url};
use serde_json::Value;

use super::http::Body;
use super::{Client, ConnError};
use crate::files;
use crate::order::{Order, Source};

/// Largest component to send; the host accepts no larger ones.
const MAX_COMPONENT_BYTES: u64 = 8 << 20;

impl Client {
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
