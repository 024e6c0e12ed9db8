//! The data plane's route table, and what all of its responses have in common.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, StatusCode};

use super::sequence::job::Asked;
use super::{anthropic, chat, completions, embeddings, models, openapi, responses_api};
use crate::app::{App, Health};
use crate::config::{Config, MetricsPlane};
use crate::http::{
    AllowedOrigins, Answer, ApiError, BodyLimits, Crowded, ErrorForm, Keyless, Pace, ReadBody, RequestId,
    check_content_encoding, check_head, discard, json, read_body,
};
use crate::metrics::{self, Reader};
use crate::tenants::Tenant;

/// Most bytes of a path in the log: whoever can connect chooses it, and needs no key.
const LOGGED_PATH: usize = 256;

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
    Messages,
    CountTokens,
    Responses,
    Embeddings,
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

impl Endpoint {
    /// The form of its errors.
    pub fn error_form(self) -> ErrorForm {
        match self {
            Self::Messages | Self::CountTokens => ErrorForm::Anthropic,
            _ => ErrorForm::OpenAi,
        }
    }
}

/// All paths of the data plane.
pub const ROUTES: &[Route] = &[
    Route::post("/v1/completions", Endpoint::Completions),
    Route::post("/v1/chat/completions", Endpoint::Chat),
    Route::post("/v1/messages", Endpoint::Messages),
    Route::post("/v1/messages/count_tokens", Endpoint::CountTokens),
    Route::post("/v1/responses", Endpoint::Responses),
    Route::post("/v1/embeddings", Endpoint::Embeddings),
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

    /// The route of a request's path, and the value of the path's parameter, if it has one. Doubled and trailing
    /// slashes of the fixed part don't matter: clients get them when they append to a base URL.
    fn of(path: &str) -> Option<(&'static Self, &str)> {
        ROUTES.iter().find_map(|route| Some((route, route.parameter(path)?)))
    }

    /// Whether a host with this configuration has it.
    pub fn is_served(&self, config: &Config) -> bool {
        self.endpoint != Endpoint::Metrics || config.metrics != MetricsPlane::Admin
    }

    /// The value of the path's parameter, empty if the route has none; `None` for the path of another route.
    fn parameter<'a>(&self, path: &'a str) -> Option<&'a str> {
        let (fixed, named) = match self.path.split_once('{') {
            Some((fixed, _)) => (fixed, true),
            None => (self.path, false),
        };
        let mut rest = path;
        for segment in segments(fixed) {
            rest = rest.trim_start_matches('/').strip_prefix(segment)?;
            if !rest.is_empty() && !rest.starts_with('/') {
                return None;
            }
        }
        let blank = segments(rest).next().is_none();
        // A name may itself begin with a slash.
        if named { (!blank).then(|| &rest[1..]) } else { blank.then_some("") }
    }

    fn allows(&self, method: &Method) -> bool {
        self.allow().split(", ").any(|allowed| method.as_str() == allowed)
    }

    /// The methods, as `Allow` lists them.
    fn allow(&self) -> &'static str {
        match self.method {
            "GET" => "GET, HEAD",
            method => method,
        }
    }
}

/// The parts of a path between its slashes.
fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty())
}

