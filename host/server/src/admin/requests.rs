//! Blocks, cancelling requests, clearing the queue, reloading, draining and taking that back.

use std::sync::Arc;

use hyper::StatusCode;
use infer_api::admin::Blocks;
use infer_core::SequenceId;
use serde_json::json as value;

use super::operators::Caller;
use super::order::Order;
use super::state::asked;
use crate::app::App;
use crate::engine::Wanted;
use crate::http::{Answer, ApiError, Query, json};

/// `GET /admin/blocks`.
pub async fn blocks(app: &App) -> Result<Answer, ApiError> {
    let served = app.served()?;
    let all = asked(app, served.engine.inspect(|engine, _| engine.blocks())).await?;
    let now = app.clock.now();
    let mut blocks = Blocks { block_size: served.block_size, ..Blocks::default() };
    blocks.states.reserve(all.len());
    for block in &all {
        blocks.states.push(match (block.references, block.indexed) {
            (0, false) => 'f',
            (0, true) => 'c',
            (1, _) => 'u',
            _ => 's',
        });
        let free = block.references == 0 && !block.indexed;
        blocks.references.push(block.references);
        blocks.owners.push(block.owner.map_or(0, |id| id.0));
        blocks.depths.push(block.depth);
        blocks.tenants.push(block.tenant.0);
        blocks.ages_ms.push(if free { 0 } else { now.since(block.last_used).0 / 1_000 });
    }
    Ok(json(StatusCode::OK, &blocks))
}

/// `DELETE /admin/requests/{id}`: the engine's id of a sequence, or an `x-request-id`, which cancels all choices.
///
/// A number is always the engine's id, even if no such sequence is live: otherwise a client that numbers its requests
/// could lose one when a sequence of that number has just ended. `?by=request_id` finds those. Clients may give several
/// requests the same name; `?by=first_id` means the one whose first sequence has, or had, this id, with all its choices.
pub async fn cancel(app: &App, caller: &Caller, id: &str, query: &Query) -> Result<Answer, ApiError> {
    let served = app.served()?;
    let wanted = match query.get("by") {
        None => Wanted::of(id),
        Some("request_id") => Wanted::Name(id.to_owned()),
        Some("first_id") => match id.parse() {
            Ok(first) => Wanted::Whole(SequenceId(first)),
            Err(_) => return Err(ApiError::invalid("by", "`first_id` takes a number")),
        },
        Some(other) => {
            let message = format!("`{other}` is neither `request_id` nor `first_id`");
            return Err(ApiError::invalid("by", message));
        }
    };
    let order = Order::of(caller, "cancel a request");
    let cancelled = order.done(app, served.engine.cancel(wanted)).await?;
    let cancelled: Vec<u64> = cancelled.into_iter().map(|id| id.0).collect();
    let Some(first) = cancelled.first() else {
        return Err(unknown(id));
    };
    let Caller { operator, peer } = caller;
    let sequences = cancelled.len();
    tracing::info!(operator = operator.name, %peer, id = first, sequences, "an operator cancelled a request");
    Ok(json(StatusCode::OK, &value!({"id": first, "ids": cancelled, "cancelled": true})))
}

/// The answer about a request that is not live, or never was.
pub(super) fn unknown(id: &str) -> ApiError {
    let shown: String = id.chars().take(128).collect();
    ApiError::not_found(format!(
        "no live request `{shown}`; `infer admin requests` lists them, as does `requests` of /admin/state"
    ))
}

/// `DELETE /admin/queue`.
pub async fn clear_queue(app: &App, caller: &Caller) -> Result<Answer, ApiError> {
    let served = app.served()?;
    let message = "an operator cleared the queue; try again later".to_owned();
    let order = Order::of(caller, "clear the queue");
    let cleared = order.done(app, served.engine.clear_queue(message)).await?;
    let Caller { operator, peer } = caller;
    tracing::info!(operator = operator.name, %peer, cleared, "an operator cleared the queue");
    Ok(json(StatusCode::OK, &value!({"cleared": cleared})))
}

/// `POST /admin/reload`: does what SIGHUP does. 422 if anything could not be reloaded.
pub async fn reload(app: Arc<App>, caller: &Caller) -> Result<Answer, ApiError> {
    let by = caller.by();
    tracing::info!(operator = by.operator, peer = %by.peer, "an operator asked for a reload");
    // In a task of its own: a reload is completed even if its client disconnects.
    let task = tokio::spawn(async move { crate::reload::reload(&app, Some(&by)).await });
    let outcomes = task.await.map_err(|e| ApiError::internal("reload", format!("the reload failed: {e}")))?;
    let wrong = outcomes.iter().any(|outcome| outcome.error.is_some());
    let status = if wrong { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    Ok(json(status, &value!({"reloaded": outcomes})))
}

/// `POST /admin/drain`. The host stays up, but not ready, until it is stopped or the drain is taken back.
pub fn drain(app: &App, caller: &Caller) -> Result<Answer, ApiError> {
    let Caller { operator, peer } = caller;
    tracing::info!(operator = operator.name, %peer, "an operator drains the host");
    app.drain();
    let live = app.served().map_or(0, |served| served.engine.live());
    Ok(json(StatusCode::OK, &value!({"draining": true, "live_requests": live})))
}

/// `DELETE /admin/drain`: takes new requests again. 409 if the host is shutting down.
pub fn undrain(app: &App, caller: &Caller) -> Result<Answer, ApiError> {
    let Caller { operator, peer } = caller;
    tracing::info!(operator = operator.name, %peer, "an operator takes a drain back");
    if !app.undrain() {
        let message = "the host is shutting down, which nothing takes back; start it again once it has ended";
        return Err(ApiError::new(StatusCode::CONFLICT, "shutting_down", message));
    }
    Ok(json(StatusCode::OK, &value!({"draining": false})))
}
