//! The data plane's route table, and what all of its responses have in common.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, StatusCode};

use super::sequence::job::Asked;
use super::{chat, completions, models, openapi};
use crate::app::{App, Health};
use crate::config::{Config, MetricsPlane};
use crate::http::{
    AllowedOrigins, Answer, ApiError, BodyLimits, ReadBody, RequestId, discard, json, read_body,
};
use crate::metrics;
use crate::tenants::Tenant;

/// A path of the data plane.
#[derive(Debug)]
pub struct Route {
    /// As OpenAPI writes it. A final `{name}` stands for the rest of the path, slashes included.
    pub path: &'static str,
    /// What it does.
    pub endpoint: Endpoint,
    /// `GET` includes `HEAD`.
    pub method: &'static str,
    /// Whether it needs no API key: probes, scrapers and tools have none.
    pub open: bool,
}

/// What a path does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Completions,
    Chat,
    Models,
    Model,
    Tokenize,
    Detokenize,
    Health,
    Ready,
    Metrics,
    Version,
    OpenApi,
}

/// All paths of the data plane.
pub const ROUTES: &[Route] = &[
    Route::post("/v1/completions", Endpoint::Completions),
    Route::post("/v1/chat/completions", Endpoint::Chat),
    Route::get("/v1/models", Endpoint::Models),
    Route::get("/v1/models/{model}", Endpoint::Model),
    Route::post("/tokenize", Endpoint::Tokenize),
    Route::post("/detokenize", Endpoint::Detokenize),
    Route::open("/health", Endpoint::Health),
    Route::open("/health/ready", Endpoint::Ready),
    Route::open("/metrics", Endpoint::Metrics),
    Route::open("/version", Endpoint::Version),
    Route::open("/openapi.json", Endpoint::OpenApi),
];

impl Route {
    const fn post(path: &'static str, endpoint: Endpoint) -> Self {
        Self { path, endpoint, method: "POST", open: false }
    }

    const fn get(path: &'static str, endpoint: Endpoint) -> Self {
        Self { path, endpoint, method: "GET", open: false }
    }

    const fn open(path: &'static str, endpoint: Endpoint) -> Self {
        Self { path, endpoint, method: "GET", open: true }
    }

    /// The route of a request's path.
    fn of(path: &str) -> Option<&'static Self> {
        ROUTES.iter().find(|route| match route.fixed() {
            (fixed, true) => path.len() > fixed.len() && path.starts_with(fixed),
            (fixed, false) => path == fixed,
        })
    }

    /// Whether a host with this configuration has it.
    pub fn is_served(&self, config: &Config) -> bool {
        self.endpoint != Endpoint::Metrics || config.metrics == MetricsPlane::Public
    }

    /// The fixed part of the path, and whether a parameter follows it.
    fn fixed(&self) -> (&'static str, bool) {
        match self.path.split_once('{') {
            Some((fixed, _)) => (fixed, true),
            None => (self.path, false),
        }
    }

    /// The value of the path's parameter.
    fn parameter<'a>(&self, path: &'a str) -> &'a str {
        &path[self.fixed().0.len()..]
    }

    fn allows(&self, method: &Method) -> bool {
        match self.method {
            "POST" => method == Method::POST,
            _ => [Method::GET, Method::HEAD].contains(method),
        }
    }
}

