//! `POST /admin/trace/start`: a recording, streamed to the client that started it until it is stopped.

use std::sync::Arc;

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use infer_api::trace::{FORMAT, Head, Line};
use infer_core::policy::PolicyInfo;
use infer_core::snapshot::SlotSnapshot;
use tokio::sync::watch;

use crate::admin::operators::Caller;
use crate::app::{App, Served};
use crate::http::{Answer, ApiError, Query, json};
use crate::trace::{Recording, Writer};

/// Default size at which a recording ends.
const DEFAULT_MIB: u64 = 1_024;
const MAX_MIB: u64 = 1 << 20;
/// Most happenings written into one chunk.
const BATCH: usize = 512;

struct Stream {
    app: Arc<App>,
    caller: Caller,
    recording: Recording,
    writer: Writer,
    shutdown: watch::Receiver<bool>,
    max_bytes: u64,
    head: Option<Head>,
}

/// Starts a recording. Its lines are the response's body.
pub async fn start(app: Arc<App>, caller: Caller, query: &Query) -> Result<Answer, ApiError> {
    let decisions = match query.get("decisions") {
        None | Some("off") => false,
        Some("on") => true,
        Some(other) => {
            return Err(ApiError::invalid("decisions", format!("`{other}` is neither `on` nor `off`")));
        }
    };
    let max_mib = match query.get("max_mib") {
        None => DEFAULT_MIB,
        Some(text) => text.parse().ok().filter(|mib| (1..=MAX_MIB).contains(mib)).ok_or_else(|| {
            ApiError::invalid("max_mib", format!("`{text}` is not a whole number from 1 to {MAX_MIB}"))
        })?,
    };
    let served = app.served()?;
    let (recording, live) = begin(&app, served, decisions).await?;
    let Caller { operator, peer } = &caller;
    tracing::info!(operator = operator.name, %peer, decisions, max_mib, "a recording started");
    let for_names = Arc::clone(&app);
    let describe = move |kind, policy: &Arc<PolicyInfo>| match for_names.served() {
        Ok(served) => served.policies.describe(kind, policy),
        Err(_) => crate::trace::describe(kind, policy, None),
    };
    let mut writer = Writer::new(&served.settings, describe);
    let policies = live.iter();
    let head = Head {
        format: FORMAT,
        host: env!("CARGO_PKG_VERSION").to_owned(),
        model: served.model_names[0].clone(),
        device: served.device.clone(),
        at: app.clock.now().0,
        engine: served.settings,
        policies: policies.map(|slot| served.policies.describe(slot.kind, &slot.policy)).collect(),
        tenants: writer.tenants(&app.tenants.terms()),
        decisions,
    };
    let (shutdown, max_bytes) = (app.shutdown.clone(), max_mib << 20);
    let stream = Stream { app, caller, recording, writer, shutdown, max_bytes, head: Some(head) };
    let frames = stream::unfold(Some(stream), |stream| async move {
        let (bytes, rest) = stream?.next().await;
        Some((Ok(Frame::data(bytes.into())), rest))
    });
    let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(answer)
}

/// Starts a recording. Returns it with the policies that are live at its start; it reports later changes itself. If a
/// policy changed in between, starts again, since nothing was read yet.
async fn begin(
    app: &App,
    served: &Served,
    decisions: bool,
) -> Result<(Recording, [SlotSnapshot; 3]), ApiError> {
    let mut before = super::report(app, served).await?.snapshot.policies;
    loop {
        let recording = served.engine.tap().start(decisions).ok_or_else(|| {
            let message = "a recording is already running; stop it with POST /admin/trace/stop";
            ApiError::new(StatusCode::CONFLICT, "already_recording", message)
        })?;
        let after = super::report(app, served).await?.snapshot.policies;
        if before.iter().zip(&after).all(|(before, after)| Arc::ptr_eq(&before.policy, &after.policy)) {
            return Ok((recording, after));
        }
        before = after;
    }
}

/// Ends the recording. Its stream then ends with the last line.
pub fn stop(app: &App, caller: &Caller) -> Result<Answer, ApiError> {
    let stopped = app.served()?.engine.tap().stop();
    let stopped = stopped.ok_or_else(|| {
        let message = "no recording is running; start one with POST /admin/trace/start";
        ApiError::new(StatusCode::CONFLICT, "not_recording", message)
    })?;
    let Caller { operator, peer } = caller;
    let (happenings, lost) = (stopped.happenings, stopped.lost);
    tracing::info!(operator = operator.name, %peer, happenings, lost, "a recording was stopped");
    Ok(json(StatusCode::OK, &stopped))
}

impl Stream {
    /// Returns the next lines, and the stream unless they are the last.
    async fn next(mut self) -> (Vec<u8>, Option<Self>) {
        let mut out = Vec::with_capacity(4_096);
        if let Some(head) = self.head.take() {
            // Sent at once, so that the client knows that the recording has started.
            self.writer.line(&Line::Head(Box::new(head)), &mut out);
            return (out, Some(self));
        }
        // Some happenings, as tokens, write no line.
        while out.is_empty() {
            let first = tokio::select! {
                biased;
                _ = self.shutdown.wait_for(|stop| *stop) => Err("shutdown"),
                () = self.app.operators.dismissed(&self.caller.operator) => Err("dismissed"),
                happening = self.recording.next() => happening.ok_or("stopped"),
            };
            let first = match first {
                Ok(first) => first,
                Err(reason) => return self.end(reason, out),
            };
            let mut next = Some(first);
            let mut taken = 0;
            while let Some(happening) = next.take() {
                self.writer.happened(happening, &mut out);
                if self.writer.written() >= self.max_bytes {
                    return self.end("full", out);
                }
                taken += 1;
                if taken < BATCH {
                    next = self.recording.try_next();
                }
            }
        }
        (out, Some(self))
    }

    fn end(mut self, reason: &str, mut out: Vec<u8>) -> (Vec<u8>, Option<Self>) {
        // Who stops one has a line already.
        if reason != "stopped" {
            let Caller { operator, peer } = &self.caller;
            tracing::info!(operator = operator.name, %peer, reason, "a recording ended");
        }
        self.writer.end(reason, self.app.clock.now(), &mut out);
        (out, None)
    }
}