/// Responds to one request of `peer`. Every response, errors included, carries the `x-request-id`.
pub async fn route(app: Arc<App>, peer: SocketAddr, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let mut body = Some(body);
    let request_id = RequestId::of(&head.headers);
    let path = head.uri.path();
    let found = Route::of(path);
    let form = found.map_or_else(|| form_below(path), |(route, _)| route.endpoint.error_form());
    let (tenant, outcome) = match enter(&app, found, &head) {
        Ok(Entry::Preflight(answer)) => (None, Ok(answer)),
        Ok(Entry::Request(found, tenant)) => {
            let caller = Caller { request_id: &request_id, peer, tenant: tenant.as_ref() };
            let outcome = dispatch(&app, found, caller, &head, &mut body).await;
            (tenant, outcome)
        }
        Err(error) => (None, Err(error)),
    };
    let mut answer = outcome.unwrap_or_else(|error| {
        tracing::info!(
            request_id = request_id.as_str(),
            %peer,
            tenant = tenant.as_ref().map(|tenant| tenant.name.as_str()),
            key = tenant.as_ref().and_then(|tenant| tenant.key.as_deref()),
            path = &path[..path.floor_char_boundary(LOGGED_PATH)],
            status = error.status().as_u16(),
            code = error.reason(),
            // A field, so that line breaks from the client are escaped.
            error = error.message(),
            "request rejected"
        );
        error.into_answer_of(form, &request_id)
    });
    discard(body, &mut answer);
    if tenant.is_none() {
        answer.extensions_mut().insert(Keyless);
    }
    // The table's paths, not the client's: labels of metrics must stay few.
    app.recorder.answered(found.map_or("other", |(route, _)| route.path), answer.status().as_u16());
    answer.headers_mut().insert("x-request-id", request_id.header());
    if form == ErrorForm::Anthropic {
        answer.headers_mut().insert("request-id", request_id.header());
    }
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
enum Entry<'a> {
    /// A browser asks what a page may send. It has no key to show.
    Preflight(Answer),
    /// A request of a tenant, or of anyone if the path is open.
    Request(Found<'a>, Option<Arc<Tenant>>),
}

/// A request's route, and the value of its path's parameter.
type Found<'a> = (&'static Route, &'a str);

fn enter<'a>(app: &App, found: Option<Found<'a>>, head: &Parts) -> Result<Entry<'a>, ApiError> {
    check_head(head)?;
    let found = found.filter(|(route, _)| route.is_served(&app.config));
    let (route, parameter) = found.ok_or_else(|| match head.uri.path() {
        // CONNECT names a host in place of a path.
        "" => ApiError::not_found("this host is no proxy; /openapi.json lists its paths"),
        path => no_such_path(path),
    })?;
    if let Some(origins) = app.config.allowed_origins.as_ref().filter(|_| AllowedOrigins::is_preflight(head))
    {
        return origins.preflight(route.method, &head.headers).map(Entry::Preflight);
    }
    if !route.allows(&head.method) {
        return Err(ApiError::method_not_allowed(route.path, route.allow()));
    }
    if route.open {
        return Ok(Entry::Request((route, parameter), None));
    }
    if head.extensions.get::<Crowded>().is_some() {
        let message = format!(
            "the host has as many connections as it may have ({}, --max-connections), and none is idle; try again later",
            app.config.bounds.max_connections
        );
        return Err(ApiError::unavailable("too_many_connections", message).close());
    }
    if let Some(origins) = &app.config.allowed_origins {
        origins.check(&head.headers)?;
    }
    if app.is_for_this_machine() {
        let listed = app.config.allowed_origins.as_ref();
        AllowedOrigins::check_name(listed, &app.config.host, &head.headers)?;
    }
    let tenant = Some(app.tenants.authenticate(&head.headers)?);
    Ok(Entry::Request((route, parameter), tenant))
}

fn no_such_path(path: &str) -> ApiError {
    let shown: String = path.chars().take(128).collect();
    ApiError::not_found(format!("no such path: {shown}; {}", advice(path)))
}

/// The form of errors of a path that doesn't exist: that of the paths above it.
fn form_below(path: &str) -> ErrorForm {
    let mut all = segments(path).skip_while(|segment| *segment == "v1");
    if all.next() == Some("messages") { ErrorForm::Anthropic } else { ErrorForm::OpenAi }
}

/// First segments, after the version, of other servers' paths for what this host doesn't do.
const OTHER_TASKS: [&str; 7] = ["rerank", "score", "pooling", "classify", "moderations", "audio", "images"];

