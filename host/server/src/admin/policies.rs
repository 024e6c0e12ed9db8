//! The policy slots over HTTP: list, swap, rollback, history.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, StatusCode};
use infer_api::admin::{Policies, SwapAnswer, SwapRequest};
use infer_core::policy::PolicyKind;
use serde_json::Value;

use super::state;
use crate::app::App;
use crate::http::{Answer, ApiError, BodyLimits, Query, json, read_body};
use crate::policies::{PolicyError, PolicySource};

/// Components have at most 8 MiB; a little more lets the loader say so.
const MAX_BODY_BYTES: usize = (8 << 20) + 4_096;

/// `GET /admin/policies`.
pub async fn list(app: &App) -> Result<Answer, ApiError> {
    let served = app.served()?;
    let report = state::report(served).await?;
    let slots = state::slots(served, &report.snapshot, report.at);
    Ok(json(StatusCode::OK, &Policies { slots, available: served.policies.available().await }))
}

/// `PUT /admin/policies/{kind}`.
pub async fn swap(
    app: Arc<App>,
    kind: PolicyKind,
    query: &Query,
    headers: &HeaderMap,
    body: &mut Option<Incoming>,
) -> Result<Answer, ApiError> {
    app.served()?;
    match query.get("mode") {
        None | Some("now") => {}
        Some(mode @ ("shadow" | "canary")) => {
            let message = format!("`{mode}` is not supported yet; only `now` is");
            return Err(ApiError::invalid("mode", message).code("not_supported"));
        }
        Some(mode) => {
            return Err(ApiError::invalid("mode", format!("`{mode}` is none of now, shadow, canary")));
        }
    }
    let limits = BodyLimits { max_bytes: MAX_BODY_BYTES, timeout: Duration::from_secs(60) };
    let body = read_body(headers, body.take().expect("the body is read once"), limits).await?;
    let is_json = headers
        .get(CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .is_some_and(|v| v.trim().to_ascii_lowercase().starts_with("application/json"));
    let (source, config) = if is_json {
        by_name(&body, query)?
    } else if body.is_empty() {
        return Err(ApiError::bad_request(
            "empty_body",
            "the body is empty; send a component, or JSON with a name",
        ));
    } else {
        let config = match query.get("config") {
            None => Value::Object(Default::default()),
            Some(text) => config_object(serde_json::from_str(text).map_err(|e| {
                ApiError::bad_request("invalid_json", format!("config: not valid JSON: {e}"))
            })?)?,
        };
        (PolicySource::Component(body.into()), config)
    };
    // A swap under way ends well even where its caller goes away.
    let task =
        tokio::spawn(async move { app.served()?.policies.swap(kind, source, config).await.map_err(refused) });
    in_force(task).await
}

fn by_name(body: &[u8], query: &Query) -> Result<(PolicySource, Value), ApiError> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|e| ApiError::bad_request("invalid_json", format!("the body is not valid JSON: {e}")))?;
    if value.is_array() {
        let message = "a list of admission policies is not supported yet; give one";
        return Err(ApiError::invalid("body", message).code("not_supported"));
    }
    if query.get("config").is_some() {
        return Err(ApiError::invalid("config", "give it in the JSON body, beside the name"));
    }
    let request: SwapRequest = serde_json::from_value(value).map_err(|e| {
        let message = format!("expected {{\"name\": .., \"config\": {{..}}}}: {e}");
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_value", message)
    })?;
    let config = config_object(request.config.unwrap_or(Value::Null))?;
    Ok((PolicySource::Name(request.name), config))
}

fn config_object(config: Value) -> Result<Value, ApiError> {
    match config {
        Value::Null => Ok(Value::Object(Default::default())),
        Value::Object(_) => Ok(config),
        _ => Err(ApiError::invalid("config", "expected a JSON object")),
    }
}

/// `POST /admin/policies/{kind}/rollback`.
pub async fn rollback(app: Arc<App>, kind: PolicyKind) -> Result<Answer, ApiError> {
    let task = tokio::spawn(async move { app.served()?.policies.rollback(kind).await.map_err(refused) });
    in_force(task).await
}

async fn in_force(task: tokio::task::JoinHandle<Result<SwapAnswer, ApiError>>) -> Result<Answer, ApiError> {
    let answer = task.await.map_err(|e| ApiError::internal("swap", format!("the swap failed: {e}")))??;
    Ok(json(StatusCode::OK, &answer))
}

/// `GET /admin/policies/{kind}/history`.
pub fn history(app: &App, kind: PolicyKind) -> Result<Answer, ApiError> {
    Ok(json(StatusCode::OK, &app.served()?.engine.observer().history(kind)))
}

fn refused(error: PolicyError) -> ApiError {
    match &error {
        PolicyError::Stopped(stopped) => (*stopped).into(),
        PolicyError::NoPrevious(_) => ApiError::new(StatusCode::CONFLICT, error.check(), error.to_string()),
        _ => {
            let message = format!("{} check: {error}", error.check());
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, error.check(), message)
        }
    }
}
