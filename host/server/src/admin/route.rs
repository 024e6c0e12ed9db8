//! The admin plane's routes, and the checks of token and role in front of them.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, StatusCode};
use infer_core::policy::PolicyKind;

use super::operators::{Caller, Operator, Operators, Role};
use super::{adapters, inspect, policies, requests, stream, trace};
use crate::app::App;
use crate::http::{Answer, ApiError, Keyless, Query, RequestId, check_head, discard, json};
use crate::metrics::{self, Reader};

/// A path of the admin plane, which accepts one or two methods.
struct Route {
    /// Without the leading slash. A segment `{name}` matches any.
    path: &'static str,
    /// The methods, as `Allow` lists them.
    allow: &'static str,
    action: Action,
    other: Option<Action>,
}

/// A method of a path.
#[derive(Clone, Copy)]
struct Action {
    method: &'static str,
    /// Accepted query parameters.
    query: &'static [&'static str],
    endpoint: Endpoint,
}

#[derive(Clone, Copy)]
enum Endpoint {
    State,
    Events,
    Blocks,
    BlockMap,
    Block,
    Cache,
    Adapters,
    LoadAdapter,
    UnloadAdapter,
    Policies,
    LiftQuarantine,
    Swap,
    Rollback,
    Promote,
    Shadow,
    StopShadow,
    History,
    Request,
    Cancel,
    ClearQueue,
    EmptyCache,
    Reload,
    Drain,
    Undrain,
    StartTrace,
    StopTrace,
    Metrics,
}

impl Endpoint {
    /// The least role that may use it. A viewer sees everything but text of prompts. Recordings have no text either,
    /// but only one can run, and it costs the engine time.
    fn role(self) -> Role {
        match self {
            Self::State
            | Self::Events
            | Self::Blocks
            | Self::BlockMap
            | Self::Block
            | Self::Cache
            | Self::Adapters
            | Self::Policies
            | Self::Shadow
            | Self::History
            | Self::Request
            | Self::Metrics => Role::Viewer,
            Self::LoadAdapter
            | Self::UnloadAdapter
            | Self::LiftQuarantine
            | Self::Swap
            | Self::Rollback
            | Self::Promote
            | Self::StopShadow
            | Self::Cancel
            | Self::ClearQueue
            | Self::EmptyCache
            | Self::Reload
            | Self::Drain
            | Self::Undrain
            | Self::StartTrace
            | Self::StopTrace => Role::Operator,
        }
    }
}

/// The first route whose path matches counts.
const ROUTES: &[Route] = &[
    Route::new("GET", "admin/state", &[], Endpoint::State),
    Route::new("GET", "admin/events", &["hz", "changes"], Endpoint::Events),
    Route::new("GET", "admin/blocks", &[], Endpoint::Blocks),
    Route::new("GET", "admin/blocks/map", &["by", "cells", "from", "count"], Endpoint::BlockMap),
    Route::new("GET", "admin/blocks/{id}", &[], Endpoint::Block),
    Route::new("GET", "admin/cache", &["top"], Endpoint::Cache).or_delete(&[], Endpoint::EmptyCache),
    Route::new("GET", "admin/adapters", &[], Endpoint::Adapters).or_post(Endpoint::LoadAdapter),
    Route::new("DELETE", "admin/adapters/{name}", &[], Endpoint::UnloadAdapter),
    Route::new("GET", "admin/policies", &[], Endpoint::Policies),
    Route::new("DELETE", "admin/policies/quarantine/{sha256}", &[], Endpoint::LiftQuarantine),
    Route::new(
        "PUT",
        "admin/policies/{kind}",
        &["mode", "config", "window_s", "force", "of"],
        Endpoint::Swap,
    ),
    Route::new("POST", "admin/policies/{kind}/rollback", &["of"], Endpoint::Rollback),
    Route::new("POST", "admin/policies/{kind}/promote", &["of"], Endpoint::Promote),
    Route::new("GET", "admin/policies/{kind}/shadow", &[], Endpoint::Shadow)
        .or_delete(&[], Endpoint::StopShadow),
    Route::new("GET", "admin/policies/{kind}/history", &[], Endpoint::History),
    Route::new("GET", "admin/requests/{id}", &[], Endpoint::Request).or_delete(&["by"], Endpoint::Cancel),
    Route::new("DELETE", "admin/queue", &[], Endpoint::ClearQueue),
    Route::new("POST", "admin/reload", &[], Endpoint::Reload),
    Route {
        allow: "POST, DELETE",
        ..Route::new("POST", "admin/drain", &[], Endpoint::Drain).or_delete(&[], Endpoint::Undrain)
    },
    Route::new("POST", "admin/trace/start", &["decisions", "max_mib"], Endpoint::StartTrace),
    Route::new("POST", "admin/trace/stop", &[], Endpoint::StopTrace),
    // The same path as on the data plane.
    Route::new("GET", "metrics", &[], Endpoint::Metrics),
];