/// Responds to one request of `peer`. Every response, errors included, carries the `x-request-id`.
pub async fn route(app: Arc<App>, peer: SocketAddr, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let mut body = Some(body);
    let request_id = RequestId::of(&head.headers);
    let path = head.uri.path();
    let (tenant, outcome) = match enter(&app, &head) {
        Ok(Entry::Preflight(answer)) => (None, Ok(answer)),
        Ok(Entry::Request(route, tenant)) => {
            let caller = Caller { request_id: &request_id, peer, tenant: tenant.as_ref() };
            let outcome = dispatch(&app, route, caller, &head, &mut body).await;
            (tenant, outcome)
        }
        Err(error) => (None, Err(error)),
    };
    let mut answer = outcome.unwrap_or_else(|error| {
        tracing::info!(
            request_id = request_id.as_str(),
            %peer,
            tenant = tenant.as_ref().map(|tenant| tenant.name.as_str()),
            path,
            status = error.status().as_u16(),
            code = error.reason(),
            // A field, so that line breaks from the client are escaped.
            error = error.message(),
            "request rejected"
        );
        error.into_answer()
    });
    discard(body, &mut answer);
    // The table's paths, not the client's: labels of metrics must stay few.
    app.recorder.answered(Route::of(path).map_or("other", |route| route.path), answer.status().as_u16());
    answer.headers_mut().insert("x-request-id", request_id.header());
    if app.is_draining() {
        // Clients and proxies that keep connections then open the next one to another host.
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(origins) = &app.config.allowed_origins {
        origins.mark(&head.headers, &mut answer);
    }
    answer
}

/// What a request is, as far as its head says.
enum Entry {
    /// A browser asks what a page may send. It has no key to show.
    Preflight(Answer),
    /// A request of a tenant, or of anyone if the path is open.
    Request(&'static Route, Option<Arc<Tenant>>),
}

fn enter(app: &App, head: &Parts) -> Result<Entry, ApiError> {
    let path = head.uri.path();
    let route = Route::of(path).filter(|route| route.is_served(&app.config));
    let route = route.ok_or_else(|| no_such_path(path))?;
    if let Some(origins) = app.config.allowed_origins.as_ref().filter(|_| AllowedOrigins::is_preflight(head))
    {
        return origins.preflight(route.method, &head.headers).map(Entry::Preflight);
    }
    if !route.allows(&head.method) {
        return Err(ApiError::method_not_allowed(path, route.method));
    }
    if route.open {
        return Ok(Entry::Request(route, None));
    }
    if let Some(origins) = &app.config.allowed_origins {
        origins.check(&head.headers)?;
    }
    let tenant = Some(app.tenants.authenticate(&head.headers)?);
    Ok(Entry::Request(route, tenant))
}

fn no_such_path(path: &str) -> ApiError {
    let shown: String = path.chars().take(128).collect();
    let advice = match path {
        "/metrics" => "this host has it on the admin plane (--metrics)",
        _ if path.starts_with("/admin/") => "the admin plane has a port of its own (--admin)",
        _ => "/openapi.json lists the paths",
    };
    ApiError::not_found(format!("no such path: {shown}; {advice}"))
}

/// Who sent a request.
struct Caller<'a> {
    request_id: &'a RequestId,
    peer: SocketAddr,
    tenant: Option<&'a Arc<Tenant>>,
}

async fn dispatch(
    app: &Arc<App>,
    route: &Route,
    caller: Caller<'_>,
    head: &Parts,
    body: &mut Option<Incoming>,
) -> Result<Answer, ApiError> {
    let Caller { request_id, peer, tenant } = caller;
    let asked = || Asked {
        app,
        request_id,
        peer,
        path: route.path,
        tenant: tenant.expect("only open paths have no tenant"),
    };
    match route.endpoint {
        Endpoint::Completions => {
            asked().refuse_if_draining()?;
            let body = read(app, head, body).await?;
            completions::complete(asked(), &head.headers, body).await
        }
        Endpoint::Chat => {
            asked().refuse_if_draining()?;
            chat::chat(asked(), read(app, head, body).await?).await
        }
        Endpoint::Models => models::list(app),
        Endpoint::Model => models::one(app, route.parameter(head.uri.path())),
        Endpoint::Tokenize => models::tokenize(app, read(app, head, body).await?).await,
        Endpoint::Detokenize => models::detokenize(app, read(app, head, body).await?).await,
        Endpoint::Health => health(app),
        Endpoint::Ready => ready(app),
        Endpoint::Metrics => Ok(metrics::render(app, &head.headers).await),
        Endpoint::Version => Ok(models::version(app)),
        Endpoint::OpenApi => Ok(openapi::answer(app)),
    }
}

/// Reads the request's body, which is taken out of `body`.
async fn read(app: &App, head: &Parts, body: &mut Option<Incoming>) -> Result<ReadBody, ApiError> {
    let limits = BodyLimits {
        max_bytes: app.config.max_body_bytes,
        room: app.body_room.clone(),
        timeout: app.config.bounds.body_timeout,
    };
    let body = read_body(&head.headers, body.take().expect("the body is read once"), limits).await?;
    check_content_type(&head.headers)?;
    check_content_encoding(&head.headers)?;
    Ok(body)
}

/// Accepts JSON, no content type, and what curl sends by default.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let kind = value.to_str().unwrap_or("").split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if ["application/json", "application/x-www-form-urlencoded", ""].contains(&kind.as_str()) {
        return Ok(());
    }
    let shown: String = kind.chars().take(64).collect();
    Err(unsupported(format!("content-type `{shown}` is not supported; send application/json")))
}

/// Accepts uncompressed bodies only: the limits of bodies are checked as their bytes arrive.
fn check_content_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let values = headers.get_all(CONTENT_ENCODING).iter();
    let mut codings = values.map(|value| value.to_str().unwrap_or("?").trim());
    let plain = |coding: &str| coding.is_empty() || coding.eq_ignore_ascii_case("identity");
    let Some(coding) = codings.find(|coding| !plain(coding)) else { return Ok(()) };
    let shown: String = coding.chars().take(64).collect();
    Err(unsupported(format!("content-encoding `{shown}` is not supported; send the body uncompressed")))
}

fn unsupported(message: String) -> ApiError {
    ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
}

fn health(app: &App) -> Result<Answer, ApiError> {
    match app.served().map(|served| served.health(app.config.bounds.step_timeout)) {
        Ok(Health::Stopped) => {
            Err(ApiError::unavailable("engine_stopped", "the engine has stopped; restart the host"))
        }
        Ok(Health::Hanging(computing)) => {
            let seconds = computing.as_secs_f32();
            let message = format!("the device has been at one step for {seconds:.1} s (--step-timeout)");
            Err(ApiError::unavailable("engine_hangs", message))
        }
        Ok(Health::Working) | Err(_) => Ok(json(StatusCode::OK, &serde_json::json!({"status": "ok"}))),
    }
}

fn ready(app: &App) -> Result<Answer, ApiError> {
    health(app)?;
    app.served()?;
    app.refuse_if_draining()?;
    Ok(json(StatusCode::OK, &serde_json::json!({"status": "ready"})))
}