/// What to do about a path that doesn't exist.
fn advice(path: &str) -> &'static str {
    let all: Vec<&str> = segments(path).collect();
    match all[..] {
        ["metrics"] => "this host has it on the admin plane (--metrics)",
        ["admin", ..] => "the admin plane has a port of its own (--admin)",
        ["chat", "completions"]
        | ["completions" | "responses" | "embeddings"]
        | ["models" | "messages", ..] => "the path begins with /v1: add it to the client's base URL",
        ["v1", "responses", "input_tokens"] => "to count tokens, use /v1/messages/count_tokens or /tokenize",
        ["v1", "v1", ..] => "the path begins with one /v1: remove it from the client's base URL",
        _ => match all.iter().copied().find(|segment| !["v1", "v2"].contains(segment)) {
            Some("responses") => {
                "this host stores no responses; send the whole conversation to /v1/responses"
            }
            Some("conversations") => "this host stores no conversations; send the whole one to /v1/responses",
            Some("messages") => "use /v1/messages",
            Some(task) if OTHER_TASKS.contains(&task) => "this host only generates text and embeds it",
            _ => "/openapi.json lists the paths",
        },
    }
}

/// Who sent a request.
struct Caller<'a> {
    request_id: &'a RequestId,
    peer: SocketAddr,
    tenant: Option<&'a Arc<Tenant>>,
}

async fn dispatch(
    app: &Arc<App>,
    (route, parameter): Found<'_>,
    caller: Caller<'_>,
    head: &Parts,
    body: &mut Option<Incoming>,
) -> Result<Answer, ApiError> {
    let Caller { request_id, peer, tenant } = caller;
    let pace = head.extensions.get::<Pace>().expect("the listener adds it to each request");
    let asked = || Asked {
        app,
        request_id,
        peer,
        pace,
        path: route.path,
        tenant: tenant.expect("only open paths have no tenant"),
    };
    match route.endpoint {
        Endpoint::Completions => {
            let body = begin_work(asked(), head, body).await?;
            completions::complete(asked(), &head.headers, body).await
        }
        Endpoint::Chat => chat::chat(asked(), begin_work(asked(), head, body).await?).await,
        Endpoint::Messages => anthropic::create(asked(), begin_work(asked(), head, body).await?).await,
        Endpoint::CountTokens => anthropic::count(asked(), read(asked(), head, body).await?).await,
        Endpoint::Responses => responses_api::respond(asked(), begin_work(asked(), head, body).await?).await,
        Endpoint::Embeddings => embeddings::embed(asked(), begin_work(asked(), head, body).await?).await,
        Endpoint::Models => models::list(asked()),
        Endpoint::Model => models::one(asked(), parameter),
        Endpoint::Tokenize => models::tokenize(asked(), read(asked(), head, body).await?).await,
        Endpoint::Detokenize => models::detokenize(asked(), read(asked(), head, body).await?).await,
        Endpoint::Health => health(app),
        Endpoint::Ready => ready(app),
        Endpoint::Metrics => Ok(metrics::render(app, &head.headers, Reader::Anyone).await),
        Endpoint::Version => Ok(models::version(app)),
        Endpoint::OpenApi => Ok(openapi::answer(app)),
    }
}

/// Reads the body of a request to generate or to embed, unless the host takes none. The tenant's rate is asked when the body
/// is there, because a connection with an unread one must close, and before anything is made of it.
async fn begin_work(
    asked: Asked<'_>,
    head: &Parts,
    body: &mut Option<Incoming>,
) -> Result<ReadBody, ApiError> {
    asked.refuse_if_draining()?;
    let body = read(asked, head, body).await?;
    asked.refuse_beyond_rate()?;
    Ok(body)
}