impl Route {
    const fn new(
        method: &'static str,
        path: &'static str,
        query: &'static [&'static str],
        endpoint: Endpoint,
    ) -> Self {
        Self { path, allow: method, action: Action { method, query, endpoint }, other: None }
    }

    /// Adds DELETE to a path with GET.
    const fn or_delete(self, query: &'static [&'static str], endpoint: Endpoint) -> Self {
        Self { allow: "GET, DELETE", other: Some(Action { method: "DELETE", query, endpoint }), ..self }
    }

    /// Adds POST to a path with GET.
    const fn or_post(self, endpoint: Endpoint) -> Self {
        Self { allow: "GET, POST", other: Some(Action { method: "POST", query: &[], endpoint }), ..self }
    }

    /// Returns the route of a path, and the segment that its `{name}` stands for.
    fn of(path: &str) -> Option<(&'static Self, &str)> {
        let path = path.trim_start_matches('/');
        ROUTES.iter().find_map(|route| Some((route, parameter(route.path, path)?)))
    }

    fn action(&self, method: &str) -> Option<Action> {
        [Some(self.action), self.other].into_iter().flatten().find(|action| action.method == method)
    }
}

/// Returns the segment of `path` that the pattern's `{name}` stands for (empty if it has none); `None` if the path
/// does not match.
fn parameter<'a>(pattern: &str, path: &'a str) -> Option<&'a str> {
    let (mut patterns, mut segments) = (pattern.split('/'), path.split('/'));
    let mut parameter = "";
    loop {
        match (patterns.next(), segments.next()) {
            (None, None) => return Some(parameter),
            (Some(pattern), Some(segment)) if pattern.starts_with('{') => parameter = segment,
            (Some(pattern), Some(segment)) if pattern == segment => {}
            _ => return None,
        }
    }
}

/// Responds to one request of `peer`.
pub async fn route(app: Arc<App>, peer: SocketAddr, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let mut body = Some(body);
    let request_id = RequestId::of(&head.headers);
    let mut answer = match check_head(&head).and_then(|()| authenticate(&head.headers, &app.operators)) {
        Ok(operator) => {
            let answer = dispatch(app, Caller { operator, peer }, &head, &mut body).await;
            answer.unwrap_or_else(ApiError::into_answer)
        }
        Err(error) => {
            let mut answer = error.into_answer();
            answer.extensions_mut().insert(Keyless);
            answer
        }
    };
    discard(body, &mut answer);
    answer.headers_mut().insert("x-request-id", request_id.header());
    answer
}

fn authenticate(headers: &HeaderMap, operators: &Operators) -> Result<Arc<Operator>, ApiError> {
    let given = headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok());
    let bearer = given.and_then(|v| {
        let (scheme, rest) = v.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim())
    });
    bearer.and_then(|given| operators.find(given)).ok_or_else(|| {
        let message = "the admin plane requires `Authorization: Bearer TOKEN`; the token is the value of \
                       INFER_ADMIN_TOKEN, or in the file that the host names when it starts, or an operator's own \
                       (--operators)";
        ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    })
}

