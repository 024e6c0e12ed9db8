//! Which path of the admin plane answers what, after the token was checked.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, StatusCode};
use infer_core::policy::PolicyKind;

use super::token::Token;
use super::{inspect, policies, requests, stream, trace};
use crate::app::App;
use crate::http::{Answer, ApiError, Query, RequestId, discard, json};

/// Answers one request.
pub async fn route(app: Arc<App>, token: Arc<Token>, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let mut body = Some(body);
    let request_id = RequestId::of(&head.headers);
    let answer = match authorize(&head.headers, &token) {
        Ok(()) => dispatch(app, &head, &mut body).await,
        Err(error) => Err(error),
    };
    let mut answer = answer.unwrap_or_else(ApiError::into_answer);
    discard(body, &mut answer);
    answer.headers_mut().insert("x-request-id", request_id.header());
    answer
}

fn authorize(headers: &HeaderMap, token: &Token) -> Result<(), ApiError> {
    let given = headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok());
    let bearer = given.and_then(|v| {
        let (scheme, rest) = v.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim())
    });
    if bearer.is_some_and(|given| token.matches(given)) {
        return Ok(());
    }
    let message = "the admin plane needs `Authorization: Bearer TOKEN`; the token is INFER_ADMIN_TOKEN's, or \
                   stands in the file that the host named at its start";
    Err(ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message))
}

async fn dispatch(app: Arc<App>, head: &Parts, body: &mut Option<Incoming>) -> Result<Answer, ApiError> {
    let path = head.uri.path().to_owned();
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let raw_query = head.uri.query().map(str::to_owned);
    let query = |known: &[&str]| Query::parse(raw_query.as_deref(), known);
    let method = head.method.clone();
    let only = |allowed: &Method, allow: &'static str| {
        if method == *allowed { Ok(()) } else { Err(ApiError::method_not_allowed(&path, allow)) }
    };
    match parts.as_slice() {
        ["admin", "state"] => {
            only(&Method::GET, "GET")?;
            query(&[])?;
            Ok(json(StatusCode::OK, &super::state(&app).await?))
        }
        ["admin", "events"] => {
            only(&Method::GET, "GET")?;
            stream::events(app, &query(&["hz", "changes"])?)
        }
        ["admin", "blocks"] => {
            only(&Method::GET, "GET")?;
            query(&[])?;
            requests::blocks(&app).await
        }
        ["admin", "blocks", "map"] => {
            only(&Method::GET, "GET")?;
            inspect::map(&app, &query(&["by", "cells", "from", "count"])?).await
        }
        ["admin", "blocks", id] => {
            only(&Method::GET, "GET")?;
            query(&[])?;
            inspect::block(&app, id).await
        }
        ["admin", "cache"] => {
            only(&Method::GET, "GET")?;
            inspect::cache(&app, &query(&["top"])?).await
        }
        ["admin", "policies"] => {
            only(&Method::GET, "GET")?;
            query(&[])?;
            policies::list(&app).await
        }
        ["admin", "policies", "quarantine", sha256] => {
            only(&Method::DELETE, "DELETE")?;
            query(&[])?;
            policies::lift_quarantine(&app, sha256)
        }
        ["admin", "policies", kind] => {
            only(&Method::PUT, "PUT")?;
            let kind = policy_kind(kind)?;
            let query = query(&["mode", "config", "window_s", "force", "of"])?;
            policies::swap(app, kind, &query, &head.headers, body).await
        }
        ["admin", "policies", kind, "rollback"] => {
            only(&Method::POST, "POST")?;
            policies::rollback(app, policy_kind(kind)?, &query(&["of"])?).await
        }
        ["admin", "policies", kind, "promote"] => {
            only(&Method::POST, "POST")?;
            policies::promote(app, policy_kind(kind)?, &query(&["of"])?).await
        }
        ["admin", "policies", kind, "shadow"] => {
            let kind = policy_kind(kind)?;
            query(&[])?;
            match method {
                Method::GET => policies::shadow(&app, kind).await,
                Method::DELETE => policies::stop_shadow(app, kind).await,
                _ => Err(ApiError::method_not_allowed(&path, "GET, DELETE")),
            }
        }
        ["admin", "policies", kind, "history"] => {
            only(&Method::GET, "GET")?;
            query(&[])?;
            policies::history(&app, policy_kind(kind)?)
        }
        ["admin", "requests", id] => match method {
            Method::GET => {
                query(&[])?;
                inspect::request(&app, id).await
            }
            Method::DELETE => requests::cancel(&app, id, &query(&["by"])?).await,
            _ => Err(ApiError::method_not_allowed(&path, "GET, DELETE")),
        },
        ["admin", "queue"] => {
            only(&Method::DELETE, "DELETE")?;
            query(&[])?;
            requests::clear_queue(&app).await
        }
        ["admin", "reload"] => {
            only(&Method::POST, "POST")?;
            query(&[])?;
            requests::reload(app).await
        }
        ["admin", "drain"] => {
            only(&Method::POST, "POST")?;
            query(&[])?;
            requests::drain(&app)
        }
        ["admin", "trace", "start"] => {
            only(&Method::POST, "POST")?;
            trace::start(app, &query(&["decisions", "max_mib"])?).await
        }
        ["admin", "trace", "stop"] => {
            only(&Method::POST, "POST")?;
            query(&[])?;
            trace::stop(&app)
        }
        _ => {
            let shown: String = path.chars().take(128).collect();
            Err(ApiError::not_found(format!("no such path on the admin plane: {shown}")))
        }
    }
}

fn policy_kind(name: &str) -> Result<PolicyKind, ApiError> {
    PolicyKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        let shown: String = name.chars().take(64).collect();
        ApiError::not_found(format!(
            "no policy slot `{shown}`; there are scheduler, admission and prefix-cache"
        ))
    })
}
