//! Which path answers what, and what every answer of the data plane has in common.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, StatusCode};

use super::job::Asked;
use super::{chat, completions, models, openapi};
use crate::app::App;
use crate::http::{Answer, ApiError, BodyLimits, RequestId, discard, json, read_body, text};
use crate::metrics;

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
                // As a field, so that a client's line breaks are written as such.
                error = error.message(),
                "request turned away"
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
    ROUTES.iter().find(|route| route.matches(path)).map_or("other", |route| route.path)
}

async fn dispatch(
    app: &Arc<App>,
    request_id: &RequestId,
    head: &Parts,
    body: &mut Option<Incoming>,
) -> Result<Answer, ApiError> {
    let path = head.uri.path();
    let Some(route) = ROUTES.iter().find(|route| route.matches(path)) else {
        let shown: String = path.chars().take(128).collect();
        let known: Vec<&str> = ROUTES.iter().map(|route| route.path).collect();
        return Err(ApiError::not_found(format!("no such path: {shown}; there are {}", known.join(", "))));
    };
    let fits = match route.method {
        "POST" => head.method == Method::POST,
        _ => [Method::GET, Method::HEAD].contains(&head.method),
    };
    if !fits {
        return Err(ApiError::method_not_allowed(path, route.method));
    }
    let tenant = if route.open { None } else { Some(app.tenants.authenticate(&head.headers)?) };
    match route.path {
        "/v1/models" => models::list(app),
        "/v1/models/{model}" => models::one(app, route.rest(path)),
        "/version" => Ok(models::version(app)),
        "/health" => health(app),
        "/health/ready" => ready(app),
        "/metrics" => {
            let (content_type, metrics) = metrics::render(app, &head.headers).await;
            Ok(text(content_type, metrics))
        }
        "/openapi.json" => Ok(openapi::answer(app)),
        _ => {
            let tenant = tenant.expect("what reads a body needs a tenant");
            post(Asked { app, request_id, tenant: &tenant }, head, body).await
        }
    }
}

/// One path of the data plane.
#[derive(Debug)]
pub struct Route {
    /// As OpenAPI writes it; what is in braces at its end stands for all that follows.
    pub path: &'static str,
    /// Besides `HEAD`, where it is `GET`.
    pub method: &'static str,
    /// Probes, scrapers and tools have no key.
    pub open: bool,
}

/// All there are.
pub const ROUTES: &[Route] = &[
    Route::post("/v1/completions"),
    Route::post("/v1/chat/completions"),
    Route { path: "/v1/models", method: "GET", open: false },
    Route { path: "/v1/models/{model}", method: "GET", open: false },
    Route::post("/tokenize"),
    Route::post("/detokenize"),
    Route::open("/health"),
    Route::open("/health/ready"),
    Route::open("/metrics"),
    Route::open("/version"),
    Route::open("/openapi.json"),
];

impl Route {
    const fn post(path: &'static str) -> Self {
        Self { path, method: "POST", open: false }
    }

    const fn open(path: &'static str) -> Self {
        Self { path, method: "GET", open: true }
    }

    /// What of the path is fixed, and whether something follows.
    fn fixed(&self) -> (&'static str, bool) {
        match self.path.split_once('{') {
            Some((fixed, _)) => (fixed, true),
            None => (self.path, false),
        }
    }

    fn matches(&self, path: &str) -> bool {
        match self.fixed() {
            (fixed, true) => path.len() > fixed.len() && path.starts_with(fixed),
            (fixed, false) => path == fixed,
        }
    }

    /// What stands in place of the braces.
    fn rest<'a>(&self, path: &'a str) -> &'a str {
        &path[self.fixed().0.len()..]
    }
}

async fn post(asked: Asked<'_>, head: &Parts, body: &mut Option<Incoming>) -> Result<Answer, ApiError> {
    let app = asked.app;
    let limits = BodyLimits {
        max_bytes: app.config.max_body_bytes,
        room: app.body_room.clone(),
        timeout: app.config.bounds.body_timeout,
    };
    let body = read_body(&head.headers, body.take().expect("the body is read once"), limits).await?;
    check_content_type(&head.headers)?;
    match head.uri.path() {
        "/tokenize" => models::tokenize(app, body).await,
        "/detokenize" => models::detokenize(app, body).await,
        "/v1/chat/completions" => chat::chat(asked, body).await,
        _ => completions::complete(asked, &head.headers, body).await,
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
    if let Ok(served) = app.served() {
        if !served.engine.is_alive() {
            return Err(ApiError::unavailable("engine_stopped", "the engine has stopped; restart the host"));
        }
        let computing = served.engine.computing_for();
        if computing > app.config.bounds.step_timeout {
            let seconds = computing.as_secs_f32();
            let message = format!("the device has been at one step for {seconds:.1} s (--step-timeout)");
            return Err(ApiError::unavailable("engine_hangs", message));
        }
    }
    Ok(json(StatusCode::OK, &serde_json::json!({"status": "ok"})))
}

fn ready(app: &App) -> Result<Answer, ApiError> {
    health(app)?;
    app.served()?;
    app.refuse_if_draining()?;
    Ok(json(StatusCode::OK, &serde_json::json!({"status": "ready"})))
}