/// 403 for who may not use an endpoint.
fn authorize(operator: &Operator, endpoint: Endpoint) -> Result<(), ApiError> {
    let (Operator { name, role, .. }, wanted) = (operator, endpoint.role());
    if *role >= wanted {
        return Ok(());
    }
    let message = format!("this takes the role `{}`; `{name}` is a `{}`", wanted.name(), role.name());
    Err(ApiError::new(StatusCode::FORBIDDEN, "role_required", message))
}

async fn dispatch(
    app: Arc<App>,
    caller: Caller,
    head: &Parts,
    body: &mut Option<Incoming>,
) -> Result<Answer, ApiError> {
    let path = head.uri.path();
    let Some((route, parameter)) = Route::of(path) else {
        let shown: String = path.chars().take(128).collect();
        return Err(ApiError::not_found(format!("no such path on the admin plane: {shown}")));
    };
    let action = route.action(head.method.as_str());
    let action = action.ok_or_else(|| ApiError::method_not_allowed(path, route.allow))?;
    authorize(&caller.operator, action.endpoint).inspect_err(|_| {
        let Caller { operator, peer } = &caller;
        let (method, path) = (action.method, route.path);
        tracing::info!(operator = operator.name, %peer, method, path, "an operator's order was refused");
    })?;
    let query = Query::parse(head.uri.query(), action.query)?;
    let call = Call { app, caller, parameter, query, headers: &head.headers, body };
    call.to(action.endpoint).await
}

/// A request that matched a route.
struct Call<'a> {
    app: Arc<App>,
    caller: Caller,
    parameter: &'a str,
    query: Query,
    headers: &'a HeaderMap,
    body: &'a mut Option<Incoming>,
}

impl Call<'_> {
    async fn to(self, endpoint: Endpoint) -> Result<Answer, ApiError> {
        let Self { app, caller, parameter, query, headers, body } = self;
        let kind = || policy_kind(parameter);
        match endpoint {
            Endpoint::State => Ok(json(StatusCode::OK, &super::state(&app, &caller).await?)),
            Endpoint::Events => stream::events(app, caller, &query),
            Endpoint::Blocks => requests::blocks(&app).await,
            Endpoint::BlockMap => inspect::map(&app, &query).await,
            Endpoint::Block => inspect::block(&app, &caller, parameter).await,
            Endpoint::Cache => inspect::cache(&app, &caller, &query).await,
            Endpoint::Adapters => adapters::list(&app),
            Endpoint::LoadAdapter => adapters::load(app, &caller, headers, body).await,
            Endpoint::UnloadAdapter => adapters::unload(app, &caller, parameter).await,
            Endpoint::Policies => policies::list(&app).await,
            Endpoint::LiftQuarantine => policies::lift_quarantine(&app, &caller, parameter).await,
            Endpoint::Swap => policies::swap(app, &caller, kind()?, &query, headers, body).await,
            Endpoint::Rollback => policies::rollback(app, &caller, kind()?, &query).await,
            Endpoint::Promote => policies::promote(app, &caller, kind()?, &query).await,
            Endpoint::Shadow => policies::shadow(&app, kind()?).await,
            Endpoint::StopShadow => policies::stop_shadow(app, &caller, kind()?).await,
            Endpoint::History => policies::history(&app, kind()?),
            Endpoint::Request => inspect::request(&app, parameter).await,
            Endpoint::Cancel => requests::cancel(&app, &caller, parameter, &query).await,
            Endpoint::ClearQueue => requests::clear_queue(&app, &caller).await,
            Endpoint::EmptyCache => inspect::empty_cache(&app, &caller).await,
            Endpoint::Reload => requests::reload(app, &caller).await,
            Endpoint::Drain => requests::drain(&app, &caller),
            Endpoint::Undrain => requests::undrain(&app, &caller),
            Endpoint::StartTrace => trace::start(app, caller, &query).await,
            Endpoint::StopTrace => trace::stop(&app, &caller),
            Endpoint::Metrics => Ok(metrics::render(&app, headers, Reader::Operator).await),
        }
    }
}

