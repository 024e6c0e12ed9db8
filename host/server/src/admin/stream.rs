//! `GET /admin/events`: the state at a steady rate, and events as they happen.
//!
//! With `changes=true` only the first snapshot is whole, and changes follow: a console that stays open all day must
//! cost the host next to nothing.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use hyper::body::{Bytes, Frame};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use infer_api::admin::AdminEvent;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::changes::Changes;
use super::operators::Caller;
use crate::app::App;
use crate::http::{Answer, ApiError, Query};

const DEFAULT_HZ: f64 = 4.0;
const MAX_HZ: f64 = 20.0;

struct Feed {
    app: Arc<App>,
    caller: Caller,
    events: broadcast::Receiver<AdminEvent>,
    ticks: Interval,
    shutdown: watch::Receiver<bool>,
    /// Set if the client wants changes instead of snapshots.
    changes: Option<Changes>,
}

/// Starts the stream, which ends with the host, or when its caller is dismissed.
pub fn events(app: Arc<App>, caller: Caller, query: &Query) -> Result<Answer, ApiError> {
    let hz = match query.get("hz") {
        None => DEFAULT_HZ,
        Some(text) => text.parse::<f64>().ok().filter(|hz| (0.1..=MAX_HZ).contains(hz)).ok_or_else(|| {
            ApiError::invalid("hz", format!("`{text}` is not a number from 0.1 to {MAX_HZ}"))
        })?,
    };
    let changes = match query.get("changes") {
        None | Some("false") => None,
        Some("true" | "") => Some(Changes::of(caller.info())),
        Some(other) => {
            return Err(ApiError::invalid("changes", format!("`{other}` is neither true nor false")));
        }
    };
    let events = app.served()?.engine.observer().subscribe();
    let mut ticks = interval(Duration::from_secs_f64(1.0 / hz));
    // After a long step, snapshots resume at the usual rate instead of in a burst.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let shutdown = app.shutdown.clone();
    let feed = Feed { app, caller, events, ticks, shutdown, changes };
    let frames = stream::unfold(feed, |mut feed| async move {
        let event = feed.next().await?;
        Some((Ok(Frame::data(frame(&event))), feed))
    });
    let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(answer)
}

impl Feed {
    async fn next(&mut self) -> Option<AdminEvent> {
        loop {
            tokio::select! {
                biased;
                () = stopped(&mut self.shutdown) => return None,
                () = self.app.operators.dismissed(&self.caller.operator) => return None,
                event = self.events.recv() => {
                    let event = match event {
                        Ok(event) => event,
                        Err(RecvError::Lagged(missed)) => AdminEvent::Lagged { missed },
                        Err(RecvError::Closed) => return None,
                    };
                    match &mut self.changes {
                        None => return Some(event),
                        Some(changes) => if let Some(event) = changes.take(event) {
                            return Some(event);
                        }
                    }
                }
                _ = self.ticks.tick() => {
                    let state = match &mut self.changes {
                        None => {
                            let state = super::state(&self.app, &self.caller).await;
                            state.map(|state| AdminEvent::Snapshot(Box::new(state)))
                        }
                        Some(changes) => changes.next(&self.app).await,
                    };
                    if let Ok(event) = state {
                        return Some(event);
                    }
                    if !self.app.served().is_ok_and(|served| served.engine.is_alive()) {
                        return None;
                    }
                }
            }
        }
    }
}

async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|stop| *stop).await;
}

/// Formats a server-sent event: the variant's name as the event, its content as the data.
fn frame(event: &AdminEvent) -> Bytes {
    let mut frame = format!("event: {}\ndata: ", event.name()).into_bytes();
    // Large or frequent events are written directly; the rest may take the detour over a `Value`.
    let written = match event {
        AdminEvent::Snapshot(state) => serde_json::to_writer(&mut frame, state),
        AdminEvent::Change(change) => serde_json::to_writer(&mut frame, change),
        other => {
            serde_json::to_value(other).and_then(|value| serde_json::to_writer(&mut frame, &value["data"]))
        }
    };
    written.expect("wire types can be written as JSON");
    frame.extend_from_slice(b"\n\n");
    frame.into()
}