/// Reads the request's body, which is taken out of `body`.
async fn read(asked: Asked<'_>, head: &Parts, body: &mut Option<Incoming>) -> Result<ReadBody, ApiError> {
    let Asked { app, tenant, .. } = asked;
    let limits = BodyLimits {
        max_bytes: app.config.max_body_bytes,
        room: app.body_room.of(tenant.holder()),
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
    Err(ApiError::unsupported(format!("content-type `{shown}` is not supported; send application/json")))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_too_many_lead_to_the_same_route() {
        for (path, expected) in [
            ("/v1/completions", Some(("/v1/completions", ""))),
            ("/v1/completions/", Some(("/v1/completions", ""))),
            ("//v1///chat//completions//", Some(("/v1/chat/completions", ""))),
            ("/v1/responses", Some(("/v1/responses", ""))),
            ("/v1/responses/resp_1", None),
            ("/v1//models/", Some(("/v1/models", ""))),
            ("/v1/messages/", Some(("/v1/messages", ""))),
            ("/v1//messages/count_tokens", Some(("/v1/messages/count_tokens", ""))),
            ("/health/", Some(("/health", ""))),
            ("//health//ready", Some(("/health/ready", ""))),
            ("/v1/models/demo", Some(("/v1/models/{model}", "demo"))),
            ("/v1/models/org/large", Some(("/v1/models/{model}", "org/large"))),
            // The name of a directory, which begins with a slash.
            ("/v1//models//mnt/models", Some(("/v1/models/{model}", "/mnt/models"))),
            ("/v1/completion", None),
            ("/v1/completionss", None),
            ("/v1completions", None),
            ("/v1/chat", None),
            ("/v1/completions/x", None),
            ("/v1/modelsdemo", None),
            ("/V1/completions", None),
            ("/v1/./completions", None),
            ("/v1%2Fcompletions", None),
            ("/x/v1/completions", None),
            ("/", None),
            ("", None),
            ("*", None),
        ] {
            let found = Route::of(path).map(|(route, parameter)| (route.path, parameter));
            assert_eq!(found, expected, "{path}");
        }
        for route in ROUTES {
            assert_eq!(Route::of(route.path).map(|(found, _)| found.path), Some(route.path));
        }
    }

    #[test]
    fn errors_of_unknown_paths_have_the_form_of_those_above() {
        for (path, form) in [
            ("/v1/messages/batches", ErrorForm::Anthropic),
            ("/v1/v1/messages", ErrorForm::Anthropic),
            ("/v1/messages2", ErrorForm::OpenAi),
            ("/v1/nothing/messages", ErrorForm::OpenAi),
            ("/", ErrorForm::OpenAi),
        ] {
            assert_eq!(form_below(path), form, "{path}");
        }
    }

    #[test]
    fn unknown_path_comes_with_advice() {
        for (path, part) in [
            ("/metrics", "(--metrics)"),
            ("//metrics/", "(--metrics)"),
            ("/admin/state", "(--admin)"),
            ("/admin", "(--admin)"),
            ("/chat/completions", "add it to the client's base URL"),
            ("//completions/", "add it to the client's base URL"),
            ("/models", "add it to the client's base URL"),
            ("/models/demo", "add it to the client's base URL"),
            ("/v1/v1/chat/completions", "remove it from the client's base URL"),
            ("/v1/messages/batches", "use /v1/messages"),
            ("/messages", "add it to the client's base URL"),
            ("/messages/count_tokens", "add it to the client's base URL"),
            ("/v1/v1/messages", "remove it from the client's base URL"),
            ("/responses", "add it to the client's base URL"),
            ("/v1//responses/resp_1", "stores no responses"),
            ("/v1/responses/input_tokens", "use /v1/messages/count_tokens or /tokenize"),
            ("/v1/responses/resp_1/cancel", "stores no responses"),
            ("/v1/responses/compact", "stores no responses"),
            ("/v1/conversations/conv_1/items", "stores no conversations"),
            ("/embeddings", "add it to the client's base URL"),
            ("/v1/embeddings/x", "/openapi.json"),
            ("/v2/rerank", "only generates text"),
            ("/score", "only generates text"),
            ("/v1/audio/speech", "only generates text"),
            ("/v1/nothing/responses", "/openapi.json"),
            ("/", "/openapi.json"),
        ] {
            let error = no_such_path(path);
            assert_eq!(error.status(), 404, "{path}");
            let start = format!("no such path: {path}; ");
            assert!(error.message().starts_with(&start), "{}", error.message());
            assert!(error.message().contains(part), "{}", error.message());
        }
    }
}