fn policy_kind(name: &str) -> Result<PolicyKind, ApiError> {
    PolicyKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        let shown: String = name.chars().take(64).collect();
        ApiError::not_found(format!(
            "no policy slot `{shown}`; the slots are scheduler, admission and prefix-cache"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_leads_to_its_own_route() {
        for route in ROUTES {
            let (found, _) = Route::of(&format!("/{}", route.path)).unwrap();
            assert_eq!(found.path, route.path);
        }
        for (path, expected) in [
            ("/admin/blocks/map", Some(("admin/blocks/map", ""))),
            ("/admin/blocks/7", Some(("admin/blocks/{id}", "7"))),
            ("//admin/requests/7", Some(("admin/requests/{id}", "7"))),
            ("/admin/policies/scheduler/shadow", Some(("admin/policies/{kind}/shadow", "scheduler"))),
            ("/admin/policies/scheduler/other", None),
            ("/admin/blocks/7/8", None),
            ("/admin/metrics", None),
            ("/admin", None),
            ("/", None),
        ] {
            let found = Route::of(path).map(|(route, parameter)| (route.path, parameter));
            assert_eq!(found, expected, "{path}");
        }
    }

    /// Every way to change anything, and no other, takes an operator. A route that this doesn't list fails it.
    #[test]
    fn every_method_of_every_path_has_the_role_that_is_listed_here() {
        let roles: Vec<_> = ROUTES
            .iter()
            .flat_map(|route| {
                let actions = [Some(route.action), route.other].into_iter().flatten();
                actions.map(move |action| (action.endpoint.role().name(), action.method, route.path))
            })
            .collect();
        let listed = [
            ("viewer", "GET", "admin/state"),
            ("viewer", "GET", "admin/events"),
            ("viewer", "GET", "admin/blocks"),
            ("viewer", "GET", "admin/blocks/map"),
            ("viewer", "GET", "admin/blocks/{id}"),
            ("viewer", "GET", "admin/cache"),
            ("operator", "DELETE", "admin/cache"),
            ("viewer", "GET", "admin/adapters"),
            ("operator", "POST", "admin/adapters"),
            ("operator", "DELETE", "admin/adapters/{name}"),
            ("viewer", "GET", "admin/policies"),
            ("operator", "DELETE", "admin/policies/quarantine/{sha256}"),
            ("operator", "PUT", "admin/policies/{kind}"),
            ("operator", "POST", "admin/policies/{kind}/rollback"),
            ("operator", "POST", "admin/policies/{kind}/promote"),
            ("viewer", "GET", "admin/policies/{kind}/shadow"),
            ("operator", "DELETE", "admin/policies/{kind}/shadow"),
            ("viewer", "GET", "admin/policies/{kind}/history"),
            ("viewer", "GET", "admin/requests/{id}"),
            ("operator", "DELETE", "admin/requests/{id}"),
            ("operator", "DELETE", "admin/queue"),
            ("operator", "POST", "admin/reload"),
            ("operator", "POST", "admin/drain"),
            ("operator", "DELETE", "admin/drain"),
            ("operator", "POST", "admin/trace/start"),
            ("operator", "POST", "admin/trace/stop"),
            ("viewer", "GET", "metrics"),
        ];
        assert_eq!(roles, listed);
        assert!(roles.iter().all(|(role, method, _)| (*role == "viewer") == (*method == "GET")));
    }

    #[test]
    fn a_path_accepts_only_its_methods() {
        let (route, _) = Route::of("/admin/requests/7").unwrap();
        assert!(route.action("GET").is_some() && route.action("DELETE").is_some());
        assert!(route.action("POST").is_none());
        assert_eq!(route.allow, "GET, DELETE");
        let (route, _) = Route::of("/admin/drain").unwrap();
        assert!(route.action("GET").is_none() && route.action("DELETE").is_some());
        assert_eq!(route.allow, "POST, DELETE");
        let (route, _) = Route::of("/admin/state").unwrap();
        assert!(route.action("DELETE").is_none());
        assert_eq!(route.allow, "GET");
    }
}
