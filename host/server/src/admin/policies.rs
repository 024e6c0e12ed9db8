//! The policy slots over HTTP: list, swap, shadow, canary, rollback, promote, history, quarantine.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, StatusCode};
use infer_api::admin::{Policies, SwapAnswer, SwapRequest};
use infer_api::unique;
use infer_core::Micros;
use infer_core::engine::CANARY_WINDOW;
use infer_core::policy::PolicyKind;
use infer_wasm::LoadError;
use serde_json::{Value, json as object};

use super::operators::Caller;
use super::state;
use crate::app::App;
use crate::engine::SwapMode;
use crate::http::{
    Answer, ApiError, BodyLimits, Query, Room, check_content_encoding, json, read_body, shortened,
};
use crate::policies::{PolicyError, PolicySource, SwapOrder, empty, list_members};

/// Slightly more than the 8 MiB that the loader accepts, so that it can report the size.
const MAX_BODY_BYTES: usize = (8 << 20) + 4_096;
/// Range of a canary's window, in seconds.
pub const CANARY_WINDOW_S: std::ops::RangeInclusive<f64> = 1.0..=300.0;

/// `GET /admin/policies`.
pub async fn list(app: &App) -> Result<Answer, ApiError> {
    let served = app.served()?;
    let report = state::report(app, served).await?;
    let slots = state::slots(served, &report.snapshot, report.at);
    let available = served.policies.available().await;
    let quarantine = served.engine.observer().quarantine().list();
    let keeper = served.policies.keeper();
    let not_saved = keeper.and_then(|keeper| keeper.error());
    let not_restored = keeper.map(|keeper| keeper.not_restored()).unwrap_or_default();
    let restored = keeper.map(|keeper| keeper.restored()).unwrap_or_default();
    Ok(json(StatusCode::OK, &Policies { slots, available, quarantine, not_saved, not_restored, restored }))
}

/// `PUT /admin/policies/{kind}`.
pub async fn swap(
    app: Arc<App>,
    caller: &Caller,
    kind: PolicyKind,
    query: &Query,
    headers: &HeaderMap,
    body: &mut Option<Incoming>,
) -> Result<Answer, ApiError> {
    app.served()?;
    let (mode, force) = (swap_mode(query)?, force(query)?);
    check_content_encoding(headers)?;
    let of = query.get("of").map(str::to_owned);
    let limits = BodyLimits {
        max_bytes: MAX_BODY_BYTES,
        room: Room::alone(MAX_BODY_BYTES),
        timeout: Duration::from_secs(60),
    };
    let body = tokio::select! {
        biased;
        // An upload may take a minute.
        () = app.operators.dismissed(&caller.operator) => return Err(dismissed()),
        body = read_body(headers, body.take().expect("the body is read once"), limits) => body,
    };
    let body = body.map_err(|error| match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let message = "a component has at most 8 MiB";
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message).close()
        }
        _ => error,
    })?;
    let (source, config) = if is_json(headers, &body) {
        by_name(&body, query)?
    } else if body.is_empty() {
        return Err(ApiError::bad_request(
            "empty_body",
            "the body is empty; send a component, or JSON with a name",
        ));
    } else {
        let config = match query.get("config") {
            None => empty(),
            Some(text) => config_object(unique::parse(text.as_bytes()).map_err(|e| {
                ApiError::bad_request("invalid_json", format!("config: not valid JSON: {e}"))
            })?)?,
        };
        (PolicySource::Component(body[..].into()), config)
    };
    let order = SwapOrder { source, config, mode, force, of, by: Some(caller.by()) };
    // In a task of its own: a swap is completed even if its client disconnects.
    let task = tokio::spawn(async move { app.served()?.policies.swap(kind, order).await.map_err(refused) });
    answer(task).await
}

/// 401 for a body that came too late.
pub(super) fn dismissed() -> ApiError {
    let message = "a reload took this token away, or its role, before the body was there";
    ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message).close()
}

