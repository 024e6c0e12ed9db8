//! The adapters over HTTP: list, load, unload.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{HeaderMap, StatusCode};
use infer_api::admin::{AdapterOrder, AdapterUnloaded};
use infer_api::unique;

use super::operators::Caller;
use super::policies::dismissed;
use crate::adapters::{AdapterError, LoadOrder, LoadedAdapter, Remedy};
use crate::app::App;
use crate::http::{
    Answer, ApiError, BodyLimits, Room, check_content_encoding, json, path_text, read_body, shortened,
};

/// A name and a path.
const MAX_BODY_BYTES: usize = 64 << 10;
/// Longest path that can be opened on Linux. Errors quote it.
const MAX_PATH_BYTES: usize = 4_096;
const BODY_TIME: Duration = Duration::from_secs(60);

/// `GET /admin/adapters`.
pub fn list(app: &App) -> Result<Answer, ApiError> {
    Ok(json(StatusCode::OK, &app.served()?.adapters.list()))
}

/// `POST /admin/adapters`. Responds once requests may name the adapter.
pub async fn load(
    app: Arc<App>,
    caller: &Caller,
    headers: &HeaderMap,
    body: &mut Option<Incoming>,
) -> Result<Answer, ApiError> {
    app.served()?;
    check_content_encoding(headers)?;
    let limits =
        BodyLimits { max_bytes: MAX_BODY_BYTES, room: Room::alone(MAX_BODY_BYTES), timeout: BODY_TIME };
    let body = tokio::select! {
        biased;
        () = app.operators.dismissed(&caller.operator) => return Err(dismissed()),
        body = read_body(headers, body.take().expect("the body is read once"), limits) => body?,
    };
    let order = parse(&body)?;
    let by = caller.by();
    // In a task of its own: a load is completed even if its client disconnects.
    let task = tokio::spawn(async move {
        let loaded = app.served()?.adapters.load(order).await;
        let LoadedAdapter { row, pause_us } = loaded.map_err(refused)?;
        tracing::info!(
            operator = by.operator,
            peer = %by.peer,
            adapter = row.name,
            path = row.path,
            rank = row.rank,
            bytes = row.bytes,
            pause_us,
            "an operator loaded an adapter"
        );
        Ok::<_, ApiError>(row)
    });
    Ok(json(StatusCode::OK, &done(task).await?))
}

/// `DELETE /admin/adapters/{name}`. Responds once the adapter is gone, which waits for the requests that use it.
pub async fn unload(app: Arc<App>, caller: &Caller, name: &str) -> Result<Answer, ApiError> {
    let (name, by) = (path_text(name), caller.by());
    // In a task of its own: who has begun to wait for requests must not stop.
    let task = tokio::spawn(async move {
        let adapters = &app.served()?.adapters;
        let leaving = adapters.retire(&name).map_err(refused)?;
        let (operator, peer, live) = (&by.operator, by.peer, leaving.live());
        tracing::info!(operator, %peer, adapter = name, live, "an operator unloads an adapter");
        let (row, forgotten) = adapters.remove(&leaving).await.map_err(refused)?;
        let (dropped, offloaded) = (forgotten.cached, forgotten.offloaded);
        tracing::info!(operator, %peer, adapter = name, dropped, offloaded, "an adapter was unloaded");
        Ok::<_, ApiError>(AdapterUnloaded {
            adapter: row,
            dropped_blocks: dropped,
            dropped_offloaded_blocks: offloaded,
        })
    });
    Ok(json(StatusCode::OK, &done(task).await?))
}

async fn done<T>(task: tokio::task::JoinHandle<Result<T, ApiError>>) -> Result<T, ApiError> {
    task.await.map_err(|e| ApiError::internal("adapter", format!("it failed: {e}")))?
}

fn parse(body: &[u8]) -> Result<LoadOrder, ApiError> {
    let value = unique::parse(body)
        .map_err(|e| ApiError::bad_request("invalid_json", format!("the body is not valid JSON: {e}")))?;
    let AdapterOrder { name, path } = serde_json::from_value(value).map_err(|e| {
        let why = shortened(&e.to_string());
        let message = format!("expected {{\"name\": .., \"path\": ..}}: {why}");
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_value", message)
    })?;
    if path.len() > MAX_PATH_BYTES {
        return Err(ApiError::invalid("path", format!("a path has at most {MAX_PATH_BYTES} bytes")));
    }
    Ok(LoadOrder { name, place: path })
}

fn refused(error: AdapterError) -> ApiError {
    let (code, message) = (error.code(), error.to_string());
    let status = match error.remedy() {
        Remedy::Missing => StatusCode::NOT_FOUND,
        Remedy::Request => StatusCode::UNPROCESSABLE_ENTITY,
        Remedy::State => StatusCode::CONFLICT,
        Remedy::Machine => return ApiError::unavailable_here(code, message),
    };
    let refused = ApiError::new(status, code, message);
    match error {
        AdapterError::Name(_) | AdapterError::NameOfModel(_) | AdapterError::NameTaken(..) => {
            refused.param("name")
        }
        AdapterError::Place(_) => refused.param("path"),
        _ => refused,
    }
}
