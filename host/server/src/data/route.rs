//! Which path answers what, and what every answer of the data plane has in common.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, StatusCode};

use super::{completions, models};
use crate::app::App;
use crate::http::{Answer, ApiError, BodyLimits, RequestId, discard, json, read_body, text};
use crate::metrics;
use crate::tenants::Tenant;

/// Answers one request; `x-request-id` is echoed whatever happens.
pub async fn route(app: Arc<App>, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let mut body = Some(body);
    let request_id = RequestId::of(&head.headers);
    let path = head.uri.path();
    let mut answer = match dispatch(&app, &request_id, &head, &mut body).await {
        Ok(answer) => answer,
        Err(error) => {
            tracing::info!(
                request_id = request_id.as_str(),
                path,
                status = error.status().as_u16(),
                code = error.reason(),
                "request turned away: {}",
                error.message()
            );
            error.into_answer()
        }
    };
    discard(body, &mut answer);
    app.recorder.answered(label(path), answer.status().as_u16());
    answer.headers_mut().insert("x-request-id", request_id.header());
    answer
}

/// A path as metrics know it: there are only so many.
fn label(path: &str) -> &'static str {
    const PATHS: [&str; 9] = [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/health",
        "/health/ready",
        "/metrics",
        "/version",
    ];
    PATHS.into_iter().find(|&known| known == path).unwrap_or("other")
}

async fn dispatch(
    app: &Arc<App>,
    request_id: &RequestId,
    head: &Parts,
    body: &mut Option<Incoming>,
) -> Result<Answer, ApiError> {
    let path = head.uri.path();
    let allow = match path {
        "/v1/completions" | "/tokenize" | "/detokenize" => "POST",
        "/v1/models" | "/health" | "/health/ready" | "/metrics" | "/version" => "GET",
        _ => {
            let shown: String = path.chars().take(128).collect();
            return Err(ApiError::not_found(format!(
                "no such path: {shown}; there are /v1/completions, /v1/models, /tokenize, /detokenize, /health, \
                 /health/ready, /metrics and /version"
            )));
        }
    };
    let fits = match allow {
        "POST" => head.method == Method::POST,
        _ => [Method::GET, Method::HEAD].contains(&head.method),
    };
    if !fits {
        return Err(ApiError::method_not_allowed(path, allow));
    }
    // Probes and scrapers have no key.
    let open = ["/version", "/health", "/health/ready", "/metrics"].contains(&path);
    let tenant = if open { None } else { Some(app.tenants.authenticate(&head.headers)?) };
    match path {
        "/v1/models" => models::list(app),
        "/version" => Ok(models::version(app)),
        "/health" => health(app),
        "/health/ready" => ready(app),
        "/metrics" => {
            let (content_type, metrics) = metrics::render(app, &head.headers).await;
            Ok(text(content_type, metrics))
        }
        _ => post(app, request_id, &tenant.expect("what reads a body needs a tenant"), head, body).await,
    }
}

async fn post(
    app: &Arc<App>,
    request_id: &RequestId,
    tenant: &Arc<Tenant>,
    head: &Parts,
    body: &mut Option<Incoming>,
) -> Result<Answer, ApiError> {
    let limits = BodyLimits { max_bytes: app.config.max_body_bytes, timeout: app.config.bounds.body_timeout };
    let body = read_body(&head.headers, body.take().expect("the body is read once"), limits).await?;
    check_content_type(&head.headers)?;
    match head.uri.path() {
        "/tokenize" => models::tokenize(app, &body).await,
        "/detokenize" => models::detokenize(app, &body),
        _ => completions::complete(app, request_id, tenant, &head.headers, &body).await,
    }
}

/// JSON, nothing, or what curl says where it is told nothing.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let kind = value.to_str().unwrap_or("").split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if ["application/json", "application/x-www-form-urlencoded", ""].contains(&kind.as_str()) {
        return Ok(());
    }
    let shown: String = kind.chars().take(64).collect();
    let message = format!("content-type `{shown}` is not supported; send application/json");
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
}

fn health(app: &App) -> Result<Answer, ApiError> {
    if app.served().is_ok_and(|served| !served.engine.is_alive()) {
        return Err(ApiError::unavailable("engine_stopped", "the engine has stopped; restart the host"));
    }
    Ok(json(StatusCode::OK, &serde_json::json!({"status": "ok"})))
}

fn ready(app: &App) -> Result<Answer, ApiError> {
    health(app)?;
    app.served()?;
    app.refuse_if_draining()?;
    Ok(json(StatusCode::OK, &serde_json::json!({"status": "ready"})))
}