/// Whether a body is JSON, by its content type or by its first byte, with which no component begins.
fn is_json(headers: &HeaderMap, body: &[u8]) -> bool {
    let declared = headers
        .get(CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .is_some_and(|v| v.trim().to_ascii_lowercase().starts_with("application/json"));
    declared || matches!(body.trim_ascii_start(), [b'{' | b'[', ..])
}

fn swap_mode(query: &Query) -> Result<SwapMode, ApiError> {
    let window = query.get("window_s").map(|text| {
        let seconds = text.parse::<f64>().ok().filter(|s| CANARY_WINDOW_S.contains(s));
        seconds.map(|s| Micros((s * 1e6) as u64)).ok_or_else(|| {
            let (least, most) = (CANARY_WINDOW_S.start(), CANARY_WINDOW_S.end());
            ApiError::invalid(
                "window_s",
                format!("`{text}` is not a number of seconds from {least} to {most}"),
            )
        })
    });
    let mode = match query.get("mode") {
        None | Some("now") => SwapMode::Now,
        Some("shadow") => SwapMode::Shadow,
        Some("canary") => return Ok(SwapMode::Canary(window.transpose()?.unwrap_or(CANARY_WINDOW))),
        Some(mode) => {
            return Err(ApiError::invalid("mode", format!("`{mode}` is not one of now, shadow, canary")));
        }
    };
    if window.is_some() {
        return Err(ApiError::invalid("window_s", "only a canary has a window; add mode=canary"));
    }
    Ok(mode)
}

fn force(query: &Query) -> Result<bool, ApiError> {
    match query.get("force") {
        None | Some("false") => Ok(false),
        Some("true" | "") => Ok(true),
        Some(other) => Err(ApiError::invalid("force", format!("`{other}` is neither true nor false"))),
    }
}

fn by_name(body: &[u8], query: &Query) -> Result<(PolicySource, Value), ApiError> {
    let value = unique::parse(body)
        .map_err(|e| ApiError::bad_request("invalid_json", format!("the body is not valid JSON: {e}")))?;
    if query.get("config").is_some() {
        return Err(ApiError::invalid("config", "put it into the JSON body, beside the name"));
    }
    match value {
        Value::Array(members) => {
            let members = members.into_iter().map(by_name_one).collect::<Result<Vec<_>, _>>()?;
            Ok((PolicySource::List(members), Value::Null))
        }
        one => match by_name_one(one)? {
            (PolicySource::Name(names), config) if names.contains(',') => by_names(&names, &config),
            one => Ok(one),
        },
    }
}

/// Parses a list as `--admission` takes it, `a,b`, with the configurations under the names.
fn by_names(names: &str, config: &Value) -> Result<(PolicySource, Value), ApiError> {
    let members = list_members(names, config);
    let members = members.map_err(|why| ApiError::invalid("config", shortened(&why)))?;
    let member = |(name, config): (&str, Value)| (PolicySource::Name(name.to_owned()), config);
    Ok((PolicySource::List(members.into_iter().map(member).collect()), Value::Null))
}

fn by_name_one(value: Value) -> Result<(PolicySource, Value), ApiError> {
    let request: SwapRequest = serde_json::from_value(value).map_err(|e| {
        let why = shortened(&e.to_string());
        let message = format!("expected {{\"name\": .., \"config\": {{..}}}}: {why}");
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_value", message)
    })?;
    let config = config_object(request.config.unwrap_or(Value::Null))?;
    Ok((PolicySource::Name(request.name), config))
}

fn config_object(config: Value) -> Result<Value, ApiError> {
    match config {
        Value::Null => Ok(empty()),
        Value::Object(_) => Ok(config),
        _ => Err(ApiError::invalid("config", "expected a JSON object")),
    }
}

/// `POST /admin/policies/{kind}/rollback`.
pub async fn rollback(
    app: Arc<App>,
    caller: &Caller,
    kind: PolicyKind,
    query: &Query,
) -> Result<Answer, ApiError> {
    let (of, by) = (query.get("of").map(str::to_owned), Some(caller.by()));
    let task = tokio::spawn(async move {
        app.served()?.policies.rollback(kind, of.as_deref(), by).await.map_err(refused)
    });
    answer(task).await
}

/// `POST /admin/policies/{kind}/promote`.
pub async fn promote(
    app: Arc<App>,
    caller: &Caller,
    kind: PolicyKind,
    query: &Query,
) -> Result<Answer, ApiError> {
    let (of, by) = (query.get("of").map(str::to_owned), Some(caller.by()));
    let task = tokio::spawn(async move {
        app.served()?.policies.promote(kind, of.as_deref(), by).await.map_err(refused)
    });
    answer(task).await
}

/// `GET /admin/policies/{kind}/shadow`.
pub async fn shadow(app: &App, kind: PolicyKind) -> Result<Answer, ApiError> {
    let served = app.served()?;
    let report = state::report(app, served).await?;
    let slot = report.snapshot.policies.iter().find(|slot| slot.kind == kind);
    let shadow = slot.and_then(|slot| state::shadow(served, slot));
    let shadow = shadow.ok_or_else(|| ApiError::not_found(format!("the {kind} slot has had no shadow")))?;
    Ok(json(StatusCode::OK, &shadow))
}

/// `DELETE /admin/policies/{kind}/shadow`. Responds with the final report.
pub async fn stop_shadow(app: Arc<App>, caller: &Caller, kind: PolicyKind) -> Result<Answer, ApiError> {
    app.served()?.policies.stop_shadow(kind, Some(caller.by())).await.map_err(refused)?;
    shadow(&app, kind).await
}

/// `DELETE /admin/policies/quarantine/{sha256}`.
pub async fn lift_quarantine(app: &App, caller: &Caller, sha256: &str) -> Result<Answer, ApiError> {
    let policies = &app.served()?.policies;
    if policies.lift_quarantine(sha256, Some(&caller.by())) {
        let mut lifted = object!({"lifted": sha256});
        if let Some(why) = policies.not_saved().await {
            lifted["not_saved"] = why.into();
        }
        return Ok(json(StatusCode::OK, &lifted));
    }
    let shown: String = sha256.chars().take(64).collect();
    Err(ApiError::not_found(format!("no component `{shown}` is in quarantine")))
}

async fn answer(task: tokio::task::JoinHandle<Result<SwapAnswer, ApiError>>) -> Result<Answer, ApiError> {
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
        PolicyError::Load(LoadError::Machine(_)) => {
            ApiError::unavailable_here(error.check(), error.to_string())
        }
        PolicyError::NoPrevious(_)
        | PolicyError::PreviousQuarantined { .. }
        | PolicyError::NotThere { .. }
        | PolicyError::Overtaken { .. }
        | PolicyError::OtherOnTrial(_)
        | PolicyError::NothingToPromote(_)
        | PolicyError::NoShadow(_) => ApiError::new(StatusCode::CONFLICT, error.check(), error.to_string()),
        PolicyError::Quarantined { .. } => {
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, error.check(), error.to_string())
        }
        _ => {
            let message = format!("{} check: {error}", error.check());
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, error.check(), message)
        }
    }
}
